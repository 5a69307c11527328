"""Lossless TOML documents: what each edit does to the text, byte for byte."""

from __future__ import annotations

import datetime as dt
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from primebeaker.config import TomlDocument, dump_toml_document
from primebeaker.errors import UserError


def edited(text: str, path: str, value: object, create: bool = False) -> str:
    return TomlDocument.from_text(text).with_value(path, value, create=create).text


LAYOUTS = """\
# title

big = 1_000  # one thousand
hex = 0xFF
small = 1e-06
plus = +1.0
odd = [inf, -inf]
when = 1979-05-27 07:32:00.5-07:00
'quoted key' = 'C:\\raw'
dotted . "key" = true
text = \"\"\"
[not.a.header]
still = "text" \\
   folded
\"\"\"
inline = { a.b = 1, "c d" = [ 1, 2, ] }
  indented = "é ü 漢" # kept

[ table . sub ]   # header comment
array = [
  "first", # one
  # between
  "second", # two
]

# about the sources
[[source]]
id = 1
[[source]]
id = 2
[source.args] # of the second
k = 1

[table]
late = true
"""


def test_an_untouched_document_is_itself(tmp_path: Path):
    for data in (LAYOUTS.encode(), LAYOUTS.replace("\n", "\r\n").encode(), LAYOUTS.rstrip("\n").encode(), b""):
        file = tmp_path / "in.toml"
        file.write_bytes(data)
        document = TomlDocument.from_path(file)
        assert document.write(tmp_path / "out.toml").read_bytes() == data
        assert document.with_value("new", 1).without_value("new").text.encode() == data


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        ("big", 2, "1_000  # one", "2  # one"),
        ("hex", 1.5, "0xFF", "1.5"),
        ("small", 1e22, "1e-06", "1e+22"),
        ("plus", 2.0, "+1.0", "2.0"),
        (
            "when",
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
            "1979-05-27 07:32:00.5-07:00",
            "2026-01-02T03:04:05Z",
        ),
        ("when", dt.date(2026, 1, 2), "1979-05-27 07:32:00.5-07:00", "2026-01-02"),
        ("when", dt.time(3, 4, 5), "1979-05-27 07:32:00.5-07:00", "03:04:05"),
        ("'quoted key'", 'a"b\\\n\t\x01\x7f é', "'C:\\raw'", '"a\\"b\\\\\\n\\t\\u0001\\u007F é"'),
        ("dotted.key", False, '"key" = true', '"key" = false'),
        ("text", "x", LAYOUTS[LAYOUTS.index('"""') : LAYOUTS.index("\ninline")], '"x"'),
        ("inline.a.b", 9, "a.b = 1", "a.b = 9"),
        ("inline.'c d'[1]", 9, "[ 1, 2, ]", "[ 1, 9, ]"),
        ("indented", "x", '"é ü 漢" # kept', '"x" # kept'),
        ("table.sub.array[0]", "x", '"first", # one', '"x", # one'),
        ("source[1].args.k", 2, "k = 1", "k = 2"),
        ("source[0].id", 5, "id = 1", "id = 5"),
        ("table.late", False, "late = true", "late = false"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_replacing_a_value_changes_its_bytes_only(path, value, before, after, newline):
    assert LAYOUTS.count(before) == 1
    source, before, after = (text.replace("\n", newline) for text in (LAYOUTS, before, after))
    assert edited(source, path, value) == source.replace(before, after)


@pytest.mark.parametrize(
    ("path", "value"),
    [("big", 1000), ("hex", 255), ("small", 1e-6), ("plus", 1.0), ("inline.'c d'", [1, 2]), ("dotted", {"key": True})],
)
def test_an_equal_value_leaves_the_document_alone(path, value):
    document = TomlDocument.from_text(LAYOUTS)
    assert document.with_value(path, value) is document


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = [1, 2]", "a = [1, 2, 3]"),
        ("a = [1,2]", "a = [1,2,3]"),
        ("a = [ 1, 2 ]", "a = [ 1, 2, 3 ]"),
        ("a = [1, 2,] # c", "a = [1, 2, 3,] # c"),
        ("a = [\n  1,\n  2,\n]", "a = [\n  1,\n  2,\n  3,\n]"),
        ("a = [\n  1,\n  2\n]", "a = [\n  1,\n  2,\n  3\n]"),
        ("a = [\n\t1, # one\n\t2 # two\n]", "a = [\n\t1, # one\n\t2, # two\n\t3\n]"),
        ("a = [\n    1,\n    2, # two\n    # none\n]", "a = [\n    1,\n    2, # two\n    3,\n    # none\n]"),
        ("a = [\r\n  1,\r\n  2,\r\n]\r\n", "a = [\r\n  1,\r\n  2,\r\n  3,\r\n]\r\n"),
        ("a = [1,\n     2]", "a = [1,\n     2,\n     3]"),
    ],
)
def test_appending_keeps_the_style_of_the_array(before, after):
    assert edited(before, "a", [1, 2, 3]) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = []", "a = [1]"),
        ("a = [ ]", "a = [1]"),
        ("a = [\n]", "a = [\n  1,\n]"),
        ("a = [\n  # nothing yet\n]", "a = [\n  # nothing yet\n  1,\n]"),
    ],
)
def test_the_first_element_fits_its_brackets(before, after):
    assert edited(before, "a", [1]) == after


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        # After the last key, and after comments attached to it.
        ("[a]\nx = 1\n# about x\n\n# about b\n[b]\n", "a.n", "[a]\nx = 1\n# about x\nn = 0\n\n# about b\n[b]\n"),
        # After comments attached to the header.
        ("[a] # c\n# about a\n\n# about b\n[b]\n", "a.n", "[a] # c\n# about a\nn = 0\n\n# about b\n[b]\n"),
        # The indent of the neighbour.
        ("[a]\n    x = 1\n[b]\n", "a.n", "[a]\n    x = 1\n    n = 0\n[b]\n"),
        # The top level ends at the first header.
        ("x = 1\n\n[a]\n", "n", "x = 1\nn = 0\n\n[a]\n"),
        ("[a]\n", "n", "n = 0\n[a]\n"),
        ("# title\n\n# about a\n[a]\n", "n", "# title\nn = 0\n\n# about a\n[a]\n"),
        ("# about a\n[a]\n", "n", "n = 0\n# about a\n[a]\n"),
        ("", "n", "n = 0\n"),
        ("# only\n", "n", "# only\nn = 0\n"),
        # Line ends, and a file without the last one.
        ("x = 1", "n", "x = 1\nn = 0"),
        ("[a]\r\nx = 1", "a.n", "[a]\r\nx = 1\r\nn = 0"),
        ("[a]\r\nx = 1\r\n[b]", "a.n", "[a]\r\nx = 1\r\nn = 0\r\n[b]"),
        # Written inline or dotted: extended in that form.
        ("a = {x = 1}\n", "a.n", "a = {x = 1, n = 0}\n"),
        ("a = { x = 1,y = 2 } # c\n", "a.n", "a = { x = 1,y = 2,n = 0 } # c\n"),
        ("a = {}\n", "a.n", "a = {n = 0}\n"),
        ("a = { b.x = 1, c = 2 }\n", "a.b.n", "a = { b.x = 1, b.n = 0, c = 2 }\n"),
        ("a.x = 1\nz = 2\n", "a.n", "a.x = 1\na.n = 0\nz = 2\n"),
        ("[t]\n  a.b.x = 1\n  z = 2\n", "t.a.b.n", "[t]\n  a.b.x = 1\n  a.b.n = 0\n  z = 2\n"),
        # A table that only its sub-tables define gets a header.
        ("[a.b]\nx = 1\n[c]\n", "a.n", "[a.b]\nx = 1\n\n[a]\nn = 0\n[c]\n"),
        # Out-of-order tables, elements of arrays of tables.
        ("[a.b]\n[c]\n[a]\nx = 1\n[d]\n", "a.n", "[a.b]\n[c]\n[a]\nx = 1\nn = 0\n[d]\n"),
        ("[[a]]\nx = 1\n[a.b]\n[[a]]\n", "a[0].n", "[[a]]\nx = 1\nn = 0\n[a.b]\n[[a]]\n"),
        ("[[a]]\nx = 1\n[a.b]\n[[a]]\n", "a[1].n", "[[a]]\nx = 1\n[a.b]\n[[a]]\nn = 0\n"),
        ("a = [{x = 1}, {}]\n", "a[1].n", "a = [{x = 1}, {n = 0}]\n"),
        # Orders that other libraries stumble over.
        (
            "[a.b]\n[a.b.l.x]\n[a.b.l]\n[[z.s]]\n[a.b.l.y]\n",
            "a.b.l.n",
            "[a.b]\n[a.b.l.x]\n[a.b.l]\nn = 0\n[[z.s]]\n[a.b.l.y]\n",
        ),
        ("[[y.a]]\n[b.d.x]\n[[y.a.c]]\n", "y.a[0].c[0].n", "[[y.a]]\n[b.d.x]\n[[y.a.c]]\nn = 0\n"),
    ],
)
def test_where_a_new_key_goes(before, path, after):
    assert edited(before, path, 0) == after


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("x = 1\n", "a.n", 0, "x = 1\n\n[a]\nn = 0\n"),
        ("x = 1", "a.n", 0, "x = 1\n\n[a]\nn = 0"),
        ("x = 1\r\n\r\n# end\r\n", "a.n", 0, "x = 1\r\n\r\n[a]\r\nn = 0\r\n\r\n# end\r\n"),
        (
            "[a]\nx = 1\n[a.b]\ny = 1\n# tail\n\n[c]\n",
            "a.t.n",
            0,
            "[a]\nx = 1\n[a.b]\ny = 1\n# tail\n\n[a.t]\nn = 0\n\n[c]\n",
        ),
        ("a = {x = 1}\n", "a.t.n", 0, "a = {x = 1, t = { n = 0 }}\n"),
        ("a.x = 1\n", "a.t.n", 0, "a.x = 1\na.t = { n = 0 }\n"),
        ("[[a]]\nx = 1\n[[a]]\n", "a[0].t.n", 0, "[[a]]\nx = 1\n\n[a.t]\nn = 0\n[[a]]\n"),
        ("[a]\n", "a.l", [{"x": 1}, {"y": {"z": 2}}], "[a]\n\n[[a.l]]\nx = 1\n\n[[a.l]]\n\n[a.l.y]\nz = 2\n"),
        ("[[a]]\nx = 1\n\n[b]\n", "a", [{"x": 1}, {"x": 2}], "[[a]]\nx = 1\n\n[[a]]\nx = 2\n\n[b]\n"),
        ("", "a.'b c'.n", 0, '[a."b c"]\nn = 0\n'),
    ],
)
def test_where_a_new_table_goes(before, path, value, after):
    assert edited(before, path, value, create=True) == after


