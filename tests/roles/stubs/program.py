"""Stands for torchrun, inference, orchestrator and vllm-router: records how it was started, then lives or dies as told.

Orders are files in ``$STUB_DIR/orders`` named ``<rank>.<process>``; their text is ``exit N``.
"""

import json
import os
import signal
import sys
import time

DIRECTORY = os.environ["STUB_DIR"]
RANK = os.environ.get("BEAKER_REPLICA_RANK", "0")


def process_name():
    program = os.path.basename(sys.argv[0])
    if program == "inference":
        return "engine" + os.environ["VLLM_RPC_BASE_PATH"].rsplit("_rank", 1)[1].split("/")[0]
    return {"torchrun": "trainer", "vllm-router": "router"}.get(program, program)


NAME = process_name()
KEY = f"{RANK}.{NAME}"


def order(kind=""):
    try:
        with open(f"{DIRECTORY}/orders/{KEY}{kind}") as stream:
            return stream.read().split()
    except FileNotFoundError:
        return []


def serve(port, model):
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"data": [{"id": model}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    if order(".ignore-term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for part in order(".worker"):
        import subprocess

        code = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({part!r}, 'w').close(); time.sleep(600)"
        subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    for model in order(".serve"):
        serve(int(sys.argv[sys.argv.index("--server.port") + 1]), model)
    record = {"argv": sys.argv, "env": dict(os.environ), "pid": os.getpid(), "name": NAME, "rank": int(RANK)}
    path = f"{DIRECTORY}/records/{KEY}"
    with open(path + ".tmp", "w") as stream:
        json.dump(record, stream)
    os.replace(path + ".tmp", path)
    print(f"{NAME} of rank {RANK} is up", flush=True)
    # Like a real program it does not care who its parent is; it is the role that must leave nothing behind.
    for _ in range(30000):
        words = order()
        if words:
            print(f"{NAME} of rank {RANK} ends as told: {' '.join(words)}", flush=True)
            sys.exit(int(words[1]))
        time.sleep(0.02)


main()
