"""Ports of a rehearsal that are taken on this machine."""

from __future__ import annotations

import socket

import pytest

from primebeaker.config import TomlDocument
from primebeaker.rehearsal.local_ports import is_free, move_busy_ports


@pytest.fixture
def busy():
    """A port somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("written", ["", '[orchestrator.model.client]\nbase_url = ["http://localhost:{port}/v1"]\n'])
def test_rollouts_follow_inference_to_its_new_port(busy, written) -> None:
    text = f"[orchestrator]\n{written.format(port=busy)}[inference.server]\nport = {busy}\n"
    moved = move_busy_ports(TomlDocument.from_text(text))
    port = moved.get("inference.server.port")
    assert port != busy and is_free(port)
    assert moved.get("orchestrator.model.client.base_url") == [f"http://localhost:{port}/v1"]


def test_a_server_elsewhere_stays(busy) -> None:
    text = f'[orchestrator.model.client]\nbase_url = ["http://other:{busy}/v1"]\n[inference.server]\nport = {busy}\n'
    moved = move_busy_ports(TomlDocument.from_text(text))
    assert moved.get("orchestrator.model.client.base_url") == [f"http://other:{busy}/v1"]


def test_free_ports_change_nothing(busy) -> None:
    document = TomlDocument.from_text(
        f"[inference.server]\nport = {next(p for p in range(busy + 1, busy + 200) if is_free(p))}\n"
    )
    assert move_busy_ports(document).text == document.text