@pytest.mark.parametrize(
    ("before", "path", "after"),
    [
        ("a = 1 # gone\nb = 2\n", "a", "b = 2\n"),
        ("a = 1\nb = 2", "b", "a = 1"),
        ("a.b = 1 # c\nz = 1\n", "a.b", "a = {} # c\nz = 1\n"),
        ("a.b.c = 1\na.b.d = 2\nz = 1\n", "a.b", "a = {}\nz = 1\n"),
        ("a.b = 1\na.c = 2\n", "a.b", "a.c = 2\n"),
        ("[a]\nx = 1\n", "a.x", "[a]\n"),
        ("[a.b]\nx = 1\n\n[c]\n", "a.b", "[a]\n\n[c]\n"),
        ("[z]\n\n[a]\nx = 1\n[b]\n[a.c]\ny = 1\n\n# next\n[d]\n", "a", "[z]\n\n[b]\n\n# next\n[d]\n"),
        ("[a]\nx = 1\n\n[b]\ny = 1\n\n[c]\n", "b", "[a]\nx = 1\n\n[c]\n"),
        ("[[a]]\nx = 1\n[[a]]\nx = 2\n", "a[0]", "[[a]]\nx = 2\n"),
        ("[[a]]\nx = 1\n[b]\n", "a[0]", "a = []\n[b]\n"),
        ("[[a]]\n[a.b]\n[[a]]\n", "a", ""),
        ("a = [1, 2, 3]\n", "a[0]", "a = [2, 3]\n"),
        ("a = [1, 2, 3]\n", "a[2]", "a = [1, 2]\n"),
        ("a = [\n  1, # one\n  2, # two\n]\n", "a[0]", "a = [\n  2, # two\n]\n"),
        ("a = [\n  1,\n  2\n]\n", "a[1]", "a = [\n  1\n]\n"),
        ("a = { b = 1, c = 2 }\n", "a.b", "a = { c = 2 }\n"),
        ("a = { b = 1, c = 2 }\n", "a.c", "a = { b = 1 }\n"),
        ("a = { b.x = 1, b.y = 2, c = 2 }\n", "a.b", "a = { c = 2 }\n"),
    ],
)
def test_removing(before, path, after):
    assert TomlDocument.from_text(before).without_value(path).text == after


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("clean = true\n[ckpt]\ninterval = 5\n[x]\n", "clean = true\n[ckpt]\ninterval = 5\nresume_step = 20\n[x]\n"),
        ("ckpt.interval = 5\n[x]\n", "ckpt.interval = 5\nckpt.resume_step = 20\n[x]\n"),
        ("ckpt = { interval = 5 }\n", "ckpt = { interval = 5, resume_step = 20 }\n"),
        ("[ ckpt ] # c\n[x]\n", "[ ckpt ] # c\nresume_step = 20\n[x]\n"),
        ('t = """\n[ckpt]\n"""\n[x]\n', 't = """\n[ckpt]\n"""\n[x]\n\n[ckpt]\nresume_step = 20\n'),
        ("[ckpt]\r\nresume_step = -1\r\n", "[ckpt]\r\nresume_step = 20\r\n"),
    ],
)
def test_one_key_in_every_form_of_its_table(text, expected):
    assert edited(text, "ckpt.resume_step", 20, create=True) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "a.b: cannot write null"),
        ([1, None], "a.b[1]: cannot write null"),
        (b"x", "a.b: cannot write a value of type bytes"),
        (float("nan"), "a.b: cannot write nan; expected a finite number"),
        (float("-inf"), "a.b: cannot write -inf"),
        (2**63, "a.b: cannot write an integer of more than 64 bits"),
        (10**5000, "a.b: cannot write an integer of more than 64 bits"),
        ({1: 2}, "a.b: cannot write the key 1"),
        ({"c": {"d": object()}}, "a.b.c.d: cannot write a value of type object"),
        ("\ud800", "a.b: cannot write a string with a lone surrogate"),
        (dt.time(1, tzinfo=dt.UTC), "a.b: cannot write a time with an offset"),
    ],
    ids=range(11),
)
def test_what_toml_cannot_hold_is_refused_with_its_key(value, message):
    document = TomlDocument.from_text("[a]\n")
    with pytest.raises(UserError) as caught:
        document.with_value("a.b", value)
    assert message in str(caught.value)
    assert document.text == "[a]\n"


