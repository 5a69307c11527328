"""Files as they are read: plain YAML takes a short way that must lead to the same values."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.watcher.documents import _SUSPICIOUS, holds_nothing_secret
from primebeaker.watcher.locking import is_scanning, scan_lock
from primebeaker.watcher.reading import UnreadableError, read_file
from primebeaker.watcher.yaml_values import load_yaml

from .conftest import Tree, write
from .test_family import rows

SCALARS = [
    "1", "-0", "0x1F", "017", "1_000", "1:30", "1.5", "1e3", "1.0e+3", ".inf", "-.INF", "true", "No", "on", "~", "null",
    "", "2026-01-02", "2026-01-02T03:04:05Z", "'1'", '"no"', "!!str 5", "!!int '5'", "!!float 1", "!!binary aGk=", "=",
    "a: b", "!!set {a, b}", "text", "x" * 100,
]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        *SCALARS,
        *(f"k: {text}" for text in SCALARS),
        "{1: a, no: b, 1.5: c, ~: d}",
        "a: &x [1, 2]\nb: *x\n",
        "base: &b {k: 1}\nuse:\n  <<: *b\n  m: 2\n",
        "? [1, 2]\n: x\n",
        "!!omap [a: 1]",
        "a: 1\na: 2\n",
        "- [[], {}]\n- |\n  block\n",
    ],
)
def test_the_short_way_gives_the_values_of_the_safe_loader(text: str) -> None:
    def outcome(load: Any) -> Any:
        try:
            return repr(load(text))
        except (yaml.YAMLError, ValueError, TypeError) as error:
            return type(error)

    assert outcome(load_yaml) == outcome(lambda source: yaml.load(source, Loader=yaml.CSafeLoader))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_dumped_document_comes_back(value: Any) -> None:
    text = yaml.safe_dump(value, allow_unicode=True)
    assert load_yaml(text) == yaml.safe_load(text)


@given(st.text(alphabet="toknsize TOKNS@kyKEY_-hfsgp\u017f\u0130", max_size=40))
def test_the_first_look_for_credentials_misses_nothing_the_full_one_finds(text: str) -> None:
    assert holds_nothing_secret(text) == (_SUSPICIOUS.search(text) is None)


def test_a_growing_file_is_never_half_read(tmp_path: Path) -> None:
    path = write(tmp_path / "log", "a" * 10)
    assert read_file(str(path), "log")[0] == b"a" * 10
    assert read_file(str(write(tmp_path / "none")), "none")[0] == b""
    with pytest.raises(UnreadableError, match="not a regular file"):
        read_file(str(tmp_path), "folder")


def test_a_gigabyte_of_nothing_is_too_large_and_costs_nothing(family: Tree) -> None:
    for path in (family.repo / "examples/configs/eval/huge.yaml", family.results / "rl-full/summary.jsonl"):
        write(path)
        os.truncate(path, 2**30)
    answer = family.update()
    assert answer["bytes_read"] < 2**20
    assert {row[0] for row in rows(family, "SELECT code FROM issues WHERE message LIKE '%1073741824 bytes%'")} == {
        "too_large"
    }
    assert rows(family, "SELECT status FROM evaluations WHERE config_path LIKE '%rl-full%'") == [("complete",)]


def test_whoever_asks_whether_a_scan_runs_does_not_stop_one(family: Tree) -> None:
    family.update()
    lock = os.open(f"{family.database}.lock", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(0.2, os.close, [lock]).start()
    with scan_lock(family.database, "watcher update"):
        assert is_scanning(family.database)


def test_a_first_scan_that_was_killed_leaves_its_indexes_to_the_next(family: Tree) -> None:
    def count() -> object:
        return rows(family, "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")[0][0]

    family.update()
    whole = count()
    for name in ("evaluation_list_run", "benchmarks_dataset"):
        rows(family, f"DROP INDEX {name}")
    assert count() == int(str(whole)) - 2
    family.update()
    assert count() == whole
