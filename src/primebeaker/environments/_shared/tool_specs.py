"""The tools a model can be offered: definitions, and the check of the arguments it gives.

Definitions are provider-neutral (``name``, ``description``, ``parameters``).  The model must have no way to replace the
judged output, to raise an output limit or to reach objects of the rollout, so arguments outside a tool's schema are
refused, the internal ones above all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from primebeaker.environments._shared.tool_calls import has_json_type

__all__ = ["INTERNAL_ARGUMENTS", "TOOL_SPECS", "ArgumentFinding", "check_call", "parameter_schemas", "tool_definition"]


def _one_string_tool(name: str, description: str, parameter: str, meaning: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {parameter: {"type": "string", "description": meaning}},
            "required": [parameter],
        },
    }


#: Name to definition of the tools this package knows. Give copies away (:func:`tool_definition`).
TOOL_SPECS: dict[str, dict[str, Any]] = {
    "python": _one_string_tool(
        "python",
        "Run Python code and get back what it printed to stdout and stderr. Print whatever you want to see.",
        "code",
        "The Python source to run.",
    ),
    "bash": _one_string_tool(
        "bash",
        "Run one Bash command and get back its stdout, stderr and exit code.",
        "command",
        "The command line.",
    ),
    "terminal": _one_string_tool(
        "terminal",
        "Run a restricted command or pipeline over the evaluated output, which is its standard input, and get back"
        " stdout, stderr and the exit code. Commands: rg, grep, awk, sed, jq, xsv, pandoc, sort, uniq, head, tail, wc,"
        " cat, nl, echo, tr, cut.",
        "command",
        "The command or pipeline, such as: rg -n 'total' | head -5",
    ),
    "webterminal": _one_string_tool(
        "webterminal",
        "Run a restricted command or pipeline over the evaluated output, which is its standard input, and get back"
        " stdout, stderr and the exit code. 'browse <url>' puts a web page on standard input instead, as in:"
        " browse https://example.org | rg -n 'date'. 'cat <asset-id>' does the same with a page that is already"
        " stored. Commands: rg, grep, awk, sed, jq, xsv, pandoc, sort, uniq, head, tail, wc, cat, nl, echo, tr, cut.",
        "command",
        "The command or pipeline.",
    ),
    "search": {
        "name": "search",
        "description": "Search the web. Returns links with short snippets; a snippet is a hint, not evidence.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to search for."},
                "num_results": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 10,
                    "default": 10,
                    "description": "How many links to return, from 1 to 10.",
                },
            },
            "required": ["query"],
        },
    },
    "submit": {
        "name": "submit",
        "description": "Record the judgment of one rubric. The answer lists the rubric ids that are done and those"
        " that are still waiting.",
        "parameters": {
            "type": "object",
            "properties": {
                "rubric_id": {"type": ["string", "integer"], "description": "The id of the rubric that is judged."},
                "feedback": {"type": "string", "description": "The reason for the judgment, with its evidence."},
                "label": {"type": "string", "description": "A label this rubric allows."},
            },
            "required": ["rubric_id", "feedback", "label"],
            "additionalProperties": False,
        },
    },
}

#: Arguments that only this package may give to a client.
INTERNAL_ARGUMENTS = frozenset(
    {
        "contents",
        "context_payload",
        "truncation",
        "max_runtime",
        "asset_store",
        "submission_store",
        "parameters",
    }
)


def tool_definition(name: str, *, shown_as: str | None = None) -> dict[str, Any]:
    """A copy of a tool's definition, under another name when ``shown_as`` is given."""
    definition = copy.deepcopy(TOOL_SPECS[name])
    definition["name"] = shown_as or name
    return definition


def parameter_schemas(
    definitions: Any, specs: Mapping[str, Mapping[str, Any]] = TOOL_SPECS
) -> dict[str, Mapping[str, Any]]:
    """Parameter schemas by tool name: those of ``specs``, and of offered definitions (dicts or objects) besides."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for definition in definitions or ():
        name, parameters = _name_and_parameters(definition)
        if isinstance(name, str) and isinstance(parameters, Mapping):
            schemas[name] = parameters
    for name, spec in specs.items():
        own = spec.get("parameters") or {}
        given = schemas.get(name)
        if given is None:
            schemas[name] = own
        else:
            properties = {**(given.get("properties") or {}), **(own.get("properties") or {})}
            schemas[name] = {**given, **own, "properties": properties}
    return schemas


def _name_and_parameters(definition: Any) -> tuple[Any, Any]:
    if isinstance(definition, Mapping):
        return definition.get("name"), definition.get("parameters")
    return getattr(definition, "name", None), getattr(definition, "parameters", None)


class ArgumentFinding(NamedTuple):
    """What is wrong with the arguments of a call.

    Args:
        kind: ``malformed`` when a required argument is missing or of the wrong type; ``refused`` for an argument the
            tool does not have or a value it does not take, which the model can mend.
        text: One line for the model.
        argument: The argument at fault.
    """

    kind: Literal["malformed", "refused"]
    text: str
    argument: str


def check_call(
    name: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]
) -> tuple[dict[str, Any], ArgumentFinding | None]:
    """Check the arguments of a call to an offered tool.

    Returns:
        The arguments to use (``num_results`` clamped to 1..10), and what is wrong with them.
    """
    properties = schema.get("properties") or {}
    checked = dict(arguments)
    for argument in schema.get("required") or ():
        value = checked.get(argument)
        types = _types(properties.get(argument))
        wanted = f"{name}: {argument} is required and must be {' or '.join(types) if types else 'given'}"
        if value is None or (isinstance(value, str) and not value.strip()):
            return checked, ArgumentFinding("malformed", f"{wanted}, and not blank", argument)
        if types and not any(has_json_type(value, kind) for kind in types):
            return checked, ArgumentFinding("malformed", wanted, argument)
    for argument in checked:
        if argument in INTERNAL_ARGUMENTS or argument not in properties:
            known = ", ".join(sorted(properties)) or "none"
            text = f"{name}: there is no argument {argument[:100]!r}; the arguments are: {known}"
            return checked, ArgumentFinding("refused", text, argument)
    if "num_results" in checked:
        value = checked["num_results"]
        if isinstance(value, bool) or not isinstance(value, int):
            return checked, ArgumentFinding("refused", f"{name}: num_results must be an integer", "num_results")
        checked["num_results"] = min(max(value, 1), 10)
    return checked, None


def _types(entry: Any) -> list[str]:
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    return list(kind) if isinstance(kind, list) else [kind] if isinstance(kind, str) else []
