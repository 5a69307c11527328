"""Variables and secrets: reserved names, contradictions, and credentials that are never shown."""

from __future__ import annotations

import pytest

TOKEN = "hf_" + "abcdefghij" * 2


def test_order_and_exact_values(plan, variables) -> None:
    made = plan("rl", environment=(("B", "1e3"), ("A", "[1,2]"), ("EMPTYISH", " ")))
    found = variables(made.spec)
    assert (found["A"], found["B"], found["EMPTYISH"]) == ("[1,2]", "1e3", " ")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"environment": (("A", "1"), ("A", "2"))}, "--env A is given twice with different values, '1' and '2'; keep one of them"),
        ({"environment": (("1A", "1"),)}, "--env '1A': expected NAME=VALUE with a name of letters, digits and '_'"),
        ({"environment": (("A", ""),)}, "--env A: expected a value after '='"),
        ({"environment": (("A", "x\0"),)}, "--env A: expected a value without NUL characters"),
        ({"environment": (("A", "1"),), "secrets": (("A", "s"),)}, "A is set by both --env and --secret; keep one of them"),
        ({"environment": (("HF_TOKEN", "x"),), "secrets": (("HF_TOKEN", "my_hf"),)}, "HF_TOKEN is set by both --env and --secret; keep one of them"),
        ({"secrets": (("A", "s"), ("A", "t"))}, "--secret A is given twice with different values, 's' and 't'"),
        ({"secrets": (("A", "a b"),)}, "--secret A: expected the name of a Beaker secret"),
        ({"environment": (("WANDB_RUN_ID", "z"),)}, "--env WANDB_RUN_ID: this variable is reserved, --wandb-run-id sets it; use --wandb-run-id"),
        ({"environment": (("HOME", "/x"),)}, "--env HOME: this variable is reserved, --home-dir sets it"),
        ({"secrets": (("CONFIG_PATH", "x"),)}, "--secret CONFIG_PATH: this variable is reserved"),
        ({"environment": (("BEAKER_REPLICA_RANK", "0"),)}, "--env BEAKER_REPLICA_RANK: this variable is reserved"),
        ({"environment": (("BEAKER_LEADER_X", "0"),)}, "this variable is reserved"),
        ({"environment": (("PRIMEBEAKER_VERSION", "0"),)}, "--env PRIMEBEAKER_VERSION: this variable is reserved"),
        ({"secrets": (("PRIMEBEAKER_POLL_SECONDS", "x"),)}, "--secret PRIMEBEAKER_POLL_SECONDS: this variable is reserved"),
        ({"environment": (("REGISTRY", "redis://h"),)}, "--env REGISTRY: this variable has a flag of its own; use --registry"),
        ({"environment": (("WANDB_ENTITY", "me"),)}, "--env WANDB_ENTITY: this variable has a flag of its own; use --wandb-entity"),
        ({"environment": (("BEAKER_TOKEN", "x"),)}, "--env BEAKER_TOKEN: a credential may only be given as a secret"),
        ({"secrets": (("HF_TOKEN", "my_hf"),), "hf_secret": "other"}, "HF_TOKEN is set by both --hf-secret (other) and --secret (my_hf)"),
        ({"secrets": (("WANDB_API_KEY", "w"),), "wandb_secret": "none"}, "WANDB_API_KEY is set by both --wandb-secret (off) and --secret (w)"),
        ({"secrets": (("REGISTRY", "r"),), "registry": "redis://h:1"}, "REGISTRY is set by both --registry and --secret"),
    ],
)  # fmt: skip
def test_refused(lines, settings, expected) -> None:
    found = lines("rl", **settings)
    assert any(expected in line for line in found), found


