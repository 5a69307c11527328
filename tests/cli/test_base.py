"""The command-line base: literal values, both spellings, every mistake at once, one choke point."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import pty
import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated

import pytest
from cyclopts import App, Parameter

import primebeaker.cli
from primebeaker.cli import flags
from primebeaker.cli.app import new_app
from primebeaker.cli.flags import boolean, choice, integer, number, path, repeated, text
from primebeaker.cli.output import OutputOptions, Result, warn
from primebeaker.cli.run import run
from primebeaker.errors import ExternalError, UserError


@dataclass(kw_only=True)
class Options(OutputOptions):
    toml: Annotated[Path | None, path("The TOML.", panel="Input")] = None
    env: Annotated[tuple[str, ...], repeated("NAME=VALUE.", mappings=True)] = ()
    cluster: Annotated[tuple[str, ...], repeated("Cluster.", split_commas=True)] = ("ai2/holmes",)
    min_runtime_hours: Annotated[int, integer("Hours.", least=0)] = 0
    cpu_count: Annotated[float | None, number("CPUs.", above=0)] = None
    description: Annotated[str | None, text("What it is.")] = None
    priority: Annotated[str, choice("Priority.", ("low", "normal", "high"))] = "high"
    namespace: Annotated[str | None, text("Where it is.", without_value="here")] = None
    write_spec: Annotated[bool, boolean("Write it.", name="write-spec")] = False


HELP = """\
Usage: primebeaker rl preview [FLAGS]

Print the launch.

Input:
  --toml PATH  The TOML.

Options:
  --env TEXT...                   NAME=VALUE.
  --cluster TEXT...               Cluster.
  --min-runtime-hours INT         Hours.
  --cpu-count NUMBER              CPUs.
  --description TEXT              What it is.
  --priority TEXT                 Priority. One of: low, normal, high.
  --namespace TEXT                Where it is.
  --write-spec / --no-write-spec  Write it.

Output:
  --format TEXT  How to print the result. One of: json, text. [default: json when piped]
