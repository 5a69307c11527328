"""The report of a rehearsal for a reader at a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["report_text", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """A small curve, one character a value, scaled to the values' own range."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low
    return "".join(_BARS[0 if span == 0 else round((value - low) / span * (len(_BARS) - 1))] for value in values)


def report_text(report: Mapping[str, Any]) -> str:
    """The facts of a report: what ran where, what it earned, what it left, what to mend."""
    parts = [
        f"REHEARSAL, NOT TRAINING: {'passed' if report['ok'] else 'FAILED'} in {report['seconds']:g} s",
        f"{report['verdict']}.",
        _section("Topology", [_topology(report["topology"]), *_replicas(report["replicas"])]),
        _section("Phases of replica 0", _barriers(report["barriers"])),
        _section("Steps", _steps(report["steps"])),
        _section("Environments", [_environment(row) for row in report["environments"]]),
        _section("Replies and what they earned", _replies(report["replies"])),
        _section("Tools", _tools(report["tools"])),
        _section("Checkpoints", _checkpoints(report["checkpoints"])),
        _section("Files written", _files(report["files"])),
        _section("Faults", [_fault(row) for row in report["faults"]]),
        _section("What went wrong", [] if report["failure"] is None else report["failure"]["last_lines"]),
        _section("Mend before you pay for GPUs", [_problem(row) for row in report["problems"]]),
        _section("Notices", report["notices"]),
        _section("Not rehearsed, and different on Beaker", report["not_rehearsed"]),
        _section("Next", _next(report)),
    ]
    return "\n\n".join(part for part in parts if part)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def _topology(shape: Mapping[str, Any]) -> str:
    if shape["type"] == "single_node":
        return f"one node, {shape['gpus']} GPUs"
    text = f"{shape['nodes']} replicas x {shape['gpus_per_node']} GPUs = {shape['total_gpus']} GPUs"
    if "inference_ranks" in shape:
        text += f", {shape['inference_ranks']} inference ranks"
    return text


def _replicas(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    table = [("replica", "role", "trainer GPUs", "inference GPUs", "state", "exit", "seconds")]
    for row in rows:
        table.append(
            (
                str(row["rank"]),
                row["role"],
                _range(row["trainer_gpus"]),
                _range(row["inference_gpus"]),
                row["state"],
                "-" if row["exit_code"] is None else str(row["exit_code"]),
                "-" if row["seconds"] is None else f"{row['seconds']:g}",
            )
        )
    return _table(table)


def _barriers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    own = [row for row in rows if row["rank"] == 0]
    return ["  ".join(f"{row['name']} {row['seconds']:g} s" for row in own)] if own else []


def _steps(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    if "loss" in rows[0]:
        losses = [float(row["loss"]) for row in rows]
        pairs = [("step", "loss"), *((str(row["step"]), f"{float(row['loss']):.4f}") for row in rows)]
        return [*_table(pairs), f"loss {sparkline(losses)}"]
    rewards = [float(row["reward_mean"] or 0.0) for row in rows]
    table: list[tuple[str, ...]] = [("step", "mean reward", "rollouts", "errors", "tool calls", "failed")]
    for row, reward in zip(rows, rewards, strict=True):
        counts = (str(row[name]) for name in ("rollouts", "errors", "tool_calls", "tool_failures"))
        table.append((str(row["step"]), f"{reward:.3f}", *counts))
    return [*_table(table), f"reward {sparkline(rewards)}"]


def _environment(row: Mapping[str, Any]) -> str:
    return f"{row['name']}: mean reward {row['reward_mean']:.3f} over {row['steps']} steps"


def _replies(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    table = [("reply", "mean reward", "rollouts")]
    return _table([*table, *((row["reply"], f"{row['reward_mean']:.3f}", str(row["rollouts"])) for row in rows)])


def _tools(tools: Mapping[str, Any]) -> list[str]:
    if not tools["calls"] and not tools["services"] and not tools["stand_ins"]:
        return []
    lines = [f"{tools['calls']} calls, {tools['failures']} failed by a service"]
    lines += [f"real services here: {', '.join(tools['services'])}"] if tools["services"] else []
    lines += [f"stand-ins for: {', '.join(tools['stand_ins'])}"] if tools["stand_ins"] else []
    return lines


def _checkpoints(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"step {row['step']}: " + ("complete" if row["complete"] else f"not complete ({', '.join(row['missing'])})")
        for row in rows
    ]


def _files(files: Mapping[str, Any]) -> list[str]:
    if not files["total"]:
        return []
    rows = [(area, f"{entry['files']} files", _size(entry["bytes"])) for area, entry in files["areas"].items()]
    return [*_table(rows), f"{files['total']} files, {_size(files['bytes'])} in all"]


def _fault(row: Mapping[str, Any]) -> str:
    mark = "as expected" if row["ok"] else "NOT as expected"
    return f"{row['spec']}: {mark}; expected {row['expected']}; seen {row['observed']}"


def _problem(row: Mapping[str, Any]) -> str:
    return f"{row['where']}: {row['message']}" + (f"; {row['hint']}" if row["hint"] else "")


def _next(report: Mapping[str, Any]) -> list[str]:
    toml, kind = _short(report["toml"]), report["kind"]
    failed_as_meant = report["ok"] and report["failure"] is not None and report["work_dir"] is not None
    resumable = kind == "rl" and report["topology"]["type"] == "multi_node"
    if failed_as_meant and resumable and any(row["complete"] for row in report["checkpoints"]):
        return [f"primebeaker rl resume --from-experiment {report['experiment_id']} --engine local --rehearse"]
    if not report["ok"]:
        return [f"primebeaker logs {report['experiment_id']} --engine local"]
    if "run_file" in report:
        return [f"primebeaker run {word} --config {_short(report['run_file'])}" for word in ("preview", "launch")]
    return [f"primebeaker {kind} {word} --toml {toml}" for word in ("preview", "submit")]


def _short(path: str) -> str:
    """The path as one would type it here."""
    here = os.getcwd() + os.sep  # noqa: PTH109  as the shell shows it
    return path.removeprefix(here)


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "-"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _size(count: int) -> str:
    return f"{count} B" if count < 1024 else f"{count / 1024:.1f} KiB"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
