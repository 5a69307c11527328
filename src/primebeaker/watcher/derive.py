"""Tables derived from the others at the end of a scan: ancestors of runs, and the rows of the run list."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable

from primebeaker.watcher.writing import Writer

__all__ = ["refresh_ancestors", "refresh_run_list"]


def refresh_ancestors(writer: Writer) -> set[int]:
    """Bring ``run_ancestors`` up to date; returns the runs whose ancestors changed."""
    parents: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for child, checkpoint, run in writer.execute(
        "SELECT e.child_run_id, c.id, c.run_id FROM lineage_edges e JOIN checkpoints c ON c.id = e.parent_checkpoint_id"
        " WHERE c.run_id != e.child_run_id ORDER BY e.ambiguous, e.id"
    ):
        parents[child].append((run, checkpoint))
    stored: dict[int, set[tuple[int, int | None, int]]] = defaultdict(set)
    for run, ancestor, checkpoint, depth in writer.execute(
        "SELECT run_id, ancestor_run_id, checkpoint_id, depth FROM run_ancestors"
    ):
        stored[run].add((ancestor, checkpoint, depth))
    changed: set[int] = set()
    for (run,) in writer.execute("SELECT id FROM runs").fetchall():
        wanted: dict[int, tuple[int, int | None, int]] = {run: (run, None, 0)}
        level = [run]
        depth = 0
        while level:
            depth += 1
            following: list[int] = []
            for node in level:
                for ancestor, checkpoint in parents.get(node, ()):
                    if ancestor not in wanted:
                        wanted[ancestor] = (ancestor, checkpoint, depth)
                        following.append(ancestor)
            level = following
        rows = set(wanted.values())
        if rows != stored.get(run):
            changed.add(run)
            with writer.batch():
                writer.wrote()
                writer.execute("DELETE FROM run_ancestors WHERE run_id = ?", (run,))
                writer.connection.executemany(
                    "INSERT INTO run_ancestors (run_id, ancestor_run_id, checkpoint_id, depth) VALUES (?,?,?,?)",
                    [(run, *row) for row in rows],
                )
    return changed


def refresh_run_list(writer: Writer, run_ids: Iterable[int], check: Callable[[], None]) -> None:
    """Make the list rows of these runs anew."""
    for run_id in run_ids:
        check()
        with writer.batch():
            _run_row(writer, run_id)


def _run_row(writer: Writer, run_id: int) -> None:
    run = writer.execute(
        "SELECT key, name, run_dir, stage, state, config_id, base_model FROM runs WHERE id = ?", (run_id,)
    ).fetchone()
    if run is None:
        return
    last, count, modified = writer.execute(
        "SELECT max(step), count(*), max(modified_at) FROM checkpoints WHERE run_id = ? AND missing_since IS NULL"
        " AND kind != 'referenced'",
        (run_id,),
    ).fetchone()
    evaluations = writer.execute(
        "SELECT count(*) FROM evaluation_list l JOIN evaluations e ON e.id = l.evaluation_id WHERE l.run_id = ?"
        " AND e.missing_since IS NULL",
        (run_id,),
    ).fetchone()[0]
    best = writer.execute(
        "SELECT l.overall, l.step FROM evaluation_list l JOIN evaluations e ON e.id = l.evaluation_id WHERE"
        " l.run_id = ? AND e.missing_since IS NULL AND l.overall IS NOT NULL AND e.provisional = 0"
        " ORDER BY l.overall DESC, l.step DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    scores = dict(
        writer.execute(
            "SELECT b.dataset, max(b.mean_accuracy) FROM evaluation_list l JOIN evaluations e ON"
            " e.id = l.evaluation_id JOIN evaluation_benchmarks b ON b.evaluation_id = e.id WHERE l.run_id = ?"
            " AND e.missing_since IS NULL GROUP BY b.dataset ORDER BY b.dataset",
            (run_id,),
        ).fetchall()
    )
    parents = [
        {"ref": row[0], "relation": row[1], "checkpoint": row[2], "run": row[3], "name": row[4], "step": row[5]}
        for row in writer.execute(
            "SELECT e.parent_ref, e.relation, c.key, r.key, r.name, c.step FROM lineage_edges e LEFT JOIN checkpoints c"
            " ON c.id = e.parent_checkpoint_id LEFT JOIN runs r ON r.id = c.run_id WHERE e.child_run_id = ?"
            " ORDER BY e.id",
            (run_id,),
        )
    ]
    wandb, experiments = writer.execute(
        "SELECT count(*), group_concat(coalesce(wandb_run_id, '') || ' ' || coalesce(name, ''), ' ') FROM wandb_runs"
        " WHERE run_id = ?",
        (run_id,),
    ).fetchone()
    directory = run["run_dir"] or ""
    config = writer.execute("SELECT path FROM configs WHERE id = ?", (run["config_id"],)).fetchone()
    issues = writer.execute(
        "SELECT count(*) FROM issues WHERE path = ? OR (path > ? AND path < ?) OR path = ?",
        (directory, directory + "/", directory + "0", config[0] if config else ""),
    ).fetchone()[0]
    words = " ".join(
        str(part)
        for part in (run["name"], directory, config[0] if config else "", experiments, run["base_model"], run["key"])
        if part
    )
    writer.wrote()
    writer.execute(
        "INSERT OR REPLACE INTO run_list VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            run_id,
            run["key"],
            run["name"],
            run["stage"],
            run["state"],
            last,
            count,
            evaluations,
            best[0] if best else None,
            best[1] if best else None,
            modified,
            wandb,
            issues,
            json.dumps(scores, ensure_ascii=False),
            json.dumps(parents, ensure_ascii=False),
            words.casefold(),
        ),
    )
