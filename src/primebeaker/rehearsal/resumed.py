"""The engine of a resumed rehearsal: the embedded one, which starts the child with the same stand-ins as its source."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from primebeaker.beaker.models import CreatedExperiment
from primebeaker.errors import UserError
from primebeaker.local import LocalEngine, Rehearsal
from primebeaker.rehearsal.fault_variables import without_faults
from primebeaker.rehearsal.follow import stopped_on_failure
from primebeaker.rehearsal.local_ports import PortBlock, claim_block
from primebeaker.rehearsal.settings import PORTS, REHEARSAL, load_settings, rehearsal_directory
from primebeaker.rehearsal.tool_services import TOOLS_FILE

__all__ = ["RehearsingEngine"]

_PORTS_SECONDS = 90.0
#: The variables by which a leader stops services; the embedded engine takes any token.
_MANAGED = ("PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID", "BEAKER_TOKEN")
_LOOK_SECONDS = 0.2


class RehearsingEngine(LocalEngine):
    """Creates every experiment as a rehearsal, like the one it continues.

    Args:
        source: The rehearsal that is continued: id, unique prefix or name.

    Raises:
        UserError: There is no such experiment, or it was no rehearsal, whose directory is not one to try things in.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self._ports: PortBlock | None = None
        found = self.find(source).rehearsal
        if found is None:
            raise UserError(
                f"--rehearse: {source} was not a rehearsal, and a rehearsal never writes into a real run's directory",
                hint="rehearse its TOML with 'primebeaker rehearse --keep' first",
            )
        self._path = [str(path) for path in found.get("path_prepend", ())]
        self._env = {str(name): str(value) for name, value in found.get("env", {}).items()}
        self._directory = rehearsal_directory(self._env)
        if not self._directory.is_dir():
            raise UserError(
                f"--rehearse: the work folder of {source} is gone: {self._directory.parent}",
                hint="rehearse with --keep to continue afterwards",
            )

    def create(
        self, spec_path: Path, *, name: str, workspace: str, rehearsal: Rehearsal | None = None
    ) -> CreatedExperiment:
        """See :meth:`Engine.create`."""
        self._claim_ports()
        hooks = rehearsal or self._hooks()
        tools = self._directory.parent / TOOLS_FILE
        if not tools.is_file():
            return super().create(spec_path, name=name, workspace=workspace, rehearsal=hooks)
        with stopped_on_failure(self, f"{name}-tools"):
            services = super().create(
                tools, name=f"{name}-tools", workspace=workspace, rehearsal=Rehearsal(env={REHEARSAL: "1"})
            )
            # This process will not see the end, so the child's leader stops them, as it does with those of a joint run.
            managed = {**hooks["env"], **dict.fromkeys(_MANAGED, str(services.experiment_id))}
            return super().create(
                spec_path, name=name, workspace=workspace, rehearsal=Rehearsal(**{**hooks, "env": managed})
            )

    def _claim_ports(self) -> None:
        """Keep the source's ports for its child, for as long as this process lives."""
        base = self._env.get(PORTS)
        deadline = time.monotonic() + _PORTS_SECONDS
        while base and (block := claim_block(int(base))) is None:
            # Another rehearsal got them when the source had ended.
            if time.monotonic() > deadline:
                raise UserError(
                    f"--rehearse: the ports of the source, {base} and those after it, are in use",
                    hint="wait until the other rehearsal has ended",
                )
            time.sleep(_LOOK_SECONDS)
        self._ports = block if base else None

    def _hooks(self) -> Rehearsal:
        """The stand-ins of the source, in a folder of their own: what struck it must not strike its child again."""
        settings = replace(load_settings(self._env), faults=())
        directory = Path(tempfile.mkdtemp(prefix=f"{self._directory.name}-resumed-", dir=self._directory.parent))
        settings.write(directory)
        kept = {name: value for name, value in without_faults(self._env).items() if name not in _MANAGED}
        return Rehearsal(path_prepend=self._path, env={**kept, **settings.environment(directory)})
