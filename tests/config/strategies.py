"""Generated TOML documents in odd but valid layouts, for the property tests."""

from __future__ import annotations

import datetime as dt
import tomllib
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from primebeaker.config.paths import format_key, quote

KEYS = st.one_of(
    st.sampled_from(["a", "b", "c", "name", "1", "-", "_x"]), st.sampled_from(["a.b", "", "é", 'q"', "x y", "\\"])
)


@st.composite
def written_key(draw: st.DrawFn, key: str) -> str:
    """One key, bare, quoted or literal."""
    forms = [quote(key)]
    if format_key(key) == key:
        forms.append(key)
    if "'" not in key:
        forms.append(f"'{key}'")
    return draw(st.sampled_from(forms))


@st.composite
def dotted(draw: st.DrawFn, least: int = 1, most: int = 3) -> str:
    """A dotted key with blanks around its dots."""
    keys = draw(st.lists(KEYS, min_size=least, max_size=most))
    dot = draw(st.sampled_from([".", " . ", ". "]))
    return dot.join([draw(written_key(key)) for key in keys])


SCALARS = st.one_of(
    st.sampled_from(
        [
            "1_000", "0xFF", "0o17", "0b1", "+1", "-0", "1e-06", "+1.0", "inf", "-inf", "nan", "true", "false", "6.5e3",
            "1979-05-27T07:32:00Z", "1979-05-27 07:32:00.5-07:00", "1979-05-27T07:32:00", "1979-05-27", "07:32:00",
            '""', '"#[{=,"', '"\\u00e9\\n\\""', "'C:\\x'", '"""\nline\n\n[not.a.header]\nk = 1\n"""', '"""a\\\n   b"""',
            '""""quoted"" x"""""', "'''\nraw # ' ''\n'''", "''", '"é ü"',
        ]
    ),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.text(st.characters(codec="utf-8"), max_size=6).map(quote),
)  # fmt: skip


@st.composite
def array(draw: st.DrawFn, inside: st.SearchStrategy[str]) -> str:
    """An array on one line or on several, with comments and trailing commas in odd places."""
    items = draw(st.lists(inside, max_size=4))
    style = draw(st.sampled_from(["tight", "spaced", "lines", "comments", "comma first"]))
    trailing = "," if items and draw(st.booleans()) else ""
    if style == "tight":
        return "[" + ",".join(items) + trailing + "]"
    if style == "spaced":
        return "[ " + " , ".join(items) + trailing + " ]"
    if style == "lines":
        return "[\n  " + ",\n  ".join(items) + trailing + "\n]"
    if style == "comma first":
        return "[\n  " + "\n  , ".join(items) + "\n" + trailing + "]"
    lines = [f"    {item}, # c{number} ]" for number, item in enumerate(items)]
    if lines and not trailing:
        lines[-1] = lines[-1].replace(", #", " #", 1) if lines[-1].count(", #") == 1 else lines[-1]
    return "[ # open\n" + "".join(f"{line}\n" for line in lines) + "  # end\n  ]"


@st.composite
def inline_table(draw: st.DrawFn, inside: st.SearchStrategy[str]) -> str:
    """An inline table, dotted keys included."""
    keys = draw(st.lists(dotted(most=2), max_size=3))
    pairs = [f"{key} = {draw(inside)}" for key in keys]
    return "{ " + ", ".join(pairs) + " }" if draw(st.booleans()) else "{" + ",".join(pairs) + "}"


VALUES = st.recursive(SCALARS, lambda inside: st.one_of(array(inside), inline_table(inside)), max_leaves=6)
LINES = st.one_of(
    st.sampled_from(["", "", "# comment", "  # indented [x]", "   ", "\t"]),
    st.tuples(st.sampled_from(["", "  ", "\t"]), dotted(), VALUES, st.sampled_from(["", "  # behind", " "])).map(
        lambda parts: f"{parts[0]}{parts[1]} = {parts[2]}{parts[3]}"
    ),
    st.tuples(st.sampled_from(["", "  "]), dotted(), st.sampled_from(["", " # header"])).map(
        lambda parts: f"{parts[0]}[ {parts[1]} ]{parts[2]}"
    ),
    st.tuples(dotted(most=2), st.sampled_from(["", " # element"])).map(lambda parts: f"[[{parts[0]}]]{parts[1]}"),
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A valid TOML text: lines are drawn one by one, and those that would make it invalid are left out."""
    kept: list[str] = []
    for line in draw(st.lists(LINES, max_size=14)):
        try:
            tomllib.loads("\n".join([*kept, line]) + "\n")
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        kept.append(line)
    text = "\n".join(kept)
    if text and draw(st.booleans()):
        text += "\n"
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
    return text


PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.datetimes(timezones=st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-7))])),
        st.dates(),
        st.times(),
    ),
    lambda inside: st.one_of(st.lists(inside, max_size=3), st.dictionaries(KEYS, inside, max_size=3)),
    max_leaves=5,
)
