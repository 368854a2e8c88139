"""`grpo-rollout serve MODEL [vLLM's engine flags]`: one rollout server."""

import sys

from grpo_proto.quick_imports import quick_imports

from . import __version__
from .options import StartError, check_model_folder, check_words, prepare_environment
from .toolchain import missing_tools
from .workarounds import private_socket_folder

USAGE = """usage: grpo-rollout serve MODEL [vLLM's engine flags]

Serve MODEL, a folder or a name on the Hugging Face Hub, and take new weights from a trainer.
`grpo-rollout serve --help` lists all flags, vLLM's and grpo-rollout's. Refused are --api-server-count and
--data-parallel-size above 1, --grpc, --api-key, another --logprobs-mode or --worker-extension-cls and, on a CPU,
--enable-chunked-prefill.
"""


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 after a signal, 1 when it failed to start or its engine died, 2 for what it refuses."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"grpo-rollout {__version__}")
        return 0
    if not arguments or arguments[0] != "serve":
        is_help = bool(arguments) and arguments[0] in ("-h", "--help")
        print(USAGE, end="", file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    try:
        prepare_environment()
        check_words(arguments[1:])
        if not arguments[1].startswith("-"):
            check_model_folder(arguments[1])
        if lacking := missing_tools():
            raise StartError(
                f"vLLM compiles kernels on a GPU, and {', '.join(lacking)} is not there",
                f"apt-get install gcc g++ python3.{sys.version_info.minor}-dev, or set CC and CXX",
            )
        with private_socket_folder():
            # Importing vLLM takes ten seconds and reads the environment.
            with quick_imports():
                from .server import run

            return run(arguments[1:])
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