"""


@pytest.fixture
def app() -> App:
    root = App(name="primebeaker", version="1.2.3", result_action="return_value", help_format="plaintext")
    group = new_app("rl", "RL launches.")

    @group.command
    def preview(options: Annotated[Options | None, Parameter(name="*")] = None) -> Result:
        """Print the launch."""
        options = options or Options()
        return Result(
            {
                "toml": options.toml and str(options.toml),
                "env": options.env,
                "cluster": options.cluster,
                "hours": options.min_runtime_hours,
                "cpus": options.cpu_count,
                "description": options.description,
                "priority": options.priority,
                "write": options.write_spec,
                "namespace": options.namespace,
            },
            text=lambda: "readable",
        )

    @group.command
    def fail(kind: str, /) -> int:
        """Fail in some way."""
        raise {
            "user": UserError("bad [red]value"),
            "external": ExternalError("beaker is away"),
            "bug": RuntimeError("x"),
        }[kind]

    @group.command
    def show(name: str, /, options: Annotated[OutputOptions | None, Parameter(name="*")] = None) -> Result:
        """Show something by its name."""
        return Result({"name": name}, text=lambda: f"the name is {name}")

    root.command(group)
    return root


@pytest.fixture
def preview(app: App, capsys: pytest.CaptureFixture[str]):
    def call(*words: str) -> dict:
        code = run(app, ["rl", "preview", *words])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return json.loads(captured.out)

    return call


@pytest.fixture
def mistakes(app: App, capsys: pytest.CaptureFixture[str]):
    def call(*words: str) -> list[str]:
        code = run(app, ["rl", "preview", *words])
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        lines = captured.err.splitlines()
        assert all(line.startswith("primebeaker: error: ") for line in lines)
        return [line.removeprefix("primebeaker: error: ") for line in lines]

    return call


@pytest.mark.parametrize("word", ["--min-runtime-hours=4", "--min_runtime_hours=4"])
def test_both_spellings(preview, word: str) -> None:
    assert preview(word)["hours"] == 4


@pytest.mark.parametrize("value", ["None", "1e3", "[1,2]", "123", "", "true", "-x"])
def test_values_are_literal(preview, value: str) -> None:
    assert preview(f"--description={value}")["description"] == value
    assert preview(f"--env=A={value}")["env"] == [f"A={value}"]


def test_flag_and_value_as_two_words(preview) -> None:
    assert preview("--description", "two words")["description"] == "two words"


def test_repeated_flags_accumulate_in_order(preview) -> None:
    assert preview("--env", "B=2", "--env", "A=1")["env"] == ["B=2", "A=1"]
    assert preview("--cluster", "ai2/x", "--cluster", "ai2/y,ai2/z")["cluster"] == ["ai2/x", "ai2/y", "ai2/z"]


@pytest.mark.parametrize("value", ['["A=1","B=2"]', "['A=1','B=2']", '{"A":"1","B":"2"}', '{"A":1,"B":"2"}'])
def test_one_list_value(preview, value: str) -> None:
    assert preview(f"--env={value}")["env"] == ["A=1", "B=2"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("--write-spec", True), ("--write-spec=true", True), ("--write-spec=YES", True), ("--write-spec=0", False),
     ("--write_spec=no", False), ("--no-write-spec", False), ("--nowrite-spec", False), ("--no_write_spec", False)],
)  # fmt: skip
def test_switches(preview, word: str, expected: bool) -> None:
    assert preview(word)["write"] is expected


@pytest.mark.parametrize("value", ["maybe", "", "2", "None"])
def test_a_switch_takes_no_other_word(mistakes, value: str) -> None:
    assert mistakes(f"--write-spec={value}", "--cpu-count=0") == [
        f"--write-spec = {value!r}: expected true or false", "--cpu-count = 0: expected a number above 0"
    ]  # fmt: skip


def test_same_value_twice_is_no_mistake(preview) -> None:
    assert preview("--priority=low", "--priority", "low")["priority"] == "low"


def test_all_mistakes_of_a_line_are_reported_together(mistakes) -> None:
    lines = mistakes(
        "--tomll", "x", "--priority=hgih", "--min-runtime-hours=-1", "--cpu-count=0", "stray", "--description"
    )
    assert lines == [
        "unknown flag --tomll; did you mean '--toml'?",
        "--description needs a value; a value that starts with '-' is written --description=VALUE",
        "unexpected word 'stray'; flags start with --",
        "--min-runtime-hours = -1: expected a whole number of at least 0",
        "--cpu-count = 0: expected a number above 0",
        "--priority = 'hgih': expected 'low', 'normal' or 'high'; did you mean 'high'?",
    ]


def test_two_values_for_one_flag(mistakes) -> None:
    assert mistakes("--priority=low", "--priority=high") == [
        "--priority is given twice, as 'low' and 'high'; give it once"
    ]


@pytest.mark.parametrize("value", ["1.5", "true", "1e3", "0x10", "１"])
def test_whole_numbers_are_not_coerced(mistakes, value: str) -> None:
    """Also where pydantic is loaded, which makes cyclopts validate once more."""
    importlib.import_module("pydantic")
    assert mistakes(f"--min-runtime-hours={value}") == [
        f"--min-runtime-hours = {value!r}: expected a whole number of at least 0"
    ]


def test_unknown_command(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["rl", "prevew"]) == 2
    assert (
        capsys.readouterr().err
        == "primebeaker: error: unknown command 'prevew' of primebeaker rl; did you mean 'preview'?\n"
    )


@pytest.mark.parametrize("words", [["--help"], ["rl", "--help"], ["rl", "preview", "--help"], []])
def test_help_on_every_level(app: App, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(app, words) == 0
    captured = capsys.readouterr()
    assert "Usage" in captured.out
    assert captured.err == ""


def test_help_lists_flags_with_type_default_and_sentence(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    run(app, ["rl", "preview", "--help"])
    assert capsys.readouterr().out == HELP


def test_help_draws_panels_on_a_terminal() -> None:
    """On a terminal the same facts stand in panels, without a pager."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "primebeaker", "--help"], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    # Reading a terminal whose other side is closed is an error on Linux.
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert process.wait() == 0
    assert "─ Commands ─" in shown.decode()


