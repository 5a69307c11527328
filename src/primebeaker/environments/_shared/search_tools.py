"""Tools of the search environments: definitions, and how their results look to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primebeaker.environments._shared.pages import PageFault, fetched_page
from primebeaker.environments._shared.results import cut

__all__ = ["SEARCH", "VISIT", "WEBTERMINAL", "search_text", "visited_page"]


def _strict(name: str, description: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": dict(properties),
            # A strict schema lists every property; a call without an optional one works all the same.
            "required": list(properties),
            "additionalProperties": False,
        },
        "strict": True,
    }


SEARCH = _strict(
    "search",
    "Search the web. Returns titles, snippets and links; a snippet is a hint, not evidence.",
    {
        "query": {"type": "string", "description": "What to search for."},
        "num_results": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10,
            "default": 10,
            "description": "How many links to return, from 1 to 10.",
        },
    },
)
WEBTERMINAL = _strict(
    "webterminal",
    "Read a web page through a restricted terminal: 'browse <url>' prints it, 'browse <url> | rg -n words | head'"
    " searches in it. 'cat <asset-id>' reads a page that is already stored. Returns stdout, stderr and the exit code.",
    {"command": {"type": "string", "description": "One command line, such as: browse https://example.org | head -40"}},
)
VISIT = _strict(
    "visit",
    "Read a whole web page as text.",
    {"url": {"type": "string", "description": "The page's http or https URL."}},
)


def search_text(query: str, reply: Mapping[str, Any]) -> str:
    """The hits of a search: title, snippet and source of each, with a blank line between hits."""
    if reply.get("success") is False:
        reason = " ".join(str(reply.get("error") or "the search failed").split())
        return f"search: {reason}"[:500]
    data = reply.get("data")
    found = data if isinstance(data, Mapping) else {}
    hits = found["organic"] if isinstance(found.get("organic"), list) else found.get("results")
    shown = [_hit(hit) for hit in hits if isinstance(hit, Mapping)] if isinstance(hits, list) else []
    return "\n\n".join(shown) or f"search: nothing was found for {' '.join(query.split())!r}"


def _hit(hit: Mapping[str, Any]) -> str:
    title = _text(hit, "title") or "Untitled result"
    lines = [f"**{title}**", _text(hit, "snippet", "description")]
    source = _text(hit, "link", "url")
    if source:
        lines.append(f"Source: {source}")
    return "\n".join(line for line in lines if line)


def _text(values: Mapping[str, Any], *keys: str) -> str:
    for key in keys:
        value = values.get(key)
        if value is not None and str(value).strip():
            return str(value).strip()
    return ""


def visited_page(reply: Any, limit: int | None) -> str:
    """A page as ``visit`` shows it: its title as a heading, and its text, cut to ``limit`` characters with a marker.

    Raises:
        PageFault: The page cannot be read, or has no text.
    """
    data = reply.get("data") if isinstance(reply, Mapping) else None
    if isinstance(data, str) and data and isinstance(reply, Mapping) and reply.get("success") is not False:
        return cut(data, limit)
    body = fetched_page(reply).strip()
    if not body:
        raise PageFault("the page has no text")
    title = _text(data, "title") if isinstance(data, Mapping) else ""
    return cut(f"# {title}\n\n{body}" if title else body, limit)
