"""The engine behind the ``beaker`` program: the stock command-line client, run with time limits.

Reading calls end after 60 seconds, one that stops after 30.  The creating call has a limit of its own and is never
repeated: an experiment that may exist must be looked for by a human, not created twice.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from primebeaker.beaker.engine import Engine, EngineName, NameTaken, PreflightAnswers, UnclearOutcome
from primebeaker.beaker.models import Account, CreatedExperiment, Experiment, ExperimentState, ImageRecord, Job, LogLine
from primebeaker.beaker.parse import (
    parse_account,
    parse_created,
    parse_experiment,
    parse_image,
    parse_job,
    parse_json,
    parse_log_line,
    single,
)
from primebeaker.beaker.process import Completed, child_options, end_group, plain_text, run, run_together
from primebeaker.beaker.refusals import is_unknown
from primebeaker.errors import ExternalError, Interrupted, PrimeBeakerError, UserError

__all__ = ["BINARY_VARIABLE", "READ_TIMEOUT_SECONDS", "TIMEOUT_VARIABLE", "BeakerExecutable", "find_beaker"]

BINARY_VARIABLE = "PRIMEBEAKER_BEAKER_BINARY"
TIMEOUT_VARIABLE = "PRIMEBEAKER_BEAKER_TIMEOUT_SECONDS"
READ_TIMEOUT_SECONDS = 60.0
_CREATE_TIMEOUT_SECONDS = 120.0
#: A call that stops is repeated by who must be sure, also while somebody waits for a launch to end.
_STOP_TIMEOUT_SECONDS = 30.0
_WAIT_PAUSE_SECONDS = 10.0


def find_beaker() -> str:
    """The ``beaker`` program: ``PRIMEBEAKER_BEAKER_BINARY``, else the one on ``PATH``.

    Raises:
        ExternalError: There is none.
    """
    named = os.environ.get(BINARY_VARIABLE)
    found = shutil.which(named or "beaker")
    if found is None:
        place = f"{BINARY_VARIABLE} = {named} is no program" if named else "beaker is not installed or not on PATH"
        raise ExternalError(
            place,
            hint="install it (https://beaker-docs.apps.allenai.org/start/install.html), "
            "or use 'preview', which needs no Beaker",
        )
    return found


class BeakerExecutable(Engine):
    """Talks to Beaker through its command-line client.

    Raises:
        ExternalError: The program is not there.
    """

    name: EngineName = "beaker"

    def __init__(self) -> None:
        self._program = find_beaker()

    def create(self, spec_path: Path, *, name: str, workspace: str) -> CreatedExperiment:
        """See :meth:`Engine.create`."""
        argv = [self._program, "experiment", "create", "--name", name, "--workspace", workspace, str(spec_path)]
        limit = _create_timeout()
        look = f"look with 'beaker workspace experiments {workspace}' before you submit again"
        try:
            result = run(argv, timeout=limit)
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"interrupted: the experiment {name} may exist; {look} (spec file: {spec_path})"
            ) from error
        if result.timed_out:
            raise UnclearOutcome(
                f"beaker did not answer within {limit:g} s: the experiment {name} may exist; {look} "
                f"(spec file: {spec_path})"
            )
        if result.code is not None and result.code < 0:
            raise UnclearOutcome(
                f"beaker was killed by signal {-result.code}: the experiment {name} may exist; {look} "
                f"(spec file: {spec_path})"
            )
        if result.code != 0:
            message = result.message or f"exit code {result.code}"
            taken = any(
                words in message.lower() for words in ("already in use", "already exists", "already taken", "conflict")
            )
            refused = f"beaker did not create the experiment {name}: {message} (spec file: {spec_path})"
            if taken:
                raise NameTaken(refused, hint="change --name or wandb.name")
            raise ExternalError(refused)
        return parse_created(result.stdout)

    def get(self, id_or_name: str) -> Experiment:
        """See :meth:`Engine.get`."""
        what = f"experiment {id_or_name}"
        raw = self._json(self._run(["experiment", "get", id_or_name, "--format", "json"]), what)
        return parse_experiment(_object_of(raw, what))

    def jobs(self, ids: Sequence[str]) -> Sequence[Job]:
        """The jobs of these ids, in one call."""
        if not ids:
            return ()
        result = self._run(["job", "get", *ids, "--format", "json"])
        raw = self._json(result, f"jobs {', '.join(ids)}")
        return [parse_job(job) for job in (raw if isinstance(raw, list) else [raw])]

    def list(
        self, *, workspace: str | None = None, state: ExperimentState | None = None, limit: int = 20
    ) -> Sequence[Experiment]:
        """See :meth:`Engine.list`; Beaker lists one workspace at a time.

        Raises:
            UserError: No workspace is given.
        """
        if workspace is None:
            raise UserError("Beaker lists the experiments of one workspace", hint="pass --workspace=owner/name")
        result = self._run(["workspace", "experiments", workspace, "--format", "json"])
        raw = self._json(result, f"experiments of {workspace}")
        experiments = [parse_experiment(item) for item in (raw if isinstance(raw, list) else [raw])]
        experiments.sort(key=lambda item: item.created.timestamp() if item.created else 0.0, reverse=True)
        return [item for item in experiments if state is None or item.state == state][:limit]

    def stop(self, id_or_name: str) -> None:
        """See :meth:`Engine.stop`."""
        result = run([self._program, "experiment", "stop", id_or_name], timeout=_STOP_TIMEOUT_SECONDS)
        if result.code != 0:
            raise self._refusal(result, f"experiment {id_or_name}")

    def logs(
        self,
        id_or_name: str,
        *,
        rank: int | None = None,
        task: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        since: datetime | None = None,
    ) -> Iterator[LogLine]:
        """See :meth:`Engine.logs`; lines of several jobs come as they are printed."""
        jobs = [
            job
            for job in self.get(id_or_name).latest_jobs
            if rank in (None, job.replica_rank) and task in (None, job.task)
        ]
        lines = self._stream(jobs, follow=follow)
        if since is not None:
            lines = (line for line in lines if line.timestamp is None or line.timestamp >= since)
        if tail is None or follow:
            yield from lines
            return
        kept: dict[str, list[LogLine]] = {}
        for line in lines:
            ends = kept.setdefault(line.job_id, [])
            ends.append(line)
            del ends[: max(0, len(ends) - tail)]
        for ends in kept.values():
            yield from ends

    def wait(self, id_or_name: str, *, timeout: float | None = None) -> Experiment:
        """See :meth:`Engine.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            experiment = self.get(id_or_name)
            if experiment.ended:
                return experiment
            left = _WAIT_PAUSE_SECONDS if deadline is None else min(_WAIT_PAUSE_SECONDS, deadline - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"experiment {id_or_name} has not ended within {timeout:g} s")
            time.sleep(left)

    def whoami(self) -> Account:
        """See :meth:`Engine.whoami`."""
        return _account(self._run(["account", "whoami", "--format", "json"]))

    def secret_list(self, workspace: str) -> Sequence[str]:
        """See :meth:`Engine.secret_list`."""
        return self._secrets(self._run(["secret", "list", "--workspace", workspace, "--format", "json"]), workspace)

    def image_get(self, reference: str) -> ImageRecord | None:
        """See :meth:`Engine.image_get`."""
        return self._image(self._run(["image", "get", reference, "--format", "json"]), reference)

    def preflight(self, workspace: str, images: Sequence[str] = ()) -> PreflightAnswers:
        """See :meth:`Engine.preflight`; the calls run at the same time."""
        whoami, secrets, *found = run_together(
            [
                [self._program, "account", "whoami", "--format", "json"],
                [self._program, "secret", "list", "--workspace", workspace, "--format", "json"],
                *([self._program, "image", "get", image, "--format", "json"] for image in images),
            ],
            timeout=READ_TIMEOUT_SECONDS,
        )
        answers = PreflightAnswers(account=_account(whoami))
        try:
            answers.secrets = self._secrets(secrets, workspace)
        except PrimeBeakerError as error:
            answers.problems["secrets"] = error
        for image, result in zip(images, found, strict=True):
            try:
                answers.images[image] = self._image(result, image)
            except PrimeBeakerError as error:
                answers.problems[image] = error
        return answers

    def _run(self, words: Sequence[str]) -> Completed:
        return run([self._program, *words], timeout=READ_TIMEOUT_SECONDS)

    def _json(self, result: Completed, what: str) -> Any:
        if result.timed_out:
            raise ExternalError(f"beaker did not answer within {READ_TIMEOUT_SECONDS:g} s about {what}")
        if result.code != 0:
            raise self._refusal(result, what)
        try:
            return parse_json(result.stdout)
        except ValueError as error:
            raise ExternalError(
                f"beaker printed no JSON about {what}: {result.first_line or 'it printed nothing'}"
            ) from error

    def _refusal(self, result: Completed, what: str) -> ExternalError:
        reason = result.first_line or ("no answer in time" if result.timed_out else f"exit code {result.code}")
        return ExternalError(f"beaker refused {what}: {reason}")

    def _secrets(self, result: Completed, workspace: str) -> Sequence[str]:
        raw = self._json(result, f"the secrets of {workspace}")
        entries = raw if isinstance(raw, list) else [raw]
        return [entry["name"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("name"), str)]

    def _image(self, result: Completed, reference: str) -> ImageRecord | None:
        if result.code not in (0, None) and is_unknown(result.message):
            return None
        what = f"image {reference}"
        return parse_image(_object_of(self._json(result, what), what))

    def _stream(self, jobs: Sequence[Job], *, follow: bool) -> Iterator[LogLine]:
        """Lines of all jobs; one child a job when following, else one after the other."""
        for group in [jobs] if follow else [[job] for job in jobs]:
            yield from self._stream_together(group, follow=follow)

    def _stream_together(self, jobs: Sequence[Job], *, follow: bool) -> Iterator[LogLine]:
        children: list[subprocess.Popen[bytes]] = []
        try:
            with selectors.DefaultSelector() as selector:
                for job in jobs:
                    words = ["job", "logs", job.id, *(["--follow"] if follow else [])]
                    child = subprocess.Popen(
                        [self._program, *words],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        **child_options(None),  # type: ignore[call-overload]
                    )
                    children.append(child)
                    selector.register(child.stdout, selectors.EVENT_READ, (job, bytearray()))
                while selector.get_map():
                    for key, _ in selector.select():
                        job, pending = key.data
                        chunk = os.read(key.fd, 65536)
                        pending += chunk
                        *whole, rest = bytes(pending).split(b"\n")
                        pending[:] = rest
                        if not chunk:
                            selector.unregister(key.fileobj)
                            whole = [*whole, rest] if rest else whole
                        for line in whole:
                            yield parse_log_line(plain_text(line.decode("utf-8", "replace")), job)
        finally:
            for child in children:
                if child.poll() is None:
                    end_group(child)
                if child.stdout is not None:
                    child.stdout.close()


def _object_of(raw: Any, what: str) -> Mapping[str, Any]:
    try:
        return single(raw)
    except ValueError as error:
        raise ExternalError(f"beaker gave no {what}: {error}") from error


def _account(result: Completed) -> Account:
    if result.code != 0:
        reason = "no answer within 60 s" if result.timed_out else result.first_line or f"exit code {result.code}"
        raise ExternalError(
            f"not logged in to Beaker, or Beaker is unreachable: {reason}",
            hint="log in with 'beaker account login', or pass --skip-preflight",
        )
    try:
        return parse_account(single(parse_json(result.stdout)))
    except ValueError:
        # It says who, not whether: exit 0 means logged in.
        return Account("", "")


def _create_timeout() -> float:
    value = os.environ.get(TIMEOUT_VARIABLE)
    if not value:
        return _CREATE_TIMEOUT_SECONDS
    try:
        limit = float(value)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise UserError(f"{TIMEOUT_VARIABLE} = {value!r}: expected a number of seconds above 0")
    return limit
