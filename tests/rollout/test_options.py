"""What the command refuses before anything heavy starts, and what it sets."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from grpo_rollout.__main__ import main
from grpo_rollout.kv_connectors import FORGETFUL
from grpo_rollout.options import (
    CPU_CACHE,
    IN_ENGINE_PROCESS,
    StartError,
    add_options,
    check_options,
    check_words,
    prepare_environment,
)
from grpo_rollout.toolchain import compilers_lacking
from tests.warm_python import warm_vllm


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPO_API_TOKEN", raising=False)
    monkeypatch.setenv(CPU_CACHE, "1")  # which the options may set


def parsed(model: Path, **changes: object) -> argparse.Namespace:
    """What vLLM's parser would give, of what is looked at."""
    parser = argparse.ArgumentParser()
    for name in ("host", "worker_extension_cls", "logprobs_mode"):
        parser.add_argument(f"--{name.replace('_', '-')}")
    add_options(parser, on_cpu=True)
    args = parser.parse_args([])
    defaults: dict[str, object] = {
        "model_tag": str(model), "model": "", "config": None, "api_server_count": None, "data_parallel_size": 1,
        "headless": False, "grpc": False, "uds": None, "port": 8000, "enable_chunked_prefill": False,
        "node_rank": 0, "enable_lora": False, "max_cpu_loras": None, "distributed_executor_backend": None,
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "prefill_context_parallel_size": 1,
        "kv_cache_memory_bytes": None, "kv_transfer_config": None, "kv_offloading_size": None,
        "kv_offloading_backend": "native", "api_key": None,
    }  # fmt: skip
    for name, value in (defaults | changes).items():
        setattr(args, name, value)
    return args


def kv(
    name: str | None, connectors: Sequence[str] = (), kv_connector_module_path: str | None = None, **extra: object
) -> dict[str, object]:
    """What vLLM's parser would give for --kv-transfer-config, of what is looked at."""
    children = [{"kv_connector": child, "kv_role": "kv_both"} for child in connectors]
    config = argparse.Namespace(
        kv_connector=name,
        kv_connector_module_path=kv_connector_module_path,
        kv_connector_extra_config=extra | ({"connectors": children} if children else {}),
    )
    return {"kv_transfer_config": config}


@pytest.mark.parametrize(
    "changes",
    [
        kv("OffloadingConnector"),
        kv("MultiConnector", connectors=["SimpleCPUOffloadConnector", "MooncakeStoreConnector"]),
        {"kv_offloading_size": 1.0},
    ],
)
def test_a_store_that_forgets_its_kv_passes(model: Path, changes: dict[str, object]):
    check_options(parsed(model, **changes), on_cpu=True)


@pytest.mark.vllm
@pytest.mark.xdist_group("engines")
def test_the_stores_that_are_taken_override_the_reset(tmp_path: Path):
    code = """
import sys
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1 as Base
classes = map(KVConnectorFactory.get_connector_class_by_name, sys.argv[1:])
print([each for each in classes if each.reset_cache is Base.reset_cache])
"""
    (tmp_path / "look.py").write_text(code)
    shown = warm_vllm.run(tmp_path / "look.py", *FORGETFUL, folder=tmp_path, timeout_s=120.0)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == "[]"


