"""95th percentile of the watcher's answers under eight clients, memory of the server, and start-up of ``status``.

``python benchmarks/watcher_api.py [RUNS] [EVALUATIONS] [DATABASE]``; the reference size is 10000 100000 (the default is
a tenth). An existing DATABASE is served as it is.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from measure import command, python_pass, report

ROOT = Path(__file__).resolve().parent.parent
CLIENTS, ROUNDS = 8, 125


def ask(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[float, http.client.HTTPResponse, bytes]:
    """One request: seconds, answer, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    seconds = time.perf_counter() - began
    connection.close()
    return seconds, answer, body


def percentile(values: list[float]) -> float:
    """The 95th percentile in milliseconds."""
    return sorted(values)[int(len(values) * 0.95)] * 1000


def under_load(port: int, paths: list[str]) -> list[float]:
    """Seconds of all requests of eight clients."""
    seconds: list[float] = []

    def client(offset: int) -> None:
        for index in range(ROUNDS // len(paths) + 1):
            for path in paths[offset % len(paths) :] + paths[: offset % len(paths)]:
                seconds.append(ask(port, path)[0] + 0 * index)

    threads = [threading.Thread(target=client, args=(offset,)) for offset in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def measure(database: str, size: dict[str, int]) -> None:
    """Serve the index and ask."""
    words = [sys.executable, "-m", "primebeaker.watcher", "serve", f"--database={database}", "--port=0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        port = int(re.search(r":(\d+)/", server.stderr.readline())[1])
        runs = json.loads(ask(port, "/api/runs?limit=5&sort=evaluations&order=desc")[2])["items"]
        key = runs[0]["key"]
        evaluation = json.loads(ask(port, "/api/evaluations?limit=1")[2])["items"][0]["key"]
        groups = {
            "list": (["/api/runs", "/api/evaluations", "/api/evaluations?sort=benchmark:healthbench", "/runs"], 100),
            "search": (["/api/evaluations?q=run-00042", "/api/runs?q=run-0007"], 100),
            "detail": ([f"/api/runs/{key}", f"/api/evaluations/{evaluation}", f"/runs/{key}"], 100),
            "overview": (["/api/overview"], 100),
            "compare": ([f"/api/compare?ref={runs[0]['key']}&ref={runs[1]['key']}"], 200),
            "lineage": ([f"/api/lineage/{key}"], 200),
            "metrics": ([f"/api/runs/{key}/metrics"], 150),
        }
        for name, (paths, bound) in groups.items():
            for path in paths:
                ask(port, path)
            report(f"watcher_api_{name}", percentile(under_load(port, paths)), "ms", bound, clients=CLIENTS, **size)
        tag = ask(port, "/api/runs")[1].headers["etag"]
        same = [ask(port, "/api/runs", {"If-None-Match": tag}) for _ in range(100)]
        assert all(answer.status == 304 for _, answer, _ in same)
        report("watcher_api_unchanged", percentile([seconds for seconds, _, _ in same]), "ms", 10, **size)
        status = Path(f"/proc/{server.pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024
        report("watcher_server_memory", peak, "MiB", 150, **size)
    finally:
        server.terminate()
        server.wait(timeout=30)


def main() -> None:
    """Make and index a tree unless a database is given, then measure."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    evaluations = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    size = {"runs": runs, "evaluations": evaluations}
    with tempfile.TemporaryDirectory(prefix="watcher-") as folder:
        database = sys.argv[3] if len(sys.argv) > 3 else f"{folder}/i.sqlite3"
        words = [sys.executable, "-m", "primebeaker.watcher"]
        if len(sys.argv) <= 3:
            made = [sys.executable, str(ROOT / "tools/watcher_tree.py"), folder, str(runs), str(evaluations)]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
            scan = [*words, "update", f"--database={database}", f"--repo_root={folder}/repo"]
            subprocess.run(scan, check=True, stdout=subprocess.DEVNULL)
        measure(database, size)
        small = f"{folder}/small.sqlite3"
        subprocess.run(
            [*words, "update", f"--database={small}", f"--archive_roots={folder}", f"--repo_root={folder}"],
            check=True,
            capture_output=True,
        )
        seconds = command([*words, "status", f"--database={small}"]).seconds
        report("watcher_status", seconds, "s", 0.3, ratio_to_python_pass=round(seconds / python_pass(), 1))


if __name__ == "__main__":
    main()
