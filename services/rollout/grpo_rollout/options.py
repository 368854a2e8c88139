"""Our defaults for vLLM's flags, our own few flags, and what is refused before anything heavy starts."""

import argparse
import os
from pathlib import Path

from grpo_proto.api_token import TOKEN_VARIABLE, TokenError, server_tokens
from grpo_proto.log_lines import FORMAT_VARIABLE
from grpo_proto.loopback import is_loopback

PLUGIN_NAME = "grpo_rollout"
RECEIVER = "grpo_rollout.receiver.ReceiverExtension"
DEFAULT_HEARTBEAT_TIMEOUT_S = 60.0
DEFAULT_MAX_WAITING = 1024
DEFAULT_BODY_TIMEOUT_S = 30.0


class StartError(Exception):
    """The server cannot start, and the user can mend it. `str()` is the whole message."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(f"{message}; {hint}" if hint else message)


def prepare_environment() -> None:
    """vLLM reads these when it is imported. Raises StartError for its developer mode, which opens unguarded routes."""
    if os.environ.get("VLLM_SERVER_DEV_MODE", "0") not in ("", "0"):
        raise StartError(
            "VLLM_SERVER_DEV_MODE is set: it would open /collective_rpc and other routes that run anything",
            "unset it",
        )
    log_format = os.environ.get(FORMAT_VARIABLE) or "text"
    if log_format not in ("text", "json"):
        raise StartError(f"{FORMAT_VARIABLE} {log_format} is unknown", "text or json")
    if log_format == "json":
        os.environ.setdefault("VLLM_LOGGING_CONFIG_PATH", str(Path(__file__).with_name("json_logging.json")))
    os.environ.setdefault("OTEL_SERVICE_NAME", "grpo-rollout")
    # FlashInfer's sampler is compiled by nvcc when it is first used. vLLM's warm-up asks for logprobs, which with our
    # logprobs_mode it cannot give, so that would be at a stranger's first request without a seed: in the middle of a
    # training the engine stands still, and without nvcc it dies. A trainer's requests never use it.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    plugins = [name for name in os.environ.get("VLLM_PLUGINS", "").split(",") if name]
    if PLUGIN_NAME not in plugins:
        os.environ["VLLM_PLUGINS"] = ",".join([*plugins, PLUGIN_NAME])


def add_options(parser: argparse.ArgumentParser, *, on_cpu: bool) -> None:
    """Add our flags and set our defaults for vLLM's."""
    if on_cpu:
        # vLLM rewinds the generator of a seeded request whose prompt it has cut in pieces, and a CPU's generator has
        # no offset to rewind: the engine dies ("CPU Generator does not use offset"). Uncut prompts need no rewinding.
        parser.set_defaults(enable_chunked_prefill=False)
    parser.set_defaults(
        host="127.0.0.1",
        worker_extension_cls=RECEIVER,
        logprobs_mode="processed_logprobs",
        disable_access_log_for_endpoints="/livez,/readyz,/metrics",
    )
    group = parser.add_argument_group("grpo-rollout")
    group.add_argument(
        "--heartbeat-timeout-s",
        type=float,
        default=DEFAULT_HEARTBEAT_TIMEOUT_S,
        help="GET /livez says no when the engine has not answered for so long. It has to be longer than the longest "
        "step of the engine.",
    )
    group.add_argument(
        "--max-waiting-requests",
        type=int,
        default=DEFAULT_MAX_WAITING,
        help="How many requests may wait while weights are loading; more get a 429.",
    )
    group.add_argument(
        "--body-timeout-s",
        type=float,
        default=DEFAULT_BODY_TIMEOUT_S,
        help="Limit for receiving a body. Later the connection is closed, with a 408.",
    )


def check_options(args: argparse.Namespace, *, on_cpu: bool) -> None:
    """Raises StartError for a set-up that cannot work or would not be safe."""
    if args.model_tag:
        args.model = args.model_tag
    elif not args.config:
        raise StartError("which model?", "grpo-rollout serve MODEL, a folder or a name on the hub")
    if (args.api_server_count or 1) > 1:
        raise StartError(
            f"--api-server-count {args.api_server_count}: one process has to hold the weight state",
            "leave it out and start more servers instead",
        )
    if args.data_parallel_size > 1:
        raise StartError(
            f"--data-parallel-size {args.data_parallel_size} is not supported", "start more servers instead"
        )
    if args.grpc:
        raise StartError("--grpc starts a server without our routes", "leave it out")
    _check_machine(args)
    if args.worker_extension_cls != RECEIVER:
        raise StartError(
            f"--worker-extension-cls {args.worker_extension_cls} would replace the weight receiver", "leave it out"
        )
    if on_cpu and args.enable_chunked_prefill:
        raise StartError(
            "--enable-chunked-prefill: on a CPU, vLLM's engine dies of a seeded request whose prompt it cuts",
            "leave it out",
        )
    if args.body_timeout_s <= 0:
        raise StartError(f"--body-timeout-s {args.body_timeout_s:g} leaves no time for a body", "give seconds above 0")
    if not args.headless:
        _check_token(args)
    check_model_folder(args.model)


def _check_machine(args: argparse.Namespace) -> None:
    """Check that the first machine of an engine over several has the server, and the others have none."""
    if args.headless and args.node_rank == 0:
        raise StartError(
            "--headless is for the other machines of an engine over several, and this is the first",
            "leave it out, or give --nnodes, --master-addr and --node-rank",
        )
    if args.node_rank > 0 and not args.headless:
        raise StartError(f"--node-rank {args.node_rank}: only machine 0 of an engine has a server", "add --headless")


def _check_token(args: argparse.Namespace) -> None:
    try:
        tokens = server_tokens()
    except TokenError as error:
        raise StartError(str(error)) from None
    if not tokens and not args.uds and not is_loopback(args.host):
        raise StartError(
            f"--host {args.host or '0.0.0.0'} can be reached from outside and {TOKEN_VARIABLE} is not set",  # noqa: S104
            "set it to a secret that the clients know too",
        )


def check_model_folder(model: str) -> None:
    """A path is checked here, where it is quick; a name on the hub only vLLM can check."""
    if not model.startswith(("/", "./", "../", "~")) and not Path(model).is_dir():
        return
    if not (Path(model).expanduser() / "config.json").is_file():
        raise StartError(f"{model} is no model: {Path(model) / 'config.json'} does not exist")
