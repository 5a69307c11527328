"""Topologies of real roles with stub programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from role_harness import Topology, topology


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Topology]]:
    """Makes a topology whose processes are gone after the test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Topology:
            return stack.enter_context(topology(tmp_path / "run", **settings))

        yield make
