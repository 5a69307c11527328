"""Problems of single files: recorded, shown, never the end of a scan."""

from __future__ import annotations

from typing import Literal, NamedTuple

from primebeaker.redaction import mask_credentials

__all__ = ["SEVERITIES", "SEVERITY_OF", "Issue", "Severity", "issue"]

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

#: Every code and how bad it is.
SEVERITY_OF: dict[str, Severity] = {
    "invalid_toml": "error",
    "invalid_yaml": "error",
    "invalid_json": "error",
    "bad_encoding": "error",
    "too_large": "error",
    "permission_denied": "error",
    "io_error": "error",
    "changing": "warning",
    "root_missing": "warning",
    "root_vanished": "warning",
    "ambiguous_config": "warning",
    "ambiguous_manifest": "warning",
    "multiple_predecessors": "warning",
    "lineage_cycle": "warning",
    "invalid_outcome_row": "warning",
    "duplicate_rows": "warning",
    "corrupt_wandb_file": "warning",
    "unknown_model": "info",
    "missing_checkpoint": "info",
    "no_output_dir": "info",
    "internal_fault": "error",
}


class Issue(NamedTuple):
    """One problem.

    Attributes:
        severity: How bad it is.
        code: A name of :data:`SEVERITY_OF`.
        path: The file or directory.
        message: ``FILE[:LINE[:COLUMN]]: what is wrong; expected …``, one line, without credentials.
        hint: How to mend it.
    """

    severity: Severity
    code: str
    path: str
    message: str
    hint: str


def issue(code: str, path: str, what: str, *, hint: str, line: int | None = None, column: int | None = None) -> Issue:
    """Make an issue of a documented code; its message starts with the place."""
    place = ":".join([path, *(str(number) for number in (line, column) if number is not None)])
    text = " ".join(mask_credentials(f"{place}: {what}").splitlines())
    return Issue(SEVERITY_OF[code], code, path, text[:2000], hint)
