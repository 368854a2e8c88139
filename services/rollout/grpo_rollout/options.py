"""Set our defaults for vLLM's flags, add our flags, and refuse what cannot work before anything heavy starts."""

import argparse
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from grpo_proto.api_token import TOKEN_VARIABLE, TokenError, server_tokens
from grpo_proto.log_lines import FORMAT_VARIABLE
from grpo_proto.loopback import is_loopback
from grpo_proto.server.listening import KEEP_IDLE_S

from .kv_connectors import why_not

PLUGIN_NAME = "grpo_rollout"
RECEIVER = "grpo_rollout.receiver.ReceiverExtension"
IN_ENGINE_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's executor for one GPU. Its short name, `uni`, vLLM replaces by `mp` on a CPU."""
DEFAULT_HEARTBEAT_TIMEOUT_S = 60.0
DEFAULT_MAX_WAITING = 1024
DEFAULT_BODY_TIMEOUT_S = 30.0
DEFAULT_MAX_SCORED_TOKENS = 2**18
DEFAULT_MAX_SCORED_TOKENS_IN_FLIGHT = 2**20
"""The server's process holds some 200 bytes for each token of a sequence until its request is answered."""
DEFAULT_MAX_LORAS = 4
"""Each policy version that still samples takes a slot: more than `max_staleness` + 1 of a trainer."""
DEFAULT_MAX_LORA_RANK = 64
CPU_CACHE, DEFAULT_CPU_CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE", 4
DEFAULT_MAX_LOGPROBS = 100
"""What TRL's client asks of a teacher for each token; vLLM allows 20."""


class StartError(Exception):
    """The server cannot start, and the user can fix it. `str()` is the whole message.

    `exit_status`: 2 for what the command or the machine lacks, so that the same command would end so again; 1 for what
    was tried and failed.
    """

    def __init__(self, message: str, hint: str | None = None, *, exit_status: Literal[1, 2] = 2):
        super().__init__(f"{message}; {hint}" if hint else message)
        self.exit_status = exit_status


def prepare_environment() -> None:
    """Set the variables that vLLM reads at import. Raises StartError for those that let a request run code."""
    if os.environ.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0"):
        raise StartError(
            "VLLM_SERVER_DEV_MODE is set: it would open /collective_rpc and other routes that run arbitrary calls",
            "unset it",
        )
    if os.environ.get("VLLM_ALLOW_INSECURE_SERIALIZATION", "0") not in ("", "0"):
        raise StartError(
            "VLLM_ALLOW_INSECURE_SERIALIZATION is set: /inference/v1/generate would load pickles out of a request",
            "unset it",
        )
    log_format = os.environ.get(FORMAT_VARIABLE) or "text"
    if log_format not in ("text", "json"):
        raise StartError(f"{FORMAT_VARIABLE} {log_format} is unknown", "use text or json")
    if log_format == "json":
        os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(Path(__file__).with_name("json_logging.json")))
    os.environ.setdefault("OTEL_SERVICE_NAME", "grpo-rollout")
    # Disable FlashInfer's sampler: nvcc would compile it at the first request without a seed, in the middle of a
    # training. The engine stands still meanwhile, and without nvcc it dies. vLLM's warm-up does not compile it: it asks
    # for logprobs, which this sampler cannot return with our logprobs_mode. A trainer's requests never use the sampler.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    os.environ.setdefault("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", str(KEEP_IDLE_S))
    plugins = [name for name in os.environ.get("VLLM_PLUGINS", "").split(",") if name]
    if PLUGIN_NAME not in plugins:
        os.environ["VLLM_PLUGINS"] = ",".join([*plugins, PLUGIN_NAME])


