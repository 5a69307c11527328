"""The services of a rehearsed joint run listen where no outgoing connection can have taken their port."""

from __future__ import annotations

import re

import pytest

from primebeaker.joint.rehearsed_services import _with_quiet_ports
from primebeaker.services.stack_config import build_launcher, given_by_flags
from primebeaker.services.stacks import STACKS, load_native


@pytest.mark.parametrize("name", ["one", "two", "three", "four", "five"])
def test_ports_lie_below_those_of_outgoing_connections(name: str) -> None:
    launcher = build_launcher(load_native(STACKS["base"]), given_by_flags({"registry": "redis://h:1"}))
    chosen, spec = _with_quiet_ports(launcher, name)
    assert re.fullmatch(rf"{name}(-\d+)?", chosen)
    ports = [int(port) for port in re.findall(r"LR_PREFERRED_PORT=\$\(\((\d+)", str(spec))]
    assert len(ports) == len(spec["tasks"])
    assert max(ports) < 32768
    assert launcher.build_spec(experiment_name=chosen) == (chosen, spec)
