"""A layered left-to-right drawing of a lineage graph: positions only, the template makes the SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["draw"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 222, 46, 64, 14, 12
_FOLD = 12


def _fold(graph: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Leaves beyond a dozen of one parent and kind become one node with a count."""
    outgoing: dict[str, int] = defaultdict(int)
    for edge in graph["edges"]:
        outgoing[edge["from"]] += 1
    nodes = {node["id"]: node for node in graph["nodes"]}
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for edge in graph["edges"]:
        if not outgoing[edge["to"]]:
            groups[edge["from"], nodes[edge["to"]]["kind"]].append(edge["to"])
    hidden: set[str] = set()
    extra_nodes: list[dict[str, Any]] = []
    extra_edges: list[dict[str, Any]] = []
    for (parent, kind), members in groups.items():
        rest = members[_FOLD - 1 :]
        if len(members) <= _FOLD:
            continue
        hidden.update(rest)
        name = f"{parent}/{kind}"
        extra_nodes.append(
            {"id": name, "kind": "fold", "label": f"{len(rest)} more {kind}s", "parent": parent, "of": kind}
        )
        extra_edges.append({"from": parent, "to": name, "relation": "fold", "ambiguous": False})
    shown = [node for node in graph["nodes"] if node["id"] not in hidden]
    edges = [edge for edge in graph["edges"] if edge["to"] not in hidden and edge["from"] not in hidden]
    return [*shown, *extra_nodes], [*edges, *extra_edges]


def _layers(names: Sequence[str], edges: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The longest way from a source; the graph has no cycles but a limit makes sure."""
    layer = dict.fromkeys(names, 0)
    for _ in range(len(names)):
        moved = False
        for edge in edges:
            least = layer[edge["from"]] + 1
            if layer[edge["to"]] < least <= len(names):
                layer[edge["to"]] = least
                moved = True
        if not moved:
            break
    return layer


def draw(graph: Mapping[str, Any]) -> dict[str, Any]:
    """Nodes with ``x``, ``y``; edges with a path; the size of the drawing."""
    nodes, edges = _fold(graph)
    layer = _layers([node["id"] for node in nodes], edges)
    columns: dict[int, list[str]] = defaultdict(list)
    for node in nodes:
        columns[layer[node["id"]]].append(node["id"])
    parents: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        parents[edge["to"]].append(edge["from"])
    rank: dict[str, float] = {}
    for column in sorted(columns):
        place = {name: index for index, name in enumerate(columns[column])}

        weights: dict[str, tuple[float, int]] = {}
        for name in columns[column]:
            above = [rank[parent] for parent in parents[name] if parent in rank]
            weights[name] = (sum(above) / len(above) if above else float(place[name]), place[name])
        columns[column].sort(key=weights.__getitem__)
        rank |= {name: float(index) for index, name in enumerate(columns[column])}
    tallest = max((len(names) for names in columns.values()), default=0)
    height = tallest * (_HEIGHT + _GAP_Y) + 2 * _MARGIN
    spots: dict[str, tuple[int, int]] = {}
    for column, names in columns.items():
        top = (height - len(names) * (_HEIGHT + _GAP_Y)) // 2
        for index, name in enumerate(names):
            spots[name] = (_MARGIN + column * (_WIDTH + _GAP_X), top + index * (_HEIGHT + _GAP_Y))
    drawn = []
    for node in sorted(nodes, key=lambda item: spots[item["id"]]):
        x, y = spots[node["id"]]
        label = " ".join(str(node["label"]).split())
        drawn.append({**node, "x": x, "y": y, "short": label if len(label) <= 24 else label[:10] + "…" + label[-13:]})
    lines = []
    for edge in edges:
        (x1, y1), (x2, y2) = spots[edge["from"]], spots[edge["to"]]
        start, end, middle = x1 + _WIDTH, x2, (x1 + _WIDTH + x2) // 2
        y1, y2 = y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
        lines.append({**edge, "d": f"M{start} {y1} C{middle} {y1} {middle} {y2} {end} {y2}"})
    width = (max(columns, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X + 2 * _MARGIN
    return {"nodes": drawn, "edges": lines, "width": width, "height": height, "box": (_WIDTH, _HEIGHT)}
