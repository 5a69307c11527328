"""Ports of a rehearsal that are taken on this machine."""

from __future__ import annotations

import socket

import pytest

from primebeaker.config import TomlDocument
from primebeaker.rehearsal.local_ports import is_free, own_ports


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
    moved = own_ports(TomlDocument.from_text(text), "a")
    port = moved.get("inference.server.port")
    assert port != busy and is_free(port)
    assert moved.get("orchestrator.model.client.base_url") == [f"http://localhost:{port}/v1"]


def test_a_server_elsewhere_stays(busy) -> None:
    text = f'[orchestrator.model.client]\nbase_url = ["http://other:{busy}/v1"]\n[inference.server]\nport = {busy}\n'
    moved = own_ports(TomlDocument.from_text(text), "a")
    assert moved.get("orchestrator.model.client.base_url") == [f"http://other:{busy}/v1"]


def test_two_rehearsals_do_not_meet() -> None:
    """Different launches get different blocks; one launch gets the same one again."""
    text = '[orchestrator]\n[inference]\n[weight_broadcast]\ntype = "nccl"\n'
    first, again, second = (own_ports(TomlDocument.from_text(text), launch) for launch in ("a", "a", "b"))
    keys = ("inference.server.port", "weight_broadcast.port", "rollout_transport.port")
    ports = [document.get(key) for document in (first, second) for key in keys]
    assert len(set(ports)) == 6
    assert first.text == again.text


def test_multi_node_roles_find_their_own_ports() -> None:
    text = '[deployment]\ntype = "multi_node"\n[inference]\n'
    assert own_ports(TomlDocument.from_text(text), "a").text == text