@pytest.mark.parametrize("integer", [2**63 - 1, -(2**63)])
def test_the_greatest_integers_fit(integer):
    assert edited("", "a", integer) == f"a = {integer}\n"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nam", "no such key nam; did you mean 'name'?"),
        ("wandb.nme", "no such key wandb.nme; did you mean 'wandb.name'?"),
        ("list[7]", "no such element list[7]: list has 2"),
        ("name.x", "no such key name.x: name is a string, not a table"),
        ("name[0]", "no such key name[0]: name is a string, not an array"),
        ("wandb[*].x", "wandb is a table, not an array"),
        ("empty[*]", "empty[*]: the array has no elements"),
        ("a..b", "'a..b' is no TOML path"),
        ("", "an empty TOML path"),
        ("[0]", "'[0]' is no TOML path"),
        (".a", "'.a' is no TOML path"),
    ],
)
def test_a_path_that_leads_nowhere(path, message):
    document = TomlDocument.from_text("name = 'x'\nlist = [1, 2]\nempty = []\n[wandb]\nname = 'y'\n")
    with pytest.raises(UserError) as caught:
        document.without_value(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("big", 3), ("text", 11), ("inline", 16), ("inline.a.b", 16), ("table.sub", 19), ("table.sub.array", 20),
        ("table.sub.array[1]", 23), ("source", 27), ("source[1]", 29), ("source[1].args.k", 32), ("table", 34),
        ("table.late", 35), ("nothing", None), ("big.x", None), ("source[2]", None),
    ],
)  # fmt: skip
def test_the_line_of_a_key(path, line):
    assert TomlDocument.from_text(LAYOUTS).line_of(path) == line


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a = 1\nb = \n", "in.toml:2:5: not valid TOML: Invalid value"),
        (b"a = [1,\n", "in.toml:2:1: not valid TOML"),
        (b"\xef\xbb\xbfa = 1\n", "in.toml:1:1: begins with a UTF-8 byte order mark"),
        (b"a = 1\nb = '\xc3\xa9\xe9'\n", "in.toml:2:7: not UTF-8"),
        (b"a = 1\ra = 2\n", "in.toml:1:6: not valid TOML"),
        (b"a = " + b"[" * 3000 + b"]" * 3000, "in.toml: not readable TOML: nested too deeply"),
        (b"a = " + b"9" * 5000, "in.toml: not readable TOML"),
        (b"#" * (8 * 2**20 + 1), "in.toml: larger than 8 MiB"),
    ],
    ids=range(8),
)
def test_files_that_are_no_toml(tmp_path, data, message):
    file = tmp_path / "in.toml"
    file.write_bytes(data)
    with pytest.raises(UserError) as caught:
        TomlDocument.from_path(file)
    assert str(caught.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"nope\.toml: no such file"):
        TomlDocument.from_path(tmp_path / "nope.toml")
    with pytest.raises(UserError, match="not a regular file"):
        TomlDocument.from_path(tmp_path)


