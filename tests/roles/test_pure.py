"""The pure parts: slices, engines, ports, addresses, the exit policy, setup exports, flags."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ports import free_block

from primebeaker.errors import UserError, UserErrors
from primebeaker.roles import ports
from primebeaker.roles.arguments import Flag, parse, positive, whole
from primebeaker.roles.causes import Cause
from primebeaker.roles.network import Interface, infiniband_devices, interface_of, pick_address
from primebeaker.roles.policy import ChildEnd, ExitPolicy
from primebeaker.roles.setup import exported, setup_argv
from primebeaker.roles.topology import Member, Slice, bracketed, engines_of, visible


def member(rank: int, part: Slice, ip: str = "10.0.0.1", port: int = 8100) -> Member:
    return Member(rank=rank, instance=f"i{rank}", host=f"n{rank}", ip=ip, slice=part, backend_port=port)


def test_engines_are_listed_replica_by_replica() -> None:
    members = (member(1, Slice(0, 8), "10.0.0.2", 8200), member(0, Slice(4, 4)))
    engines = engines_of(members, 2)
    assert [(engine.rank, engine.replica, engine.gpus, engine.url) for engine in engines] == [
        (0, 0, (4, 5), "http://10.0.0.1:8100"),
        (0, 1, (6, 7), "http://10.0.0.1:8101"),
        (1, 0, (0, 1), "http://10.0.0.2:8200"),
        (1, 1, (2, 3), "http://10.0.0.2:8201"),
        (1, 2, (4, 5), "http://10.0.0.2:8202"),
        (1, 3, (6, 7), "http://10.0.0.2:8203"),
    ]


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 3))
def test_every_gpu_of_a_slice_belongs_to_exactly_one_engine(tp: int, count: int, start: int) -> None:
    engines = engines_of((member(0, Slice(start, tp * count)),), tp)
    gpus = [gpu for engine in engines for gpu in engine.gpus]
    assert gpus == list(range(start, start + tp * count))
    assert len({engine.port for engine in engines}) == len(engines) == count


def test_ipv6_addresses_are_bracketed_in_urls() -> None:
    assert bracketed("fd00::1") == "[fd00::1]"
    assert engines_of((member(0, Slice(0, 1), "fd00::1"),), 1)[0].url == "http://[fd00::1]:8100"


def test_visible_devices_count_into_the_roles_own_list() -> None:
    assert visible((2, 3), {}) == "2,3"
    assert visible((0, 1), {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}) == "GPU-a,GPU-b"
    with pytest.raises(UserError, match="at least 3 devices"):
        visible((2,), {"CUDA_VISIBLE_DEVICES": "0,1"})


ETH = Interface("eth0", "10.0.0.7")
LO = Interface("lo", "127.0.0.1")
DOCKER = Interface("docker0", "172.17.0.1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"override": "1.2.3.4"}, ("1.2.3.4", "PRIMEBEAKER_NODE_IP")),
        ({"towards_leader": "10.0.0.7"}, ("10.0.0.7", "source address towards the leader")),
        ({"own_hostname": "10.0.0.7"}, ("10.0.0.7", "own hostname")),
        (
            {"own_hostname": "10.9.9.9", "towards_default": "10.0.0.7"},
            ("10.0.0.7", "source address towards the default route"),
        ),
        ({"own_hostname": "127.0.1.1"}, ("10.0.0.7", "first interface")),
        ({"interfaces": [LO, DOCKER, ETH]}, ("10.0.0.7", "first interface")),
        ({"interfaces": [LO], "loopback": True}, ("127.0.0.1", "loopback")),
    ],
)
def test_the_address_of_a_node(given: dict, expected: tuple[str, str]) -> None:
    settings = {
        "override": None,
        "own_hostname": None,
        "towards_leader": None,
        "towards_default": None,
        "interfaces": [LO, DOCKER, ETH],
        "loopback": False,
    }
    assert tuple(pick_address(**(settings | given))) == expected


def test_a_node_without_a_usable_address_says_how_to_name_one() -> None:
    with pytest.raises(UserError, match="set PRIMEBEAKER_NODE_IP"):
        pick_address(
            override=None,
            own_hostname="127.0.0.1",
            towards_leader=None,
            towards_default=None,
            interfaces=[LO, DOCKER],
            loopback=False,
        )


def test_the_interface_that_owns_an_address() -> None:
    assert interface_of("10.0.0.7", [LO, ETH]) == "eth0"
    assert interface_of("10.0.0.8", [LO, ETH]) is None


def test_infiniband_devices_with_an_active_port(tmp_path: Path) -> None:
    for device, layer, state in (
        ("mlx5_1", "InfiniBand", "4: ACTIVE"),
        ("mlx5_0", "InfiniBand", "4: ACTIVE"),
        ("mlx5_2", "Ethernet", "4: ACTIVE"),
        ("mlx5_3", "InfiniBand", "1: DOWN"),
    ):
        port = tmp_path / device / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"{state}\n")
    assert infiniband_devices(tmp_path) == ("mlx5_0", "mlx5_1")


def test_engine_ports_move_by_hundreds_and_stay_held() -> None:
    base = free_block(200)
    first = ports.hold_engine_ports(base, 4)
    second = ports.hold_engine_ports(first.base, 4)
    assert (second.base - first.base) % 100 == 0
    assert second.base > first.base
    assert not ports.is_free(first.base)
    first.release()
    second.release()
    assert ports.is_free(first.base)


def test_no_free_block_names_the_key() -> None:
    with pytest.raises(UserError, match=r"inference.backend_port = 65530: no 10 free ports"):
        ports.hold_engine_ports(65530, 10)


def test_the_next_free_ports_avoid_those_promised_to_others() -> None:
    assert ports.next_free(5000, width=2, taken=[5001], free=lambda port: port != 5003) == 5004
    with pytest.raises(UserError, match="no free port"):
        ports.next_free(65535, width=2, free=lambda port: True)


def test_two_equal_ports_are_refused() -> None:
    with pytest.raises(UserError, match=r"a\.port and b\.port both take port 7"):
        ports.refuse_equal_ports({"a.port": range(6, 8), "b.port": range(7, 9), "c.port": range(20, 21)})


def end(name: str, code: int) -> ChildEnd:
    return ChildEnd(name=name, code=code, log=Path("/l.log"), last_lines=("boom",))


RL = frozenset({"trainer", "orchestrator"})


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("trainer", 1, 1),
        ("orchestrator", 137, 137),
        ("engine0", 3, 3),
        ("router", 0, 91),
        ("gateway", 0, 91),
        ("trainer", 0, "drain"),
    ],
)
def test_what_the_end_of_a_child_means(name: str, code: int, expected: object) -> None:
    verdict = ExitPolicy(0, RL).judge(end(name, code))
    assert (int(verdict.code) if isinstance(verdict, Cause) else verdict) == expected


def test_after_the_first_clean_end_everything_else_is_still_watched() -> None:
    policy = ExitPolicy(0, RL)
    assert policy.judge(end("orchestrator", 0)) == "drain"
    cause = policy.judge(end("engine1", 9))
    assert isinstance(cause, Cause)
    assert cause.message == "engine1 on rank 0 ended with 9; last lines of /l.log:"
    assert cause.detail == ("boom",)
    assert policy.judge(end("trainer", 0)) == "finished"
    policy.complete = True
    assert policy.judge(end("engine2", 143)) is None


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("export A='x y'", "A", "x y"),
        ("export A='a\nb'", "A", "a\nb"),
        ("export A=1; exit 0", "A", "1"),
        ("export PATH=/opt/t:$PATH", "PATH", f"/opt/t:{os.environ['PATH']}"),
        ("export PATH=/nowhere; export A=2", "A", "2"),
        ("unset HOME; export A=3 # a comment \\", "A", "3"),
        ("A=4", "A", None),
    ],
)
def test_what_a_setup_text_exports(tmp_path: Path, text: str, name: str, value: str | None) -> None:
    before = {"PATH": os.environ["PATH"], "HOME": "/h", "PRIMEBEAKER_SETUP_COMMAND": text, "BEAKER_JOB_ID": "j"}
    subprocess.run(setup_argv(tmp_path / "dump"), env=before, check=True)
    after = exported(before, (tmp_path / "dump").read_bytes())
    assert after.get(name) == value
    assert after["BEAKER_JOB_ID"] == "j"
    assert "_" not in after
    if "unset" in text:
        assert "HOME" not in after


def test_a_setup_text_stops_at_its_first_failure(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "PRIMEBEAKER_SETUP_COMMAND": f"false\ntouch {tmp_path}/never"}
    assert subprocess.run(setup_argv(tmp_path / "dump"), env=env, check=False).returncode == 1
    assert not (tmp_path / "never").exists()


FLAGS = {"port": Flag("port", whole(1, 10)), "timeout": Flag("s", positive, 2.0), "path": Flag("p", many=True)}


def test_flags_in_both_spellings_and_forms() -> None:
    assert parse(["--port=3", "--path", "/a", "--path=/b"], FLAGS) == {"port": 3, "timeout": 2.0, "path": ("/a", "/b")}


def test_all_mistakes_of_a_command_line_are_told_together() -> None:
    with pytest.raises(UserErrors) as caught:
        parse(["--port=11", "--timeuot=1", "--timeout", "--path=x", "stray"], FLAGS)
    assert str(caught.value).splitlines() == [
        "unexpected word '--timeuot=1'; did you mean --timeout?",
        "--timeout needs a value",
        "unexpected word 'stray'",
        "--port = '11': expected a whole number from 1 to 10",
    ]


def test_a_flag_given_twice_with_different_values_is_a_mistake() -> None:
    with pytest.raises(UserError, match="--port is given twice: '1' and '2'"):
        parse(["--port=1", "--port=2"], FLAGS)
