"""What a rehearsal has to say besides how it ran."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Problem"]


@dataclass(frozen=True)
class Problem:
    """Something to mend before the launch is paid for, or that a rehearsal could not try."""

    where: str
    message: str
    hint: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """The entry of the report."""
        return {"where": self.where, "message": self.message, "hint": self.hint}
