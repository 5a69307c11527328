"""The command line: thin modules that parse, call one function, and print its result."""

from __future__ import annotations

# The functions behind the module ``signal``, which takes milliseconds to import.
import _signal  # type: ignore[import-not-found]  # part of every CPython, unknown to typeshed
import os
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

        app = build_app()
        if _signal.getsignal(_signal.SIGINT) is _leave:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        return run(app, sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # The program was still starting; from then on run() answers for it.
        sys.stderr.write("primebeaker: error: interrupted\n")
        return 130


def entry_point() -> None:
    """The ``primebeaker`` console script."""
    # A program started with the signal ignored (by nohup, or behind a script) goes on ignoring it.
    heeded = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if heeded:
        _signal.signal(_signal.SIGINT, _leave)
    code = main()
    if heeded:
        # What is left is Python's own end, which would show a traceback.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    sys.exit(code)


def _leave(number: int, frame: object) -> None:
    """End while the program is still being imported: nothing has been started or written."""
    os.write(2, b"primebeaker: error: interrupted\n")
    os._exit(130)
