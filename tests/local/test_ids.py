"""Ids sort by time, derived ones are stable."""

from __future__ import annotations

import time

import pytest

from primebeaker.local.ids import derived_id, is_id, machine_id, new_id


def test_new_ids_sort_by_time_and_never_repeat():
    made = []
    for _ in range(5):
        made.append(new_id())
        time.sleep(0.002)
    assert made == sorted(set(made))
    assert all(is_id(one) and one.startswith("01") for one in made)


def test_derived_ids():
    assert derived_id("workspace", "a/b") == derived_id("workspace", "a/b")
    assert len({derived_id("workspace", "a/b"), derived_id("account", "a/b"), derived_id("workspace", "a/c")}) == 3
    assert is_id(derived_id("x", ""))
    assert is_id(machine_id())


@pytest.mark.parametrize("text", ["", "01", "0" * 25, "0" * 27, "o" * 26, "U" * 26])
def test_what_is_no_id(text: str):
    assert not is_id(text)
