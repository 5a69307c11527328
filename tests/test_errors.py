"""The exception family: one line a fault, several faults in one run."""

from __future__ import annotations

import pytest

from primebeaker.errors import (
    ExternalError,
    InternalError,
    Interrupted,
    Mistakes,
    PrimeBeakerError,
    UserError,
    UserErrors,
    did_you_mean,
    missing_extra,
)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UserError, 2), (ExternalError, 3), (Interrupted, 130), (InternalError, 1), (PrimeBeakerError, 1)],
)
def test_exit_codes(kind: type[PrimeBeakerError], code: int) -> None:
    assert kind("x").exit_code == code


def test_user_errors_are_value_errors() -> None:
    assert issubclass(UserError, ValueError)
    assert not issubclass(ExternalError, ValueError)


def test_the_line_names_place_key_value_and_mend() -> None:
    error = UserError(
        "deployment.num_train_nodes = 2: exactly 1 trainer node is supported",
        file="/weka/rl.toml",
        line=14,
        hint="set it to 1",
    )
    assert str(error) == (
        "/weka/rl.toml:14: deployment.num_train_nodes = 2: exactly 1 trainer node is supported; set it to 1"
    )


def test_column_and_key() -> None:
    assert str(UserError("bad", file="a.toml", line=3, column=7, key="x.y")) == "a.toml:3:7: x.y: bad"
    assert str(UserError("bad", file="a.toml")) == "a.toml: bad"
    assert str(UserError("bad", key="--image")) == "--image: bad"


def test_outside_text_cannot_break_the_line() -> None:
    assert str(ExternalError("beaker said:\nno\r\nreally\n")) == "beaker said: no really"


def test_mistakes_collects_in_order_and_once() -> None:
    mistakes = Mistakes()
    mistakes.add(UserError("one"))
    with mistakes.collect():
        raise UserErrors([UserError("one"), UserError("two")])
    with pytest.raises(UserErrors) as raised:
        mistakes.raise_if_any()
    assert str(raised.value).splitlines() == ["one", "two"]


def test_a_single_mistake_is_raised_as_itself() -> None:
    mistakes = Mistakes()
    mistakes.raise_if_any()
    error = UserError("one")
    mistakes.add(error)
    with pytest.raises(UserError) as raised:
        mistakes.raise_if_any()
    assert raised.value is error


def test_collect_swallows_user_errors_only() -> None:
    with pytest.raises(ExternalError), Mistakes().collect():
        raise ExternalError("down")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("max_stpes", "did you mean 'max_steps'?"), ("zzz", None), ("", None)],
)
def test_did_you_mean(name: str, expected: str | None) -> None:
    assert did_you_mean(name, ["max_steps", "output_dir"]) == expected


def test_missing_extra_gives_the_command() -> None:
    assert str(missing_extra("runtime")) == (
        "this command needs primebeaker[runtime]: pip install 'primebeaker[runtime]'"
    )
