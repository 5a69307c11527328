"""Stop the tool services of a joint run when its training ends, however it ends.

Only rank 0 does this.  The token leaves the environment before anything is started, so that no child, log or
``/proc`` entry ever holds it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field

from primebeaker.beaker.refusals import is_over
from primebeaker.errors import UserError
from primebeaker.roles.http import fetch, in_thread

__all__ = ["ManagedServices", "stop_services_of", "take_managed_services"]

_ID = "PRIMEBEAKER_MANAGED_SERVICE_EXPERIMENT_ID"
_TOKEN = "BEAKER_TOKEN"  # noqa: S105  a name, not a token
_PLACEHOLDER = "<created-at-launch>"
_PAUSES = (1.0, 3.0, 9.0)
_TOTAL_SECONDS = 60.0
_ATTEMPT_SECONDS = 15.0
_ADDRESS = "https://beaker.org"


@dataclass
class ManagedServices:
    """The service experiment to stop.

    Attributes:
        experiment: Its id.
        token: A Beaker token, in this process's memory only.
        address: Base URL of Beaker.
        path: ``PATH`` in which the executable is looked up.
    """

    experiment: str
    token: str = field(repr=False)
    address: str = _ADDRESS
    env: dict[str, str] = field(default_factory=dict, repr=False)
    _done: bool = False

    async def stop(self, say: Callable[[str], None]) -> None:
        """Stop the experiment, once; never raises and never changes how the role ends."""
        if self._done:
            return
        self._done = True
        command = f"beaker experiment stop {self.experiment}"
        if self.experiment == _PLACEHOLDER:
            say(f"warning: the managed service experiment is still the placeholder {_PLACEHOLDER}; nothing is stopped")
            return
        reason = "no attempt"
        deadline = time.monotonic() + _TOTAL_SECONDS
        for pause in (*_PAUSES, None):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            reason = await self._attempt(min(_ATTEMPT_SECONDS, left))
            if not reason:
                say(f"stopped the managed service experiment {self.experiment}")
                return
            if pause is not None:
                await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        say(f"warning: the service experiment may still run ({reason}); stop it with: {command}")

    async def _attempt(self, limit: float) -> str:
        """An empty text when the experiment is stopped, else why not."""
        executable = shutil.which("beaker", path=self.env.get("PATH"))
        if executable is not None:
            return await in_thread(lambda: self._run(executable, limit))
        answer = await fetch(
            f"{self.address.rstrip('/')}/api/v3/experiments/{self.experiment}/stop",
            method="PUT",
            headers={"Authorization": f"Bearer {self.token}"},
            total=limit,
        )
        return "" if 200 <= answer.status < 300 or answer.status in (404, 409) else answer.reason

    def _run(self, executable: str, limit: float) -> str:
        try:
            done = subprocess.run(
                [executable, "experiment", "stop", self.experiment],
                env={**self.env, _TOKEN: self.token},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {limit:.0f} s"
        except OSError as error:
            return error.strerror or str(error)
        if done.returncode == 0:
            return ""
        text = (done.stderr or done.stdout).decode("utf-8", "replace").strip().replace(self.token, "***")
        first = text.splitlines()[0] if text else f"exit code {done.returncode}"
        return "" if is_over(text) else first


def take_managed_services(env: MutableMapping[str, str], *, rank: int) -> ManagedServices | None:
    """Take token and experiment id out of the environment.

    Args:
        env: This process's own environment; both variables are removed from it.
        rank: Only rank 0 stops anything.

    Raises:
        UserError: There is an experiment to stop but no token.
    """
    experiment = env.pop(_ID, None)
    if experiment is None:
        return None
    token = env.pop(_TOKEN, "").strip()
    if rank != 0:
        return None
    if not token:
        raise UserError(
            f"{_TOKEN} is empty: it is needed to stop the managed service experiment {experiment} at the end",
            hint="name a Beaker secret that holds a token",
        )
    return ManagedServices(experiment, token, env.get("BEAKER_ADDR") or _ADDRESS, dict(env))


def stop_services_of(env: MutableMapping[str, str]) -> int:
    """Stop the services an environment names, for a task that ends before its role; always returns 0.

    Raises:
        UserError: There is an experiment to stop but no token.
    """
    services = take_managed_services(env, rank=0)
    if services is not None:
        asyncio.run(services.stop(lambda line: print(line, file=sys.stderr, flush=True)))
    return 0
