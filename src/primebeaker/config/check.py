"""Check a training TOML against the catalogue of Prime-RL's fields, before a GPU is asked for.

Unknown keys are warnings unless the check is strict, because training images may carry a newer or extended Prime-RL.
A wrong type, value or bound, a missing required key, and a key of another variant or generation are errors: the
Prime-RL of that generation refuses them for certain.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from primebeaker.config.catalogue import Catalogue, Field, Generation, Root, catalogue, protected_env_vars, renamed_to
from primebeaker.config.document import TomlDocument
from primebeaker.config.environments import unknown_bundled_ids
from primebeaker.config.generation import Vote, detect_generation, votes
from primebeaker.config.paths import every_path, format_path, kind_of
from primebeaker.config.render import render_inline
from primebeaker.errors import UserError, did_you_mean
from primebeaker.redaction import MASK, looks_like_credential, mask_url_passwords, names_a_secret

__all__ = ["CheckReport", "Finding", "Rule", "check_toml"]

#: What a finding is about. Those of ``ALWAYS`` are reported even when the check is switched off.
Rule = Literal["unknown", "value", "required", "root", "variant", "generation", "protected", "environment"]
ALWAYS: frozenset[Rule] = frozenset({"generation", "protected", "environment"})

# Prime-RL's own names differ by at least this much; below it a suggestion is a guess.
_SIMILARITY = 0.75
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True)
class Finding:
    """One thing the check found.

    Args:
        path: The dotted key.
        line: Its 1-based line; of the table it is missing in, when it is missing.
        value: What stands there; null for a table or a missing key. Credentials are masked.
        message: What is wrong and what is expected.
        hint: The mend, if one is known.
        rule: What the finding is about.
    """

    path: str
    line: int | None
    value: Any
    message: str
    hint: str | None
    rule: Rule

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"path": self.path, "line": self.line, "value": self.value, "message": self.message, "hint": self.hint}

    def error(self, file: object) -> UserError:
        """The finding as a mistake in ``file``; ``str`` of it is the line to print, for a warning too."""
        shown = f"{self.path} = {_shown(self.value)}" if self.value is not None else self.path
        return UserError(self.message, hint=self.hint, file=file, line=self.line, key=shown)


@dataclass(frozen=True)
class CheckReport:
    """What a check found.

    Args:
        kind: The root the TOML was read as.
        generation: The Prime-RL generation it was checked against.
        errors: What Prime-RL refuses.
        warnings: What it may refuse.
    """

    kind: Root
    generation: Generation
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors


def check_toml(
    document: TomlDocument,
    kind: Root,
    *,
    generation: Generation | None = None,
    strict: bool = False,
    off: bool = False,
) -> CheckReport:
    """Check a TOML against Prime-RL's fields.

    Args:
        document: The TOML.
        kind: The root it is read as.
        generation: The Prime-RL generation to check against; by default the one the TOML's own keys vote for.
        strict: Unknown keys and missing root tables are errors too.
        off: Report only what no image can accept: keys of the other generation, protected environment variables,
            and ids of bundled environments that do not exist.
    """
    values = document.values
    conflict: str | None = None
    if generation is None:
        try:
            generation = detect_generation(values, kind)
        except UserError as error:
            conflict = error.message
            generation = _majority(votes(values, kind))
    checker = _Checker(document, catalogue(generation, kind))
    found = list(checker.generation_findings(values, conflict))
    found += checker.protected_findings(values)
    found += checker.environment_findings(values)
    if not off:
        found += checker.table_findings(values, "", ())
    found.sort(key=lambda finding: finding.line or 0)
    soft: set[Rule] = {"environment"} if strict else {"environment", "unknown", "root"}
    return CheckReport(
        kind,
        generation,
        errors=tuple(finding for finding in found if finding.rule not in soft),
        warnings=tuple(finding for finding in found if finding.rule in soft),
    )


def _majority(cast: list[Vote]) -> Generation:
    return "0.8" if 2 * sum(vote.generation == "0.8" for vote in cast) > len(cast) else "0.7"


class _Place(NamedTuple):
    path: tuple[str | int, ...]
    known_as: str


class _Checker:
    def __init__(self, document: TomlDocument, known: Catalogue) -> None:
        self._document = document
        self._known = known
        self._foreign: frozenset[tuple[str | int, ...]] = frozenset()

    def _finding(
        self, path: tuple[str | int, ...], value: Any, message: str, rule: Rule, *, hint: str | None = None
    ) -> Finding:
        line = None
        for end in range(len(path), -1, -1):
            line = self._document.line_of(path[:end]) if end else None
            if line is not None:
                break
        return Finding(format_path(path), line, _presentable(path, value), message, hint, rule)

    def generation_findings(self, values: Mapping[str, Any], conflict: str | None) -> Iterator[Finding]:
        """Keys that only the other generation knows."""
        known = self._known
        foreign = [vote for vote in votes(values, known.root) if vote.generation != known.generation]
        self._foreign = frozenset(vote.path for vote in foreign)
        if conflict is not None:
            yield self._finding(foreign[0].path, None, conflict, "generation", hint="keep to one generation")
        for vote in foreign:
            value = _at(values, vote.path)
            present = [
                ".".join([vote.known_as, *(str(part) for part in below)]) for below in every_path(value)
            ]  # fmt: skip
            yield self._finding(
                vote.path,
                value,
                f"a key of Prime-RL {vote.generation}, while this file is for {known.generation}",
                "generation",
                hint=renamed_to(vote.known_as, known.root, known.generation, present),
            )

    def protected_findings(self, values: Mapping[str, Any]) -> Iterator[Finding]:
        """``env_vars`` tables that set what Prime-RL sets itself."""
        protected = protected_env_vars(self._known.generation)
        for path in every_path(values):
            if len(path) > 1 and str(path[-2]).endswith("env_vars") and path[-1] in protected:
                yield self._finding(
                    path, None, "Prime-RL sets this variable itself and refuses it here", "protected", hint="remove it"
                )

    def environment_findings(self, values: Mapping[str, Any]) -> Iterator[Finding]:
        """Ids below our own namespace that name no bundled environment; they would fail on the cluster only."""
        for found in unknown_bundled_ids(values):
            yield self._finding(found.path, found.value, "names no bundled environment", "environment", hint=found.hint)

    def table_findings(self, table: Mapping[str, Any], known_as: str, path: tuple[str | int, ...]) -> Iterator[Finding]:
        """What is wrong in one table and below it."""
        known = self._known
        tags = known.tags(known_as, table)
        present: set[str] = set()
        for key, value in table.items():
            where = (*path, key)
            if where in self._foreign:
                continue
            child = known.child(known_as, key)
            if child is None:
                if not known.accepts_any_key(known_as):
                    yield self._unknown(where, known_as, value)
                continue
            present.add(child)
            field = known.fields.get(child)
            if field is not None:
                if not field.legal_in(tags):
                    yield self._other_variant(where, field, tags, value)
                    continue
                yield from self._value_findings(where, field, value)
            yield from self._below(_Place(where, child), field, value)
        for key, field in known.required(known_as):
            if field.path not in present and field.required_in(tags):
                yield self._missing(path, key)

    def _below(self, place: _Place, field: Field | None, value: Any) -> Iterator[Finding]:
        if place.known_as in self._known.soft_prefixes:
            return
        if isinstance(value, Mapping) and (field is None or "table" in field.types):
            yield from self.table_findings(value, place.known_as, place.path)
        elif isinstance(value, list) and field is not None and field.facts.get("items") == "table":
            for number, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from self.table_findings(item, f"{place.known_as}[]", (*place.path, number))

    def _missing(self, path: tuple[str | int, ...], key: str) -> Finding:
        rule: Rule = "required" if path else "root"
        message = "required key is missing" if path else f"[{key}] is missing; Prime-RL requires it"
        return self._finding((*path, key), None, message, rule)

    def _other_variant(self, path: tuple[str | int, ...], field: Field, tags: Mapping[str, Any], value: Any) -> Finding:
        variants = field.facts["variants"]
        tag = variants[0].partition("=")[0]
        legal = " or ".join(repr(variant.partition("=")[2]) for variant in variants)
        tag_path = format_path([*path[:-1], tag])
        return self._finding(path, value, f"legal only with {tag_path} = {legal}, which is {tags[tag]!r}", "variant")

    def _unknown(self, path: tuple[str | int, ...], table: str, value: Any) -> Finding:
        key = str(path[-1])
        if table.endswith((".train", ".eval")) and key == "env" and isinstance(value, list):
            hint: str | None = f"write [[{format_path(path[:-1])}.source]] with a legacy table instead"
        else:
            hint = self._suggestion(key, table, path[:-1])
        return self._finding(path, value, "unknown field", "unknown", hint=hint)

    def _suggestion(self, key: str, table: str, parent: tuple[str | int, ...]) -> str | None:
        underscored = key.replace("-", "_")
        siblings = self._known.keys(table)
        if underscored != key and underscored in siblings:
            return f"did you mean {format_path([*parent, underscored])}?"
        close = difflib.get_close_matches(underscored, siblings, n=3, cutoff=_SIMILARITY)
        names = [format_path([*parent, name]) for name in close]
        if not names:
            by_name: dict[str, list[str]] = {}
            for path in self._known.fields:
                by_name.setdefault(path.rpartition(".")[2], []).append(path)
            for name in difflib.get_close_matches(underscored, by_name, n=3, cutoff=_SIMILARITY):
                # The nearest in the tree first: those that share most of the way.
                names += sorted(by_name[name], key=lambda path: (-_shared(path, table), path.count("."), path))
        return f"did you mean {' or '.join(names[:3])}?" if names else None

    def _value_findings(self, path: tuple[str | int, ...], field: Field, value: Any) -> Iterator[Finding]:
        problem = _problem(field.types, field.facts, value)
        if problem is not None:
            yield self._finding(path, value, problem.message, "value", hint=problem.hint)
            return
        if not isinstance(value, list):
            return
        items = field.facts.get("items")
        for number, item in enumerate(value):
            types = frozenset(str(items).split("|")) if items else frozenset({"any"})
            problem = _problem(types, {"enum": field.facts.get("items_enum")}, item)
            if problem is not None:
                yield self._finding((*path, number), item, problem.message, "value", hint=problem.hint)


class _Problem(NamedTuple):
    message: str
    hint: str | None = None


def _problem(types: frozenset[str], facts: Mapping[str, Any], value: Any) -> _Problem | None:
    """What is wrong with one value: its type, its place in an enumeration, or a bound."""
    if "any" in types or ("null" in types and value == "None"):
        return None
    kind = _type_of(value)
    if kind not in types and not (kind == "integer" and "float" in types):
        return _Problem(f"expected {_expected(types, facts)}, found {kind_of(value)}", _type_hint(types, value))
    enum = facts.get("enum")
    if enum and kind == "string" and value not in enum:
        return _Problem(f"expected {_either(enum)}", did_you_mean(value, [str(one) for one in enum]))
    if kind in ("integer", "float"):
        return _bound_problem(facts, value)
    least = facts.get("min_len")
    if least is not None and kind in ("string", "array") and len(value) < least:
        return _Problem(f"expected at least {least} {'character' if kind == 'string' else 'element'}(s)")
    return None


def _bound_problem(facts: Mapping[str, Any], value: float) -> _Problem | None:
    # Written so that nan, which compares false with everything, fails every bound.
    if "min" in facts and not value >= facts["min"]:
        return _Problem(f"expected at least {facts['min']}")
    if "gt" in facts and not value > facts["gt"]:
        return _Problem(f"expected more than {facts['gt']}")
    if "max" in facts and not value <= facts["max"]:
        return _Problem(f"expected at most {facts['max']}")
    if "lt" in facts and not value < facts["lt"]:
        return _Problem(f"expected less than {facts['lt']}")
    return None


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    for python, name in ((str, "string"), (int, "integer"), (float, "float"), (Mapping, "table"), (list, "array")):
        if isinstance(value, python):
            return name
    return "date"


_NAMES = {"null": 'the string "None"'}


def _expected(types: frozenset[str], facts: Mapping[str, Any]) -> str:
    order = ("boolean", "integer", "float", "string", "array", "table", "null")
    names = [_NAMES.get(name, f"{'an' if name[0] in 'ai' else 'a'} {name}") for name in order if name in types]
    text = " or ".join(names)
    return f"{text} ({_either(facts['enum'])})" if facts.get("enum") and len(facts["enum"]) < 6 else text


def _type_hint(types: frozenset[str], value: Any) -> str | None:
    """The value without its quotes, or with them, when only that is wrong."""
    if isinstance(value, str):
        if types & {"integer", "float"} and value.replace(".", "", 1).replace("-", "", 1).isdigit():
            return f"write {value} without quotes"
        if "boolean" in types and value.lower() in ("true", "false"):
            return f"write {value.lower()} without quotes"
    elif "string" in types and not isinstance(value, list | Mapping):
        return "write it in quotes"
    return None


def _either(values: list[Any]) -> str:
    names = [repr(value) for value in values]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _shared(path: str, table: str) -> int:
    count = 0
    for one, other in zip(path.split("."), table.split("."), strict=False):
        if one != other:
            break
        count += 1
    return count


def _at(values: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        values = values[part]
    return values


def _presentable(path: tuple[str | int, ...], value: Any) -> Any:
    """The value for a message: no tables, no credentials, dates as text."""
    nested = isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value)
    if value is None or nested or isinstance(value, Mapping):
        return None
    if isinstance(value, str):
        secret = names_a_secret(str(path[-1])) and bool(value)
        return MASK if secret or looks_like_credential(value) else mask_url_passwords(value)
    if isinstance(value, list):
        return [_presentable(path, item) for item in value]
    if isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    return str(value)


def _shown(value: Any) -> str:
    text = render_inline(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
