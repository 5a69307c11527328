"""The lineage graph around one entity, as nodes and edges, DOT, or indented text."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from primebeaker.watcher.references import Entity

__all__ = ["as_dot", "as_text", "lineage_graph"]


@dataclass
class _Graph:
    connection: sqlite3.Connection
    limit: int
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], bool] = field(default_factory=dict)
    truncated: bool = False

    def node(self, kind: str, row_id: int) -> str | None:
        """Add a node once; None when the graph is full."""
        known = self._ids.get((kind, row_id))
        if known is not None:
            return known
        if len(self.nodes) >= self.limit:
            self.truncated = True
            return None
        made = {"run": self._run, "checkpoint": self._checkpoint, "evaluation": self._evaluation}[kind](row_id)
        self.nodes[made["id"]] = made
        self._ids[kind, row_id] = made["id"]
        return str(made["id"])

    def __post_init__(self) -> None:
        self._ids: dict[tuple[str, int], str] = {}

    def base(self, reference: str) -> str | None:
        """A base model's node."""
        name = f"base:{reference}"
        if name not in self.nodes and len(self.nodes) >= self.limit:
            self.truncated = True
            return None
        self.nodes.setdefault(name, _node(name, "base_model", reference))
        return name

    def edge(self, start: str | None, end: str | None, relation: str, ambiguous: bool = False) -> None:
        """Add an edge between nodes that are there."""
        if start is not None and end is not None:
            self.edges[start, end, relation] = ambiguous

    def _run(self, run_id: int) -> dict[str, Any]:
        row = self.connection.execute(
            "SELECT r.key, r.name, r.stage, r.state, l.last_step, l.overall, r.missing_since FROM runs r"
            " LEFT JOIN run_list l ON l.run_id = r.id WHERE r.id = ?",
            (run_id,),
        ).fetchone()
        return _node(row[0], "run", row[1], row[2], row[3], row[4], row[5], row[6] is not None)

    def _checkpoint(self, checkpoint_id: int) -> dict[str, Any]:
        row = self.connection.execute(
            "SELECT c.key, r.name, r.stage, c.kind, c.step, c.missing_since, (SELECT max(overall) FROM evaluation_list"
            " WHERE checkpoint_id = c.id) FROM checkpoints c JOIN runs r ON r.id = c.run_id WHERE c.id = ?",
            (checkpoint_id,),
        ).fetchone()
        missing = row[5] is not None or row[3] == "referenced"
        return _node(row[0], "checkpoint", f"{row[1]}@{row[4]}", row[2], row[3], row[4], row[6], missing)

    def _evaluation(self, evaluation_id: int) -> dict[str, Any]:
        row = self.connection.execute(
            "SELECT key, config_path, workflow, status, overall, missing_since FROM evaluations WHERE id = ?",
            (evaluation_id,),
        ).fetchone()
        label = row[1].rpartition("/")[2] or row[1]
        return _node(row[0], "evaluation", label, row[2], row[3], None, row[4], row[5] is not None)


def _node(
    identity: str,
    kind: str,
    label: str,
    stage: str | None = None,
    state: str | None = None,
    step: int | None = None,
    score: float | None = None,
    missing: bool = False,
) -> dict[str, Any]:
    return {
        "id": identity,
        "kind": kind,
        "label": label,
        "stage": stage,
        "state": state,
        "step": step,
        "score": score,
        "missing": missing,
    }


def lineage_graph(
    connection: sqlite3.Connection, entity: Entity, *, direction: str = "both", depth: int = 20, limit: int = 2000
) -> dict[str, Any]:
    """Nodes and edges around an entity.

    Args:
        connection: The index.
        entity: Where to start.
        direction: ``up`` (what it is made of), ``down`` (what was made of it) or ``both``.
        depth: Edges between runs to follow.
        limit: Most nodes.
    """
    graph = _Graph(connection, limit)
    start = graph.node(entity.kind, entity.id)
    run_id, checkpoint_id = _home(connection, entity)
    if entity.kind == "evaluation" and checkpoint_id is not None:
        graph.edge(graph.node("checkpoint", checkpoint_id), start, "evaluation")
    if entity.kind == "evaluation":
        base = connection.execute("SELECT base_model FROM evaluations WHERE id = ?", (entity.id,)).fetchone()[0]
        if base:
            graph.edge(graph.base(base), start, "evaluation")
    if run_id is not None:
        if direction in ("both", "up") or entity.kind == "run":
            if checkpoint_id is not None:
                graph.edge(graph.node("run", run_id), graph.node("checkpoint", checkpoint_id), "step")
            _up(graph, run_id, depth)
        if direction in ("both", "down") and entity.kind != "evaluation":
            _down(graph, run_id, checkpoint_id, depth)
    return {
        "nodes": list(graph.nodes.values()),
        "edges": [
            {"from": first, "to": second, "relation": relation, "ambiguous": ambiguous}
            for (first, second, relation), ambiguous in graph.edges.items()
        ],
        "truncated": graph.truncated,
    }