def test_what_a_gpu_needs_to_compile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert compilers_lacking(tmp_path) == ["gcc", "g++", f"the headers of Python ({tmp_path}/Python.h)"]
    for name in ("gcc", "c++"):
        (tmp_path / name).touch(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CXX", "c++")
    assert compilers_lacking(tmp_path) == []


def test_a_machine_that_cannot_compile_is_refused_before_vllm_is_imported(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("grpo_rollout.__main__.missing_tools", lambda: ["gcc"])
    monkeypatch.setattr("grpo_rollout.__main__.prepare_environment", lambda: None)
    monkeypatch.setitem(sys.modules, "grpo_rollout.server", None)
    assert main(["serve", str(model)]) == 2
    assert "gcc is not there; apt-get install gcc" in capsys.readouterr().err


def test_the_defaults_pass(model: Path):
    args = parsed(model)
    check_options(args, on_cpu=True)
    assert args.model == str(model)
    assert (args.host, args.logprobs_mode) == ("127.0.0.1", "processed_logprobs")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"api_server_count": 2}, "--api-server-count 2"),
        ({"data_parallel_size": 2}, "--data-parallel-size 2"),
        ({"headless": True}, "--headless is for the further machines"),
        ({"node_rank": 1}, "--node-rank 1: .*add --headless"),
        ({"grpc": True}, "--grpc"),
        ({"mm_processor_cache_gb": 4.0}, "--mm-processor-cache-gb 4: requests with an image"),
        ({"logprobs_mode": "processed_logits"}, "--logprobs-mode processed_logits would return other numbers"),
        ({"api_key": ["sekrit"]}, "set GRPO_API_TOKEN to the key instead"),
        ({"max_scored_tokens": 2**21}, "--max-scored-tokens 2097152 is not between 1 and .*-in-flight 1048576"),
        ({"worker_extension_cls": "other.Extension"}, "other.Extension"),
        ({"model_tag": "/nowhere/model"}, "/nowhere/model/config.json"),
        ({"model_tag": None}, "no model is given"),
        ({"enable_chunked_prefill": True}, "--enable-chunked-prefill"),
        (kv("LMCacheConnectorV1"), "LMCacheConnectorV1 keeps the KV of earlier weights"),
        (kv("NixlConnector"), "NixlConnector takes KV from another server"),
        (kv("Mine", kv_connector_module_path="mine"), "nobody knows whether Mine of mine forgets"),
        (kv("MultiConnector", connectors=["OffloadingConnector", "FlexKVConnectorV1"]), "FlexKVConnectorV1 keeps"),
        (kv("OffloadingConnector", spec_name="TieringOffloadingSpec"), "TieringOffloadingSpec of .* further tiers"),
        ({"kv_offloading_size": 1.0, "kv_offloading_backend": "lmcache"}, "--kv-offloading-backend lmcache keeps"),
        ({"kv_offloading_size": 1.0, **kv(None, spec_name="TieringOffloadingSpec")}, "further tiers"),
        ({"host": "0.0.0.0"}, "GRPO_API_TOKEN is not set"),  # noqa: S104
        ({"host": ""}, "GRPO_API_TOKEN is not set"),
    ],
)
def test_what_cannot_work_is_named(model: Path, changes: dict[str, object], named: str):
    with pytest.raises(StartError, match=named):
        check_options(parsed(model, **changes), on_cpu=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "no model is given"),
        (["serve", "--enforce-eager"], "no model is given"),
        (
            ["serve", "a/name", "--host", "10.0.0.1"],
            "--host 10.0.0.1 can be reached from outside and GRPO_API_TOKEN is not",
        ),
        (["serve", "--host=::", "a/name"], "--host :: can be reached from outside"),
    ],
)
def test_what_the_words_show_is_said_before_vllm_is_imported(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "grpo_rollout.server", None)  # its import would fail
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    "words", [["--help"], ["--config", "c.yaml"], ["m", "--host", "10.0.0.1", "--headless"], ["m"]]
)
def test_other_words_are_left_to_vllms_parser(words: list[str]):
    check_words(words)


def test_adapters_get_our_defaults(model: Path):
    args = parsed(model, enable_lora=True)
    check_options(args, on_cpu=True)
    assert (args.max_loras, args.max_lora_rank, args.max_cpu_loras) == (4, 64, 8)
    args = parsed(model, enable_lora=True, max_loras=2, max_cpu_loras=3)
    check_options(args, on_cpu=True)
    assert (args.max_loras, args.max_cpu_loras) == (2, 3)


def test_the_only_worker_computes_in_the_engines_process_on_a_cpu_too(model: Path, monkeypatch: pytest.MonkeyPatch):
    def executor(*, on_cpu: bool = True, **changes: object) -> object:
        args = parsed(model, **changes)
        check_options(args, on_cpu=on_cpu)
        return args.distributed_executor_backend

    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "")
    assert executor() == IN_ENGINE_PROCESS
    assert executor(on_cpu=False) is None
    assert executor(tensor_parallel_size=2) is None
    assert executor(distributed_executor_backend="mp") == "mp"
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-3")
    assert executor() is None


