"""Preview and submit from Python, with the same settings, checks and results as the command line."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from primebeaker.beaker.engine import Engine
from primebeaker.beaker.executable import BeakerExecutable
from primebeaker.launch.files import write_launch_files
from primebeaker.launch.plan import LaunchPlan, plan_launch
from primebeaker.launch.preview import preview
from primebeaker.launch.settings import LaunchSettings
from primebeaker.launch.submit import submit
from primebeaker.launch.topology import Kind

__all__ = ["LaunchResult", "RLLauncher", "SFTLauncher"]


@dataclass(frozen=True)
class LaunchResult:
    """A preview or a receipt; attributes are the keys of the document the command line prints."""

    document: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "document" or name not in self.document:
            raise AttributeError(name)
        return self.document[name]

    def model_dump(self, mode: str = "json") -> dict[str, Any]:
        """The document as plain JSON values."""
        return copy.deepcopy(self.document)


class _Launcher:
    kind: ClassVar[Kind]

    def plan_from_toml(self, path: str | Path, *, image: str | None = None, **settings: Any) -> LaunchPlan:
        """The whole launch, checked and computed.

        Args:
            path: The training TOML.
            image: ``beaker://ID``, ``docker://REFERENCE``, or None for the catalogued image of the workspace.
            settings: The launch flags with underscores, typed: ``clusters`` and the like as sequences,
                ``environment``, ``secrets`` and ``required_services`` as dictionaries.

        Raises:
            UserError: One or more mistakes; also a ``ValueError``.
        """
        return plan_launch(self.kind, LaunchSettings.from_python(path, image=image, **settings))

    def preview_from_toml(
        self, path: str | Path, *, image: str | None = None, write_spec: bool = False, **settings: Any
    ) -> LaunchResult:
        """The document of ``preview``; nothing is created unless ``write_spec``. See :meth:`plan_from_toml`."""
        plan = self.plan_from_toml(path, image=image, **settings)
        if write_spec:
            write_launch_files(plan)
        return LaunchResult(preview(plan))

    def submit_from_toml(
        self,
        path: str | Path,
        *,
        image: str | None = None,
        engine: Engine | None = None,
        skip_preflight: bool = False,
        **settings: Any,
    ) -> LaunchResult:
        """Create the experiment and return the receipt. See :meth:`plan_from_toml`.

        Args:
            path: The training TOML.
            image: See :meth:`plan_from_toml`.
            engine: Where it runs; by default Beaker.
            skip_preflight: Do not ask the engine about account, secrets and image first.
            settings: See :meth:`plan_from_toml`.

        Raises:
            UserError: A mistake in the settings or the TOML.
            ExternalError: The engine refused or could not be reached.
        """
        plan = self.plan_from_toml(path, image=image, **settings)
        return LaunchResult(submit(plan, engine or BeakerExecutable(), skip_preflight=skip_preflight))


class SFTLauncher(_Launcher):
    """Launch supervised fine-tuning from a Prime-RL SFT TOML."""

    kind = "sft"


class RLLauncher(_Launcher):
    """Launch reinforcement learning from a Prime-RL RL TOML."""

    kind = "rl"
