"""Names of the bundled environments, and `python -m primebeaker.environments`."""

import json
import subprocess
import sys

import pytest

from primebeaker.bundled import CANONICAL
from primebeaker.environments import ENVIRONMENTS, environment_names, load_environment_module


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "primebeaker.environments", *words], capture_output=True, text=True, timeout=60
    )


def test_there_are_31_names_of_16_modules():
    assert len(ENVIRONMENTS) == len(environment_names()) == 31
    assert len(set(ENVIRONMENTS.values())) == 16
    assert environment_names() == tuple(sorted(environment_names()))
    with pytest.raises(TypeError):
        ENVIRONMENTS["label"] = "x"


@pytest.mark.parametrize(
    "spelling",
    [
        "label",
        " label ",
        "LABEL",
        "jtc_label",
        "jtc-label",
        "jtc_label_env",
        "jtc-label-env",
        "jtc_label_env.py",
        "primebeaker.environments.jtc_label_env:load_environment",
    ],
)
def test_every_spelling_gives_the_same_module(spelling):
    assert load_environment_module(spelling).__name__ == "primebeaker.environments.jtc_label_env"


@pytest.mark.parametrize("name", ["lable", "None", "1e3", ""])
def test_an_unknown_name_is_a_key_error_of_one_readable_line(name):
    with pytest.raises(KeyError) as caught:
        load_environment_module(name)
    text = str(caught.value)
    assert text.startswith(f"unknown environment {name!r}") and "\n" not in text
    assert "python -m primebeaker.environments" in text


def test_the_nearest_name_is_given():
    with pytest.raises(KeyError, match="did you mean 'label'"):
        load_environment_module("lable")


def test_listings():
    assert command().stdout.splitlines() == list(environment_names())
    assert command("--canonical").stdout.splitlines() == sorted(CANONICAL)
    assert command("jtc-label").stdout == "primebeaker.environments.jtc_label_env:load_environment\n"
    assert command("jtc-reward-model").stdout == "primebeaker.environments.jtc_reward_model_env:load_environment\n"
    assert [entry["name"] for entry in json.loads(command("--json").stdout)] == sorted(CANONICAL)
    assert {"name": "label", "aliases": ["jtc-label"]}.items() <= json.loads(command("label", "--json").stdout).items()


@pytest.mark.parametrize("name", sorted(CANONICAL))
def test_every_present_environment_describes_its_arguments(name):
    described = json.loads(command(name, "--json").stdout)
    assert list(described) == ["name", "aliases", "module", "factory", "tools", "arguments"]
    assert described["arguments"][0]["name"] == "dataset"
    for argument in described["arguments"]:
        assert list(argument) == ["name", "type", "default", "required", "description"]
        assert argument["description"].endswith(".")


@pytest.mark.parametrize(
    "words", [["lable"], ["label", "load"], ["--jsn"], ["1e3"], ["None"], ["--canonical", "label"]]
)
def test_mistakes_are_one_line_on_stderr(words):
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_the_listing_imports_nothing_heavy():
    code = (
        "import sys; from primebeaker.environments.__main__ import main; main(['label', '--json'])\n"
        "heavy = {'verifiers', 'datasets', 'aiohttp', 'pyarrow', 'literegistry'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_without_the_runtime_extra_loading_names_what_is_missing(rows_file):
    code = (
        "import sys; sys.modules['verifiers'] = None\n"
        "from primebeaker.environments.jtc_label_env import load_environment\n"
        "try:\n    load_environment(sys.argv[1])\n"
        "except ImportError as error:\n    print(error)"
    )
    path = rows_file({"question": "q", "answer": "a"})
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60)
    assert done.stdout == (
        "the environments need verifiers, which is not installed: pip install 'primebeaker[runtime]'\n"
    ), done.stderr
