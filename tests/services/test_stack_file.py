"""``primebeaker.services/v1``: strict types, lines in every message, variables, overrides by flags."""

from __future__ import annotations

from pathlib import Path

import pytest

HEAD = "schema: primebeaker.services/v1\nservices:\n"


@pytest.fixture
def preview(primebeaker, tmp_path: Path):
    """Preview a file of this text; messages come back with FILE for its path."""
    file = tmp_path / "services.yaml"

    def call(text: str | bytes, *words: str, group: tuple[str, ...] = ("services",)):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return primebeaker(*group, "yaml", "preview", f"--config={file}", *words)

    def errors(text: str | bytes, *words: str, group: tuple[str, ...] = ("services",)) -> list[str]:
        outcome = call(text, *words, group=group)
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        return [line.replace(str(file), "FILE") for line in outcome.errors]

    call.errors = errors
    return call


def test_a_file_gives_fields(preview) -> None:
    config = preview(
        HEAD + "  registry: redis://h:1\n  service_cluster: a, b\n  python_replicas: 0\n  gateway_timeout: 30\n"
        "  hf_home: null\n  serper_api_key_secret: none\n  name_prefix: 'on'\n"
    ).data["config"]
    assert config["registry"] == "redis://h:1"
    assert config["service_clusters"] == ["a", "b"]
    assert (config["python_replicas"], config["gateway_timeout"], config["hf_home"]) == (0, 30.0, None)
    assert (config["serper_api_key_secret"], config["name_prefix"]) == ("none", "on")


def test_an_empty_mapping_is_all_defaults(preview) -> None:
    assert preview("schema: primebeaker.services/v1\nservices: {}\n").data["config"]["python_replicas"] == 1


