"""The command line: ``python -m ot_backends <command>``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .cli import demo, doctor
from .version import __version__

#: Each is a module with HELP, add_arguments(parser) and run(args), which returns the exit status.
COMMANDS = {"demo": demo, "doctor": doctor}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (0: all well)."""
    parser = argparse.ArgumentParser(
        prog="python -m ot_backends",
        description="Exact optimal transport that NumPy, JAX and PyTorch can differentiate.",
    )
    parser.add_argument("--version", action="version", version=f"ot_backends {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.HELP, description=command.HELP)
        command.add_arguments(subparser)
    args = parser.parse_args(argv)
    status: int = COMMANDS[args.command].run(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
