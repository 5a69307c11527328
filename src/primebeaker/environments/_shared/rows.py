"""One row of a dataset: its prompt, its answer, its judged output, checked and otherwise left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from primebeaker.json_keys import RepeatedKey, unique_keys

__all__ = [
    "PROMPT_COLUMNS",
    "RowFault",
    "answer_text",
    "decoded_info",
    "judged_output",
    "normalized_row",
    "web_pages_of",
]

#: The columns that may hold the prompt; the first one that is present and not empty counts.
PROMPT_COLUMNS = ("prompt", "messages", "question", "input")

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OUTPUT_TAG = re.compile(r"<(/?)output>", re.IGNORECASE)


class RowFault(ValueError):
    """``<column>: <problem>`` of one row."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"{column}: {problem}")


def normalized_row(
    row: Any,
    *,
    prompt_columns: Sequence[str] = PROMPT_COLUMNS,
    system_prompt: str | None = None,
    few_shot: Sequence[Mapping[str, Any]] = (),
    template: Callable[[str], list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Check one row and give it a message-list ``prompt``; every other column keeps its value and type.

    Args:
        row: The row as it was read.
        prompt_columns: Where the prompt is looked for.
        system_prompt: The system message of prompts that do not begin with one.
        few_shot: Messages put before a prompt that is plain text.
        template: Makes the prompt of a row that has a ``question`` and no prompt of its own.

    Raises:
        RowFault: A column that no rollout could work with.
    """
    if not isinstance(row, Mapping):
        raise RowFault("row", f"expected an object, found {_kind(row)}")
    checked = dict(row)
    prompt, was_text, column = _prompt(row, prompt_columns)
    if column == "question" and was_text and template is not None:
        prompt = template(str(row["question"]).strip())
    elif was_text:
        prompt = [*map(dict, few_shot), *prompt]
    if system_prompt is not None and prompt[0]["role"] != "system":
        prompt = [{"role": "system", "content": system_prompt}, *prompt]
    checked["prompt"] = prompt
    if isinstance(row.get("task"), str):
        # Verifiers takes a `task` for a serialised payload and gives up on plain text.
        checked["source_task"] = checked.pop("task")
    if "info" in row:
        checked["info"] = _info(row["info"])
    web_pages_of(row)
    answer_text(row)
    return checked


def answer_text(row: Mapping[str, Any]) -> str | None:
    """The gold answer as text (numbers and bools as their JSON text), trimmed; None when it is blank or missing.

    Raises:
        RowFault: The answer is an object or a list.
    """
    answer = row.get("answer")
    if answer is None:
        return None
    if isinstance(answer, bool | int | float):
        return json.dumps(answer)
    if isinstance(answer, str):
        return answer.strip() or None
    raise RowFault("answer", f"expected text, a number or a bool, found {_kind(answer)}")


def judged_output(row: Mapping[str, Any]) -> Any:
    """The judged output: ``output``, else the text between output tags of the first user message that has them."""
    if row.get("output") is not None:
        return row["output"]
    for message in row.get("prompt") or ():
        content = message.get("content") if message.get("role") == "user" else None
        found = _tagged_output(content) if isinstance(content, str) else None
        if found:
            return found
    return None


def _tagged_output(content: str) -> str | None:
    opening: int | None = None
    for tag in _OUTPUT_TAG.finditer(content):
        if not tag[1]:
            opening = tag.end() if opening is None else opening
        elif opening is not None:
            found = content[opening : tag.start()].strip()
            if found:
                return found
            opening = None
    return None


def web_pages_of(row: Mapping[str, Any]) -> dict[str, str] | None:
    """The pages stored with a row: URL to text.

    Raises:
        RowFault: The pages are not an object of texts.
    """
    column = "web_pages" if row.get("web_pages") is not None else "web_pages_json"
    pages = row.get(column)
    if pages is None:
        return None
    if column == "web_pages_json" and isinstance(pages, str):
        try:
            pages = json.loads(pages, object_pairs_hook=unique_keys)
        except RepeatedKey as error:
            raise RowFault(column, str(error)) from None
        except ValueError:
            raise RowFault(column, "expected the JSON text of an object of URL to page text") from None
    if not isinstance(pages, Mapping):
        raise RowFault(column, f"expected an object of URL to page text, found {_kind(pages)}")
    for url, page in pages.items():
        if not isinstance(url, str) or not url:
            raise RowFault(column, f"expected text keys, found {url!r}")
        if page is not None and not isinstance(page, str):
            raise RowFault(column, f"{url}: expected page text, found {_kind(page)}")
    return {url: page for url, page in pages.items() if page is not None}


def decoded_info(info: Any) -> Any:
    """The column ``info``, decoded where it is JSON text.

    Raises:
        RowFault: The text is no JSON, or gives a key twice.
    """
    if not isinstance(info, str):
        return info
    try:
        return json.loads(info, object_pairs_hook=unique_keys)
    except RepeatedKey as error:
        raise RowFault("info", str(error)) from None
    except ValueError:
        raise RowFault("info", "expected an object, or the JSON text of one") from None


def _info(given: Any) -> Any:
    info = {} if given is None else decoded_info(given)
    if not isinstance(info, Mapping):
        raise RowFault("info", f"expected an object, or the JSON text of one, found {_kind(info)}")
    if "oai_tools" in info:
        raise RowFault("info", "oai_tools is not supported; an environment offers its own tools")
    if isinstance(info.get("task"), str):
        return {("source_task" if key == "task" else key): value for key, value in info.items()}
    return info if given is None else given


def _prompt(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[list[dict[str, Any]], bool, str]:
    """The prompt messages, whether they were plain text, and the column they come from."""
    for column in columns:
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            return [{"role": "user", "content": value}], True, column
        if isinstance(value, list | tuple) and value:
            messages = [_message(column, number, message) for number, message in enumerate(value, start=1)]
            if column == "messages" and messages[-1]["role"] == "assistant":
                raise RowFault(
                    column, "ends with an assistant message, so the answer would be part of the prompt; give 'prompt'"
                )
            return messages, False, column
        if value is not None and not isinstance(value, str | list | tuple):
            raise RowFault(column, f"expected text or a list of messages, found {_kind(value)}")
    raise RowFault("prompt", f"missing or empty; accepted columns are {', '.join(columns)}")


def _message(column: str, number: int, message: Any) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, Mapping):
        raise RowFault(column, f"{where}: expected an object with role and content, found {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RowFault(column, f"{where}: role {role!r}, expected system, user, assistant or tool")
    kept = {key: value for key, value in message.items() if value is not None}
    kept["role"] = _ROLES[role]
    content = kept.get("content")
    if content is None:
        if role != "assistant" or not kept.get("tool_calls"):
            raise RowFault(column, f"{where}: no content, which only an assistant message with tool_calls may lack")
    elif isinstance(content, list):
        if not all(isinstance(part, Mapping) and isinstance(part.get("type", "text"), str) for part in content):
            raise RowFault(column, f"{where}: expected every content part to be an object with a type")
    elif not isinstance(content, str):
        raise RowFault(column, f"{where}: expected content to be text or a list of parts, found {_kind(content)}")
    if role == "tool" and not isinstance(kept.get("tool_call_id"), str):
        raise RowFault(column, f"{where}: a tool message needs tool_call_id")
    return kept


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a bool", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
