"""Which keys and values Beaker's experiment spec v2 allows.

Beaker refuses a spec with an unknown key; so does :func:`check_spec`, with the nearest known one.  The rules are those
of the official client's model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from primebeaker.errors import Mistakes, UserError, did_you_mean

__all__ = ["PRIORITIES", "check_spec", "parse_duration"]

PRIORITIES = ("low", "normal", "high", "urgent", "immediate")

_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|us|µs|ns|m|s))+|0")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|us|µs|ns|m|s)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TASK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SIZE = re.compile(r"[0-9]+(?:\.[0-9]+)?\s*(?:[KMGTP]i?)?B?", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Seconds of a Beaker duration such as ``4h``, ``30m`` or ``1h30m``.

    Raises:
        ValueError: It is none.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration")
    return sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _DURATION_PART.findall(text))


def check_spec(spec: Any, *, file: object | None = None) -> Mapping[str, Any]:
    """Check a whole spec.

    Args:
        spec: The parsed file.
        file: How the file is called in messages.

    Returns:
        The spec itself.

    Raises:
        UserError: Keys or values that Beaker would refuse, all of them.
    """
    mistakes = Mistakes()
    _Checker(mistakes, file).object(spec, "", _TOP)
    mistakes.raise_if_any()
    assert isinstance(spec, Mapping)
    return spec


Check = Callable[["_Checker", Any, str], None]


class _Checker:
    def __init__(self, mistakes: Mistakes, file: object | None) -> None:
        self._mistakes = mistakes
        self._file = file

    def fault(self, key: str, message: str, hint: str | None = None) -> None:
        self._mistakes.add(UserError(message, hint=hint, file=self._file, key=key or None))

    def expect(self, key: str, value: Any, expected: str) -> None:
        shown = "nothing" if value is None else repr(value) if isinstance(value, str | int | float) else _kind(value)
        self.fault(key, f"expected {expected}, found {shown}")

    def object(self, value: Any, key: str, fields: Mapping[str, Check], required: tuple[str, ...] = ()) -> None:
        if not isinstance(value, Mapping):
            self.expect(key or "the spec", value, "a mapping")
            return
        required = required or (("version", "tasks") if fields is _TOP else ())
        for name in required:
            if value.get(name) is None:
                self.fault(_join(key, name), "is required")
        for name, item in value.items():
            check = fields.get(name)
            if check is None:
                self.fault(_join(key, str(name)), "Beaker knows no such key", did_you_mean(str(name), fields))
            # Beaker reads null as absent.
            elif item is not None:
                check(self, item, _join(key, str(name)))


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", bool: str(value).lower()}.get(type(value), type(value).__name__)


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _text(checker: _Checker, value: Any, key: str) -> None:
    if not isinstance(value, str):
        checker.expect(key, value, "text")


def _flag(checker: _Checker, value: Any, key: str) -> None:
    if not isinstance(value, bool):
        checker.expect(key, value, "true or false")


def _whole(least: int, most: int | None = None) -> Check:
    def check(checker: _Checker, value: Any, key: str) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if not fits or (most is not None and value > most):
            bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
            checker.expect(key, value, f"a whole number {bounds}")

    return check


def _number(checker: _Checker, value: Any, key: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        checker.expect(key, value, "a number of at least 0")


def _matching(pattern: re.Pattern[str], expected: str) -> Check:
    def check(checker: _Checker, value: Any, key: str) -> None:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            checker.expect(key, value, expected)

    return check


def _duration(*, above: float | None = None, most: float | None = None) -> Check:
    def check(checker: _Checker, value: Any, key: str) -> None:
        try:
            seconds = parse_duration(value) if isinstance(value, str) else None
        except ValueError:
            seconds = None
        limits = f" above 0 and up to {most / 3600:g}h" if most is not None and above is not None else ""
        outside = seconds is not None and (
            (above is not None and seconds <= above) or (most is not None and seconds > most)
        )
        if seconds is None or outside:
            checker.expect(key, value, f"a duration like '4h' or '30m'{limits}")

    return check


def _one_of(*values: str) -> Check:
    def check(checker: _Checker, value: Any, key: str) -> None:
        if value not in values:
            hint = did_you_mean(value, values) if isinstance(value, str) else None
            checker.fault(key, f"= {value!r}: expected one of {', '.join(values)}", hint)

    return check


def _many(check: Check, *, least: int = 0) -> Check:
    def check_all(checker: _Checker, value: Any, key: str) -> None:
        if not isinstance(value, list):
            checker.expect(key, value, "a list")
        elif len(value) < least:
            checker.fault(key, f"expected at least {least} of them")
        else:
            for index, item in enumerate(value):
                check(checker, item, f"{key}[{index}]")

    return check_all


def _fields(fields: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    def check(checker: _Checker, value: Any, key: str) -> None:
        checker.object(value, key, fields, required)

    return check


def _exactly_one(fields: Mapping[str, Check]) -> Check:
    def check(checker: _Checker, value: Any, key: str) -> None:
        checker.object(value, key, fields)
        if isinstance(value, Mapping) and sum(value.get(name) is not None for name in fields) != 1:
            checker.fault(key, f"expected exactly one of {', '.join(fields)}")

    return check


def _variable(checker: _Checker, value: Any, key: str) -> None:
    named = _matching(_VARIABLE, "the name of a variable")
    checker.object(value, key, {"name": named, "value": _text, "secret": _text}, ("name",))
    if isinstance(value, Mapping) and (value.get("value") is None) == (value.get("secret") is None):
        checker.fault(f"{key} ({value.get('name')})", "expected exactly one of value, secret")


def _context(checker: _Checker, value: Any, key: str) -> None:
    fields = {
        "cluster": _text,
        "priority": _one_of(*PRIORITIES),
        "minRuntime": _duration(),
        "autoResume": _flag,
        "preemptible": _flag,
    }
    checker.object(value, key, fields)
    if isinstance(value, Mapping) and "preemptible" in value and {"minRuntime", "autoResume"} & set(value):
        checker.fault(f"{key}.preemptible", "Beaker refuses it next to minRuntime or autoResume", "leave it out")


def _constraints(checker: _Checker, value: Any, key: str) -> None:
    if not isinstance(value, Mapping):
        checker.expect(key, value, "a mapping of names to lists")
        return
    for name, item in value.items():
        _many(_text)(checker, item, _join(key, str(name)))


def _tasks(checker: _Checker, value: Any, key: str) -> None:
    _many(_fields(_TASK), least=1)(checker, value, key)
    names = [task.get("name") for task in value if isinstance(task, Mapping)] if isinstance(value, list) else []
    for name in sorted({str(name) for name in names if name is not None and names.count(name) > 1}):
        checker.fault(key, f"two tasks are called {name!r}")


_DATA_SOURCES: dict[str, Check] = dict.fromkeys(("beaker", "hostPath", "weka", "result", "secret", "volume"), _text)
_TASK: dict[str, Check] = {
    "image": _exactly_one({"beaker": _text, "docker": _text}),
    "context": _context,
    "result": _fields({"path": _text}, ("path",)),
    "constraints": _constraints,
    "name": _matching(_TASK_NAME, "a name of letters, digits, '.', '_' and '-'"),
    "command": _many(_text),
    "arguments": _many(_text),
    "envVars": _many(_variable),
    "datasets": _many(
        _fields({"mountPath": _text, "subPath": _text, "source": _exactly_one(_DATA_SOURCES)}, ("mountPath", "source"))
    ),
    "resources": _fields(
        {
            "cpuCount": _number,
            "gpuCount": _whole(0),
            "memory": _matching(_SIZE, "a size like '64GiB'"),
            "sharedMemory": _matching(_SIZE, "a size like '64GiB'"),
        }
    ),
    "hostNetworking": _flag,
    "replicas": _whole(1, 1024),
    "leaderSelection": _flag,
    "propagateFailure": _flag,
    "propagatePreemption": _flag,
    # Beaker's own limit of the start time-out.
    "synchronizedStartTimeout": _duration(above=0, most=48 * 3600),
    "timeout": _duration(above=0),
}
_TOP: dict[str, Check] = {
    "version": _one_of("v2", "v2-alpha"),
    "description": _text,
    "tasks": _tasks,
    "budget": _text,
    "retry": _fields({"allowedTaskRetries": _whole(0)}),
    "groups": _many(_text),
}
