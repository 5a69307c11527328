"""``metrics.jsonl``: one JSON object a step, as Prime-RL's file monitor writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from primebeaker.rehearsal.standins import disk

__all__ = ["append_metrics", "append_records"]


def append_metrics(path: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append the figures of one step."""
    append_records(path, [{"step": step, **values}])


def append_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Append one JSON line a record, in one write."""
    disk.append(path, "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records))
