"""``python -m primebeaker.watcher CMD``: the same as ``primebeaker watcher CMD``."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # Loaded by name: the library does not depend on the command line.
    sys.exit(importlib.import_module("primebeaker.cli").main(["watcher", *sys.argv[1:]]))
