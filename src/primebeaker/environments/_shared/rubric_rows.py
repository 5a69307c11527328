"""Rows with weighted rubrics: their normal form, the sample that is judged, and the form of the answer."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from primebeaker.environments._shared.behaviour import plain_message
from primebeaker.environments._shared.rows import RowFault, decoded_info
from primebeaker.json_keys import RepeatedKey, unique_keys

__all__ = ["Rubric", "has_orphan_think_close", "prepared_row", "row_rubrics", "rubric_score", "sampled_rubrics"]


class Rubric(NamedTuple):
    """One weighted criterion; a negative weight describes a fault."""

    original_index: int
    text: str
    weight: float


def prepared_row(row: Mapping[str, Any], *, place: str | None, position: int = 0) -> dict[str, Any]:
    """Bring a row into normal form: ``prompt``, ``answer`` with record id and rubrics, ``info.rubrichub_record_id``.

    Args:
        row: The row as it was read.
        place: ``<dataset>:<split>:``, what its number is put behind; None for a row that comes from no dataset.
        position: Its number.

    Raises:
        RowFault: The rubrics are missing or unusable.
    """
    prepared = dict(row)
    extra = row.get("extra_info")
    if not row.get("prompt") and isinstance(extra, Mapping):
        prepared["prompt"] = extra.get("prompt")
    _check_prompt(prepared.get("prompt"))
    known = _normal_answer(row.get("answer"))
    column, rubrics = ("answer", known["rubrics"]) if known else _raw_rubrics(row)
    checked = _checked_rubrics(column, rubrics)
    plain = [rubric._asdict() for rubric in checked]
    if known:
        record_id = str(known["record_id"])
    else:
        prefix = None if place is None else f"{place}{position}"
        record_id = _record_id(row, place) or prefix or _digest({"prompt": prepared.get("prompt"), "rubrics": plain})
    prepared["answer"] = _compact({"record_id": record_id, "rubrics": plain})
    info = decoded_info(row.get("info"))
    prepared["info"] = {**(info if isinstance(info, Mapping) else {}), "rubrichub_record_id": record_id}
    return prepared


def row_rubrics(row: Mapping[str, Any], answer: Any) -> tuple[str, list[Rubric]]:
    """The record id and the rubrics in a normalised answer; of a row that a caller brings, in its own columns.

    Raises:
        RowFault: There are none, or they are unusable.
    """
    found = _normal_answer(answer)
    if found is None:
        prompt = row.get("prompt")
        plain = [plain_message(message) for message in prompt] if isinstance(prompt, list | tuple) else prompt
        found = json.loads(prepared_row({**row, "prompt": plain, "answer": None}, place=None)["answer"])
    rubrics = [Rubric(entry["original_index"], entry["text"], entry["weight"]) for entry in found["rubrics"]]
    return str(found["record_id"]), rubrics


def sampled_rubrics(rubrics: Sequence[Rubric], *, most: int, seed: int, record_id: str) -> list[Rubric]:
    r"""At most ``most`` rubrics, chosen by the record alone, at least one of them positive.

    The generator is seeded with the SHA-256 of the seed, ``\0`` (a backslash and a zero) and the record id.
    """
    if len(rubrics) <= most:
        return list(rubrics)
    digest = hashlib.sha256(f"{seed}\\0{record_id}".encode()).digest()
    generator = random.Random(int.from_bytes(digest, "big"))  # noqa: S311  # a reproducible choice, no secret
    chosen = sorted(generator.sample(range(len(rubrics)), most))
    if all(rubrics[index].weight < 0 for index in chosen):
        positive = [index for index, rubric in enumerate(rubrics) if rubric.weight > 0]
        chosen = sorted([*chosen[:-1], generator.choice(positive)])
    return [rubrics[index] for index in chosen]


def rubric_score(rubrics: Sequence[Rubric], labels: Sequence[str]) -> float:
    """The weights that passed over the positive weights, at least -1."""
    passed = sum(rubric.weight for rubric, label in zip(rubrics, labels, strict=True) if label == "pass")
    return max(-1.0, passed / sum(rubric.weight for rubric in rubrics if rubric.weight > 0))


def has_orphan_think_close(text: str) -> bool:
    """Whether a ``</think>`` stands in the text without an earlier unmatched ``<think>`` (exact lower case)."""
    opened = 0
    position = 0
    while (closing := text.find("</think>", position)) >= 0:
        opened += text.count("<think>", position, closing)
        if opened == 0:
            return True
        opened -= 1
        position = closing + len("</think>")
    return False


def _normal_answer(answer: Any) -> dict[str, Any] | None:
    if not isinstance(answer, str) or not answer.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(answer, object_pairs_hook=unique_keys)
    except RepeatedKey as error:
        raise RowFault("answer", str(error)) from None
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"record_id", "rubrics"} <= found.keys() else None


def _raw_rubrics(row: Mapping[str, Any]) -> tuple[str, Any]:
    if row.get("rubrics") is not None:
        return "rubrics", row["rubrics"]
    model = row.get("reward_model")
    column, raw = "Rubrics", row.get("Rubrics")
    if raw is None and isinstance(model, Mapping):
        column, raw = "reward_model.rubrics", model.get("rubrics")
    if raw is None:
        raise RowFault("rubrics", "missing; accepted are rubrics, Rubrics and reward_model.rubrics")
    if not isinstance(raw, list | tuple) or not all(isinstance(entry, Mapping) for entry in raw):
        raise RowFault(column, "expected a list of objects with criterion and points")
    return column, [{"text": entry.get("criterion"), "weight": entry.get("points")} for entry in raw]


def _checked_rubrics(column: str, rubrics: Any) -> list[Rubric]:
    if not isinstance(rubrics, list | tuple) or not rubrics:
        raise RowFault(column, "expected a list of rubrics, not empty")
    checked = []
    for position, entry in enumerate(rubrics):
        if not isinstance(entry, Mapping):
            raise RowFault(column, f"rubric {position}: expected an object")
        text, weight = entry.get("text"), entry.get("weight")
        index = entry["original_index"] if entry.get("original_index") is not None else position
        if not isinstance(text, str) or not text.strip():
            raise RowFault(column, f"rubric {position}: the text is missing or blank")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight == 0:
            raise RowFault(column, f"rubric {position}: the weight must be a finite number other than 0")
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise RowFault(column, f"rubric {position}: original_index must be a whole number that is at least 0")
        checked.append(Rubric(index, text.strip(), float(weight)))
    if len({rubric.original_index for rubric in checked}) != len(checked):
        raise RowFault(column, "an original_index is given twice")
    if not any(rubric.weight > 0 for rubric in checked):
        raise RowFault(column, "no rubric has a positive weight")
    if not math.isfinite(sum(abs(rubric.weight) for rubric in checked)):
        raise RowFault(column, "the weights are too large to add up")
    return checked


def _check_prompt(prompt: Any) -> None:
    for number, message in enumerate(prompt if isinstance(prompt, list | tuple) else (), start=1):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple):
            raise RowFault("prompt", f"message {number}: expected content to be text, which is what the judge reads")


def _digest(value: Any) -> str:
    return f"sha256:{hashlib.sha256(_compact(value).encode()).hexdigest()}"


def _record_id(row: Mapping[str, Any], place: str | None) -> str | None:
    for key in ("record_id", "id"):
        value = row.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value).strip()
    index = row.get("__index_level_0__")
    return None if index is None or place is None else f"{place}{index}"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
