"""The command line: thin modules that parse, call one function, and print its result."""

from __future__ import annotations

import sys

__all__ = ["entry_point", "main"]


def main(arguments: list[str] | None = None) -> int:
    """Run one ``primebeaker`` command line and return its exit code.

    Args:
        arguments: The words after the program's name; by default those of this process.
    """
    try:
        from primebeaker.cli.app import build_app
        from primebeaker.cli.run import run

        return run(build_app(), sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # The program was still starting; from then on run() answers for it.
        sys.stderr.write("primebeaker: error: interrupted\n")
        return 130


def entry_point() -> None:
    """The ``primebeaker`` console script."""
    sys.exit(main())
