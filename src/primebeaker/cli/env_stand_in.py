"""The rehearsal's stand-in model for ``env try``: a real server on loopback, for when no endpoint is at hand."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from primebeaker.environments._shared.rows import answer_text
from primebeaker.rehearsal.candidates import CandidateBook, PromptText
from primebeaker.rehearsal.settings import RehearsalSettings

__all__ = ["STAND_IN", "stand_in_model"]

#: The name under which ``--model`` asks for it.
STAND_IN = "stand-in"


@contextmanager
def stand_in_model(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Serve a policy that draws right, wrong, malformed and blank replies to the prompts of ``rows``.

    Yields:
        The base URL of its OpenAI-compatible endpoint.
    """
    import uvicorn

    from primebeaker.rehearsal.standins.inference import Engine
    from primebeaker.rehearsal.standins.replies import Bandit

    with tempfile.TemporaryDirectory(prefix="primebeaker-stand-in-") as folder:
        book = CandidateBook.open(Path(folder))
        book.add([PromptText(row["prompt"], answer_text(row)) for row in rows])
        engine = Engine(STAND_IN, 1, Bandit(book, seed=0), RehearsalSettings(load_seconds=0))
        config = uvicorn.Config(engine.app(), log_level="warning", access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            port = listener.getsockname()[1]
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            try:
                # The socket listens already, so requests wait for the server, should it still be starting.
                yield f"http://127.0.0.1:{port}/v1"
            finally:
                server.should_exit = True
                thread.join(10)
