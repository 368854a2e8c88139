"""What the chart's values may hold: a pydantic model of all that is Kubernetes, around the services' own settings.

`make_values_schema.py` writes values.schema.json from it. Names are camelCase in the values, as in Kubernetes; inside
`trainer.run` and `reward.settings` they are the services' own names, because there the services' own models apply.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Of a user or a group."""
Port = Annotated[int, Field(ge=1, le=65535)]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|[KMGTP]i?)?$")]
Object = dict[str, Any]
Strings = dict[str, str]
Manifests = Annotated[list[Object], Field(default_factory=list)]
"""A list of pieces of Kubernetes' own API, passed through as they are."""


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class PullSecret(Part):
    """As Kubernetes has it, and most charts beside this one."""

    # The schema requires no key, and this has no other.
    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    name: str = Field(min_length=1)


class Global(Part):
    """Shared with the charts beside this one, below a chart of yours: what is theirs passes."""

    model_config = ConfigDict(extra="allow")

    image_registry: str = Field("", description="Replaces image.registry here and in every chart beside this one.")
    image_pull_secrets: list[str | PullSecret] = Field(
        default_factory=list, description="Names of secrets, or objects with a name, before image.pullSecrets."
    )


class Images(Part):
    """Where the images are pulled from."""

    registry: str = Field("", description="Host and owner, such as ghcr.io/OWNER; docs/releases.md.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: list[str | PullSecret] = Field(
        default_factory=list, description="Secrets in the release's namespace: names, or objects with a name."
    )


class Image(Part):
    repository: str = Field(min_length=1, description="Name below the registry.")
    tag: str = Field("", description="The chart's appVersion when empty; ignored when there is a digest.")
    digest: str = Field("", pattern=r"^(sha256:[0-9a-f]{64})?$", description="What is pulled, when it is given.")


class Auth(Part):
    existing_secret: str = Field(
        "", description="Secret with the API token of all three services; the chart never makes one."
    )
    key: str = Field("token", min_length=1, description="Key inside the secret.")
    also_key: str = Field(
        "token-also",
        min_length=1,
        description="Key, which may be missing, of a second token that servers take as well while you change to it.",
    )
    ray_key: str = Field(
        "ray-token", min_length=1, description="Key inside the secret of what Ray asks for, with reward.executor ray."
    )


class Tls(Part):
    """Certificates from a secret, for clients from outside; docs/kubernetes.md says when that is not the way."""

    existing_secret: str = Field(
        "", description="Secret of type kubernetes.io/tls, at /etc/grpo/tls: the trainer sees ca.crt only."
    )
    serve_rollout: bool = Field(False, description="The rollout servers serve HTTPS with it.")


class ServiceAccount(Part):
    create: bool = True
    name: str = Field("", description="The release's full name when empty.")
    annotations: Strings = Field(default_factory=dict)


class PodSecurityContext(Part):
    """Who the pods run as. null leaves a key out; the rest of the restricted profile stays as it is."""

    run_as_user: Annotated[Id, Field(ge=1)] | None = Field(
        10001, description="null: the image's user, or the cluster's choice."
    )
    run_as_group: Id | None = Field(10001, description="null: the image's group, or the cluster's choice.")
    fs_group: Id | None = Field(
        10001, description="Group that may write to the volumes; null: nothing is done to their files."
    )
    supplemental_groups: list[Id] = Field(default_factory=list, description="Such as those that own an NFS share.")


class Probe(Part):
    period_seconds: AtLeastOne = 10
    timeout_seconds: AtLeastOne = 5
    failure_threshold: AtLeastOne = 3


class Probes(Part):
    """startup bounds the time until /livez first answers, liveness follows the heartbeat, readiness the weights."""

    enabled: bool = True
    startup: Probe
    liveness: Probe
    readiness: Probe


class Resources(Part):
    requests: dict[str, str | int | float] = Field(default_factory=dict)
    limits: dict[str, str | int | float] = Field(default_factory=dict)


class Ingress(Part):
    """A way in from outside the cluster, with TLS."""

    enabled: bool = False
    class_name: str = ""
    annotations: Strings = Field(default_factory=dict)
    host: str = ""
    tls_secret: str = Field("", description="Secret with the certificate of `host`; without it there is no TLS.")


class Budget(Part):
    enabled: bool = True
    max_unavailable: AtLeastOne | Annotated[str, Field(pattern=r"^([1-9][0-9]?|100)%$")] = 1


