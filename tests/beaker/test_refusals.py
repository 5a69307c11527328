"""Refusals that tell of the thing asked for, and those that tell of something else."""

from __future__ import annotations

import pytest

from primebeaker.beaker.refusals import is_over, is_unknown


@pytest.mark.parametrize(
    "text",
    [
        "beaker refused experiment 01ABC: experiment not found",
        "Error: Not Found",
        "404: no experiment",
        "HTTP 404",
        "no such experiment",
        "the experiment does not exist",
    ],
)
def test_what_beaker_does_not_know_is_unknown_and_over(text: str) -> None:
    assert is_unknown(text)
    assert is_over(text)


@pytest.mark.parametrize(
    "text",
    [
        "409 Conflict",
        "experiment 01ABC is already stopped",
        "already been canceled",
        "the experiment was finalized",
        "already finalised",
    ],
)
def test_what_has_ended_is_over_but_known(text: str) -> None:
    assert is_over(text)
    assert not is_unknown(text)


@pytest.mark.parametrize(
    "text",
    [
        'Get "https://beaker.org/api/v3/user": dial tcp: lookup beaker.org: no such host',
        "beaker refused experiment 01K404M409XYZ: server error",
        "lookup beaker.org on 10.0.0.2:53: no such host",
        "curl: (6) Could not resolve host: beaker.org; host not found",
        "sh: beaker: command not found",
        'exec: "git": executable file not found in $PATH',
        "open /etc/resolv.conf: no such file or directory",
        "no such command",
        "the connection was already closed",
        "502 Bad Gateway",
        "",
    ],
)
def test_trouble_on_the_way_says_nothing_about_the_thing(text: str) -> None:
    assert not is_unknown(text)
    assert not is_over(text)
