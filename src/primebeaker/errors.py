"""The one exception family: every fault says who must act, and how the process ends.

Three roots, by who must act (exit codes of the command line in brackets):

- :class:`UserError` (2): a mistake in a flag, a file, a path or a value; the user mends it.
- :class:`ExternalError` (3): Beaker or another outside program or service is missing, refused or timed out.
- :class:`InternalError` (1): a fault of ours.

:class:`Interrupted` (130) stands for a Ctrl-C that was cleaned up after.  Library code raises these and never
prints; the command line renders them in one place (``primebeaker.cli.run``).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = [
    "ExternalError",
    "InternalError",
    "Interrupted",
    "Mistakes",
    "PrimeBeakerError",
    "UserError",
    "UserErrors",
    "did_you_mean",
    "missing_extra",
    "nearest",
]


class PrimeBeakerError(Exception):
    """A fault whose text is one complete line: what is wrong, what was expected, how to mend it.

    Args:
        message: The line, without a final full stop and without the ``primebeaker: error:`` prefix.
        hint: The mending action, appended after ``; ``.
        file: The file the fault is in, as the user typed it.
        line: 1-based line number in that file.
        column: 1-based column number in that line.
        key: The dotted key, flag or variable the fault is about.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        file: object | None = None,
        line: int | None = None,
        column: int | None = None,
        key: str | None = None,
    ) -> None:
        self.message = message
        self.hint = hint
        self.file = None if file is None else str(file)
        self.line = line
        self.column = column
        self.key = key
        super().__init__(str(self))

    @property
    def location(self) -> str:
        """``file:line:column`` as far as known, else an empty string."""
        parts = [self.file, self.line, self.column] if self.line is not None else [self.file]
        return ":".join(str(part) for part in parts if part is not None)

    def __str__(self) -> str:
        prefix = ": ".join(part for part in (self.location, self.key) if part)
        text = f"{prefix}: {self.message}" if prefix else self.message
        if self.hint:
            text = f"{text}; {self.hint}"
        # One line, whatever a path or an outside program's text held.
        return " ".join(text.splitlines()).strip()


class UserError(PrimeBeakerError, ValueError):
    """A mistake the user mends. Also a ``ValueError``, so Python callers need not know this module."""

    exit_code = 2


class ExternalError(PrimeBeakerError):
    """Beaker or another outside program or service is missing, refused, or timed out."""

    exit_code = 3


class InternalError(PrimeBeakerError):
    """A fault of ours; the text asks for a rerun with ``PRIMEBEAKER_DEBUG=1``."""

    exit_code = 1


class Interrupted(PrimeBeakerError):
    """The user interrupted the work, and what had been started was cleaned up or is named in the message."""

    exit_code = 130


class UserErrors(UserError):
    """Several independent mistakes found in one run; each is one line of the text."""

    def __init__(self, errors: Sequence[UserError]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors[0].message if self.errors else "no mistakes")

    def __str__(self) -> str:
        return "\n".join(str(error) for error in getattr(self, "errors", ()))


@dataclass
class Mistakes:
    """Collects mistakes so that one run reports all of them.

    Use :meth:`add` wherever a check fails and :meth:`raise_if_any` at the end; or use it as a context manager around
    a check that raises, so that the next check still runs::

        mistakes = Mistakes()
        with mistakes.collect():
            check_name(name)
        mistakes.raise_if_any()
    """

    errors: list[UserError] = field(default_factory=list)

    def add(self, error: UserError) -> None:
        """Remember one mistake (a :class:`UserErrors` adds each of its parts); the same line is kept once."""
        for part in error.errors if isinstance(error, UserErrors) else (error,):
            if str(part) not in {str(known) for known in self.errors}:
                self.errors.append(part)

    def collect(self) -> _Collecting:
        """A context that swallows a :class:`UserError` into this list."""
        return _Collecting(self)

    def raise_if_any(self) -> None:
        """Raise the single mistake, or all of them as :class:`UserErrors`."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise UserErrors(self.errors)


class _Collecting:
    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, UserError):
            self._mistakes.add(error)
            return True
        return False


def nearest(name: str, candidates: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names that look most like ``name``, best first.

    Args:
        name: What the user wrote.
        candidates: The names that exist.
        most: How many to return at the most.
        cutoff: The least similarity (0..1) of :func:`difflib.get_close_matches`.
    """
    return difflib.get_close_matches(name, list(candidates), n=most, cutoff=cutoff)


def did_you_mean(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """``did you mean 'x'?`` (or ``'x' or 'y'``), or None when nothing is near."""
    close = nearest(name, candidates, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(match) for match in close)}?" if close else None


def missing_extra(extra: str) -> UserError:
    """The mistake of calling a command whose optional dependencies are not installed."""
    return UserError(f"this command needs primebeaker[{extra}]: pip install 'primebeaker[{extra}]'")
