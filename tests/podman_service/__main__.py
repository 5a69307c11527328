"""``python -m tests.podman_service [PORT]``: the service with real containers, until SIGTERM or SIGINT.

Prints its URL, then one line for every number of containers it has.
"""

import signal
import sys
import tempfile
import time
from pathlib import Path

from .service import PodmanService, ScriptBackend


def main() -> None:
    def stop(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)
    with tempfile.TemporaryDirectory() as home:
        backend = ScriptBackend(Path(home), session_idle_timeout=600.0, janitor_interval=30.0)
        with PodmanService(backend, port=int(sys.argv[1]) if len(sys.argv) > 1 else 0) as service:
            service.keeps_requests = False
            print(service.url, flush=True)
            before = 0
            while True:
                time.sleep(0.2)
                now = len(service.containers)
                if now != before:
                    print(f"containers: {now}", flush=True)
                before = now


main()
