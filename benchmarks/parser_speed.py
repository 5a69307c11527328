"""Megabytes a second of the readers of replies, per format, on normal and on hostile text; value: the slowest."""

import json
import time

from measure import report

from primebeaker.environments._shared.tool_calls import said_text, text_calls, without_call_blocks
from primebeaker.environments._shared.tool_specs import parameter_schemas
from primebeaker.environments._shared.verdicts import final_verdict, xml_verdict

SIZE = 1_000_000
SCHEMAS = parameter_schemas(())
COMMAND = "rg -n 'some words' | head -20"
NORMAL = {
    "json": f"I look.\n<tool_call>{json.dumps({'name': 'terminal', 'arguments': {'command': COMMAND}})}</tool_call>\n",
    "xml": f"<tool_call><function=terminal><parameter=command>{COMMAND}</parameter></function></tool_call>\n",
    "harmony": f"<|start|>assistant to=terminal<|channel|>commentary<|message|>{COMMAND}<|call|>",
    "verdict": 'Some reasoning about {"it": [1, 2]} and so on. {"feedback": "because", "label": "pass"}\n',
    "prose": "The output states the total twice, and both times it is right. ",
}
HOSTILE = [
    "<tool_call>{",
    "<parameter=",
    "{",
    "[",
    "<",
    "<think>",
    '{"a":',
    '["',
    "<|message|>",
    "<tool_call><function=a>",
]


def seconds(unit: str) -> float:
    text = (unit * (SIZE // len(unit) + 1))[:SIZE]
    started = time.perf_counter()
    text_calls(text, SCHEMAS)
    said = said_text(text)
    final_verdict(without_call_blocks(said, {}))
    xml_verdict(said)
    return time.perf_counter() - started


def main() -> None:
    normal = {name: round(SIZE / 1e6 / seconds(unit), 1) for name, unit in NORMAL.items()}
    hostile = {unit: round(seconds(unit), 3) for unit in HOSTILE}
    report(
        "slowest reading of 1 MB of hostile text",
        max(hostile.values()),
        "s",
        bound=0.5,
        megabytes_per_second=normal,
        hostile_seconds=hostile,
    )


main()