class Pod(Part):
    """What every pod of the chart can be given."""

    image: Image
    gpus: Count = Field(0, description="Devices of one pod; requests and limits alike.")
    gpu_resource: str = Field("nvidia.com/gpu", description="Name of the device plug-in's resource; MIG has others.")
    resources: Resources
    extra_resources: dict[str, int | str] = Field(
        default_factory=dict,
        description="Requested and limited alike, such as rdma/hca_shared: 1 or hugepages-2Mi: 5120Mi.",
    )
    resource_claims: Manifests = Field(description="Dynamic resource allocation: the pod's resourceClaims.")
    add_capabilities: list[str] = Field(
        default_factory=list, description="Linux capabilities on top of none; user 10001 has none of them in effect."
    )
    shm_size: Quantity = Field("1Gi", description="Of /dev/shm; it counts against the memory limit.")
    cache_size: Quantity = Field("10Gi", description="Of /cache: compiled kernels and downloads of this pod.")
    tmp_size: Quantity = Field(
        "10Gi", description="Of /tmp; a pod that writes more is evicted, and not its neighbours."
    )
    probes: Probes
    termination_grace_period_seconds: AtLeastOne = 60
    runtime_class_name: str = ""
    scheduler_name: str = ""
    priority_class_name: str = ""
    node_selector: Strings = Field(default_factory=dict)
    tolerations: Manifests
    affinity: Object = Field(default_factory=dict)
    topology_spread_constraints: Manifests
    pod_annotations: Strings = Field(default_factory=dict)
    pod_labels: Strings = Field(default_factory=dict)
    extra_env: Manifests
    extra_volumes: Manifests
    extra_volume_mounts: Manifests
    egress: Manifests = Field(description="Further NetworkPolicy egress rules of these pods.")
    allow_from: Manifests = Field(description="Further NetworkPolicy peers that may call these pods.")


class Server(Pod):
    """What all servers of a kind can be given together."""

    workload_labels: Strings = Field(
        default_factory=dict,
        description="Of the StatefulSet, LeaderWorkerSet, Deployment or RayCluster itself, such as Kueue's queue.",
    )
    workload_annotations: Strings = Field(
        default_factory=dict, description="Of the same, such as LeaderWorkerSet's exclusive-topology."
    )


class Engine(Part):
    """An engine over several nodes: a LeaderWorkerSet."""

    nodes: AtLeastOne = Field(1, description="Pods of one engine; more than 1 needs LeaderWorkerSet in the cluster.")
    port: Port = Field(29501, description="Where the pods of one engine find its first.")
    join_timeout_seconds: AtLeastOne = Field(
        1800, description="How long the pods of one engine wait for each other, at the start and in any collective."
    )


class Rollout(Server):
    enabled: bool = True
    replicas: AtLeastOne = Field(1, description="Engines. The trainer pushes weights to every one.")
    update_strategy: Object = Field(
        default_factory=dict, description="The StatefulSet's updateStrategy; one server after the other when empty."
    )
    model: str = Field("", description="Folder below a mount, or a name on the Hugging Face hub.")
    args: list[str] = Field(default_factory=list, description="Flags of grpo-rollout serve, which are vLLM's.")
    engine: Engine
    weights_wait_seconds: Count | None = Field(
        None,
        description="A server is ready with a trainer's weights; or, with those of model, when no trainer has come "
        "within these seconds of its start. null: 600 in a release with a trainer, else 0.",
    )
    pre_stop_seconds: Count = Field(5, description="Wait before SIGTERM, until no new request is routed here.")
    pod_disruption_budget: Budget


class Autoscaling(Part):
    enabled: bool = False
    min_replicas: AtLeastOne = 1
    max_replicas: AtLeastOne = 8
    target_cpu: Annotated[int, Field(ge=1, le=100)] = Field(70, alias="targetCPUUtilizationPercentage")
    metrics: Manifests = Field(description="Instead of CPU: the metrics of an autoscaling/v2 HorizontalPodAutoscaler.")


class Ray(Part):
    """KubeRay's RayCluster, when executor is ray."""

    version: str = Field(min_length=1, description="Of Ray in the reward image.")
    workers: AtLeastOne = 2
    worker_resources: Resources
    head_resources: Resources


class Reward(Server):
    enabled: bool = True
    replicas: AtLeastOne = 2
    executor: Literal["process", "ray"] = "process"
    settings: Object = Field(default_factory=dict)
    plugins: Strings = Field(
        default_factory=dict, description="File name → source of a plugin; each is loaded. See --set-file."
    )
    ray: Ray
    autoscaling: Autoscaling
    ingress: Ingress
    pre_stop_seconds: Count = 5
    pod_disruption_budget: Budget


class Trainer(Pod):
    enabled: bool = True
    nodes: AtLeastOne = Field(1, description="Pods that train together; every one has `gpus` ranks.")
    controller: Literal["Job", "JobSet"] = "Job"
    run: Object = Field(default_factory=dict)
    job_annotations: Strings = Field(
        default_factory=dict, description="Of the Job or JobSet itself; another one does not start it again."
    )
    max_restarts: Count = Field(10, description="Of the whole training; each goes on from the newest checkpoint.")
    ttl_seconds_after_finished: Count | None = None
    active_deadline_seconds: AtLeastOne | None = Field(None, description="Of the whole training; for a Job only.")
    master_port: Port = Field(29500, description="Where the ranks of several pods meet.")
    lock_timeout_seconds: Count = Field(
        900, description="How long to wait for another process of the same run folder to end; 0: do not lock."
    )
    start_timeout_seconds: AtLeastOne = Field(
        3600, description="How long the pods of a training wait for each other, such as for GPUs."
    )


