"""A TOML document that keeps every byte: immutable, edited by span, checked by ``tomllib`` after every edit.

What an edit may change is the edited value (or the inserted key or table) and nothing else: comments, blank lines,
indentation, the order of keys and tables, the way numbers, strings and dates are written, and the line ends stay.
After each edit the new text is read again with ``tomllib`` and compared with the value tree that was meant; when they
differ, the edit is refused.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from primebeaker.config.layout import Array, Layout, Table, Value, blocks, build_layout, find, own_pairs
from primebeaker.config.paths import MISSING, PathLike, expand, format_path, lookup, missing, parse_path
from primebeaker.config.render import normalize, same
from primebeaker.config.scan import Statement, scan_document
from primebeaker.config.splice import Editor
from primebeaker.errors import InternalError, UserError
from primebeaker.fileio import atomic_write

__all__ = ["MOST_BYTES", "TomlDocument"]

#: The largest document that is read, in bytes.
MOST_BYTES = 8 * 1024 * 1024

_POSITION = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


class EditRefused(InternalError, ValueError):
    """An edit whose result did not read back as meant; nothing was written."""


class TomlDocument:
    """One TOML document. Edits return a new document; the object and the file it came from never change.

    Make one with :meth:`from_path` or :meth:`from_text`.
    """

    __slots__ = ("_layout", "_newline", "_statements", "_text", "_tree", "path")

    path: Path | None

    def __init__(self, text: str, tree: dict[str, Any], path: Path | None) -> None:
        self._text = text
        self._tree = tree
        self.path = path
        self._statements: list[Statement] | None = None
        self._layout: Layout | None = None
        # A document without any line end gets the common one.
        self._newline = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> TomlDocument:
        """Read a file.

        Raises:
            UserError: It is missing, no regular file, unreadable, over 8 MiB, not UTF-8, begins with a byte order mark,
                or is not valid TOML 1.0; with line and column where they are known.
        """
        file = Path(path)
        full = Path(os.path.abspath(file))  # noqa: PTH100 (links stay as the user typed them)
        try:
            if not file.is_file():
                raise UserError("not a regular file" if file.exists() else "no such file", file=full)
            if file.stat().st_size > MOST_BYTES:
                raise UserError(f"larger than {MOST_BYTES // 2**20} MiB", file=full)
            data = file.read_bytes()
        except OSError as error:
            raise UserError(f"cannot be read: {error.strerror}", file=full) from error
        return cls.from_bytes(data, path=full)

    @classmethod
    def from_bytes(cls, data: bytes, path: Path | None = None) -> TomlDocument:
        """Read the bytes of a file; the errors are those of :meth:`from_path`."""
        if data.startswith(b"\xef\xbb\xbf"):
            raise UserError(
                "begins with a UTF-8 byte order mark", hint="save it without one", file=path or "TOML", line=1, column=1
            )
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            start = data.rfind(b"\n", 0, error.start) + 1
            column = len(data[start : error.start].decode("utf-8", "replace")) + 1
            raise UserError("not UTF-8", file=path or "TOML", line=line, column=column) from error
        return cls.from_text(text, path)

    @classmethod
    def from_text(cls, text: str, path: Path | None = None) -> TomlDocument:
        """Read a text.

        Args:
            text: The whole document.
            path: The file it came from, for messages.

        Raises:
            UserError: It is over 8 MiB or not valid TOML 1.0.
        """
        return cls(text, _parse(text, path), path)

    @property
    def file(self) -> Path | str:
        """What to call the document in messages: its path, else ``TOML``."""
        return self.path or "TOML"

    @property
    def text(self) -> str:
        """The whole document."""
        return self._text

    @property
    def values(self) -> dict[str, Any]:
        """The values as plain dicts and lists; a fresh copy each time."""
        return copy.deepcopy(self._tree)

    def get(self, path: PathLike, default: Any = None) -> Any:
        """A copy of the value at ``path``, or ``default`` when there is none."""
        value = lookup(self._tree, parse_path(path))
        return default if value is MISSING else copy.deepcopy(value)

    def has(self, path: PathLike) -> bool:
        """Whether something stands at ``path``."""
        return lookup(self._tree, parse_path(path)) is not MISSING

    def line_of(self, path: PathLike) -> int | None:
        """The 1-based line where ``path`` is written (a table: its header), or None when nothing stands there."""
        statements, layout = self._scanned()
        parts = [part for part in parse_path(path) if isinstance(part, str | int)]
        place = find(layout, statements, parts)
        if place is None:
            return None
        offset = 0
        if isinstance(place, Value):
            number = place.statement
            start = place.node.start
            if place.owner is not None and place.owner.pairs is not None:
                start = place.owner.pairs[place.position].start
            elif place.owner is None and not place.prefix:
                # The key's line; a value always starts on it.
                start = 0
            offset = statements[number].text.count("\n", 0, start)
        elif isinstance(place, Table) and not parts:
            return 1
        else:
            number = _first_statement(place)
        return 1 + offset + sum(statement.text.count("\n") for statement in statements[:number])

    def with_value(self, path: PathLike, value: Any, create: bool = False) -> TomlDocument:
        """Set the value at ``path``.

        Args:
            path: A dotted path; ``[i]`` is an element of an array, ``[*]`` stands for every element.
            value: Any value TOML can hold. An equal one leaves the document as it is.
            create: Also create missing tables on the way; without it only the last key may be missing.

        Raises:
            UserError: The path leads nowhere, or the value cannot be written in TOML.
        """
        parts = parse_path(path)
        with self._naming_the_file():
            new = normalize(value, parts)
            return self._edited([(target, new) for target in expand(self._tree, parts)], create=create)

    def without_value(self, path: PathLike) -> TomlDocument:
        """Remove the key, table or array element at ``path``; a parent that is left empty stays, as an empty table.

        Raises:
            UserError: Nothing stands there.
        """
        tree = self._tree
        editor = self._editor()
        with self._naming_the_file():
            # Backwards, so that the numbers of the elements still to be removed stay right.
            for target in reversed(expand(tree, parse_path(path))):
                concrete = _concrete(target)
                if lookup(tree, concrete) is MISSING:
                    raise missing(tree, concrete)
                editor.remove(concrete)
                tree = _without(tree, concrete)
        return self._checked(editor, tree)

    def write(self, path: str | os.PathLike[str], *, in_place: bool = False) -> Path:
        """Write the document atomically; the permissions of an existing file stay, a link's target is replaced.

        Args:
            path: The file, with a name that ends in ``.toml``; missing parent directories are created.
            in_place: Allow the file this document was read from.

        Raises:
            UserError: The name or the place does not fit, or the file cannot be written; nothing is left behind.
        """
        target = Path(os.path.abspath(Path(path)))  # noqa: PTH100 (a link must stay a link)
        if target.suffix.lower() != ".toml":
            raise UserError("expected a file name that ends in .toml", file=target)
        if target.is_dir():
            raise UserError("is a directory", file=target)
        if not in_place and self.path is not None and _same_file(self.path, target):
            raise UserError("is the file that was read", file=target, hint="write another one, or say --in-place")
        try:
            blocked = next((folder for folder in target.parents if folder.exists() and not folder.is_dir()), None)
            if blocked is not None:
                raise UserError(f"cannot be written: {blocked.name} is not a directory", file=target)
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(target, self._text)
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", file=target) from error
        return target

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if error.file is None and self.path is not None:
                raise UserError(error.message, hint=error.hint, file=self.path, key=error.key) from error
            raise
        except RecursionError as error:
            raise UserError("the value is nested too deeply", file=self.path) from error

    def _scanned(self) -> tuple[list[Statement], Layout]:
        if self._statements is None:
            self._statements = scan_document(self._text)
        if self._layout is None:
            self._layout = build_layout(self._statements)
        return self._statements, self._layout

    def _editor(self) -> Editor:
        statements, layout = self._scanned()
        return Editor(list(statements), layout, self._newline)

    def _edited(self, changes: Sequence[tuple[Any, Any]], *, create: bool) -> TomlDocument:
        tree = self._tree
        editor = self._editor()
        for target, new in changes:
            path = _concrete(target)
            old = lookup(tree, path)
            if old is not MISSING:
                editor.assign(path, old, new)
            else:
                path, new = _first_missing(tree, path, new, create=create)
                editor.insert(path, new)
            tree = _with(tree, path, new)
        return self._checked(editor, tree)

    def _checked(self, editor: Editor, intended: dict[str, Any]) -> TomlDocument:
        text = "".join([statement.text for statement in editor.statements])
        if text == self._text:
            return self
        try:
            tree = _parse(text, self.path)
        except UserError as error:
            raise EditRefused(f"an edit would have made invalid TOML ({error.message}); nothing was changed") from error
        if not same(tree, intended):
            raise EditRefused("an edit would have changed other values too; nothing was changed")
        edited = TomlDocument(text, tree, self.path)
        edited._statements = editor.statements
        edited._layout = editor.known_layout
        edited._newline = self._newline
        return edited


def _parse(text: str, path: Path | None) -> dict[str, Any]:
    file = path or "TOML"
    if len(text) > MOST_BYTES or (len(text) * 4 > MOST_BYTES and len(text.encode()) > MOST_BYTES):
        raise UserError(f"larger than {MOST_BYTES // 2**20} MiB", file=file)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = _POSITION.search(message)
        if found is None:
            raise UserError(f"not valid TOML: {message}", file=file) from error
        if found["line"]:
            line, column = int(found["line"]), int(found["column"])
        else:
            line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        message = message[: found.start()]
        raise UserError(f"not valid TOML: {message}", file=file, line=line, column=column) from error
    except RecursionError as error:
        raise UserError("not readable TOML: nested too deeply", file=file) from error
    except ValueError as error:
        # The standard reader lets Python's own refusal of very long integers through.
        raise UserError(f"not readable TOML: {error}", file=file) from error


def _first_statement(place: Table | Array) -> int:
    if isinstance(place, Table) and place.header is not None:
        return place.header
    return min((*blocks(place), *own_pairs(place)))


def _concrete(path: Sequence[Any]) -> tuple[str | int, ...]:
    return tuple(part for part in path if isinstance(part, str | int))


def _first_missing(
    tree: dict[str, Any], path: tuple[str | int, ...], new: Any, *, create: bool
) -> tuple[tuple[str | int, ...], Any]:
    """The first missing key of ``path``, and the value it gets: ``new`` inside the tables that are missing too."""
    end = next(end for end in range(1, len(path) + 1) if lookup(tree, path[:end]) is MISSING)
    parent = lookup(tree, path[: end - 1])
    if not isinstance(parent, dict) or not all(isinstance(part, str) for part in path[end - 1 :]):
        raise missing(tree, path)
    if end < len(path) and not create:
        error = missing(tree, path[:end])
        raise UserError(
            f"no such table {format_path(path[:-1])}", hint=error.hint or "create missing tables with --create"
        )
    for part in reversed(path[end:]):
        new = {part: new}
    return path[:end], new


def _change(tree: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """A copy of ``tree`` along ``path`` (the rest is shared) with ``change`` applied to the container at its end."""
    if not path:
        return change(tree)
    branch = tree.copy()
    branch[path[0]] = _change(tree[path[0]], path[1:], change)
    return branch


def _with(tree: dict[str, Any], path: Sequence[Any], value: Any) -> dict[str, Any]:
    def put(container: Any) -> Any:
        changed = container.copy()
        changed[path[-1]] = value
        return changed

    changed: dict[str, Any] = _change(tree, path[:-1], put)
    return changed


def _without(tree: dict[str, Any], path: Sequence[Any]) -> dict[str, Any]:
    def take(container: Any) -> Any:
        changed = container.copy()
        del changed[path[-1]]
        return changed

    changed: dict[str, Any] = _change(tree, path[:-1], take)
    return changed


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one == other