@pytest.mark.parametrize(
    "settings",
    [
        {"environment": (("MY_API_KEY", TOKEN),)},
        {"environment": (("SECRET_X", "value-of-the-secret"),)},
        {"environment": (("PLAIN", TOKEN),)},
        {"environment": (("HF_TOKEN", TOKEN),)},
        {"environment": (("PLAIN", "0123456789abcdef" * 2 + "01234567"),)},
        {"secrets": (("A", TOKEN),)},
        {"wandb_secret": "wandb_v1_" + "x" * 30},
        {"hf_secret": "0123456789abcdef" * 2 + "01234567"},
    ],
)
def test_credentials_are_refused_and_never_shown(lines, settings) -> None:
    (line,) = lines("rl", **settings)
    for value in settings.values():
        for secret in [value] if isinstance(value, str) else [part for _, part in value]:
            assert secret not in line
    assert "secret" in line


def test_default_secrets_can_be_replaced_and_switched_off(plan, variables) -> None:
    assert variables(plan("rl", wandb_secret="mine").spec)["WANDB_API_KEY"] == "secret:mine"
    assert variables(plan("rl", secrets=(("HF_TOKEN", "mine"),)).spec)["HF_TOKEN"] == "secret:mine"
    assert variables(plan("rl", secrets=(("HF_TOKEN", "a"),), hf_secret="a").spec)["HF_TOKEN"] == "secret:a"
    for off in ("", "none", "None", "null"):
        assert "HF_TOKEN" not in variables(plan("rl", hf_secret=off).spec)


def test_tunables_may_be_set(plan, variables) -> None:
    assert (
        variables(plan("rl", environment=(("PRIMEBEAKER_GRACE_SECONDS", "5"),)).spec)["PRIMEBEAKER_GRACE_SECONDS"]
        == "5"
    )


def test_all_mistakes_at_once(lines) -> None:
    found = lines("rl", {"output_dir": None, "wandb": None}, environment=(("A", ""), ("HOME", "x")), priority="hgih")
    text = "\n".join(found)
    for part in (
        "--env A",
        "--env HOME",
        "--priority = 'hgih'",
        "[wandb]: the table is missing",
        "output_dir: the key is missing",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("base", "settings", "expected"),
    [
        ("rl-nodes", {"registry": None}, "--registry is required for multi-node RL; pass it, or --secret REGISTRY=SECRET_NAME"),
        ("rl", {"gateway_port": 5}, "--gateway-port, --gateway-workers and --required-service need a registry"),
        ("rl", {"required_services": (("a", 1),)}, "need a registry"),
        ("rl", {"registry": "http://h"}, "--registry = 'http://h': expected a registry URI with one of the schemes redis, rediss, head+file"),
        ("rl", {"registry": "redis://"}, "expected a registry URI"),
        ("rl", {"registry": "sqlite:///elsewhere/r.sqlite3"}, "/elsewhere/r.sqlite3 is not under the mount"),
        ("rl", {"rendezvous_timeout_seconds": 5}, "--rendezvous-timeout-seconds has no meaning for a single-node launch"),
        ("sft", {"registry": "redis://h:1"}, "--registry has no meaning for an SFT launch"),
    ],
)  # fmt: skip
def test_registry_rules(lines, base, settings, expected) -> None:
    assert any(expected in line for line in lines(base, **settings))


@pytest.mark.parametrize("scheme", ["redis", "rediss", "head+redis"])
def test_registry_schemes(plan, scheme) -> None:
    assert plan("rl-nodes", registry=f"{scheme}://host:6379").warnings == ()


def test_file_registries_lie_under_the_mount(plan, mount) -> None:
    for scheme in ("sqlite", "file", "head+sqlite", "head+file"):
        plan("rl-nodes", registry=f"{scheme}://{mount}/registries/r")


def test_the_registry_may_be_a_secret(plan, variables) -> None:
    found = variables(plan("rl-nodes", registry=None, secrets=(("REGISTRY", "my-registry"),)).spec)
    assert found["REGISTRY"] == "secret:my-registry"


def test_a_registry_password_is_warned_about_and_masked(preview_cli, toml, variables) -> None:
    document = preview_cli("rl", toml("rl-nodes"), "--registry=redis://user:pass%40word@host:6379")
    assert variables(document["spec"])["REGISTRY"] == "redis://user:***@host:6379"
    assert "pass" not in str(document).replace("password", "")
    assert any("prefer --secret REGISTRY=SECRET_NAME" in warning for warning in document["warnings"])