def test_version(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--version"]) == 0
    assert capsys.readouterr().out == "1.2.3\n"


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [("user", 2, "bad [red]value"), ("external", 3, "beaker is away")],
)
def test_faults_are_one_line(app: App, capsys: pytest.CaptureFixture[str], kind: str, code: int, line: str) -> None:
    assert run(app, ["rl", "fail", kind]) == code
    captured = capsys.readouterr()
    assert captured.err == f"primebeaker: error: {line}\n"
    assert captured.out == ""


def test_our_own_fault_asks_for_debug(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["rl", "fail", "bug"]) == 1
    assert "PRIMEBEAKER_DEBUG=1" in capsys.readouterr().err


def test_text_when_asked(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["rl", "preview", "--format=text"]) == 0
    assert capsys.readouterr().out == "readable\n"


def test_an_option_class_made_elsewhere_inherits_the_format_flag(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    """The inherited annotations need none of the inheriting module's names."""
    made = make_dataclass("Made", [], bases=(OutputOptions,), kw_only=True, module="primebeaker.errors")

    def show(options: OutputOptions | None = None) -> Result:
        return Result({"format": (options or made()).format})

    show.__annotations__ = {"options": Annotated[made | None, Parameter(name="*")], "return": Result}
    app.command(show)
    assert run(app, ["show", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"format": "json"}


def test_a_command_may_say_more_about_a_flag_it_does_not_have(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    def show(options: Annotated[Options | None, Parameter(name="*")] = None) -> Result:
        return Result(None)

    show.unknown_flag = lambda name: UserError(f"{name} belongs to another command")
    app.command(show)
    assert run(app, ["show", "--other=1"]) == 2
    assert capsys.readouterr().err == "primebeaker: error: --other belongs to another command\n"


def test_warnings_mask_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    warn(["redis://u:pw@h is visible"])
    assert capsys.readouterr().err == "primebeaker: warning: redis://u:***@h is visible\n"


@pytest.mark.parametrize(
    ("words", "namespace"),
    [
        ([], None),
        (["--namespace"], "here"),
        (["--namespace=there"], "there"),
        (["--namespace", "--priority=low"], "here"),
    ],
)
def test_a_flag_may_stand_for_something_without_a_value(preview, words, namespace):
    assert preview(*words)["namespace"] == namespace


def test_a_positional_word_does_not_hide_the_chosen_format(app: App, capsys: pytest.CaptureFixture[str]):
    assert run(app, ["rl", "show", "x", "--format=text"]) == 0
    assert capsys.readouterr().out == "the name is x\n"


def test_interrupted_while_the_program_starts(monkeypatch, capsys) -> None:
    from primebeaker.cli import main

    def interrupted() -> App:
        raise KeyboardInterrupt

    monkeypatch.setattr("primebeaker.cli.app.build_app", interrupted)
    assert main(["rl", "preview"]) == 130
    assert capsys.readouterr() == ("", "primebeaker: error: interrupted\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["diff", "a.toml"], "B is missing; write: primebeaker diff A B"),
        (["diff"], "A and B are missing; write: primebeaker diff A B"),
        (["diff", "--format=json", "a.toml"], "B is missing; write: primebeaker diff A B"),
    ],
)
def test_missing_words_are_named(capsys, words, expected) -> None:
    """What is left out is told by its name in the usage line, with the line to write."""
    app = new_app("primebeaker", "Test.")

    @app.command
    def diff(a: Path, b: Path, /, *, options: Annotated[OutputOptions | None, Parameter(name="*")] = None) -> Result:
        return Result([str(a), str(b)])

    assert run(app, words) == 2
    assert capsys.readouterr().err == f"primebeaker: error: {expected}\n"


def test_no_option_is_named_like_a_helper_its_annotation_calls() -> None:
    """Such a field would stand before the helper wherever annotations are evaluated with the class's own names."""
    shadowed = []
    for module_info in pkgutil.iter_modules(primebeaker.cli.__path__):
        module = importlib.import_module(f"primebeaker.cli.{module_info.name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__:
                names = {field.name for field in fields(kind)}
                shadowed += [f"{kind.__name__}.{name}" for name in names & set(flags.__all__) if hasattr(module, name)]
    assert shadowed == []