def add_options(parser: argparse.ArgumentParser, *, on_cpu: bool) -> None:
    """Add our flags, and set our defaults for vLLM's flags."""
    if on_cpu:
        # Process prompts whole. vLLM rewinds the generator of a seeded request whose prompt it has processed in chunks,
        # and a CPU generator has no offset to rewind: the engine dies ("CPU Generator does not use offset").
        parser.set_defaults(enable_chunked_prefill=False)
    parser.set_defaults(
        host="127.0.0.1",
        worker_extension_cls=RECEIVER,
        logprobs_mode="processed_logprobs",
        max_logprobs=DEFAULT_MAX_LOGPROBS,
        mm_processor_cache_gb=0.0,
        enable_scale_out=True,
        max_loras=DEFAULT_MAX_LORAS,
        max_lora_rank=DEFAULT_MAX_LORA_RANK,
        disable_access_log_for_endpoints="/livez,/readyz,/metrics",
    )
    group = parser.add_argument_group("grpo-rollout")
    group.add_argument(
        "--heartbeat-timeout-s",
        type=float,
        default=DEFAULT_HEARTBEAT_TIMEOUT_S,
        help="GET /livez answers 503 once the engine has not answered for this long. Must be longer than the engine's "
        "longest step.",
    )
    group.add_argument(
        "--max-waiting-requests",
        type=int,
        default=DEFAULT_MAX_WAITING,
        help="How many requests may wait while weights are loading; further requests get a 429.",
    )
    group.add_argument(
        "--max-scored-tokens",
        type=int,
        default=DEFAULT_MAX_SCORED_TOKENS,
        help="Tokens of all sequences of one POST /v1/logprobs; a request with more gets a 422.",
    )
    group.add_argument(
        "--max-scored-tokens-in-flight",
        type=int,
        default=DEFAULT_MAX_SCORED_TOKENS_IN_FLIGHT,
        help="Tokens of all requests for logprobs that are unanswered; a request beyond gets a 429.",
    )
    group.add_argument(
        "--advertise-url",
        help="Under which URL the programs of sessions reach this very server, never a load balancer; default: that of "
        "the request that opened the session.",
    )
    group.add_argument(
        "--body-timeout-s",
        type=float,
        default=DEFAULT_BODY_TIMEOUT_S,
        help="Limit for receiving a request body; after it the server answers 408 and closes the connection.",
    )


def no_model() -> StartError:
    return StartError(
        "no model is given", "run grpo-rollout serve MODEL, with a folder or a name on the Hugging Face Hub"
    )


def check_words(words: Sequence[str]) -> None:
    """Check what the words of the command line show by themselves, before vLLM is imported to parse them.

    Raises StartError where no word can be a model, and for an address off loopback without a token.
    """
    flags = {word.partition("=")[0] for word in words if word.startswith("-")}
    if flags & {"-h", "--help", "--config"}:
        return
    if all(word.startswith("-") for word in words):
        raise no_model()
    hosts = [word.partition("=")[2] for word in words if word.startswith("--host=")]
    hosts += [host for flag, host in pairwise(words) if flag == "--host"]
    if hosts and not flags & {"--uds", "--headless"}:
        _check_token(hosts[-1])


