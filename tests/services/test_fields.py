"""Flags and values come from the fields of the installed native config."""

from __future__ import annotations

import dataclasses

import pytest

from primebeaker.cli.stack_commands import PreviewStackOptions
from primebeaker.cli.stack_flags import given_values, options_class
from primebeaker.errors import UserError
from primebeaker.services.fields import check_typed, parse_text, stack_fields
from primebeaker.services.stacks import STACKS, NativeStack, load_native


@dataclasses.dataclass(frozen=True)
class Newer:
    """A config of a release that does not exist yet."""

    replicas: int = 1
    ratio: float = 0.5
    brand_new: bool = False
    service_clusters: tuple[str, ...] | str = ("a",)
    limit: int | None = None
    title: str = "x"
    api_secret: str | None = None


FIELDS = stack_fields(Newer)


@pytest.mark.parametrize(("stack", "count"), [("base", 49), ("podman", 46)])
def test_every_native_field_has_a_flag_a_type_a_default_and_a_sentence(stack: str, count: int) -> None:
    native = load_native(STACKS[stack])
    fields = stack_fields(native.config_class)
    assert list(fields) == [field.name for field in dataclasses.fields(native.config_class)]
    assert len(fields) == count
    assert [field.name for field in fields.values() if not field.help] == []
    made = [field.name for field in dataclasses.fields(options_class(native, PreviewStackOptions))]
    assert made == ["format", "preflight", "engine", *fields, "service_cluster"]


def test_a_field_of_a_newer_release_gets_its_flag() -> None:
    native = NativeStack(STACKS["base"], Newer, object)
    options = options_class(native, PreviewStackOptions)(brand_new=True, limit=None)
    assert {name: given.value for name, given in given_values(options, native).items()} == {
        "brand_new": True,
        "limit": None,
    }


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("title", "123", "123"),
        ("title", " x ", "x"),
        ("title", "[1,2]", "[1,2]"),
        ("title", "none", "none"),
        ("replicas", "12", 12),
        ("replicas", "-3", -3),
        ("ratio", "1e3", 1000.0),
        ("ratio", "2", 2.0),
        ("brand_new", "YES", True),
        ("brand_new", "0", False),
        ("limit", "None", None),
        ("limit", "NULL", None),
        ("limit", "", None),
        ("limit", "7", 7),
        ("service_clusters", "a, b,,c", ("a", "b", "c")),
    ],
)
def test_text_is_converted_literally(field: str, text: str, value: object) -> None:
    converted = parse_text(FIELDS[field], text, "--x")
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("title", ""),
        ("title", "a\nb"),
        ("title", "a\0b"),
        ("replicas", "2.0"),
        ("replicas", "0x10"),
        ("replicas", "1_000"),
        ("replicas", "true"),
        ("replicas", "two"),
        ("ratio", "nan"),
        ("ratio", "inf"),
        ("ratio", "1e999"),
        ("brand_new", "maybe"),
        ("service_clusters", " , "),
    ],
)
def test_text_of_another_type_is_refused(field: str, text: str) -> None:
    with pytest.raises(UserError, match=r"^--x"):
        parse_text(FIELDS[field], text, "--x")


@pytest.mark.parametrize(
    ("field", "value", "checked"),
    [
        ("replicas", 2, 2),
        ("ratio", 2, 2.0),
        ("limit", None, None),
        ("brand_new", True, True),
        ("service_clusters", ["a", "b"], ("a", "b")),
        ("service_clusters", "a,b", ("a", "b")),
        ("title", "x", "x"),
    ],
)
def test_a_yaml_value_of_the_right_type_passes(field: str, value: object, checked: object) -> None:
    assert check_typed(FIELDS[field], value) == checked


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("replicas", "2", "expected an integer, found a string ('2')"),
        ("replicas", 2.0, "expected an integer, found a number (2.0)"),
        ("replicas", True, "expected an integer, found a boolean (true)"),
        ("replicas", None, "expected an integer, found null"),
        ("title", 5, "expected a string, found an integer (5)"),
        ("title", False, "expected a string, found a boolean (false)"),
        ("brand_new", "true", "expected true or false, found a string ('true')"),
        ("brand_new", 1, "expected true or false, found an integer (1)"),
        ("service_clusters", [], "expected at least one value, and no empty one"),
        ("service_clusters", [1], "expected a list of strings, found a list"),
        ("ratio", {}, "expected a number, found a mapping"),
        ("api_secret", 99, "expected a string"),
    ],
)
def test_a_yaml_value_of_another_type_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_typed(FIELDS[field], value)
    assert str(caught.value) == message


def test_fields_lists_every_field(primebeaker) -> None:
    outcome = primebeaker("services", "fields", "--stack=podman")
    assert len(outcome.data) == 46
    assert outcome.data[2] == {
        "name": "podman_replicas",
        "flag": "--podman-replicas",
        "type": "int",
        "default": 4,
        "help": "Replicas of the Podman session service.",
    }
