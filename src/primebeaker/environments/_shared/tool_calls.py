"""Tool calls of an assistant message: structured ones, and the text formats models were trained with.

A message gives a list in order of appearance whose entries are calls or :class:`BrokenCall`; an environment decides
whether one broken call spoils the whole message (:func:`is_malformed`) or stands for itself.  Text calls are only read
from what was said, never from thinking.  Parsing is linear in the text and raises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from primebeaker.environments._shared.harmony import HarmonyMessage, harmony_messages
from primebeaker.environments._shared.thinking import strip_special_tokens, visible_text, without_thinking_tags
from primebeaker.runtime.json_spans import ValueReader, strict_decode

__all__ = [
    "BrokenCall",
    "Schemas",
    "ToolCall",
    "block_calls",
    "has_json_type",
    "is_malformed",
    "message_calls",
    "said_text",
    "text_calls",
    "without_call_blocks",
]

#: Tool name to the JSON schema of its parameters.
Schemas = Mapping[str, Mapping[str, Any]]

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^\s>]+)>")
_BLOCK_END = re.compile(r"</function>\s*</tool_call>")
_PARAMETER = "<parameter="
_SPACE = re.compile(r"\s*")


class ToolCall(NamedTuple):
    """A well-formed call, as the model sent it.

    Args:
        name: The tool's name, trimmed.
        arguments: The arguments as an object.
        id: The id a structured call carries; None for a text call.
    """

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class BrokenCall(NamedTuple):
    """Something that was meant as a call and is none.

    Args:
        problem: What is wrong, in a few words a model can mend it by.
        name: The tool it names, as far as it can be read.
        id: The id of a structured call.
    """

    problem: str
    name: str | None = None
    id: str | None = None


def is_malformed(calls: Sequence[ToolCall | BrokenCall]) -> bool:
    """Whether one bad call makes the whole message malformed."""
    return any(isinstance(call, BrokenCall) for call in calls)


def message_calls(message: Mapping[str, Any], schemas: Schemas) -> list[ToolCall | BrokenCall]:
    """The calls of an assistant message: its ``tool_calls`` when there are any, else those in its text.

    Args:
        message: The message as a plain dict.
        schemas: The parameter schemas of known tools, which type the values of XML calls.
    """
    structured = message.get("tool_calls")
    if isinstance(structured, list) and structured:
        return [_structured_call(entry) for entry in structured]
    return text_calls(visible_text(message), schemas)


def _structured_call(entry: Any) -> ToolCall | BrokenCall:
    if not isinstance(entry, Mapping):
        return BrokenCall("a tool call is not an object")
    function = entry.get("function")
    source = function if isinstance(function, Mapping) else entry
    id = entry.get("id")
    id = id if isinstance(id, str) and id else None
    return _call(source.get("name"), source.get("arguments"), id)


def _call(name: Any, arguments: Any, id: str | None = None) -> ToolCall | BrokenCall:
    if not isinstance(name, str) or not name.strip():
        return BrokenCall("a tool call without a name", None, id)
    name = name.strip()
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ToolCall(name, {}, id)
    if isinstance(arguments, str):
        text = arguments.strip()
        try:
            arguments, end = strict_decode(text)
        except ValueError as error:
            return BrokenCall(f"the arguments are not JSON: {error}", name, id)
        if end != len(text):
            return BrokenCall(f"the arguments are not JSON: extra text at character {end + 1}", name, id)
    if not isinstance(arguments, Mapping):
        return BrokenCall("the arguments are not a JSON object", name, id)
    return ToolCall(name, dict(arguments), id)


def said_text(text: str) -> str:
    """What was said in a visible text: without thinking, and of a Harmony reply the ``final`` messages."""
    text = without_thinking_tags(text)
    messages = harmony_messages(text)
    if messages is not None:
        text = "".join(message.body for message in messages if _is_said(message))
    return strip_special_tokens(text)


def _is_said(message: HarmonyMessage) -> bool:
    return message.recipient is None and message.channel in ("final", None)


def text_calls(text: str, schemas: Schemas) -> list[ToolCall | BrokenCall]:
    """The calls in a visible text, in order of appearance: JSON and XML blocks, and Harmony messages."""
    text = without_thinking_tags(text)
    messages = harmony_messages(text)
    if messages is None:
        return block_calls(text, schemas)
    calls: list[ToolCall | BrokenCall] = []
    for message in messages:
        if message.recipient is not None:
            calls.append(_harmony_call(message.recipient, message.body, schemas))
        elif _is_said(message):
            calls.extend(block_calls(message.body, schemas))
    return calls


def _harmony_call(name: str, body: str, schemas: Schemas) -> ToolCall | BrokenCall:
    if not body.lstrip().startswith("{"):
        parameter = _only_string_parameter(schemas.get(name, {}))
        if parameter is not None:
            return ToolCall(name, {parameter: body})
    return _call(name, body)


def _only_string_parameter(schema: Mapping[str, Any]) -> str | None:
    required = list(schema.get("required", ()))
    if len(required) == 1 and _schema_types(schema, required[0]) == {"string"}:
        return str(required[0])
    return None


class _Block(NamedTuple):
    call: ToolCall | BrokenCall
    start: int
    end: int


def without_call_blocks(text: str, schemas: Schemas) -> str:
    """The text without its ``<tool_call>`` blocks; a block that never closes takes the rest with it."""
    kept, position = [], 0
    for block in _blocks(text, schemas):
        kept.append(text[position : block.start])
        position = block.end
    return "".join([*kept, text[position:]])


def block_calls(text: str, schemas: Schemas) -> list[ToolCall | BrokenCall]:
    """The ``<tool_call>`` blocks of a text without thinking, in order."""
    return [block.call for block in _blocks(text, schemas)]


def _blocks(text: str, schemas: Schemas) -> list[_Block]:
    return _BlockReader(text, schemas).blocks()


class _BlockReader:
    """Reads the blocks of one text; what is looked for and not found is not looked for again."""

    def __init__(self, text: str, schemas: Schemas) -> None:
        self._text = text
        self._schemas = schemas
        self._values = ValueReader(text)
        self._functions_end = True

    def blocks(self) -> list[_Block]:
        text = self._text
        blocks: list[_Block] = []
        position = 0
        last_close = text.rfind(_CLOSE)
        while (start := text.find(_OPEN, position)) >= 0:
            inner = start + len(_OPEN)
            if inner > last_close:
                # Nothing closes any more: one fault stands for the rest, so that a row of openings costs one look.
                blocks.append(_Block(BrokenCall("a <tool_call> is never closed"), start, len(text)))
                break
            function = _FUNCTION.match(text, inner)
            blocks.append(self._json_block(start, inner) if function is None else self._xml_block(start, function))
            position = blocks[-1].end
        return blocks

    def _xml_block(self, start: int, function: re.Match[str]) -> _Block:
        text = self._text
        end = _BLOCK_END.search(text, function.end()) if self._functions_end else None
        if end is None:
            self._functions_end = False
            return self._broken("a <function=…> block without </function></tool_call>", start, function.end())
        call = _xml_call(function[1], text[function.end() : end.start()], self._schemas)
        return _Block(call, start, end.end())

    def _json_block(self, start: int, inner: int) -> _Block:
        text = self._text
        content_start = _behind_space(text, inner)
        if not text.startswith("{", content_start):
            problem = "the <tool_call> block is neither a JSON object nor a <function=…> block"
            return self._broken(problem, start, inner)
        try:
            value, value_end = self._values.decode(content_start)
        except ValueError as error:
            return self._broken(f"the <tool_call> block is not JSON: {error}", start, inner)
        closing_start = _behind_space(text, value_end)
        if not text.startswith(_CLOSE, closing_start):
            return self._broken("text between the JSON object and </tool_call>", start, inner)
        return _Block(_json_call(value), start, closing_start + len(_CLOSE))

    def _broken(self, problem: str, start: int, inner: int) -> _Block:
        """A block that ends at its closing tag all the same, so that the calls behind it are found."""
        closed = self._text.find(_CLOSE, inner)
        return _Block(BrokenCall(problem), start, closed + len(_CLOSE) if closed >= 0 else len(self._text))


def _behind_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


class _Opening(NamedTuple):
    """Where a ``<parameter=KEY>`` starts and ends."""

    key: str
    start: int
    end: int


def _parameter_openings(body: str) -> list[_Opening]:
    openings: list[_Opening] = []
    position = 0
    # Without a ">" further on nothing can open any more; a pattern would look for it from every "<parameter=".
    while (start := body.find(_PARAMETER, position)) >= 0 and (close := body.find(">", start)) >= 0:
        openings.append(_Opening(body[start + len(_PARAMETER) : close], start, close + 1))
        position = close + 1
    return openings


def _json_call(value: Mapping[str, Any]) -> ToolCall | BrokenCall:
    arguments = value["arguments"] if "arguments" in value else value.get("parameters")
    return _call(value.get("name"), arguments)


def _xml_call(name: str, body: str, schemas: Schemas) -> ToolCall | BrokenCall:
    openings = _parameter_openings(body)
    before = body[: openings[0].start] if openings else body
    if before.strip():
        return BrokenCall("text outside the <parameter=…> blocks", name)
    arguments: dict[str, Any] = {}
    for index, opening in enumerate(openings):
        key = opening.key
        region_end = openings[index + 1].start if index + 1 < len(openings) else len(body)
        closing = body.rfind("</parameter>", opening.end, region_end)
        if closing < 0:
            return BrokenCall(f"parameter {key} is never closed", name)
        if body[closing + len("</parameter>") : region_end].strip():
            return BrokenCall("text outside the <parameter=…> blocks", name)
        if not key or key in arguments:
            return BrokenCall(f"parameter {key} is given twice" if key else "a parameter without a name", name)
        try:
            arguments[key] = _typed(_without_edge_breaks(body[opening.end : closing]), schemas.get(name, {}), key)
        except ValueError as error:
            return BrokenCall(f"parameter {key}: {error}", name)
    return ToolCall(name, arguments)


def _without_edge_breaks(value: str) -> str:
    for line_break in ("\r\n", "\n"):
        if value.startswith(line_break):
            value = value[len(line_break) :]
            break
    for line_break in ("\r\n", "\n"):
        if value.endswith(line_break):
            return value[: -len(line_break)]
    return value


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def _typed(value: str, schema: Mapping[str, Any], key: str) -> Any:
    types = _schema_types(schema, key)
    if "string" in types:
        return value
    text = value.strip()
    try:
        decoded, end = strict_decode(text)
        if end != len(text):
            raise ValueError("extra text")
    except ValueError:
        if types:
            raise ValueError(f"expected {' or '.join(sorted(types))}") from None
        return value
    if types and not any(has_json_type(decoded, kind) for kind in types):
        raise ValueError(f"expected {' or '.join(sorted(types))}")
    return decoded


def has_json_type(value: Any, kind: str) -> bool:
    """Whether a decoded value is of a JSON schema type; a bool is no number."""
    if kind == "string":
        return isinstance(value, str)
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _JSON_TYPES.get(kind, ()))


def _schema_types(schema: Mapping[str, Any], key: str) -> set[str]:
    properties = schema.get("properties")
    entry = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(entry, Mapping):
        return set()
    options = [entry, *(option for name in ("anyOf", "oneOf") for option in entry.get(name, ()))]
    found: set[str] = set()
    for option in options:
        kind = option.get("type") if isinstance(option, Mapping) else None
        found |= set(kind) if isinstance(kind, list) else {kind} if isinstance(kind, str) else set()
    return found
