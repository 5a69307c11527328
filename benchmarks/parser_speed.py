"""Megabytes a second of the readers of replies, per format, on normal and on hostile text; value: the slowest."""

import json
import time

from measure import report

from primebeaker.environments._shared.code_block import code_of
from primebeaker.environments._shared.search_answers import extracted_answer
from primebeaker.environments._shared.tool_calls import message_calls, said_text, text_calls, without_call_blocks
from primebeaker.environments._shared.tool_specs import parameter_schemas
from primebeaker.environments._shared.verdicts import final_verdict, xml_verdict

SIZE = 1_000_000
SCHEMAS = parameter_schemas(())
COMMAND = "rg -n 'some words' | head -20"
NORMAL = {
    "json": f"I look.\n<tool_call>{json.dumps({'name': 'terminal', 'arguments': {'command': COMMAND}})}</tool_call>\n",
    "xml": f"<tool_call><function=terminal><parameter=command>{COMMAND}</parameter></function></tool_call>\n",
    "harmony": f"<|start|>assistant to=terminal<|channel|>commentary<|message|>{COMMAND}<|call|>",
    "code": "<code>```python\nprint(1)\n```</code>\n",
    "verdict": 'Some reasoning about {"it": [1, 2]} and so on. {"feedback": "because", "label": "pass"}\n',
    "prose": "The output states the total twice, and both times it is right. ",
}
VERDICT = '{"feedback":"f","label":"p"}'
# What stands before, what is repeated, and what stands after.
HOSTILE = [
    *(
        ("", unit, "")
        for unit in ("<tool_call>{", "<parameter=", "{", "[", "<", "<think>", '{"a":', '["', "<|message|>")
    ),
    ("", "<tool_call><function=a>", ""),
    ("", "<tool_call><function=a></tool_call>", ""),
    ("", "<tool_call>{</tool_call>", ""),
    ("<tool_call><function=a>", "<parameter=", "</function></tool_call>"),
    *((VERDICT, unit, "") for unit in ("[0,", "[[],", "{}", '["a",[', '{"a":{},"b":', VERDICT)),
    ("", "```json{", "```"),
    ("<code>```python\n", "`", "```</code>"),
]


def seconds(before: str, unit: str, after: str) -> float:
    """Processor seconds of all the readers over 1 MB, the better of two runs."""
    text = before + (unit * (SIZE // len(unit) + 1))[:SIZE] + after
    return min(_once(text), _once(text))


def _once(text: str) -> float:
    started = time.process_time()
    text_calls(text, SCHEMAS)
    said = said_text(text)
    final_verdict(without_call_blocks(said, {}))
    xml_verdict(said)
    code_of(said)
    extracted_answer(said)
    return time.process_time() - started


def structured_seconds() -> float:
    """The same for 1 MB of structured calls."""
    call = {"function": {"name": "terminal", "arguments": json.dumps({"command": COMMAND})}}
    calls = [call] * (SIZE // len(json.dumps(call)))
    started = time.process_time()
    message_calls({"tool_calls": calls}, SCHEMAS)
    return time.process_time() - started


def main() -> None:
    normal = {name: round(SIZE / 1e6 / seconds("", unit, ""), 1) for name, unit in NORMAL.items()}
    normal["structured"] = round(SIZE / 1e6 / structured_seconds(), 1)
    hostile = {" … ".join(filter(None, case)): round(seconds(*case), 3) for case in HOSTILE}
    report(
        "slowest reading of 1 MB of hostile text",
        max(hostile.values()),
        "s",
        bound=0.5,
        megabytes_per_second=normal,
        hostile_seconds=hostile,
    )


main()
