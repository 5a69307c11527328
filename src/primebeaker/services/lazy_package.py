"""Put off a package's own ``__init__`` until one of its names is asked for.

LiteRegistry's imports its servers and clients, with web framework and numerics: a second that no preview needs, since
the native launchers only import two of its small submodules.  ``importlib.util.LazyLoader`` does not help: importing a
submodule already loads a lazy parent.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import types
from typing import Any

__all__ = ["postpone_init"]

_LOCK = threading.RLock()


class _Postponed(types.ModuleType):
    """A package whose submodules can be imported, and whose ``__init__`` runs at the first name it lacks."""

    def __getattr__(self, name: str) -> Any:
        with _LOCK:
            if type(self) is _Postponed:
                self.__class__ = types.ModuleType  # type: ignore[assignment]  # a module may change its class
                spec = self.__spec__
                assert spec is not None and spec.loader is not None
                try:
                    spec.loader.exec_module(self)
                except BaseException:
                    self.__class__ = _Postponed
                    raise
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def postpone_init(package: str) -> None:
    """Let ``import package.submodule`` load that submodule alone.

    Nothing happens when the package is loaded already or is not installed.
    """
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        return
    module = importlib.util.module_from_spec(spec)
    module.__class__ = _Postponed
    sys.modules[package] = module
