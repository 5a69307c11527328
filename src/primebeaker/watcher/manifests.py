"""Data manifests: which mix of sources a training dataset was made from."""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from primebeaker.watcher.paths import normalise
from primebeaker.watcher.values import text_at

__all__ = ["ManifestIndex", "Match", "is_hub_dataset", "manifest_facts", "match_manifest"]

_SUFFIXES = (
    ".jsonl",
    ".parquet",
    "_train",
    "_validation",
    "_messages",
    "_prompt_split",
    "_harmony",
)
_UID = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])")
_PATH_KEYS = ("train_path", "validation_path", "hf_dataset_path")


def manifest_facts(manifest: Any, path: str, repo_root: str) -> dict[str, Any] | None:
    """A manifest as linking needs it, or None when the JSON has neither list ``sources`` nor object ``splits``."""
    if not isinstance(manifest, dict):
        return None
    listed = manifest.get("sources")
    if not isinstance(listed, list) and not isinstance(manifest.get("splits"), dict):
        return None
    facts: dict[str, Any] = {}
    for key in _PATH_KEYS:
        value = text_at(manifest, key) or text_at(manifest, f"splits.{key.removesuffix('_path')}")
        if value:
            facts[key] = normalise(value, repo_root)
    for key in ("name", "config_uid", "mix_uid", "kind"):
        if value := text_at(manifest, key):
            facts[key] = value
    facts["sources"] = list(_sources(listed if isinstance(listed, list) else [], repo_root))
    words = [path, *(facts.get(key, "") for key in ("config_uid", "mix_uid", *_PATH_KEYS))]
    facts["uids"] = sorted({uid for word in words for uid in _UID.findall(word.lower())})
    facts["stems"] = sorted({_stem(facts[key]) for key in _PATH_KEYS if key in facts})
    return facts


def _sources(listed: Sequence[Any], repo_root: str) -> Iterable[dict[str, Any]]:
    seen: dict[str, int] = {}
    for index, source in enumerate(listed):
        if not isinstance(source, dict):
            continue
        name = text_at(source, "name") or f"#{index}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}#{seen[name]}"
        path = text_at(source, "parquet") or text_at(source, "path")
        yield {
            "source_name": name,
            "source_path": normalise(path, repo_root) if path else None,
            "weight": _number(source.get("weight")),
            "train_quota": _whole(source.get("train_quota")),
            "validation_quota": _whole(source.get("validation_quota")),
        }


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None


def _stem(path: str) -> str:
    stem = posixpath.basename(path)
    while True:
        shorter = stem
        for suffix in _SUFFIXES:
            shorter = shorter.removesuffix(suffix)
        if shorter == stem:
            return stem
        stem = shorter


def is_hub_dataset(name: str, repo_root: str) -> bool:
    """Whether a dataset name is a hub id: no existing path, at most one ``/``, no file suffix, not absolute."""
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return False
    if posixpath.splitext(name)[1] in (".jsonl", ".json", ".parquet", ".arrow", ".csv", ".txt", ".zst", ".gz"):
        return False
    return not os.path.exists(os.path.join(repo_root, name))  # noqa: PTH110, PTH118


class Match(NamedTuple):
    """The manifest of a dataset; ``path`` is None when there is none, ``tied`` lists equally good different ones."""

    path: str | None
    tied: tuple[str, ...] = ()


class ManifestIndex:
    """All manifests, looked up by path, stem and 16-digit id, so that matching is linear in datasets."""

    def __init__(self, manifests: Mapping[str, dict[str, Any]]) -> None:
        self._manifests = manifests
        self._by_word: dict[tuple[str, str], list[str]] = {}
        for path, facts in manifests.items():
            words = {("path", facts[key]) for key in _PATH_KEYS if key in facts}
            words |= {("stem", stem) for stem in facts["stems"]} | {("uid", uid) for uid in facts["uids"]}
            for word in words:
                self._by_word.setdefault(word, []).append(path)

    def match(self, dataset: str) -> Match:
        """The best manifest of an absolute dataset path."""
        words = [("path", dataset), ("stem", _stem(dataset)), *(("uid", uid) for uid in _UID.findall(dataset.lower()))]
        candidates = {path for word in words for path in self._by_word.get(word, ())}
        scores = {path: self._score(path, dataset) for path in candidates}
        best = max(scores.values(), default=0)
        if best <= 0:
            return Match(None)
        tied = sorted(path for path, score in scores.items() if score == best)
        if len({_mix(self._manifests[path]) for path in tied}) > 1:
            return Match(None, tuple(tied))
        return Match(max(tied, key=lambda path: (_shared(path, dataset), path)))

    def _score(self, path: str, dataset: str) -> int:
        facts = self._manifests[path]
        score = 0
        if any(facts.get(key) == dataset for key in _PATH_KEYS):
            score = 100
        elif _stem(dataset) in facts["stems"]:
            score = 20
        shared = set(_UID.findall(dataset.lower())) & set(facts["uids"])
        return score + (40 if shared else 0)


def match_manifest(dataset: str, manifests: Mapping[str, dict[str, Any]]) -> Match:
    """The manifest that describes a dataset path (100 an equal path, 20 equal stems, 40 more for a shared id)."""
    return ManifestIndex(manifests).match(dataset)


def _mix(facts: Mapping[str, Any]) -> str:
    return json.dumps(facts["sources"], sort_keys=True)


def _shared(left: str, right: str) -> int:
    count = 0
    for one, other in zip(left.split("/"), right.split("/"), strict=False):
        if one != other:
            break
        count += 1
    return count