def test_writing_creates_folders_and_keeps_permissions_and_links(tmp_path):
    document = TomlDocument.from_text("a = 1\n")
    target = document.write(tmp_path / "x" / "y" / "z.TOML")
    target.chmod(0o600)
    link = tmp_path / "link.toml"
    link.symlink_to(target)
    document.with_value("a", 2).write(link)
    assert link.is_symlink()
    assert target.read_text() == "a = 2\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(target.parent) == ["z.TOML"]


@pytest.mark.parametrize("name", ["out.txt", "out", "toml"])
def test_a_target_is_named_toml(tmp_path, name):
    with pytest.raises(UserError, match=r"expected a file name that ends in \.toml"):
        TomlDocument.from_text("").write(tmp_path / name)


def test_a_target_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written: file is not a directory") as caught:
        TomlDocument.from_text("").write(tmp_path / "file" / "x.toml")
    assert caught.value.exit_code == 2
    (tmp_path / "d.toml").mkdir()
    with pytest.raises(UserError, match="is a directory"):
        TomlDocument.from_text("").write(tmp_path / "d.toml")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A limit on the size of files stands for a full disk."""
    target = tmp_path / "x.toml"
    target.write_text("old = 1\n")
    code = (
        "import resource, signal, sys\n"
        "from primebeaker.config import TomlDocument\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: TomlDocument.from_text('#' * 1000).write(sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=True)
    assert result.stdout == f"{target}: cannot be written: File too large\n"
    assert target.read_text() == "old = 1\n"
    assert os.listdir(tmp_path) == ["x.toml"]


def test_a_value_that_holds_itself_is_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(UserError, match="nested too deeply"):
        TomlDocument.from_text("").with_value("a", loop)


def test_keys_added_to_a_crlf_file_end_like_the_rest():
    text = 'max_steps = 2 # two\r\n[wandb]\r\nproject = "p"\r\n'
    document = TomlDocument.from_text(text).with_value("wandb.name", "n").with_value("output_dir", "/w/o")
    assert document.text == ('max_steps = 2 # two\r\noutput_dir = "/w/o"\r\n[wandb]\r\nproject = "p"\r\nname = "n"\r\n')


def test_values_are_fresh_copies():
    document = TomlDocument.from_text("a = [1]\n")
    document.values["a"].append(2)
    document.get("a").append(3)
    assert document.values == {"a": [1]}


def test_dumping_a_dict():
    values = {
        "text": 'a\n"b"', "empty": {}, "list": [{"x": 1}, 2], "tables": [{"y": dt.date(2026, 1, 2)}, {}],
        "a b": {"": 1.0, "deep": {"t": True}}, "moment": dt.datetime(2026, 1, 2, 3, 4, 5),
    }  # fmt: skip
    assert dump_toml_document(values) == (
        'text = "a\\n\\"b\\""\nlist = [{ x = 1 }, 2]\nmoment = 2026-01-02T03:04:05\n\n[empty]\n\n[[tables]]\n'
        'y = 2026-01-02\n\n[[tables]]\n\n["a b"]\n"" = 1.0\n\n["a b".deep]\nt = true\n'
    )
    assert dump_toml_document({}) == ""
