"""Writing evaluations: their scores, the checkpoint they belong to, and their row of the list."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from primebeaker.redaction import mask_credentials, redact_tree
from primebeaker.watcher.documents import stored_text
from primebeaker.watcher.evaluations import Subject
from primebeaker.watcher.issues import Issue, issue
from primebeaker.watcher.paths import checkpoint_step, entity_key, run_dir_of
from primebeaker.watcher.results import Outcome
from primebeaker.watcher.timing import now
from primebeaker.watcher.writing import Writer

__all__ = ["CheckpointIndex", "EvaluationStore"]

_OUTCOME_LIMIT = 256 * 2**10


@dataclass
class CheckpointIndex:
    """Finds the checkpoint of a model reference, whichever spelling names it.

    Attributes:
        runs: Run directory or alias -> run id.
        checkpoints: (run id, step) -> checkpoint id.
    """

    runs: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def load(cls, writer: Writer) -> CheckpointIndex:
        """All checkpoints of the index."""
        index = cls()
        for row in writer.execute("SELECT id, run_dir, aliases_json FROM runs"):
            index.runs[row[1]] = row[0]
            if row[2] != "[]":
                index.runs.update(dict.fromkeys(json.loads(row[2]), row[0]))
        for row in writer.execute("SELECT run_id, step, id FROM checkpoints"):
            index.checkpoints[row[0], row[1]] = row[2]
        return index

    def find(self, model: str) -> tuple[int | None, int | None, int | None]:
        """``(checkpoint id, run id, step)`` of a path, each None as far as unknown."""
        step = checkpoint_step(model)
        run_id = self.runs.get(run_dir_of(model)) if step is not None else None
        if run_id is None or step is None:
            return None, None, step
        return self.checkpoints.get((run_id, step)), run_id, step


@dataclass
class EvaluationStore:
    """Writes evaluations.

    Attributes:
        writer: The scan's writer.
        index: The checkpoints they may belong to.
        touched: Runs whose list row must be made anew.
    """

    writer: Writer
    index: CheckpointIndex
    touched: set[int] = field(default_factory=set)

    def put(
        self, subject: Subject, outcome: Outcome, text: str | None, signature: str, *, known: bool = True
    ) -> tuple[int, int]:
        """Store one evaluation when it differs; returns (changed, newly missing) as 0 or 1.

        Args:
            subject: What is evaluated.
            outcome: What its files say.
            text: Its configuration, credentials masked.
            signature: Of the files the outcome was read from.
            known: Whether the index may hold an evaluation of this configuration already.
        """
        run_dir = subject.run_dir or ""
        key = entity_key("evaluation", subject.model, subject.config_path, run_dir)
        row = self._row(subject, run_dir) if known else None
        checkpoint_id, run_id, step, problems = self._link(subject)
        self.writer.set_issues(subject.config_path, [*outcome.issues, *problems])
        gone = outcome.status == "missing"
        moment = now()
        missing_since = ((row["missing_since"] if row else None) or moment) if gone else None
        values = self._values(subject, outcome, text)
        digest = hashlib.blake2b(
            repr((values, outcome.benchmarks, outcome.metrics, outcome.failed_runs, checkpoint_id, gone)).encode(
                "utf-8", "surrogatepass"
            ),
            digest_size=12,
        ).hexdigest()
        if row is not None and row["digest"] == digest:
            if row["signature"] != signature:
                self.writer.execute("UPDATE evaluations SET signature = ? WHERE id = ?", (signature, row["id"]))
            return 0, 0
        values |= {
            "checkpoint_id": checkpoint_id,
            "signature": signature,
            "digest": digest,
            "missing_since": missing_since,
            "indexed_at": moment,
        }
        if outcome.keep_scores:
            for name in ("overall", "observed_json", "outcome_json", "provisional", "started_at", "finished_at"):
                values.pop(name)
        if row is None:
            evaluation_id = self.writer.insert(
                "evaluations", key, model_ref=subject.model, config_path=subject.config_path, run_dir=run_dir, **values
            )
            if known:
                self._supersede(subject, evaluation_id)
        else:
            evaluation_id = row["id"]
            self.writer.update("evaluations", evaluation_id, **values)
        if not outcome.keep_scores:
            self._scores(evaluation_id, outcome, fresh=row is None)
        self._list_row(
            evaluation_id, key if row is None else row["key"], subject, outcome, (run_id, checkpoint_id, step)
        )
        if run_id is not None:
            self.touched.add(run_id)
        return 1, int(gone and (row is None or row["missing_since"] is None))

    def _row(self, subject: Subject, run_dir: str) -> sqlite3.Row | None:
        found: sqlite3.Row | None = self.writer.execute(
            "SELECT id, key, digest, signature, missing_since FROM evaluations WHERE model_ref = ? AND config_path = ?"
            " AND run_dir = ?",
            (subject.model, subject.config_path, run_dir),
        ).fetchone()
        return found

    def _values(self, subject: Subject, outcome: Outcome, text: str | None) -> dict[str, Any]:
        raw: dict[str, Any] = {}
        if outcome.failures:
            raw["failures"] = outcome.failures
        raw |= outcome.extra
        outcome_text = json.dumps(redact_tree(raw), ensure_ascii=False, separators=(",", ":")) if raw else None
        if outcome_text and len(outcome_text) > _OUTCOME_LIMIT:
            digest = hashlib.sha256(outcome_text.encode("utf-8", "surrogatepass")).hexdigest()
            outcome_text = json.dumps({"sha256": digest, "truncated": outcome_text[: 64 * 2**10]}, ensure_ascii=False)
        return {
            "base_model": subject.model if subject.model and not subject.is_path else None,
            "config_text": stored_text(text).text if text is not None else None,
            "workflow": subject.workflow,
            "status": outcome.status,
            "provisional": int(outcome.provisional),
            "error": mask_credentials(outcome.error)[:2000] if outcome.error else None,
            "expected_json": _compact(subject.expected),
            "observed_json": _compact(outcome.observed),
            "overall": outcome.overall,
            "started_at": outcome.started_at,
            "finished_at": outcome.finished_at,
            "outcome_json": outcome_text,
        }

    def _link(self, subject: Subject) -> tuple[int | None, int | None, int | None, list[Issue]]:
        if not subject.is_path:
            problems = []
            if not subject.model:
                problems = [_unknown(subject, "no model is named")]
            return None, None, None, problems
        checkpoint_id, run_id, step = self.index.find(subject.model)
        if checkpoint_id is not None:
            return checkpoint_id, run_id, step, []
        if run_id is None or step is None:
            return None, None, step, [_unknown(subject, f"{subject.model} is no checkpoint of a known run")]
        checkpoint_id = self.writer.insert(
            "checkpoints",
            entity_key("checkpoint", subject.model),
            run_id=run_id,
            path=subject.model,
            step=step,
            kind="referenced",
            indexed_at=now(),
        )
        self.index.checkpoints[run_id, step] = checkpoint_id
        problem = issue(
            "missing_checkpoint",
            subject.config_path,
            f"{subject.model} is not on disk",
            hint="nothing to do if it was deleted on purpose",
        )
        return checkpoint_id, run_id, step, [problem]

    def _supersede(self, subject: Subject, evaluation_id: int) -> None:
        """What the same YAML said before it was changed is missing from now on."""
        for row in self.writer.execute(
            "SELECT id FROM evaluations WHERE config_path = ? AND id != ? AND missing_since IS NULL",
            (subject.config_path, evaluation_id),
        ).fetchall():
            self.mark_missing(row["id"], None)

    def _scores(self, evaluation_id: int, outcome: Outcome, *, fresh: bool) -> None:
        if not fresh:
            for table in ("evaluation_benchmarks", "evaluation_metrics"):
                self.writer.execute(f"DELETE FROM {table} WHERE evaluation_id = ?", (evaluation_id,))  # noqa: S608
        self.writer.connection.executemany(
            "INSERT INTO evaluation_benchmarks (evaluation_id, dataset, runs, mean_accuracy, stdev_accuracy,"
            " min_accuracy, max_accuracy, failed_runs) VALUES (?,?,?,?,?,?,?,?)",
            [(evaluation_id, *item, outcome.failed_runs.get(name, 0)) for name, item in outcome.benchmarks.items()],
        )
        if not outcome.metrics:
            return
        self.writer.connection.executemany(
            "INSERT INTO evaluation_metrics (evaluation_id, name, value, count) VALUES (?,?,?,?)",
            [(evaluation_id, name, value, count) for name, (value, count) in outcome.metrics.items()],
        )

    def _list_row(
        self,
        evaluation_id: int,
        key: str,
        subject: Subject,
        outcome: Outcome,
        place: tuple[int | None, int | None, int | None],
    ) -> None:
        words = " ".join((subject.model, subject.config_path, subject.run_dir or "", subject.workflow)).casefold()
        run_id, checkpoint_id, step = place
        overall, finished_at = outcome.overall, outcome.finished_at
        if outcome.keep_scores:
            overall, finished_at = self.writer.execute(
                "SELECT overall, finished_at FROM evaluations WHERE id = ?", (evaluation_id,)
            ).fetchone()
        self.writer.execute(
            "INSERT OR REPLACE INTO evaluation_list (evaluation_id, key, run_id, checkpoint_id, status, workflow,"
            " overall, model, step, finished_at, search) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                evaluation_id,
                key,
                run_id,
                checkpoint_id,
                outcome.status,
                subject.workflow,
                overall,
                subject.model,
                step,
                finished_at,
                words,
            ),
        )

    def mark_missing(self, evaluation_id: int, gone_path: str | None) -> int:
        """The configuration of an evaluation is gone."""
        self.writer.update("evaluations", evaluation_id, missing_since=now(), digest=None, signature="")
        if gone_path:
            self.writer.execute("DELETE FROM issues WHERE owner = ?", (gone_path,))
        row = self.writer.execute(
            "SELECT run_id FROM evaluation_list WHERE evaluation_id = ?", (evaluation_id,)
        ).fetchone()
        if row is not None and row["run_id"] is not None:
            self.touched.add(row["run_id"])
        return 1

    def move(self, old: str, new: str) -> None:
        """A YAML was moved: the rows it made at the new place give way to the known ones."""
        for row in self.writer.execute(
            "SELECT id, model_ref, run_dir FROM evaluations WHERE config_path = ?", (old,)
        ).fetchall():
            self.writer.execute(
                "DELETE FROM evaluations WHERE config_path = ? AND model_ref = ? AND run_dir = ? AND id != ?",
                (new, row["model_ref"], row["run_dir"], row["id"]),
            )
            self.writer.update("evaluations", row["id"], config_path=new, missing_since=None)
            self.writer.execute(
                "UPDATE evaluation_list SET search = replace(search, ?, ?) WHERE evaluation_id = ?",
                (old.casefold(), new.casefold(), row["id"]),
            )

    def relink(self) -> None:
        """Bind evaluations of paths that were no known checkpoint until now."""
        rows = self.writer.execute(
            "SELECT id, model_ref FROM evaluations WHERE checkpoint_id IS NULL AND base_model IS NULL"
            " AND model_ref != ''"
        ).fetchall()
        for row in rows:
            checkpoint_id, run_id, step = self.index.find(row["model_ref"])
            if checkpoint_id is None:
                continue
            with self.writer.batch():
                self.writer.update("evaluations", row["id"], checkpoint_id=checkpoint_id, digest=None)
                self.writer.execute(
                    "UPDATE evaluation_list SET run_id = ?, checkpoint_id = ?, step = ? WHERE evaluation_id = ?",
                    (run_id, checkpoint_id, step, row["id"]),
                )
                self.writer.execute(
                    "DELETE FROM issues WHERE code = 'unknown_model' AND owner = (SELECT config_path FROM evaluations"
                    " WHERE id = ?)",
                    (row["id"],),
                )
                if run_id is not None:
                    self.touched.add(run_id)


def _unknown(subject: Subject, what: str) -> Issue:
    return issue(
        "unknown_model",
        subject.config_path,
        what,
        hint="add the training TOML's directory to --train_config_roots or the run's parent to --output_roots",
    )


def _compact(value: Mapping[str, Any]) -> str | None:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value else None
