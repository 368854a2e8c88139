"""Who gets what of tls.existingSecret."""

from .rendering import Object, containers, find, merged, pods, render, values_of

TLS: Object = {"tls": {"existingSecret": "certificates", "serveRollout": True}}
PREPARED: Object = {"prepare": {"enabled": True, "script": "true"}}


def _seen(values: Object) -> dict[str, list[str] | None]:
    """Component → keys of the secret that its containers see; None: all of them."""
    seen: dict[str, list[str] | None] = {}
    for _, pod in pods(render(values)):
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        volumes = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "tls"]
        mounts = [m for c in containers(pod) for m in c.get("volumeMounts", []) if m["name"] == "tls"]
        assert [mount["mountPath"] for mount in mounts] == ["/etc/grpo/tls"] * len(volumes)
        seen[component] = []
        for volume in volumes:
            assert volume["secret"]["secretName"] == "certificates"
            items = volume["secret"].get("items")
            seen[component] = [item["key"] for item in items] if items else None
    return seen


def test_only_those_who_serve_with_it_have_the_key() -> None:
    callers = {"trainer": ["ca.crt"], "test": ["ca.crt"]}
    small = _seen(merged(values_of("small"), TLS, PREPARED))
    assert small == {"rollout": None, "reward": [], "prepare": [], **callers}
    assert set(map(str, _seen(values_of("small")).values())) == {"[]"}
    ray = _seen(merged(values_of("ray-rewards"), TLS))
    assert (ray["reward"], ray["reward-ray"]) == ([], [])


def test_a_certificate_of_a_public_authority_needs_no_ca() -> None:
    """A key that is named and is not there keeps a pod from starting, unless it is optional."""
    objects = render(merged(values_of("small"), TLS))
    for pod in (find(objects, "Pod"), find(objects, "Job", "")["spec"]["template"]):
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "tls"]
        assert volume["secret"]["optional"] is True


def test_helm_test_reads_the_authority_where_it_is_mounted() -> None:
    container = find(render(merged(values_of("small"), TLS)), "Pod")["spec"]["containers"][0]
    assert {"name": "CA_FILE", "value": "/etc/grpo/tls/ca.crt"} in container["env"]
