"""The strict YAML loader: YAML 1.2 scalars, every mistake with its line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.config.yaml_loader import load_yaml, parse_yaml
from primebeaker.errors import UserError


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"), ("on", "on"), ("off", "off"), ("y", "y"), ("Yes", "Yes"), ("1:30", "1:30"), ("1_000", "1_000"),
        ("2026-01-02", "2026-01-02"), ("=", "="), ("0b1", "0b1"), ("1e", "1e"), ("'3'", "3"), ('"true"', "true"),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("012", 12), ("-7", -7), ("+7", 7),
        ("0o17", 15), ("0x1F", 31), ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("1.", 1.0), (".inf", math.inf),
        ("-.INF", -math.inf), ("[1, 'a', no]", [1, "a", "no"]), ("{a: {b: 2}}", {"a": {"b": 2}}),
        ("|\n  x\n  y", "x\ny\n"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(written, value):
    loaded = parse_yaml(f"key: {written}\n").values["key"]
    assert loaded == value
    assert type(loaded) is type(value)


def test_not_a_number_is_a_float():
    assert math.isnan(parse_yaml("key: .NaN").values["key"])


@pytest.mark.parametrize(
    ("text", "start", "part"),
    [
        ("rl:\n  toml: a\nother: 1\nrl:\n  toml: b\n", "run.yaml:4: rl: given twice, first on line 1", None),
        ("a:\n  b: {c: 1, c: 2}\n", "run.yaml:2: c: given twice, first on line 2", None),
        ("a: 1\n---\nb: 2\n", "run.yaml:2: a second document", None),
        ("a: !!python/object:x 1\n", "run.yaml:1: the tag tag:yaml.org,2002:python/object:x is not supported", None),
        ("a: !env X\n", "run.yaml:1: the tag !env is not supported", None),
        ("ok: 1\n8080: x\n", "run.yaml:2: the key 8080 is an integer, not text", "write it in quotes"),
        ("true: x\n", "run.yaml:1: the key true is a boolean, not text", None),
        ("~: x\n", "run.yaml:1: an empty key is nothing, not text", None),
        ("? [a]\n: x\n", "run.yaml:1: a list or mapping cannot be a key", None),
        ("a: [1, 2\nb: 3\n", "run.yaml:2:2: not valid YAML", None),
        ("a:\n\tb: 1\n", "run.yaml:2:1: not valid YAML", None),
        ("a: *nowhere\n", "run.yaml:1: no anchor &nowhere before *nowhere", None),
        ("a: &x\n  b: *x\n", "run.yaml:2: the anchor &x contains itself", None),
        ("a: 1\n<<: 5\n", "run.yaml:2: <<: expected a mapping", None),
        ("a: " + "9" * 5000, "run.yaml:1: an integer of too many digits", None),
        ("a: \x01\n", "run.yaml: not valid YAML", None),
        ("[" * 20000, "run.yaml", None),
    ],
    ids=range(17),
)
def test_mistakes_name_file_and_line(text, start, part):
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "run.yaml")
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)
    assert part is None or part in str(caught.value)


def test_quoted_keys_may_look_like_anything():
    assert parse_yaml("'8080': 1\n\"true\": 2\non: 3\n").values == {"8080": 1, "true": 2, "on": 3}


def test_anchors_and_merge_keys_expand_and_explicit_keys_win():
    document = parse_yaml("base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\nlist: [*base, *base]\n")
    assert document.values["other"] == {"a": 1, "b": 3}
    assert document.position(["other", "a"]).line == 1
    assert document.position(["other", "b"]).line == 4
    values = document.values
    values["list"][0]["a"] = 9
    assert document.values["base"]["a"] == 1


def test_anchors_that_explode_are_refused():
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    with pytest.raises(UserError, match=r"more than 100000 values"):
        parse_yaml(bomb, "bomb.yaml")


def test_every_value_knows_its_place():
    document = parse_yaml("a:\n  - x\n  - b: 1\n    c: [1,\n        2]\n", "f.yaml")
    assert document.position(["a"]) == (1, 1)
    assert document.position(["a", 1, "c"]) == (4, 5)
    assert document.position(["a", 1, "c", 1]) == (5, 9)
    assert document.position(["a", 1, "nope"]) == (3, 5)


def test_an_empty_section_says_so_in_one_line():
    document = parse_yaml("schema: x\n\nservice:\nrl: 3\n", "run.yaml")
    with pytest.raises(UserError) as caught:
        document.mapping(["service"])
    assert str(caught.value) == "service: expected a mapping, found nothing (run.yaml:3)"
    with pytest.raises(UserError, match=r"rl: expected a mapping, found an integer \(run.yaml:4\)"):
        document.mapping(["rl"])


def test_an_empty_document_is_nothing():
    assert parse_yaml("# only a comment\n").values is None
    with pytest.raises(UserError, match=r"the document: expected a mapping, found nothing \(YAML:1\)"):
        parse_yaml("").mapping()


def test_unknown_keys_are_all_listed_with_the_nearest_name():
    document = parse_yaml("rl:\n  tomll: a.toml\n  zzz: 1\n  image: x\n", "run.yaml")
    errors = [str(error) for error in document.unknown_keys(["rl"], ["toml", "image"])]
    assert errors == [
        "run.yaml:2: rl.tomll: unknown field; did you mean 'toml'?",
        "run.yaml:3: rl.zzz: unknown field",
    ]


@pytest.mark.parametrize("what", ["missing", "directory", "large", "latin-1"])
def test_files_that_cannot_be_read(tmp_path: Path, what: str):
    file = tmp_path / "run.yaml"
    expected = {
        "missing": f"run YAML not found: {file}",
        "directory": f"run YAML is a directory: {file}",
        "large": f"{file}: larger than 1024 KiB",
        "latin-1": f"{file}:2: not UTF-8",
    }[what]
    if what == "directory":
        file.mkdir()
    elif what == "large":
        file.write_text("a: 1\n" + "#" * 1024 * 1024)
    elif what == "latin-1":
        file.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(UserError) as caught:
        load_yaml(file, what="run YAML")
    assert str(caught.value) == expected


def test_a_file_of_another_user_is_one_line(tmp_path: Path):
    file = tmp_path / "run.yaml"
    file.write_text("a: 1\n")
    file.chmod(0)
    tmp_path.chmod(0o755)
    for parent in (tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    # Root ignores mode bits, so the reader gives its rights up, after the imports.
    code = (
        "import os, sys\n"
        "from primebeaker.config.yaml_loader import load_yaml\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setresuid(65534, 65534, 65534)\n"
        "try: load_yaml(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert result.stdout == f"{file}: cannot be read: Permission denied\n"


# YAML has no control characters, and libyaml takes the separators of lines and paragraphs for line ends.
TEXT = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]))


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
        lambda inside: st.one_of(st.lists(inside), st.dictionaries(TEXT, inside)),
        max_leaves=10,
    )
)
def test_json_is_read_as_json(value):
    assert parse_yaml(json.dumps({"value": value}, ensure_ascii=False)).values == {"value": value}
