"""For any document and any edit: the value tree is the intended one, and nothing else moved."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.config.strategies import KEYS, PLAIN, documents

from primebeaker.config.document import TomlDocument
from primebeaker.config.paths import every_path, format_path, parse_path
from primebeaker.config.render import dump_toml_document, same
from primebeaker.errors import UserError

common = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        tree = tree[part]
    return tree


@common
@given(documents())
def test_reading_and_writing_back_keeps_every_byte(text: str) -> None:
    document = TomlDocument.from_text(text)
    document.line_of("a")
    assert document._statements is not None
    assert "".join(statement.text for statement in document._statements) == text
    assert same(document.values, tomllib.loads(text))


@common
@given(documents(), st.data())
def test_replacing_any_value(text: str, data: st.DataObject) -> None:
    document = TomlDocument.from_text(text)
    paths = list(every_path(document.values))
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    value = data.draw(PLAIN)
    expected = document.values
    at(expected, path[:-1])[path[-1]] = copy.deepcopy(value)
    try:
        edited = document.with_value(path, value)
    except UserError as error:
        assert "only a table can replace" in str(error)
        return
    assert same(tomllib.loads(edited.text), expected)
    assert document.text == text
    assert edited.with_value(path, value).text == edited.text


@common
@given(documents(), st.data())
def test_a_replaced_value_leaves_every_other_byte(text: str, data: st.DataObject) -> None:
    """What stands before and behind the new value is the source, less exactly the text of the old value."""
    document = TomlDocument.from_text(text)
    tree = document.values
    # Tables and arrays of tables may be written over many places.
    paths = [
        path for path in every_path(tree) if not isinstance(at(tree, path), dict) and not tables_in(at(tree, path))
    ]
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    before, after = document.with_value(path, "some unlikely text").text.split('"some unlikely text"')
    assert text.startswith(before)
    assert text.endswith(after)
    old = text[len(before) : len(text) - len(after)]
    assert same(tomllib.loads(f"old = {old}")["old"], at(tree, path))


def tables_in(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


@common
@given(documents(), KEYS, PLAIN, st.data())
def test_adding_a_key_to_any_table_adds_lines_and_changes_none(
    text: str, key: str, value: Any, data: st.DataObject
) -> None:
    document = TomlDocument.from_text(text)
    tables = [(), *(path for path in every_path(document.values) if isinstance(at(document.values, path), dict))]
    path = data.draw(st.sampled_from(tables))
    if key in at(document.values, path):
        return
    edited = document.with_value((*path, key), value)
    expected = document.values
    at(expected, path)[key] = copy.deepcopy(value)
    assert same(tomllib.loads(edited.text), expected)
    assert edited.text.endswith("\n") == text.endswith("\n") or not text
    if "\r\n" in text:
        assert edited.text.count("\r\n") == edited.text.count("\n")
    # Every character of the source is still there, in order.
    rest = iter(edited.text)
    assert all(character in rest for character in text)


@common
@given(documents(), st.data())
def test_removing_any_key_removes_only_that_key(text: str, data: st.DataObject) -> None:
    document = TomlDocument.from_text(text)
    paths = list(every_path(document.values))
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    expected = document.values
    del at(expected, path[:-1])[path[-1]]
    edited = document.without_value(path)
    assert same(tomllib.loads(edited.text), expected)
    assert document.text == text
    if at(expected, path[:-1]):
        # Nothing was written: what is left is the source less some of it.
        rest = iter(text)
        assert all(character in rest for character in edited.text)


@common
@given(documents(), st.data())
def test_every_path_has_a_line_that_shows_it(text: str, data: st.DataObject) -> None:
    document = TomlDocument.from_text(text)
    paths = list(every_path(document.values))
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    line = document.line_of(path)
    assert line is not None
    assert 1 <= line <= text.count("\n") + 1
    assert document.line_of(format_path(path)) == line
    assert parse_path(format_path(path)) == path


@common
@given(st.dictionaries(KEYS, PLAIN | st.floats(), max_size=5))
def test_any_plain_dict_is_dumped_as_valid_toml(values: dict[str, Any]) -> None:
    assert same(tomllib.loads(dump_toml_document(values)), values)


@common
@given(documents(), st.lists(st.tuples(KEYS, PLAIN), min_size=1, max_size=4), st.data())
def test_chained_edits_equal_edits_of_a_fresh_document(
    text: str, changes: list[tuple[str, Any]], data: st.DataObject
) -> None:
    """The layout that is carried from edit to edit never goes stale."""
    chained = TomlDocument.from_text(text)
    for key, value in changes:
        paths = list(every_path(chained.values))
        if paths and data.draw(st.booleans()):
            path = data.draw(st.sampled_from(paths))
            fresh = TomlDocument.from_text(chained.text).without_value(path)
            chained = chained.without_value(path)
        else:
            fresh = TomlDocument.from_text(chained.text).with_value([key], value)
            chained = chained.with_value([key], value)
        assert same(chained.values, fresh.values)
        assert same(chained.values, tomllib.loads(chained.text))
