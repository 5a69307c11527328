"""PyYAML's safe loader without its detours, for a hundred thousand small files: the same values, half the time.

The parser is libyaml's as before.  What is new: the type of a scalar is worked out once a distinct text, and plain
mappings, lists and scalars become values directly.  Whatever else a document holds (anchors, merge keys, sets, times,
tags of its own) goes the ordinary way, so the values are always those of :class:`yaml.CSafeLoader`.
"""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["LOADER", "load_yaml"]

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PREFIX = "tag:yaml.org,2002:"
_TEXT, _MAP, _LIST = _PREFIX + "str", _PREFIX + "map", _PREFIX + "seq"
_REMEMBERED = 4096
_REMEMBERED_LENGTH = 64


class _NotPlainError(Exception):
    """The document holds something that only the ordinary constructor knows."""


class _PlainLoader(LOADER):  # type: ignore[misc]
    _types: dict[tuple[str, tuple[bool, bool]], str] = {}  # noqa: RUF012 (shared on purpose)

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """The type of a node; called by the parser."""
        if kind is not yaml.ScalarNode or len(value) > _REMEMBERED_LENGTH:
            return str(super().resolve(kind, value, implicit))
        known = self._types.get((value, implicit))
        if known is None:
            known = str(super().resolve(kind, value, implicit))
            if len(self._types) >= _REMEMBERED:
                self._types.clear()
            self._types[value, implicit] = known
        return known

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """Nothing: types never depend on where a node stands."""

    def ascend_resolver(self) -> None:
        """Nothing, likewise."""

    def construct_document(self, node: yaml.Node) -> Any:
        """The values below a node."""
        try:
            return self._plain(node)
        except _NotPlainError:
            return super().construct_document(node)

    def _plain(self, node: yaml.Node) -> Any:
        tag = node.tag
        if isinstance(node, yaml.ScalarNode):
            if tag == _TEXT:
                return node.value
            make = _SCALARS.get(tag)
            if make is None:
                raise _NotPlainError
            return make(self, node)
        plain = self._plain
        if tag == _MAP and isinstance(node, yaml.MappingNode):
            values: dict[Any, Any] = {}
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEYS:
                    raise _NotPlainError
                values[plain(key)] = plain(value)
            return values
        if tag == _LIST and isinstance(node, yaml.SequenceNode):
            return [plain(item) for item in node.value]
        raise _NotPlainError


_SCALARS = {
    _PREFIX + "int": LOADER.construct_yaml_int,
    _PREFIX + "float": LOADER.construct_yaml_float,
    _PREFIX + "bool": LOADER.construct_yaml_bool,
    _PREFIX + "null": LOADER.construct_yaml_null,
}
_KEYS = frozenset({_TEXT, *_SCALARS})


def load_yaml(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        yaml.YAMLError: It is not YAML.
        ValueError: A number or time that Python does not hold.
    """
    # An anchored node is shared by its aliases, which only the ordinary constructor keeps.
    return yaml.load(text, Loader=LOADER if "&" in text else _PlainLoader)  # noqa: S506 (safe loaders)
