"""``primebeaker watcher status``; it loads as little as it can."""

from dataclasses import dataclass
from typing import Annotated

from primebeaker.cli.flags import boolean, number
from primebeaker.cli.output import Result, warn
from primebeaker.cli.watcher_common import DatabaseOptions, Flat, database_of, result, warn_line
from primebeaker.watcher import summary

__all__ = ["status"]


@dataclass(kw_only=True)
class StatusOptions(DatabaseOptions):
    """The flags of ``watcher status``."""

    check: Annotated[bool, boolean("Exit 1 unless the index is there, whole and young enough.", name="check")] = False
    max_age_minutes: Annotated[float, number("With --check: how old the last scan may be.", least=0, default="0")] = 0.0


def status(options: Annotated[StatusOptions | None, Flat] = None) -> Result:
    """Print what the index holds and whether it is whole. Writes nothing."""
    options = options or StatusOptions()
    answer, error = summary.status(database_of(options), warn=warn_line)
    if error is not None:
        warn([str(error)])
    code = error.exit_code if error is not None else 0
    if options.check and not summary.is_healthy(answer, max_age_minutes=options.max_age_minutes):
        code = code or 1
    return result(answer, exit_code=code)
