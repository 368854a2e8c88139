import pytest

from grpo_reward.config import ConfigError, read_settings


def test_defaults():
    settings = read_settings([])
    assert (settings.host, settings.port, settings.plugin) == ("127.0.0.1", 8001, [])
    assert settings.num_workers >= 1


def test_flags_win_over_the_environment_and_that_over_defaults(monkeypatch):
    monkeypatch.setenv("GRPO_REWARD_PORT", "9000")
    monkeypatch.setenv("GRPO_REWARD_WORKERS", "3")
    monkeypatch.setenv("GRPO_REWARD_PLUGIN", "a.py:b.py")
    settings = read_settings(["--port", "9001"])
    assert (settings.port, settings.num_workers) == (9001, 3)
    assert [path.name for path in settings.plugin] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("text", "plugins"),
    [
        ("a.py:f", ["a.py:f"]),
        ("a.py:f:b.py", ["a.py:f", "b.py"]),
        ("/x/a.py:/y/b.py:g:c.py", ["/x/a.py", "/y/b.py:g", "c.py"]),
        (":a.py:", ["a.py"]),
    ],
)
def test_a_name_stays_with_its_plugin_in_the_environment(monkeypatch, text, plugins):
    monkeypatch.setenv("GRPO_REWARD_PLUGIN", text)
    assert [str(plugin) for plugin in read_settings([]).plugin] == plugins


def test_lists_come_from_flags_and_from_the_environment(monkeypatch):
    monkeypatch.setenv("GRPO_REWARD_ALLOWED_URL", "http://a:1/v1, http://b")
    assert read_settings([]).allowed_url == ["http://a:1/v1", "http://b"]
    assert read_settings(["--worker-env", "A", "B", "--worker-env", "C"]).worker_env == ["A", "B", "C"]


def test_plugins_add_up():
    settings = read_settings(["--plugin", "a.py", "b.py", "--plugin", "c.py"])
    assert [path.name for path in settings.plugin] == ["a.py", "b.py", "c.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prot", "1"], "unknown option --prot: did you mean --port"),
        (["--port", "http"], "--port: .*http"),
        (["--port", "70000"], "--port: .*65535"),
        (["--port"], "--port"),
        (["--workers", "-1"], "--workers"),
        (["--grace-s", "inf"], "--grace-s: .*86400"),
        (["--body-timeout-s", "inf"], "--body-timeout-s: .*3600"),
        (["--max-samples", "1" + "0" * 24], "--max-samples: .*1000000"),
        (["--worker-memory-mib", "1" + "0" * 21], "--worker-memory-mib: .*less than"),
        (["--worker-memory-mib", "64"], "--worker-memory-mib: .*128"),
        (["--executor", "threads"], "--executor: .*process"),
        (["8001"], "8001"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid can be reached"),
    ],
)
def test_what_is_wrong_is_said(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read_settings(arguments)


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv("GRPO_REWARD_PORT", "http")
    with pytest.raises(ConfigError, match="GRPO_REWARD_PORT: "):
        read_settings([])


def test_the_address_kubernetes_puts_into_the_environment_is_no_port(monkeypatch):
    monkeypatch.setenv("GRPO_REWARD_PORT", "tcp://10.0.0.7:8001")
    assert read_settings([]).port == 8001


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.1.2.3"])  # noqa: S104
def test_off_loopback_it_needs_a_token(monkeypatch, host):
    with pytest.raises(ConfigError, match="set GRPO_API_TOKEN"):
        read_settings(["--host", host])
    monkeypatch.setenv("GRPO_API_TOKEN", "secret")
    assert read_settings(["--host", host]).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_on_loopback_it_needs_none(host):
    assert read_settings(["--host", host]).host == host


@pytest.mark.parametrize("token", ["", "  "])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104
def test_an_empty_token_is_none_at_all(monkeypatch, token, host):
    monkeypatch.setenv("GRPO_API_TOKEN", token)
    with pytest.raises(ConfigError, match="GRPO_API_TOKEN is empty"):
        read_settings(["--host", host])


def test_the_token_is_no_flag():
    with pytest.raises(ConfigError, match="set GRPO_API_TOKEN"):
        read_settings(["--token", "secret"])
