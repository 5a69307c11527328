"""Grading a finished task in its container: sweep, clear, install, test, sweep, read.

All of it is one script (``scripts/grade.bash``) that runs in one clean shell: whatever start-up file a model left
behind has done its work before the first step, and nothing of the model runs between two steps.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import Any, NamedTuple

from primebeaker.environments._shared.behaviour import State
from primebeaker.environments._shared.podman.control import PIECE_CHARACTERS, Answer, control, script_text, write_file
from primebeaker.environments._shared.podman.reward_file import (
    LARGEST_REWARD_FILE,
    FileKind,
    RewardFile,
    score_reward_file,
)
from primebeaker.environments._shared.podman.session import Session

__all__ = ["GradingPlan", "grade", "grading_defaults"]

#: Seconds that one request waits inside the container for the tests.
_PATIENCE_SECONDS = 50
#: Seconds beyond ``test_timeout`` after which the container's own alarm is no longer waited for.
_GRACE_SECONDS = 60.0
#: Characters kept of each stream of the tests, and bytes of it that are sent.
_KEPT_CHARACTERS = 65_536
_SENT_BYTES = 4 * _KEPT_CHARACTERS

_SCRIPTS = ("place", "sweep", "startup", "grade")
_NO_ANSWER = "the container's shell did not answer"
_NOT_CLEARED = "could not clear reward file before tests"


class GradingPlan(NamedTuple):
    """What a grading needs to know.

    Args:
        reward_file_path: The file that holds the reward afterwards.
        test_file_path: Where the hidden tests go.
        tests: Their source, if the row has any.
        test_command: The command that runs them.
        test_timeout: Seconds it may take.
        workdir: Where it runs.
        keeps_processes: Whether what the model left running is kept.
    """

    reward_file_path: str
    test_file_path: str
    tests: str | None
    test_command: str
    test_timeout: float
    workdir: str
    keeps_processes: bool


def grading_defaults() -> dict[str, Any]:
    """The state keys of a rollout that is not graded yet."""
    return {
        "podman_tests_ran": False,
        "podman_test_output": None,
        "podman_test_install_output": None,
        "podman_reward_file_clear_output": None,
        "podman_reward_file_present": False,
        "podman_reward_file_error": None,
        "podman_reward_file_score": 0.0,
        "podman_process_sweep": None,
        "podman_processes_killed": 0,
    }


async def grade(session: Session, state: State, plan: GradingPlan) -> None:
    """Grade, and put what came of it into the state.

    Whatever the model did to its container costs the reward at most.

    Raises:
        Exception: What the client raised when the service failed.
    """
    name = f".primebeaker-{secrets.token_hex(16)}"
    content = (plan.tests or "") + plan.test_command
    arguments = [
        name,
        "keep" if plan.keeps_processes else "sweep",
        plan.reward_file_path,
        str(LARGEST_REWARD_FILE + 1),
        plan.test_file_path,
        str(-1 if plan.tests is None else len(plan.tests.encode())),
        f"{plan.test_timeout:g}",
        str(_PATIENCE_SECONDS),
        str(_SENT_BYTES),
        plan.workdir,
        script_text("runner"),
    ]
    staged = ["", ""]
    if len(content) > PIECE_CHARACTERS:
        path = f"/tmp/{name}.input"  # noqa: S108  # inside the container, and its name is random
        problem = await write_file(session, path, content)
        if problem is not None:
            _note_install(state, plan, problem)
            _note(state, RewardFile(error=f"could not install the tests: {problem}"))
            return
        staged = [path, hashlib.sha256(content.encode()).hexdigest()]
        content = ""
    await _follow(session, state, plan, [*arguments, *staged], content)


async def _follow(session: Session, state: State, plan: GradingPlan, arguments: list[str], content: str) -> None:
    """Start the grading, and wait for it with requests that block inside the container."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    answer = await control(session, _SCRIPTS, "start", *arguments, stdin=content)
    if answer is None:
        state["podman_reward_file_clear_output"] = {"success": False, "error": _NO_ANSWER}
        _note(state, RewardFile(error=_NOT_CLEARED))
        return
    report = _Report(answer)
    while report.state == "waiting":
        waited = loop.time() - started
        answer = await control(session, _SCRIPTS, "wait", *arguments)
        if answer is None or waited > plan.test_timeout + _GRACE_SECONDS:
            # Somebody stopped the alarm, or the shell; what the tests left behind is not looked at any more.
            late = answer is not None
            _note_clear(state, plan, report)
            _note_install(state, plan, None)
            state["podman_tests_ran"] = True
            state["podman_test_output"] = _output("", "", exit_code=137, seconds=waited, timed_out=late)
            _note(state, RewardFile(error=_late(plan) if late else f"could not read the reward file: {_NO_ANSWER}"))
            return
        report = _Report(answer)
    _note_report(state, plan, report, loop.time() - started)


