"""``podman-terminal``: solve a task in a live container; tests that run in it afterwards write the reward.

Known limit: tests share the container with the model, which may be root there.  A reward file written beforehand,
links, background processes, edited start-up files and programs in the home directory are dealt with; that somebody
replaced the system's own bash or coreutils cannot be excluded.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable
from typing import Any

from primebeaker.environments._shared.arguments import Argument, choice, flag, function, integer, number, text, url
from primebeaker.environments._shared.build import build_environment, resolved_max_turns, rows_of
from primebeaker.environments._shared.dataset import DatasetRules
from primebeaker.environments._shared.factory import EnvironmentSpec, Values, factory
from primebeaker.environments._shared.podman.rewards import REWARDS, weighted
from primebeaker.environments._shared.tool_specs import tool_definition

__all__ = ["SPEC", "load_environment"]

_COMPLETION_MARKER = "TERMINAL_COMPLETE"
_LONGEST_PATH = 4096
_LONGEST_CLIENT_ID = 256
_LONGEST_TEST_COMMAND = 1_048_576
#: Characters of the three paths, quoted: they go into one command of the service, beside the script that grades.
_LONGEST_PATHS = 6000
#: Seconds of an HTTP request beyond those of its command.
_REQUEST_MARGIN = 10


def _absolute_path(value: str) -> str | None:
    if not value.startswith("/") or len(value) > _LONGEST_PATH or "\0" in value:
        return f"expected an absolute path of at most {_LONGEST_PATH} characters"
    return None


def _file_path(value: str) -> str | None:
    if value.endswith(("/", "/.", "/..")):
        return "expected the absolute path of a file"
    return _absolute_path(value)


def _marker(value: str) -> str | None:
    return None if re.fullmatch(r"[A-Za-z0-9_.-]+", value) else "expected letters, digits, '_', '.' and '-' only"


def _prefix(value: str) -> str | None:
    most = _LONGEST_CLIENT_ID - 33
    return None if len(value) <= most else f"expected at most {most} characters"


def _test_command(value: str) -> str | None:
    if len(value) > _LONGEST_TEST_COMMAND or "\0" in value:
        return f"expected at most {_LONGEST_TEST_COMMAND} characters, none of them null"
    return None


ARGUMENTS = (
    Argument("dataset", text(), description="Path of the rows, or a Hub dataset id."),
    Argument("split", text(), "train", "Split to load."),
    Argument("podman_gateway_url", url(), "http://127.0.0.1:1212", "Gateway that leads to the Podman service."),
    Argument("podman_workdir", text(rule=_absolute_path), "/home/user", "Where commands run in the container."),
    Argument("command_timeout", number(least=0.1, most=60), 60, "Seconds one command of the model may take."),
    Argument(
        "request_timeout",
        number(above=0),
        150,
        f"Seconds of one HTTP request; at least command_timeout + {_REQUEST_MARGIN}.",
    ),
    Argument("handshake_timeout", number(above=0), 600, "Seconds for getting a container, repeats included."),
    Argument("max_retries", integer(least=1), 3, "Attempts of what is safe to repeat; a model's command is not."),
    Argument("service", text(), "podman", "Name of the service at the gateway."),
    Argument(
        "client_id_prefix", text(rule=_prefix), "primebeaker-solver", "How the service's log names our containers."
    ),
    Argument("completion_marker", text(rule=_marker), _COMPLETION_MARKER, "Word whose echo ends the task."),
    Argument(
        "reward_file_path", text(rule=_file_path), "/logs/verifier/reward.txt", "File the tests write the reward to."
    ),
    Argument("test_command", text(rule=_test_command), "bash /tests/test.sh", "Command that runs the tests."),
    Argument(
        "test_file_path",
        text(rule=_file_path),
        "/tmp/primebeaker-test-final-state.py",  # noqa: S108  # inside the container
        "Where a row's hidden tests are put before they run.",
    ),
    Argument("test_timeout", number(above=0, most=86400), 600, "Seconds the tests may take."),
    Argument("reward_file_weight", number(least=0), 1.0, "Weight of the number in the reward file."),
    Argument("verifier_reward_weight", number(least=0).or_null(), None, "Old name of reward_file_weight."),
    Argument("termination_reward_weight", number(least=0), 0.1, "Weight of having completed."),
    Argument("podman_failure_penalty_weight", number(least=0), 1.0, "Weight of a container failure's -1."),
    Argument("fake_tool_penalty_weight", number(least=0), 0.1, "Weight of -1 a call of a tool that does not exist."),
    Argument("max_tool_calls", integer(least=1), 64, "Tool calls of a rollout."),
    Argument("max_turns", integer(least=0).or_null(), None, "Assistant turns; null or 0 is max_tool_calls + 1."),
    Argument("tool_role", flag(), True, "Whether results are tool messages; else user messages."),
    Argument(
        "terminal_truncation",
        integer(least=1, decimal_text=True).or_null(),
        16000,
        "Characters of stdout and of stderr that the model sees; null is all the service sends.",
    ),
    Argument(
        "keep_background_processes", flag(), False, "Whether what the model left running is there during the tests."
    ),
    Argument(
        "podman_failure_policy",
        choice("penalty", "error"),
        "penalty",
        "Whether a container failure costs reward, or makes the rollout an infrastructure error that is dropped.",
    ),
    Argument(
        "max_concurrent_sessions", integer(least=1).or_null(), None, "Containers at a time; further rollouts wait."
    ),
    Argument(
        "podman_client_factory",
        function().or_null(),
        None,
        "For Python callers: makes the client of one rollout from keywords of PodmanExecutionClient.",
    ),
)


def _check(values: Values) -> Iterable[tuple[str, str]]:
    paths = ("podman_workdir", "reward_file_path", "test_file_path")
    if sum(len(shlex.quote(values[name])) for name in paths) > _LONGEST_PATHS:
        longest = max(paths, key=lambda name: len(values[name]))
        yield longest, f"expected {', '.join(paths)} to have {_LONGEST_PATHS} characters together at most"
    least = values["command_timeout"] + _REQUEST_MARGIN
    if values["request_timeout"] < least:
        yield "request_timeout", f"expected at least command_timeout + {_REQUEST_MARGIN}, which is {least:g}"
    if posixpath.normpath(values["test_file_path"]) == posixpath.normpath(values["reward_file_path"]):
        yield "test_file_path", "expected another path than reward_file_path"
    if values["verifier_reward_weight"] is not None and values["reward_file_weight"] != 1.0:
        yield "verifier_reward_weight", "is the old name of reward_file_weight; give one of them"


def _bash_definition(marker: str) -> dict[str, Any]:
    return {
        **tool_definition("bash"),
        "description": (
            "Run one Bash command in your live container and get back its stdout, stderr and exit code. Files and"
            " processes stay from call to call, the shell does not. When the task is finished, signal it with exactly"
            f" this command, alone in its call: echo {marker}"
        ),
    }


def _submit_definition() -> dict[str, Any]:
    return {
        **tool_definition("submit"),
        "description": "Record a note for one rubric of the task, if it has any. It does not end the task.",
    }


def _definitions(marker: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return _bash_definition(marker), _submit_definition()


SPEC = EnvironmentSpec(
    name="podman-terminal",
    summary="Solve a task in a live container; tests that run in it afterwards write the reward.",
    arguments=ARGUMENTS,
    rewards=REWARDS,
    tools=_definitions(_COMPLETION_MARKER),
    check=_check,
)


def _build(values: Values) -> Any:
    from literegistry_tool_client import SubmitToolClient

    from primebeaker.environments._shared.podman.book import SessionBook
    from primebeaker.environments._shared.podman.exits import watch_exits
    from primebeaker.environments._shared.podman.rollout import PodmanBehaviour
    from primebeaker.environments._shared.podman.rows import checked_row
    from primebeaker.environments._shared.services import ServicePool

    rows = rows_of(SPEC.name, values, DatasetRules(needs_answer=False, check=checked_row))
    old_weight = values["verifier_reward_weight"]
    file_weight = values["reward_file_weight"] if old_weight is None else old_weight
    rewards = weighted(
        {
            "task_reward_file": file_weight,
            "episode_terminated": values["termination_reward_weight"],
            "podman_failed_reward": values["podman_failure_penalty_weight"],
            "fake_tool_penalty": values["fake_tool_penalty_weight"],
        }
    )
    definitions = _definitions(values["completion_marker"])
    book = SessionBook(SPEC.name, values["max_retries"])
    behaviour = PodmanBehaviour(
        SPEC.name,
        rewards=rewards,
        specs={definition["name"]: definition for definition in definitions},
        pool=ServicePool(),
        book=book,
        most_sessions=values["max_concurrent_sessions"],
    )
    environment = build_environment(
        behaviour,
        rows,
        values,
        max_turns=resolved_max_turns(values["max_turns"], values["max_tool_calls"]),
        tool_defs=definitions,
        settings={
            "tool_names": frozenset(definition["name"] for definition in definitions),
            "tool_clients": {"submit": SubmitToolClient()},
            "max_consecutive_infrastructure_errors": None,
            # What could not be deleted, and handshakes whose reply was lost.
            "containers": book,
        },
    )
    watch_exits()
    return environment


load_environment = factory(SPEC, _build)
