"""A pod of an engine over several pods that is not the first: vLLM's workers of this node, without a server.

Arguments: those of `grpo-rollout serve`, and where the first pod is. Ends when a worker does, or the first pod: an
engine that has lost a part starts again as a whole.
"""

import argparse
import sys

from grpo_rollout.options import StartError, add_options, check_options, prepare_environment


def main(arguments: list[str]) -> int:
    """Returns the exit code, never 0: the workers of an engine do not end by themselves."""
    try:
        prepare_environment()
        # Importing vLLM reads the environment.
        from vllm.entrypoints.cli.serve import run_headless
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
        from vllm.platforms import current_platform
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        cli_env_setup()
        on_cpu = current_platform.is_cpu()
        parser = make_arg_parser(FlexibleArgumentParser(prog="engine_worker", description=__doc__))
        # The same defaults as on the first pod: all parts of an engine must be of one mind.
        add_options(parser, on_cpu=on_cpu)
        args = parser.parse_args(arguments)
        check_options(args, on_cpu=on_cpu)
        run_headless(_without_server(args))
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        "error: the workers of this pod have ended; the log above and that of the first pod say more", file=sys.stderr
    )
    return 1


def _without_server(args: argparse.Namespace) -> argparse.Namespace:
    args.headless = True
    args.api_server_count = 0
    return args


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