def test_flags_override_the_file(preview) -> None:
    config = preview(
        HEAD + "  service_cluster: a\n  python_replicas: 2\n", "--service-clusters=b,c", "--python-replicas=3"
    ).data["config"]
    assert (config["service_clusters"], config["python_replicas"]) == (["b", "c"], 3)


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("services: {}\n", ["FILE: schema: required, expected 'primebeaker.services/v1'"]),
        (
            "schema: primebeaker.services/v2\nservices: {}\n",
            ["FILE:1: schema: expected 'primebeaker.services/v1', found 'primebeaker.services/v2'"],
        ),
        (
            "schema: primebeaker.run/v1\nservices: {}\n",
            [
                "FILE:1: schema: expected 'primebeaker.services/v1', found 'primebeaker.run/v1'; "
                "`primebeaker run …` reads primebeaker.run/v1"
            ],
        ),
        (
            "schema: primebeaker.services/v1\nservice: {}\n",
            ["FILE: services: required", "FILE:2: service: unknown key; did you mean services?"],
        ),
        ("schema: primebeaker.services/v1\nservices:\n", ["services: expected a mapping, found nothing (FILE:2)"]),
        ("[]", ["the document: expected a mapping, found a list (FILE:1)"]),
        (
            HEAD + "  terminal_replcas: 1\n  podman_replicas: 1\n",
            [
                "FILE:3: services.terminal_replcas: unknown field; did you mean terminal_replicas?",
                "FILE:4: services.podman_replicas: unknown field; it is a field of the podman stack, which "
                "`primebeaker services podman yaml …` reads",
            ],
        ),
        (
            HEAD + '  python_replicas: "2"\n  terminal_replicas: 2.0\n  name_prefix: 12\n  workspace: null\n',
            [
                "FILE:3: services.python_replicas: expected an integer, found a string ('2')",
                "FILE:4: services.terminal_replicas: expected an integer, found a number (2.0)",
                "FILE:5: services.name_prefix: expected a string, found an integer (12)",
                "FILE:6: services.workspace: expected a string, found null",
            ],
        ),
        (
            HEAD + "  python_replicas: 1\n  python_replicas: 2\n",
            ["FILE:4: python_replicas: given twice, first on line 3; keep one of them"],
        ),
        (HEAD + "  1: 2\n", ["FILE:3: the key 1 is an integer, not text; write it in quotes"]),
        (HEAD + "  registry: !x y\n", ["FILE:3: the tag !x is not supported; write a plain value"]),
        (HEAD + "  registry: /a\n---\na: b\n", ["FILE:4: a second document; keep to one document a file"]),
        (HEAD + "  registry: ''\n", ["FILE:3: services.registry: the text: expected a non-empty string"]),
        (
            HEAD + "  service_cluster: a\n  service_clusters: b\n",
            ["FILE:3: services: give only one of service_clusters, service_cluster"],
        ),
        (HEAD + "  registry: $NOT_SET\n", ["FILE:3: services.registry: environment variable NOT_SET is not set"]),
        (
            HEAD + "  service_clusters: [a, '${NOT_SET']\n",
            [
                "FILE:3: services.service_clusters[1]: malformed reference '${NOT_SET'; "
                "write ${NAME}, ${NAME:-default}, or $$ for a dollar sign"
            ],
        ),
        (
            HEAD + "  python_replicas: 500\n",
            ["services base: python_replicas: python_replicas must be between 0 and 128; see FILE:3"],
        ),
        (HEAD.encode() + b"  registry: '\xff'\n", ["FILE:3: not UTF-8"]),
        (b"#" * (1024 * 1024 + 1), ["FILE: larger than 1024 KiB"]),
        (
            HEAD + "  hf_token_secret: 'my token'\n",
            [
                "FILE:3: services.hf_token_secret: expected the name of a Beaker secret (letters, digits, _ . -); "
                "the value given is not shown; write a token with `beaker secret write` and give the secret's name here"
            ],
        ),
    ],
)
def test_every_mistake_names_its_line(text: str | bytes, errors: list[str], preview, monkeypatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    assert preview.errors(text) == errors


def test_fields_of_the_base_stack_are_refused_in_a_podman_file(preview) -> None:
    assert preview.errors(HEAD + "  python_replicas: 1\n", group=("services", "podman")) == [
        "FILE:3: services.python_replicas: unknown field; it is a field of the base stack, which "
        "`primebeaker services yaml …` reads"
    ]


@pytest.mark.parametrize(
    ("path", "message"),
    [("missing.yaml", "services YAML not found: {}"), ("", "services YAML is a directory: {}")],
)
def test_a_file_that_is_not_there_is_one_line(path: str, message: str, primebeaker, tmp_path: Path) -> None:
    full = tmp_path / path if path else tmp_path
    assert primebeaker("services", "yaml", "preview", f"--config={full}").errors == [message.format(full)]


def test_variables_take_the_type_of_their_field(preview, monkeypatch) -> None:
    monkeypatch.setenv("N", "4")
    monkeypatch.setenv("CLUSTERS", "a,b")
    monkeypatch.setenv("YES", "yes")
    monkeypatch.setenv("PASSWORD", "p$N$$q")
    config = preview(
        HEAD + "  terminal_replicas: ${N}\n  service_clusters: $CLUSTERS\n  omit_service_resources: ${YES}\n"
        "  hf_home: ${NONE:-}\n  shared_dir: /weka/$$N/${PASSWORD}\n"
    ).data["config"]
    assert (config["terminal_replicas"], config["service_clusters"]) == (4, ["a", "b"])
    assert (config["omit_service_resources"], config["hf_home"]) == (True, None)
    assert config["shared_dir"] == "/weka/$N/p$N$$q"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "terminal_replicas: ${SECRET_VALUE}",
            "FILE:3: services.terminal_replicas: ${SECRET_VALUE}: expected an integer",
        ),
        (
            "terminal_replicas: 1${SECRET_VALUE}",
            "FILE:3: services.terminal_replicas: ${SECRET_VALUE}: expected an integer",
        ),
        ("name_prefix: $NOTHING", "FILE:3: services.name_prefix: $NOTHING: expected a string"),
        (
            "vllm_image: docker://$SECRET_VALUE",
            "FILE:3: services.vllm_image: expected a Beaker image, not a docker:// one",
        ),
    ],
)
def test_a_value_from_the_environment_is_not_shown(line: str, error: str, preview, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_VALUE", "hunter2")
    monkeypatch.setenv("NOTHING", "")
    assert preview.errors(f"{HEAD}  {line}\n") == [error]
