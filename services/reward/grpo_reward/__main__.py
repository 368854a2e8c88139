"""`grpo-reward serve`: read the configuration first, import heavy things after."""

import sys
from collections.abc import Sequence

USAGE = "usage: grpo-reward serve [--host H] [--port P] [--workers N] [--plugin FILE.py …]   (grpo-reward serve --help)"


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status: 0 after SIGTERM or SIGINT, 2 for wrong settings, 1 when the server cannot start or go on."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in (["-h"], ["--help"]):
        print(USAGE)
        return
    if arguments == ["--version"]:
        from . import __version__

        print(f"grpo-reward {__version__}")
        return
    if not arguments or arguments[0] != "serve":
        sys.exit(f"{f'error: unknown command {arguments[0]}' if arguments else 'error: no command'}\n{USAGE}")

    from .config import ConfigError, read_settings

    try:
        settings = read_settings(arguments[1:])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)

    from .server import serve

    sys.exit(serve(settings))


if __name__ == "__main__":
    main()
