"""PrimeBeaker: check, preview, rehearse and launch Prime-RL training on Beaker or on one machine.

The names below are the public Python surface; each is imported when it is first used, so that ``import primebeaker``
costs next to nothing: a command can be interrupted in order from its first milliseconds on.
"""

from __future__ import annotations

import os
import sys

# Type checkers take it for true; ``typing`` itself takes milliseconds to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Public name -> the module that defines it.
_EXPORTS: dict[str, str] = {
    "RLLauncher": "primebeaker.launch.launcher",
    "SFTLauncher": "primebeaker.launch.launcher",
    "DataArtifacts": "primebeaker.config.binding",
    "RLTrainingToml": "primebeaker.config.training",
    "SFTTrainingToml": "primebeaker.config.training",
    "TrainingData": "primebeaker.config.binding",
    "TrainingToml": "primebeaker.config.training",
    "dump_toml_document": "primebeaker.config.render",
    "load_toml": "primebeaker.config.training",
    "load_training_toml": "primebeaker.config.training",
    "render_training_toml": "primebeaker.config.training",
}

__all__ = ["__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    if name in _EXPORTS:
        from importlib import import_module

        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'primebeaker' has no attribute {name!r}")


def _installed_version() -> str:
    """The version in the installed metadata.

    It stands in the name of the metadata's folder, and every preview needs it: reading the name costs a
    millisecond, importing ``importlib.metadata`` twenty.
    """
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")  # noqa: PTH208 - pathlib is not needed otherwise
        except OSError:
            continue
        for name in names:
            if name.startswith("primebeaker-") and name.endswith(".dist-info"):
                return name.removeprefix("primebeaker-").removesuffix(".dist-info")
    from importlib.metadata import version

    return version("primebeaker")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_EXPORTS})
