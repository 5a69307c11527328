"""A stand-in for W&B's web service: GraphQL over HTTP on a port of the system's, with a fault a run."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"


class WandbServer(ThreadingHTTPServer):
    """Runs by name: ``{"state": …, "history": [rows]}`` or ``{"fault": …}``."""

    daemon_threads = True

    def __init__(self, runs: dict[str, dict[str, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs = runs
        self.queries: list[tuple[str, str]] = []
        self.faults: Counter[str] = Counter()
        self.ended = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()

    def count(self, run: str, kind: str) -> int:
        return self.queries.count((run, kind))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path != "/graphql":
            self.reply(200, {})
            return
        expected = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
        if self.headers.get("authorization") != expected:
            self.reply(401, {"errors": [{"message": "invalid API key"}]})
            return
        query = json.loads(body)
        values = query.get("variables") or {}
        name = values.get("name")
        if "sampledHistory" in query["query"]:
            spec = json.loads(values["specs"][0])
            self.server.queries.append((name, ",".join(spec["keys"])))
            # As W&B answers: only rows that hold every asked key.
            rows = [row for row in self.server.runs[name]["history"] if all(key in row for key in spec["keys"])]
            found = [{key: row[key] for key in spec["keys"]} for row in rows]
            self.reply(200, {"data": {"project": {"run": {"sampledHistory": [found]}}}})
        elif name is None:
            self.reply(200, {"data": {"viewer": {"id": "u", "entity": "e", "username": "u", "teams": {"edges": []}}}})
        else:
            self.server.queries.append((name, "run"))
            self.run(name)

    def run(self, name: str) -> None:
        run = self.server.runs.get(name, {"fault": "absent"})
        fault = run.get("fault")
        self.server.faults[name] += 1
        if fault == "hang":
            self.server.ended.wait(120)
        elif fault == "500" or (fault == "429 once" and self.server.faults[name] == 1):
            status = 500 if fault == "500" else 429
            self.reply(status, {"errors": [{"message": "try later"}]}, {"Retry-After": "1"} if status == 429 else {})
        elif fault == "absent":
            self.reply(200, {"data": {"project": {"run": None}}})
        else:
            logged = sorted({key for row in run["history"] for key in row})
            keys = {"keys": {key: {"typeCounts": [{"type": "number", "count": 1}]} for key in logged}, "lastStep": 9}
            found = {
                "id": "x", "name": name, "displayName": name, "state": run["state"], "config": "{}", "tags": [],
                "createdAt": "2026-01-01T00:00:00Z", "heartbeatAt": "2026-01-01T00:00:00Z", "historyKeys": keys,
                "systemMetrics": "{}", "summaryMetrics": "{}", "historyLineCount": 9, "projectId": "1",
                "user": {"name": "n", "username": "n"}, "sweepName": None, "group": None, "jobType": None,
                "commit": None, "readOnly": False, "description": "", "notes": "",
            }  # fmt: skip
            self.reply(200, {"data": {"project": {"internalId": "UHJvamVjdDox", "run": found}}})

    def reply(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        try:
            self.send_response(status)
            for key, text in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(key, text)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    def log_message(self, *_words: object) -> None:
        return


def history(steps: int, **metrics: float) -> list[dict[str, Any]]:
    """Rows as a trainer logs them: W&B's own step runs on, the trainer's step does not."""
    start = int(time.time()) - 1000
    return [
        {"_step": 3 * step, "step": step, "_timestamp": start + step}
        | {name: value * step for name, value in metrics.items()}
        for step in range(1, steps + 1)
    ]