def check_options(args: argparse.Namespace, *, on_cpu: bool) -> None:
    """Raises StartError for options that cannot work or are not safe."""
    if args.model_tag:
        args.model = args.model_tag
    elif not args.config:
        raise no_model()
    if (args.api_server_count or 1) > 1:
        raise StartError(
            f"--api-server-count {args.api_server_count}: one process must hold the weight state",
            "leave the option out and start more servers instead",
        )
    if args.data_parallel_size > 1:
        raise StartError(
            f"--data-parallel-size {args.data_parallel_size} is not supported", "start more servers instead"
        )
    if args.logprobs_mode != "processed_logprobs":
        raise StartError(
            f"--logprobs-mode {args.logprobs_mode} would return other numbers than the logprobs of the distribution "
            "that was sampled from, which trainers take them for",
            "leave the option out",
        )
    if args.api_key or os.environ.get("VLLM_API_KEY"):
        raise StartError(
            "--api-key (VLLM_API_KEY) guards a part of the routes only, and shuts the keys of sessions out",
            f"set {TOKEN_VARIABLE} to the key instead",
        )
    if args.mm_processor_cache_gb:
        # The API server and the engine each have a part of this cache, and a push empties them at two times: for an
        # image that comes in between, the server then sends a reference to what the engine no longer has.
        raise StartError(
            f"--mm-processor-cache-gb {args.mm_processor_cache_gb:g}: requests with an image that came while a push "
            "began would fail",
            "leave the option out",
        )
    if args.grpc:
        raise StartError("--grpc starts a server without the routes of grpo-rollout", "leave the option out")
    offloads = args.kv_offloading_size is not None
    backend = args.kv_offloading_backend if offloads else None
    if (reason := why_not(args.kv_transfer_config, offloading_backend=backend)) is not None:
        raise StartError(reason)
    _check_machine(args)
    if args.enable_lora and args.max_cpu_loras is None:
        args.max_cpu_loras = 2 * args.max_loras
    if args.worker_extension_cls != RECEIVER:
        raise StartError(
            f"--worker-extension-cls {args.worker_extension_cls} would replace the weight receiver",
            "leave the option out",
        )
    if on_cpu and args.enable_chunked_prefill:
        raise StartError(
            "--enable-chunked-prefill: on a CPU, a seeded request with a chunked prompt crashes vLLM's engine",
            "leave the option out",
        )
    if on_cpu and args.distributed_executor_backend is None and _has_one_worker(args) and not _binds_threads():
        # Compute in the engine's process, as on one GPU. vLLM starts a process more on a CPU, to bind its threads to
        # cores: it imports vLLM once more, gets each step by polling, and all servers of a machine take the same cores.
        args.distributed_executor_backend = IN_ENGINE_PROCESS
    if on_cpu and not os.environ.get(CPU_CACHE) and args.kv_cache_memory_bytes is None:
        os.environ[CPU_CACHE] = str(_cpu_cache_gib())
    if args.body_timeout_s <= 0:
        raise StartError(f"--body-timeout-s {args.body_timeout_s:g} leaves no time for a body", "set it above 0")
    if not 0 < args.max_scored_tokens <= args.max_scored_tokens_in_flight:
        raise StartError(
            f"--max-scored-tokens {args.max_scored_tokens} is not between 1 and --max-scored-tokens-in-flight "
            f"{args.max_scored_tokens_in_flight}",
            "change one of the two",
        )
    if not args.headless and not args.uds:
        _check_token(args.host)
    check_model_folder(args.model)


def _cpu_cache_gib() -> int:
    """Return the GiB of KV cache where nobody says how many. vLLM takes nearly all memory of the machine, which
    `--gpu-memory-utilization` counts on a GPU: a trainer beside it would have none."""
    free_gib = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return max(1, min(DEFAULT_CPU_CACHE_GIB, int(free_gib / 4)))


def _has_one_worker(args: argparse.Namespace) -> bool:
    sizes = (args.tensor_parallel_size, args.pipeline_parallel_size, args.prefill_context_parallel_size)
    return all(size == 1 for size in sizes)


def _binds_threads() -> bool:
    """Return whether the user has vLLM bind the threads of a CPU worker, which it does to a new process only."""
    bind = os.environ.get("VLLM_CPU_OMP_THREADS_BIND") or "nobind"
    others = ("VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_CPU_SIM_MULTI_NUMA")
    return bind != "nobind" or any(os.environ.get(name) for name in others)


def _check_machine(args: argparse.Namespace) -> None:
    """Raises StartError unless the first machine of a multi-node engine runs the server, and no other machine does."""
    if args.headless and args.node_rank == 0:
        raise StartError(
            "--headless is for the further machines of a multi-node engine, and --node-rank is 0",
            "leave the option out, or set --nnodes, --master-addr and --node-rank",
        )
    if args.node_rank > 0 and not args.headless:
        raise StartError(f"--node-rank {args.node_rank}: only machine 0 runs the server", "add --headless")


def _check_token(host: str | None) -> None:
    """Raises StartError for an address that others reach without a token."""
    try:
        tokens = server_tokens()
    except TokenError as error:
        raise StartError(str(error)) from None
    if not tokens and not is_loopback(host):
        raise StartError(
            f"--host {host or '0.0.0.0'} can be reached from outside and {TOKEN_VARIABLE} is not set",  # noqa: S104
            "set it to a secret that the clients share",
        )


def check_model_folder(model: str) -> None:
    """Raises StartError for a path without a model. Only vLLM can check a name on the Hugging Face Hub."""
    if not model.startswith(("/", "./", "../", "~")) and not Path(model).is_dir():
        return
    if not (Path(model).expanduser() / "config.json").is_file():
        raise StartError(f"{model} is no model: {Path(model) / 'config.json'} does not exist")
