"""The watcher's own exit codes: 3 another scan holds the lock, 4 the database cannot be used."""

from __future__ import annotations

from primebeaker.errors import PrimeBeakerError, UserError

__all__ = ["DatabaseUnusableError", "RefusedError", "ScanLockedError", "missing_package"]


class RefusedError(PrimeBeakerError):
    """A rebuild or check that says no; the index is as it was."""

    exit_code = 1


class ScanLockedError(PrimeBeakerError):
    """Another scan of the same index is running."""

    exit_code = 3


class DatabaseUnusableError(PrimeBeakerError):
    """The index is damaged, is no index, or has another schema."""

    exit_code = 4


def missing_package(name: str | None) -> UserError:
    """The mistake of serving without the packages of the ``watcher`` extra."""
    return UserError(
        f"this command needs the package {name or 'starlette'}, which is not installed",
        hint="pip install 'primebeaker[watcher]'",
    )
