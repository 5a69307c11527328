"""``watcher serve``: the server process, its token, and the opt-in scan thread."""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primebeaker.errors import PrimeBeakerError, UserError
from primebeaker.watcher.access_log import AccessLog
from primebeaker.watcher.errors import missing_package
from primebeaker.watcher.locking import is_scanning
from primebeaker.watcher.roots import Given
from primebeaker.watcher.update import ScanOptions, update

__all__ = ["ServeOptions", "serve"]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,512}")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How to serve.

    Attributes:
        host: Address to bind.
        port: Port; 0 picks a free one.
        scan_interval: Seconds between scans; 0 scans never.
        allowed_hosts: Further names of the ``Host`` header.
        auth: ``auto`` asks for a token unless only this machine can connect.
        token_file: File that holds the token.
        base_path: Path under which everything is served.
        open: Open the pages in the browser.
        wandb_secret: Name of the Beaker secret that holds the W&B key.
    """

    host: str = "127.0.0.1"
    port: int = 8790
    scan_interval: float = 0.0
    allowed_hosts: tuple[str, ...] = ()
    auth: str = "auto"
    token_file: Path | None = None
    base_path: str = "/"
    open: bool = False
    wandb_secret: str | None = None


def _token(options: ServeOptions, warn: Callable[[str], None]) -> str | None:
    local = options.host in _LOOPBACK
    if options.auth == "none":
        if not local:
            warn(f"--auth=none on {options.host}: everybody who reaches this port can read the index")
        return None
    if options.auth == "auto" and local:
        return None
    token = os.environ.get("PRIMEBEAKER_WATCHER_TOKEN", "")
    if options.token_file is not None:
        try:
            token = options.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--token_file: {options.token_file} cannot be read: {error}") from error
    if not token:
        token = secrets.token_hex(16)
        sys.stderr.write(f"Token: {token}\n")
    if not _TOKEN.fullmatch(token):
        raise UserError("the token: expected 8 to 512 characters of A-Z, a-z, 0-9 and ._~+/=-")
    return token


class _Scanner:
    """Scans in a thread of its own, every so often and when asked."""

    def __init__(
        self, database: Path, given: Given, options: ScanOptions, interval: float, warn: Callable[[str], None]
    ) -> None:
        self._database, self._given, self._options = database, given, options
        self._interval, self._warn = interval, warn
        self._wake = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scan", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the file at hand."""
        self._end.set()
        self._wake.set()
        self._thread.join(timeout=10)

    def ask(self) -> bool:
        """Scan now; False when one is running."""
        if is_scanning(self._database):
            return False
        self._wake.set()
        return True

    def _check(self) -> None:
        if self._end.is_set():
            raise PrimeBeakerError("the server ends")

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                update(self._database, self._given, self._options, warn=self._warn, stop=self._check)
            except PrimeBeakerError as error:
                if not self._end.is_set():
                    self._warn(f"scan: {error}")
            self._wake.wait(self._interval)
            self._wake.clear()


def serve(
    database: Path, options: ServeOptions, given: Given, scan: ScanOptions, *, warn: Callable[[str], None]
) -> int:
    """Serve until a signal comes.

    Raises:
        UserError: A package of the ``watcher`` extra is missing, or the port is taken.
    """
    try:
        import uvicorn

        from primebeaker.watcher.app import create_app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette", "jinja2"):
            raise
        raise missing_package(error.name) from error
    token = _token(options, warn)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise UserError(f"--port = {options.port}: {error.strerror}", hint="choose another, or --port=0") from error
    port = listener.getsockname()[1]
    shown = f"[{options.host}]" if ":" in options.host else options.host
    scanner = _Scanner(database, given, scan, options.scan_interval, warn) if options.scan_interval > 0 else None
    hosts = frozenset(name.lower() for name in (*options.allowed_hosts, shown, socket.gethostname()))
    application = create_app(
        database=database,
        base_path=options.base_path,
        hosts=hosts,
        token=token,
        scan=scanner.ask if scanner else None,
        wandb_secret=options.wandb_secret,
    )
    address = f"http://{shown}:{port}/{options.base_path.strip('/')}"

    # The server's own access log would show query strings, and with them a token.
    config = uvicorn.Config(
        AccessLog(application),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=16384,
        server_header=False,
    )
    if scanner:
        scanner.start()
    try:
        server = uvicorn.Server(config)
        threading.Thread(target=_announce, args=(server, address, options.open), daemon=True).start()
        server.run(sockets=[listener])
    finally:
        if scanner:
            scanner.stop()
        listener.close()
    return 0


def _announce(server: Any, address: str, browser: bool) -> None:
    """Say where the pages are once connections are accepted."""
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.01)
    sys.stderr.write(f"Watcher: {address.rstrip('/')}/\n")
    sys.stderr.flush()
    if browser:
        webbrowser.open(address)
