"""Results go to stdout, everything else to stderr.

stdout carries one JSON document (or, on a terminal or with ``--format text``, a readable text of the same facts);
warnings and progress never touch it.
"""

# No deferred annotations here: option classes in other modules inherit OutputOptions, and cyclopts evaluates an
# inherited annotation in the inheriting module, where its helpers need not be imported.

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from primebeaker.beaker.spec import escape_templates
from primebeaker.cli.flags import choice
from primebeaker.redaction import Redactor

__all__ = ["Format", "OutputOptions", "Result", "print_result", "warn"]

Format = Literal["json", "text"]


@dataclass(kw_only=True)
class OutputOptions:
    """The flag every command has; option classes inherit it."""

    format: Annotated[
        str | None, choice("How to print the result.", ("json", "text"), panel="Output", default="json when piped")
    ] = None


@dataclass(frozen=True)
class Result:
    """What a command found out or did.

    Args:
        data: The JSON document, keys in their documented order.
        text: Makes the readable text of the same facts; without it the JSON is printed on a terminal too.
        exit_code: The process's exit code.
        template_safe: Write ``{{`` and ``}}`` escaped, as in a spec file: the same bytes can be given to Beaker.
    """

    data: Any
    text: Callable[[], str] | None = None
    exit_code: int = 0
    template_safe: bool = False


def print_result(result: Result, chosen: str | None) -> None:
    """Print ``result`` as ``--format`` says, by default JSON when stdout is not a terminal."""
    as_text = chosen != "json" if chosen else sys.stdout.isatty()
    if as_text and result.text is not None:
        text = result.text()
    else:
        text = json.dumps(result.data, indent=2, ensure_ascii=False)
        if result.template_safe:
            text = escape_templates(text)
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def warn(warnings: Iterable[str]) -> None:
    """Write each warning as one ``primebeaker: warning:`` line to stderr, credentials masked."""
    redact = Redactor()
    for warning in warnings:
        sys.stderr.write(f"primebeaker: warning: {redact(' '.join(warning.splitlines()))}\n")
    sys.stderr.flush()