class Prepare(Part):
    """A script that makes or fetches models and data before anything starts."""

    enabled: bool = False
    script: str = Field("", description="Run by sh in the trainer's image, with the volumes of storage mounted.")
    timeout_seconds: AtLeastOne = Field(3600, description="How long the pods that need it wait for it.")
    resources: Resources
    wait_resources: Resources = Field(description="Of the init container that waits for it, in the pods that need it.")
    extra_env: Manifests
    egress: Manifests = Field(description="Further NetworkPolicy egress rules of its pod.")


class Volume(Part):
    enabled: bool = True
    mount_path: str = Field(pattern=r"^/[^/]", description="In every pod that uses it.")
    existing_claim: str = Field("", description="Use this claim; otherwise the chart makes one.")
    sub_path: str = Field(
        "", pattern=r"^([^/].*)?$", description="Folder of the volume that is mounted; all of it when empty."
    )
    annotations: Strings = Field(default_factory=dict, description="Of the claim that the chart makes.")
    size: Quantity = "50Gi"
    storage_class_name: str | None = Field(None, description='null: the cluster\'s default; "": none.')
    access_modes: list[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]] = Field(min_length=1)
    keep: bool = Field(True, description="`helm uninstall` leaves the claim the chart made.")


class ModelsVolume(Volume):
    read_only: bool = Field(
        False, description="In rollout and trainer, whose Hugging Face cache then is their own; prepare still writes."
    )


class Storage(Part):
    runs: Volume
    models: ModelsVolume


class PortRange(Part):
    first: Port = 40000
    last: Port = 41999


class NetworkPolicy(Part):
    enabled: bool = True
    rendezvous_port: Port = Field(29400, description="On the trainer: where rollout workers meet for a weight push.")
    data_ports: PortRange = Field(
        description="Both sides' own range for data connections, and the system's (ip_local_port_range)."
    )
    dns: Manifests = Field(description="Where DNS is; kube-system's pods when empty.")
    dns_ports: list[Port] = Field(default_factory=list, min_length=1, description="Of the pods that answer DNS.")
    weight_peers: Manifests = Field(
        description="Trainers and rollout servers outside of the release, as NetworkPolicy peers, for weight pushes."
    )
    extra_egress: Manifests = Field(description="Further egress rules of all pods, such as to a mesh's control plane.")


class Monitor(Part):
    enabled: bool = False
    interval: str = Field("15s", pattern=r"^[0-9]+(ms|s|m)$")
    labels: Strings = Field(default_factory=dict)
    allow_from: Manifests = Field(description="NetworkPolicy peers that scrape; the namespace monitoring when empty.")


class Rules(Part):
    enabled: bool = False
    labels: Strings = Field(default_factory=dict)
    runbook_base_url: str = Field(
        "",
        pattern=r"^(https?://.*[^/])?$",
        description="What docs/monitoring.md of this version is below, for runbook_url; a relative name when empty.",
    )


class Dashboards(Part):
    enabled: bool = False
    labels: Strings = Field(default_factory=dict, description="What Grafana's sidecar looks for.")
    annotations: Strings = Field(default_factory=dict)


class Metrics(Part):
    service_monitor: Monitor
    prometheus_rule: Rules
    dashboards: Dashboards


class Kueue(Part):
    queue_name: str = Field("", description="LocalQueue; the trainer, and what prepares, wait there for their quota.")
    priority_class: str = ""


class Tests(Part):
    enabled: bool = True
    timeout_seconds: AtLeastOne = 300
    resources: Resources
    score: Object = Field(default_factory=dict, description="Body of the POST /v1/score that `helm test` sends.")


class Values(Part):
    """Values of the chart grpo-services."""

    global_: Global = Field(alias="global")
    enabled: bool = Field(True, description="Read by a chart that has this one below it and names it as condition.")
    name_override: str = Field("", max_length=32)
    full_name_override: str = Field("", max_length=34, alias="fullnameOverride")
    common_labels: Strings = Field(default_factory=dict)
    assume_api_versions: list[str] = Field(
        default_factory=list, description="API versions the cluster has, for tools that render without asking it."
    )
    image: Images
    auth: Auth
    tls: Tls
    service_account: ServiceAccount
    pod_security_context: PodSecurityContext
    dns_policy: Literal["", "ClusterFirst", "Default", "None"] = Field("", description="Of all pods.")
    dns_config: Object = Field(default_factory=dict, description="Of all pods, such as options or nameservers.")
    listen_address: Literal["0.0.0.0", "::"] = Field(  # noqa: S104
        "0.0.0.0",  # noqa: S104
        description=":: where pods have IPv6 addresses only.",
    )
    rollout: Rollout
    reward: Reward
    trainer: Trainer
    prepare: Prepare
    storage: Storage
    network_policy: NetworkPolicy
    metrics: Metrics
    kueue: Kueue
    tests: Tests
    extra_objects: list[Object | str] = Field(default_factory=list, description="More manifests, templates allowed.")
