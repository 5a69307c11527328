"""Ports of a rehearsal that are taken on this machine."""

from __future__ import annotations

import socket

import pytest

from primebeaker.config import TomlDocument
from primebeaker.rehearsal.local_ports import gateway_port, is_free, own_ports, port_block


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
    moved = own_ports(TomlDocument.from_text(text), 21000)
    port = moved.get("inference.server.port")
    assert port != busy and is_free(port)
    assert moved.get("orchestrator.model.client.base_url") == [f"http://localhost:{port}/v1"]


def test_a_server_elsewhere_stays(busy) -> None:
    text = f'[orchestrator.model.client]\nbase_url = ["http://other:{busy}/v1"]\n[inference.server]\nport = {busy}\n'
    moved = own_ports(TomlDocument.from_text(text), 21000)
    assert moved.get("orchestrator.model.client.base_url") == [f"http://other:{busy}/v1"]


@pytest.mark.parametrize("nodes", ["single_node", "multi_node"])
def test_two_rehearsals_do_not_meet(nodes) -> None:
    """Different launches get different blocks; one launch gets the same one again."""
    text = f'[deployment]\ntype = "{nodes}"\n[orchestrator]\n[inference]\n[weight_broadcast]\ntype = "nccl"\n'
    first, again, second = (own_ports(TomlDocument.from_text(text), port_block(launch)) for launch in ("a", "a", "b"))
    keys = ("inference.server.port", "weight_broadcast.port", "rollout_transport.port")
    ports = [document.get(key) for document in (first, second) for key in keys]
    assert len(set(ports)) == 6
    assert first.text == again.text


def test_a_multi_node_run_gets_the_broadcast_it_would_resolve_to() -> None:
    text = '[deployment]\ntype = "multi_node"\n[inference]\n'
    document = own_ports(TomlDocument.from_text(text), 20000)
    assert document.get("weight_broadcast") == {"type": "nccl", "port": 20001}
    lora = own_ports(TomlDocument.from_text(text + "[trainer.model.lora]\nrank = 8\n"), 20000)
    assert lora.get("weight_broadcast") is None


def test_arguments_follow_the_gateway() -> None:
    text = (
        "[[orchestrator.train.source]]\n[orchestrator.train.source.legacy]\n"
        'args = { here = "http://127.0.0.1:1212/terminal", there = "http://other:1212" }\n'
    )
    document = gateway_port(None, 20000).rewrite(TomlDocument.from_text(text))
    arguments = document.get("orchestrator.train.source[0].legacy.args")
    assert arguments == {"here": "http://127.0.0.1:20004/terminal", "there": "http://other:1212"}


def test_a_block_lies_below_the_ports_of_outgoing_connections() -> None:
    """The router's metrics port is 21000 above; a connection of somebody else's may hold any port from 32768 on."""
    blocks = [port_block(f"launch {number}") for number in range(40)]
    assert all(start >= 10000 and start + 21000 < 32768 for start in blocks)
    assert len(set(blocks)) > 20


def test_a_block_whose_metrics_port_is_taken_is_left_out() -> None:
    start = port_block("x")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", start + 21000))
        listener.listen()
        assert port_block("x") != start
