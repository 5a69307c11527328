"""Hand an experiment over to a supervisor process of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from primebeaker.errors import ExternalError
from primebeaker.local.home import Home
from primebeaker.local.leftovers import process_mark, reconcile
from primebeaker.local.secret_store import Origin
from primebeaker.local.store import Store
from primebeaker.supervision.processes import DETACHED, MARKER, look_up

__all__ = ["start_supervisor"]

# It confirms within a tenth of a second; a machine that is busy with other starts gets more.
_CONFIRM_SECONDS = 30.0
# What a caller may hand on to the supervisor process itself, beyond what replicas get.
_SUPERVISOR_VARIABLES = ("PYTHONPATH", "PYTHONWARNINGS")


def start_supervisor(home: Home, store: Store, experiment_id: str, origin: Origin) -> None:
    """Start the detached process that runs an experiment, and wait until it has taken over.

    Raises:
        ExternalError: It did not within half a minute; the experiment is marked as lost.
    """
    folder = home.experiment(experiment_id)
    environment = {**origin.environment, MARKER: DETACHED}
    environment.update({name: os.environ[name] for name in _SUPERVISOR_VARIABLES if name in os.environ})
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as answers:
        try:
            with (folder / "supervisor.log").open("ab") as log:
                module = [sys.executable, "-P", "-m", "primebeaker.local.supervise"]
                process = subprocess.Popen(
                    [*module, str(home.root), experiment_id, str(write_end)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=folder,
                    pass_fds=(write_end,),
                    start_new_session=True,
                )
        finally:
            os.close(write_end)
        identity = look_up(process.pid)
        if identity is not None:
            # On its behalf, so that a caller that is killed now loses nothing.
            store.claim(experiment_id, identity.pid, process_mark(identity))
        (folder / "supervisor.pid").write_text(f"{process.pid}\n")
        readable, _, _ = select.select([answers], [], [], _CONFIRM_SECONDS)
        confirmed = bool(readable) and answers.read(3) == b"ok\n"
    if not confirmed:
        process.kill()
        process.wait()
        reconcile(store)
        raise ExternalError(
            f"the supervisor of experiment {experiment_id} did not start (see {folder / 'supervisor.log'})"
        )
