"""Every field of the installed native configs: its flag, its YAML key, its help, and what its type refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from primebeaker.services.fields import Field, stack_fields
from primebeaker.services.stacks import STACKS, load_native

GROUPS = {"base": ["services"], "podman": ["services", "podman"]}
#: Values for fields that only take particular ones; the others get one made from their type.
SPECIAL: dict[str, Any] = {
    "cache_maxmemory_policy": "volatile-lru",
    "service_priority": "urgent",
    "model_priority": "normal",
    "priority": "urgent",
    "registry": "redis://cache.example:6379",
    "coordination_root": "/weka/team/coop",
    "warmup_checkpoint_file": "/weka/team/warm",
    "podman_registry_mirror": "https://mirror.example:5000",
    "local_search_index_dir": "/weka/team/index",
    "local_search_corpus_jsonl": "/weka/team/corpus.jsonl",
}
#: Given instead of their counterparts, in a second round.
INSTEAD: dict[str, dict[str, Any]] = {
    "head_registry": {"head_registry": "/weka/team/registry", "registry": None},
    "redis_data_dir": {"redis_data_dir": "/weka/team/redis", "registry": None},
    "docker_hub_username": {"docker_hub_username": "someone", "docker_hub_username_secret": None},
}


def _fields(stack: str) -> dict[str, Field]:
    return stack_fields(load_native(STACKS[stack]).config_class)


def _other_value(field: Field, number: int) -> Any:
    """A value that is not the default and that no other field has."""
    match field.kind:
        case "int":
            return number + 1
        case "float":
            return number + 0.5
        case "bool":
            return not field.default
        case "list":
            return ("ai2/one", "ai2/two")
        case _:
            return f"value-{number}"


def _rounds(stack: str) -> list[dict[str, Any]]:
    """Two sets of values that together give every field another value than its default."""
    fields = _fields(stack)
    values = {name: SPECIAL.get(name, _other_value(field, n)) for n, (name, field) in enumerate(fields.items())}
    first = {name: value for name, value in values.items() if name not in INSTEAD}
    second = dict(first)
    for name, changes in INSTEAD.items():
        if name in fields:
            second |= {key: value for key, value in changes.items() if key in fields}
    return [first, {name: value for name, value in second.items() if value is not None}]


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("stack", ["base", "podman"])
def test_every_field_is_reached_by_its_flag_and_by_its_key(stack: str, primebeaker, tmp_path: Path) -> None:
    native, fields = load_native(STACKS[stack]), _fields(stack)
    reached: set[str] = set()
    for values in _rounds(stack):
        expected = native.launcher_class(native.config_class(**values)).preview()
        flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in values.items()]
        by_flags = primebeaker(*GROUPS[stack], "preview", *flags)
        assert by_flags.code == 0, by_flags.err
        file = tmp_path / "services.yaml"
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        file.write_text(json.dumps({"schema": "primebeaker.services/v1", "services": plain}))
        by_keys = primebeaker(*GROUPS[stack], "yaml", "preview", f"--config={file}")
        assert by_keys.code == 0, by_keys.err
        config = json.loads(json.dumps(expected["config"]))
        assert by_flags.data["config"] == config
        assert by_keys.data["config"] == config
        reached |= {
            name for name, field in fields.items() if getattr(native.config_class(**values), name) != field.default
        }
    assert reached == set(fields)


@pytest.mark.parametrize(("stack", "count"), [("base", 49), ("podman", 46)])
def test_every_flag_is_in_the_help_with_its_default_and_a_sentence(stack: str, count: int, primebeaker) -> None:
    # Lines are wrapped, also at hyphens.
    shown = "".join(primebeaker(*GROUPS[stack], "preview", "--help").out.split())
    fields = _fields(stack)
    assert len(fields) == count
    for field in fields.values():
        assert field.flag in shown
        assert field.help.replace(" ", "") in shown, field.flag
        if field.default is not None:
            assert f"[default:{field.default_text}]" in shown, field.flag


@pytest.mark.parametrize("stack", ["base", "podman"])
def test_every_wrong_type_is_refused_at_once_and_by_name(stack: str, primebeaker) -> None:
    wrong = {"int": "2.0", "float": "nan", "bool": "perhaps", "list": ",", "str": ""}
    fields = _fields(stack).values()
    given = [field for field in fields if not (field.kind == "str" and field.optional)]
    outcome = primebeaker(*GROUPS[stack], "preview", *[f"{field.flag}={wrong[field.kind]}" for field in given])
    assert (outcome.code, outcome.out) == (2, "")
    assert len(outcome.errors) == len(given)
    assert {line.split()[0].rstrip(":") for line in outcome.errors} == {field.flag for field in given}