def _home(connection: sqlite3.Connection, entity: Entity) -> tuple[int | None, int | None]:
    if entity.kind == "run":
        return entity.id, None
    sql = "SELECT run_id, id FROM checkpoints WHERE id = ?"
    if entity.kind == "evaluation":
        sql = "SELECT c.run_id, c.id FROM evaluations e JOIN checkpoints c ON c.id = e.checkpoint_id WHERE e.id = ?"
    row = connection.execute(sql, (entity.id,)).fetchone()
    return (row[0], row[1]) if row else (None, None)


def _up(graph: _Graph, run_id: int, depth: int) -> None:
    level, seen = [run_id], {run_id}
    for _ in range(depth):
        following: list[int] = []
        for node in level:
            for row in graph.connection.execute(
                "SELECT e.parent_ref, e.relation, e.ambiguous, c.id, c.run_id FROM lineage_edges e"
                " LEFT JOIN checkpoints c ON c.id = e.parent_checkpoint_id WHERE e.child_run_id = ? ORDER BY e.id",
                (node,),
            ).fetchall():
                child = graph.node("run", node)
                if row[3] is None:
                    graph.edge(graph.base(row[0]), child, row[1], bool(row[2]))
                    continue
                parent = graph.node("checkpoint", row[3])
                graph.edge(parent, child, row[1], bool(row[2]))
                graph.edge(graph.node("run", row[4]), parent, "step")
                if row[4] not in seen:
                    seen.add(row[4])
                    following.append(row[4])
        level = following


def _down(graph: _Graph, run_id: int, checkpoint_id: int | None, depth: int) -> None:
    level: list[tuple[int, int | None]] = [(run_id, checkpoint_id)]
    seen = {run_id}
    for _ in range(depth + 1):
        following: list[tuple[int, int | None]] = []
        for node, only in level:
            for row in graph.connection.execute(
                "SELECT id FROM checkpoints WHERE run_id = ? AND (? IS NULL OR id = ?) ORDER BY step",
                (node, only, only),
            ).fetchall():
                checkpoint = graph.node("checkpoint", row[0])
                if checkpoint is None:
                    return
                graph.edge(graph.node("run", node), checkpoint, "step")
                for (evaluation,) in graph.connection.execute(
                    "SELECT id FROM evaluations WHERE checkpoint_id = ? ORDER BY id", (row[0],)
                ).fetchall():
                    graph.edge(checkpoint, graph.node("evaluation", evaluation), "evaluation")
                for child, relation, ambiguous in graph.connection.execute(
                    "SELECT child_run_id, relation, ambiguous FROM lineage_edges WHERE parent_checkpoint_id = ?"
                    " AND child_run_id != ? ORDER BY id",
                    (row[0], node),
                ).fetchall():
                    graph.edge(checkpoint, graph.node("run", child), relation, bool(ambiguous))
                    if child not in seen:
                        seen.add(child)
                        following.append((child, None))
        level = following


def as_dot(graph: dict[str, Any]) -> str:
    """Graphviz text."""
    lines = ["digraph lineage {", "  rankdir=LR;", "  node [shape=box];"]
    for node in graph["nodes"]:
        text = node["label"] if node["score"] is None else f"{node['label']}\n{node['score']:.3f}"
        style = ', style="dashed"' if node["missing"] else ""
        lines.append(f"  {json.dumps(node['id'])} [label={json.dumps(text, ensure_ascii=False)}{style}];")
    for edge in graph["edges"]:
        style = ' [style="dotted"]' if edge["ambiguous"] else ""
        lines.append(f"  {json.dumps(edge['from'])} -> {json.dumps(edge['to'])}{style};")
    return "\n".join([*lines, "}"]) + "\n"


def as_text(graph: dict[str, Any]) -> str:
    """An indented tree; a node that was printed already is only named again."""
    children: dict[str, list[str]] = {}
    for edge in graph["edges"]:
        children.setdefault(edge["from"], []).append(edge["to"])
    nodes = {node["id"]: node for node in graph["nodes"]}
    targets = {edge["to"] for edge in graph["edges"]}
    lines: list[str] = []
    printed: set[str] = set()
    stack = [(name, 0) for name in reversed([name for name in nodes if name not in targets] or list(nodes)[:1])]
    while stack:
        name, level = stack.pop()
        node = nodes[name]
        facts = " ".join(
            str(part)
            for part in (
                node["kind"],
                node["label"],
                node["state"] or "",
                "" if node["score"] is None else f"{node['score']:.3f}",
                "(missing)" if node["missing"] else "",
            )
            if part
        )
        lines.append(
            "  " * level + " ".join(facts.splitlines()) + (" …" if name in printed and name in children else "")
        )
        if name not in printed:
            printed.add(name)
            stack += [(child, level + 1) for child in reversed(children.get(name, ()))]
    return "\n".join(lines) + "\n"
