"""Variables in YAML values: one pass, literal defaults, other dollar signs untouched."""

from __future__ import annotations

import pytest

from primebeaker.config.yaml_expansion import expand
from primebeaker.config.yaml_loader import parse_yaml
from primebeaker.errors import UserError

ENVIRONMENT = {"A": "one", "EMPTY": "", "DOLLAR": "p$A$$x", "N": "4"}


@pytest.mark.parametrize(
    ("value", "text", "whole"),
    [
        ("$A", "one", True),
        ("${A}", "one", True),
        ("x-$A-y", "x-one-y", False),
        ("$A$A", "oneone", False),
        ("${NOT:-two}", "two", True),
        ("${EMPTY:-two}", "two", True),
        ("${A:-two}", "one", True),
        ("${NOT:-}", "", True),
        ("${NOT:-$A}", "$A", True),
        ("$EMPTY", "", True),
        ("$$A", "$A", False),
        ("$DOLLAR", "p$A$$x", True),
        ("5$ and $5 $-", "5$ and $5 $-", False),
        ("plain", "plain", False),
    ],
)
def test_references_are_replaced_once(value: str, text: str, whole: bool) -> None:
    expanded = expand(value, ENVIRONMENT)
    assert (expanded.text, expanded.whole) == (text, whole)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("$NOT", "environment variable NOT is not set"),
        ("a${NOT}b", "environment variable NOT is not set"),
        ("${A", "malformed reference '${A'"),
        ("${1A}", "malformed reference '${1A}'"),
        ("${A-b}", "malformed reference '${A-b}'"),
        ("${}", "malformed reference '${}'"),
    ],
)
def test_unset_variables_and_malformed_references_are_refused(value: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        expand(value, ENVIRONMENT)
    assert caught.value.message == message


def test_a_document_tells_how_its_scalars_are_written() -> None:
    document = parse_yaml('a: 1.50\nb: [true, "x"]\nc: {}\n')
    assert [document.text(path) for path in (["a"], ["b", 0], ["b", 1], ["b", 9], ["b"], ["c"], ["d", "e"])] == [
        "1.50",
        "true",
        "x",
        None,
        None,
        None,
        None,
    ]