class _Report:
    """What the script told: lines of a word and its value, then the streams of the tests."""

    def __init__(self, answer: Answer) -> None:
        head, *streams = answer.text.split(f"\n{answer.token} ")
        self._lines = dict(line.partition(" ")[::2] for line in head.split("\n"))
        self.streams = [_stream(part) for part in streams]
        self.state = self._lines["state"]
        self.complaint = self._lines["complaint"].strip()[:2000] or None
        self.swept, killed = self._lines["swept"].split(" ")
        self.killed = int(killed)

    @property
    def result(self) -> list[str]:
        """Exit code, whether the time was over, and two times; empty when nobody knows."""
        return self._lines.get("result", "").split()

    @property
    def reward_file(self) -> RewardFile:
        """What is at the path of the reward file."""
        kind, _, dump = self._lines["reward"].partition(" ")
        kinds: dict[str, FileKind] = {"absent": "absent", "regular": "regular"}
        return score_reward_file(kinds.get(kind, "irregular"), bytes.fromhex(dump))


def _note_report(state: State, plan: GradingPlan, report: _Report, waited: float) -> None:
    _note_clear(state, plan, report)
    if report.state == "uncleared":
        _note(state, RewardFile(error=_NOT_CLEARED))
        return
    _note_install(state, plan, (report.complaint or "it failed") if report.state == "uninstalled" else None)
    if report.state == "uninstalled":
        _note(state, RewardFile(error=f"could not install the tests: {report.complaint}"))
        return
    if report.state == "refused":
        _note(state, RewardFile(error="could not run the tests: no folder of the container can be written to"))
        return
    (stdout, cut_out), (stderr, cut_err) = report.streams
    # Tests that ended their own runner left no result behind.
    code, late, began, ended = report.result if len(report.result) == 4 else ("137", "0", "0", str(waited))
    timed_out = late == "1"
    state["podman_tests_ran"] = True
    state["podman_test_output"] = _output(
        stdout,
        stderr,
        exit_code=int(code),
        seconds=max(float(ended) - float(began), 0.0),
        timed_out=timed_out,
        cut_out=cut_out,
        cut_err=cut_err,
    )
    found = report.reward_file
    _note(state, RewardFile(0.0, found.present, _late(plan)) if timed_out else found)


def _late(plan: GradingPlan) -> str:
    return f"tests timed out after {plan.test_timeout:g} s"


def _note(state: State, found: RewardFile) -> None:
    state["podman_reward_file_score"] = found.score
    state["podman_reward_file_present"] = found.present
    state["podman_reward_file_error"] = found.error


def _note_clear(state: State, plan: GradingPlan, report: _Report) -> None:
    cleared = report.state != "uncleared"
    state["podman_process_sweep"] = "kept" if plan.keeps_processes else report.swept
    state["podman_processes_killed"] = report.killed
    state["podman_reward_file_clear_output"] = {"success": cleared, "error": None if cleared else report.complaint}


def _note_install(state: State, plan: GradingPlan, problem: str | None) -> None:
    if plan.tests is not None:
        state["podman_test_install_output"] = {"success": problem is None, "error": problem}


def _stream(part: str) -> tuple[str, bool]:
    size, _, content = part.partition("\n")
    cut = len(content) > _KEPT_CHARACTERS or int(size or 0) > _SENT_BYTES
    return content[-_KEPT_CHARACTERS:], cut


def _output(
    stdout: str,
    stderr: str,
    *,
    exit_code: int,
    seconds: float,
    timed_out: bool = False,
    cut_out: bool = False,
    cut_err: bool = False,
) -> dict[str, Any]:
    return {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": exit_code,
        "success": exit_code == 0 and not timed_out,
        "execution_time": seconds,
        "timed_out": timed_out,
        "stdout_truncated": cut_out,
        "stderr_truncated": cut_err,
    }
