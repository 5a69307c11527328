"""Reading other programs' files: bounded, strictly decoded, and never half of an old and half of a new one."""

from __future__ import annotations

import codecs
import json
import os
import re
import tomllib
from typing import Any, NamedTuple

import yaml

from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.yaml_values import load_yaml

__all__ = [
    "CONFIG_LIMIT",
    "OUTCOME_LIMIT",
    "Stat",
    "UnreadableError",
    "decode",
    "parse_json",
    "parse_toml",
    "parse_yaml",
    "read_file",
    "stat_of",
]

CONFIG_LIMIT = 16 * 2**20
OUTCOME_LIMIT = 64 * 2**20
_YAML_NODES = 100_000
_YAML_DEPTH = 200
_LINE_COLUMN = re.compile(r"\(at line (\d+), column (\d+)\)")


class UnreadableError(Exception):
    """One file cannot be used; ``issue`` says why."""

    def __init__(self, problem: Issue) -> None:
        self.issue = problem
        super().__init__(problem.message)


class Stat(NamedTuple):
    """What tells that a file has not changed."""

    size: int
    mtime_ns: int
    inode: int
    device: int


def stat_of(path: str) -> Stat:
    """The file's stat; follows links."""
    result = os.stat(path)  # noqa: PTH116 (called once a file on trees of half a million)
    return Stat(result.st_size, result.st_mtime_ns, result.st_ino, result.st_dev)


def io_issue(path: str, error: OSError) -> Issue:
    """The issue of a file or directory the system would not give."""
    if isinstance(error, PermissionError):
        return issue("permission_denied", path, "permission denied", hint="make it readable for the watcher's user")
    return issue("io_error", path, f"cannot be read: {error.strerror or error}", hint="check the file system")


def read_file(path: str, shown: str, *, limit: int = CONFIG_LIMIT) -> tuple[bytes, Stat]:
    """The whole content and the stat it belongs to; a file that changes meanwhile is read once more.

    Args:
        path: Where to open it.
        shown: How to name it.
        limit: Most bytes.

    Raises:
        UnreadableError: Missing rights, too large, no regular file, or still changing.
        FileNotFoundError: It vanished.
    """
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnreadableError(io_issue(shown, error)) from error
        try:
            before = os.fstat(descriptor)
            if before.st_mode & 0o170000 != 0o100000:
                raise UnreadableError(issue("io_error", shown, "not a regular file", hint="remove or exclude it"))
            if before.st_size > limit:
                raise UnreadableError(
                    issue(
                        "too_large",
                        shown,
                        f"{before.st_size} bytes; expected at most {limit}",
                        hint="exclude it with --exclude",
                    )
                )
            data = _content(descriptor, before.st_size)
            after = os.fstat(descriptor)
        except OSError as error:
            raise UnreadableError(io_issue(shown, error)) from error
        finally:
            os.close(descriptor)
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns) and len(data) == after.st_size:
            return data, Stat(after.st_size, after.st_mtime_ns, after.st_ino, after.st_dev)
    raise UnreadableError(
        issue("changing", shown, "is being written while it is read", hint="the next update reads it again")
    )


def _content(descriptor: int, size: int) -> bytes:
    """At most one byte more than ``size``: it tells that the file has grown.

    Not a buffered read: that would reserve the greatest allowed size for every small file.
    """
    data = os.read(descriptor, size + 1)
    while 0 < len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
        data += more
    return data


def decode(data: bytes, shown: str) -> str:
    """UTF-8 text, without a byte order mark.

    Raises:
        UnreadableError: With the offset of the first byte that is not UTF-8.
    """
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start + (len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)
        raise UnreadableError(
            issue("bad_encoding", shown, f"byte {offset} is not UTF-8; expected UTF-8", hint="save it as UTF-8")
        ) from error


def parse_toml(text: str, shown: str) -> dict[str, Any]:
    """A TOML document.

    Raises:
        UnreadableError: With line and column.
    """
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        found = _LINE_COLUMN.search(str(error))
        line, column = (int(found[1]), int(found[2])) if found else (None, None)
        what = _LINE_COLUMN.sub("", str(error)).strip() or type(error).__name__
        raise UnreadableError(
            issue("invalid_toml", shown, f"{what}; expected TOML", hint="correct it", line=line, column=column)
        ) from error


def parse_json(text: str, shown: str) -> Any:
    """A JSON document; ``NaN`` and ``Infinity`` are read, since Python programs write them.

    Raises:
        UnreadableError: With line and column.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line, column = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
        what = error.msg if isinstance(error, json.JSONDecodeError) else f"{type(error).__name__}"
        raise UnreadableError(
            issue("invalid_json", shown, f"{what}; expected JSON", hint="correct it", line=line, column=column)
        ) from error


def parse_yaml(text: str, shown: str) -> Any:
    """A YAML document of plain data.

    Raises:
        UnreadableError: Not YAML (with line and column), or its anchors unfold to more than 100,000 nodes.
    """
    try:
        value = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).partition("\n")[0] or type(error).__name__
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise UnreadableError(
            issue("invalid_yaml", shown, f"{what}; expected YAML", hint="correct it", line=line, column=column)
        ) from error
    if "*" in text and "&" in text and not _is_bounded(value):
        raise UnreadableError(
            issue(
                "invalid_yaml",
                shown,
                f"its anchors unfold to more than {_YAML_NODES} nodes",
                hint="write the values out",
            )
        )
    return value


def _is_bounded(value: Any) -> bool:
    nodes = 0
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        nodes += 1
        if nodes > _YAML_NODES or depth > _YAML_DEPTH:
            return False
        if isinstance(item, dict):
            stack.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list | set):
            stack.extend((child, depth + 1) for child in item)
    return True
