"""Credentials never survive the redactor, and ordinary text always does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primebeaker.redaction import (
    Redactor,
    holds_a_secret,
    looks_like_credential,
    mask_credentials,
    mask_url_passwords,
    names_a_secret,
    redact_tree,
)

# Made up; the shape is what counts.
TOKEN = "hf_" + "a1B2" * 8


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://user:pa55@host:6379", "redis://user:***@host:6379"),
        ("redis://:pa55@host:6379/0", "redis://:***@host:6379/0"),
        ("head+redis://u:p%40x@h:1 and rediss://a:b@c", "head+redis://u:***@h:1 and rediss://a:***@c"),
        ("redis://host:6379", "redis://host:6379"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("mail a:b@c", "mail a:b@c"),
    ],
)
def test_url_passwords(text: str, masked: str) -> None:
    assert mask_url_passwords(text) == masked


@pytest.mark.parametrize(
    "value",
    [TOKEN, "sk-abc", "ghp_x", "github_pat_x", "xoxb-1", "AKIAX", "wandb_v1_x", "0123456789abcdef" * 2 + "01234567"],
)
def test_values_that_look_like_credentials(value: str) -> None:
    assert looks_like_credential(value)


@pytest.mark.parametrize("value", ["my_hf_secret", "WANDB_API_KEY", "0123456789abcdef", "skill", "a" * 41])
def test_values_that_do_not(value: str) -> None:
    assert not looks_like_credential(value)


@pytest.mark.parametrize("name", ["HF_TOKEN", "my_secret", "DB_PASSWORD", "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID"])
def test_names_of_secrets(name: str) -> None:
    assert names_a_secret(name)


def test_names_of_other_things() -> None:
    assert not names_a_secret("PATH")
    assert not names_a_secret("OMP_NUM_THREADS")


def test_known_values_longest_first() -> None:
    redact = Redactor(["password1", "password1-extended"])
    assert redact("x password1-extended y password1 z") == "x *** y *** z"


def test_short_values_are_masked_only_when_they_are_everything() -> None:
    redact = Redactor(["1"])
    assert redact("1") == "***"
    assert redact("port 1212") == "port 1212"


def test_tokens_inside_text() -> None:
    assert Redactor()(f"Authorization: {TOKEN}, failed") == "Authorization: ***, failed"


def test_bytes_keep_what_is_not_text() -> None:
    assert Redactor(["password1"]).bytes(b"\xff password1 \xfe") == b"\xff *** \xfe"


@given(
    secret=st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=8, max_size=40),
    around=st.text(max_size=20),
)
def test_a_known_secret_never_survives(secret: str, around: str) -> None:
    if secret in "***" or secret in around:
        return
    assert secret not in Redactor([secret])(f"{around}{secret}{around}")


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "API_KEY",
        "HF_TOKEN",
        "hfToken",
        "password",
        "db.passwd",
        "accessKey",
        "private-key",
        "Cookie",
    ],
)
def test_keys_of_a_configuration_that_hold_a_secret(key: str) -> None:
    assert holds_a_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "tokenizer",
        "max_tokens",
        "eos_token",
        "stop_tokens",
        "wandb_secret",
        "hf_secret",
        "key",
        "monkey",
        "api",
        "keys",
    ],
)
def test_keys_of_a_configuration_that_do_not(key: str) -> None:
    assert not holds_a_secret(key)


@pytest.mark.parametrize(
    ("text", "key", "masked"),
    [
        ("redis://user:pa55@host:1", "", "redis://***@host:1"),
        ("use " + TOKEN + " now", "", "use *** now"),
        ("sk-" + "a" * 16, "", "***"),
        ("AKIA" + "A" * 16, "", "***"),
        ("0" * 40, "wandb_api", "***"),
        ("0" * 40, "commit", "0" * 40),
        ("http://host/a:b@c", "", "http://host/a:b@c"),
    ],
)
def test_credentials_in_any_text(text: str, key: str, masked: str) -> None:
    assert mask_credentials(text, key=key) == masked


def test_a_tree_keeps_numbers_names_and_secret_references() -> None:
    tree = {
        "max_tokens": 1024,
        "token": True,
        "auth": {"password": "p", "user": "u"},
        "envVars": [
            {"name": "WANDB_API_KEY", "secret": "my_wandb"},
            {"name": "HF_TOKEN", "value": "x"},
            {"name": "OUTPUT_DIR", "value": "/runs/a"},
        ],
        "secrets": {"HF_TOKEN": "my_hf"},
        "tokens": ["a"],
        "passwords": {"password": ["p", 1]},
    }
    assert redact_tree(tree) == {
        "max_tokens": 1024,
        "token": True,
        "auth": {"password": "***", "user": "u"},
        "envVars": [
            {"name": "WANDB_API_KEY", "secret": "my_wandb"},
            {"name": "HF_TOKEN", "value": "***"},
            {"name": "OUTPUT_DIR", "value": "/runs/a"},
        ],
        "secrets": {"HF_TOKEN": "my_hf"},
        "tokens": ["a"],
        "passwords": {"password": ["***", 1]},
    }