@pytest.mark.parametrize(
    ("given", "changes", "expected"),
    [("", {}, "1234"), ("9", {}, "9"), ("", {"kv_cache_memory_bytes": 2**30}, "")],
)
def test_on_a_cpu_the_kv_cache_leaves_room_for_others(
    model: Path, monkeypatch: pytest.MonkeyPatch, given: str, changes: dict[str, object], expected: str
):
    """vLLM would take nearly all memory of the machine."""
    monkeypatch.setenv(CPU_CACHE, given)
    check_options(parsed(model, **changes), on_cpu=False)
    assert os.environ[CPU_CACHE] == given
    check_options(parsed(model, **changes), on_cpu=True)
    assert os.environ[CPU_CACHE] in ([*expected] or [""])


def test_a_machine_without_a_server_needs_no_token(model: Path):
    check_options(parsed(model, headless=True, node_rank=1, host="0.0.0.0"), on_cpu=True)  # noqa: S104


def test_prompts_may_be_cut_where_generators_can_be_rewound(model: Path):
    check_options(parsed(model, enable_chunked_prefill=True), on_cpu=False)


def test_off_loopback_needs_a_token_and_has_one(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_API_TOKEN", "secret")
    check_options(parsed(model, host="0.0.0.0"), on_cpu=True)  # noqa: S104


@pytest.mark.parametrize("token", ["", "  "])
def test_an_empty_token_is_refused_even_on_loopback(model: Path, monkeypatch: pytest.MonkeyPatch, token: str):
    monkeypatch.setenv("GRPO_API_TOKEN", token)
    with pytest.raises(StartError, match="GRPO_API_TOKEN is empty"):
        check_options(parsed(model), on_cpu=True)


@pytest.mark.parametrize("name", ["VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_INSECURE_SERIALIZATION"])
def test_what_lets_a_request_run_code_is_refused(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setenv(name, "1")
    with pytest.raises(StartError, match=name):
        prepare_environment()


@pytest.mark.parametrize(
    ("before", "after"), [(None, "grpo_rollout"), ("mine", "mine,grpo_rollout"), ("grpo_rollout", "grpo_rollout")]
)
def test_our_plugin_joins_those_of_the_user(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str):
    import os

    monkeypatch.delenv("VLLM_SERVER_DEV_MODE", raising=False)
    monkeypatch.setenv("VLLM_PLUGINS", before or "")
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    prepare_environment()
    assert os.environ["VLLM_PLUGINS"] == after
    assert os.environ["OTEL_SERVICE_NAME"] == "grpo-rollout"


def test_usage(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert "grpo-rollout serve MODEL" in capsys.readouterr().out


@pytest.mark.vllm
@pytest.mark.xdist_group("engines")
def test_json_lines_for_vllm_and_its_processes(tmp_path: Path):
    program = """
import os
for name in [name for name in os.environ if name.startswith("VLLM_")]:
    del os.environ[name]  # what other tests have made of vLLM's variables is not its business
from grpo_rollout.options import prepare_environment
prepare_environment()
from argparse import Namespace
from vllm.logger import configure_logging_from_args, init_logger
configure_logging_from_args(Namespace())
init_logger("vllm.a_part").info("%s", "hello")
import json, logging.config
logging.config.dictConfig(json.load(open(os.environ["VLLM_LOGGING_CONFIG_PATH"])))  # as uvicorn does
for path in ("/livez", "/v1/rollouts"):
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", path, "1.1", 200)
"""
    (tmp_path / "log.py").write_text(program)
    environment = {"GRPO_LOG_FORMAT": "json"}
    done = warm_vllm.run(tmp_path / "log.py", folder=tmp_path, timeout_s=120.0, environment=environment)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    found = [line for line in lines if line["logger"] == "vllm.a_part"]
    assert [(line["service"], line["message"]) for line in found] == [("rollout", "hello")], done.stderr
    (asked,) = [line["message"] for line in lines if line["logger"] == "uvicorn.access"]
    assert "/v1/rollouts" in asked, "and no probe"


def test_an_unknown_log_format_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_LOG_FORMAT", "xml")
    with pytest.raises(StartError, match="GRPO_LOG_FORMAT xml is unknown"):
        prepare_environment()
