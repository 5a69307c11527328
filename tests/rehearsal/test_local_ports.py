"""Ports of a rehearsal that are taken on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from primebeaker.config import TomlDocument
from primebeaker.rehearsal import local_ports
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
    text = f'[deployment]\ntype = "{nodes}"\n[orchestrator]\n[inference]\n[weight_broadcast]\ntype = "nccl"\n'
    claims = [port_block("a"), port_block("a")]
    first, second = (own_ports(TomlDocument.from_text(text), claim.base) for claim in claims)
    keys = ("inference.server.port", "weight_broadcast.port", "rollout_transport.port")
    ports = [document.get(key) for document in (first, second) for key in keys]
    assert len(set(ports)) == 6
    engines = {claim.base + 100 + engine for claim in claims for engine in range(8)}
    assert len(engines) == 16
    assert engines.isdisjoint(ports)
    for claim in claims:
        claim.release()


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
    blocks = [port_block(f"launch {number}") for number in range(15)]
    starts = {block.base for block in blocks}
    assert all(start + 21000 < 32768 for start in starts)
    assert len(starts) == 15
    # The places within a hundred are what tells rehearsals' engines apart.
    assert len({start % 100 for start in starts if start >= 10000}) == len([s for s in starts if s >= 10000])
    for block in blocks:
        block.release()


def test_a_claim_ends_with_its_process(tmp_path) -> None:
    script = (
        "import sys; from primebeaker.rehearsal import local_ports; "
        "c = local_ports.port_block('killed'); print(c.base, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as claimer:
        assert claimer.stdout is not None
        theirs = int(claimer.stdout.readline())
        ours = port_block("killed")
        assert ours.base != theirs
        claimer.kill()
        claimer.wait()
        ours.release()
    claim = local_ports._claim(theirs)
    assert claim is not None
    claim.close()


def test_a_block_whose_metrics_port_is_taken_is_left_out() -> None:
    block = port_block("x")
    block.release()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", block.base + 21000))
        listener.listen()
        other = port_block("x")
        assert other.base != block.base
        other.release()
