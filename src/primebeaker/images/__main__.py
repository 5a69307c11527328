"""``python -m primebeaker.images`` and the console script ``primebeaker-images``."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["entry_point"]


def entry_point() -> None:
    """Run the command line. It is looked up by name: the catalogue itself needs no command line."""
    sys.exit(import_module("primebeaker.cli.images").main())


if __name__ == "__main__":
    entry_point()
