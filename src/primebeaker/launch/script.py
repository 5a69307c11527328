"""The command of a task."""

from __future__ import annotations

import pkgutil
import shlex

from primebeaker.launch.topology import Kind

__all__ = ["multi_node_command", "single_node_command"]


def single_node_command(kind: Kind) -> list[str]:
    """``bash -c SCRIPT`` for one node; the same script for every launch of a kind, since values come by environment."""
    prepare = _task_file("prepare_sft.py") if kind == "sft" else ""
    return ["bash", "-c", f"kind={kind}\nprepare_sft={shlex.quote(prepare)}\n{_task_file('single_node.sh')}"]


def multi_node_command(kind: Kind) -> list[str]:
    """The role that every replica runs; its place in the topology comes from its rank."""
    return ["python3", "-m", "primebeaker.multinode", "role", kind]


def _task_file(name: str) -> str:
    data = pkgutil.get_data("primebeaker.launch.task", name)
    assert data is not None
    return data.decode()
