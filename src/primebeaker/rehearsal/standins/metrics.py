"""``metrics.jsonl``: one JSON object a step, as Prime-RL's file monitor writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["append_metrics", "append_records"]


def append_metrics(path: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append the figures of one step."""
    append_records(path, [{"step": step, **values}])


def append_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Append one JSON line a record, in one write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text)
