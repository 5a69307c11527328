"""The script that writes the field catalogue, run on a small config package with every shape of field."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "tools/regenerate_prime_rl_fields.py"
SHIPPED = resources.files("primebeaker.config").joinpath("data/prime_rl_fields.json")

SHARED = 'PROTECTED_ENV_VARS = frozenset({"B", "A"})\n'
RL = """
from pathlib import Path
from typing import Annotated, Any, Literal
from annotated_types import MinLen
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

class Base(BaseModel):
    model_config = ConfigDict(extra="forbid")

class Adam(Base):
    type: Literal["adam"] = "adam"
    lr: Annotated[float, Field(gt=0)] = 1e-6
    beta: float = 0.9

class Sgd(Base):
    type: Literal["sgd"] = "sgd"
    lr: Annotated[float, Field(gt=0)] = 1.0
    plan: str

class Open(Base):
    model_config = ConfigDict(extra="allow")
    steps: int | None = Field(None, ge=1, validation_alias=AliasChoices("steps", "max_steps"))

class Offload(Base):
    depth: int = 2

class Source(Base):
    id: str
    tags: list[Literal["x", "y"]] = []
    weights: dict[str, Open] = {}

class RLConfig(Base):
    optim: Annotated[Sgd | Adam, Field(discriminator="type")] = Adam()
    mode: Literal["a", "b"] | int = "a"
    path: Path = Path("out")
    names: Annotated[list[str], MinLen(1)] = ["n"]
    free: dict[str, Any] = {}
    table: Open | None = None
    source: list[Source] = []
    made: str = Field(default_factory=lambda: "x")
    offload: Annotated[Offload | None, BeforeValidator(lambda v: {} if v is True else v)] = None
"""
SFT = "from prime_rl.configs.rl import Base\nclass SFTConfig(Base):\n    x: bool = False\n"
INFERENCE = "from prime_rl.configs.rl import Base\nclass InferenceConfig(Base):\n    y: int\n"


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("package")
    package = folder / "prime_rl" / "configs"
    package.mkdir(parents=True)
    for name, text in {"shared": SHARED, "rl": RL, "sft": SFT, "inference": INFERENCE}.items():
        (package / f"{name}.py").write_text(text)
    file = folder / "fields.json"
    shutil.copy(str(SHIPPED), file)
    subprocess.run(
        [
            sys.executable,
            str(SCRIPT),
            "--generation=0.7",
            "--tag=v9",
            "--commit=abc",
            "--date=2026-01-02",
            f"--file={file}",
        ],
        check=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    return json.loads(file.read_text())


def test_every_shape_of_field_is_described(catalogue):
    fields = catalogue["generations"]["0.7"]["roots"]["rl"]["fields"]
    assert fields == {
        "free": {"type": "table"},
        "made": {"type": "string"},
        "mode": {"type": "integer|string", "enum": ["a", "b"], "default": "a"},
        "names": {"type": "array", "min_len": 1, "items": "string", "default": ["n"]},
        "offload": {"type": "boolean|null|table", "default": None},
        "offload.depth": {"type": "integer", "default": 2},
        "optim": {"type": "table"},
        "optim.beta": {"type": "float", "default": 0.9, "variants": ["type=adam"]},
        "optim.lr": {"type": "float", "gt": 0, "default": 1.0, "defaults_by_variant": {"type=adam": 1e-06}},
        "optim.plan": {"type": "string", "variants": ["type=sgd"], "required": ["type=sgd"]},
        "optim.type": {"type": "string", "enum": ["adam", "sgd"], "default": "adam"},
        "path": {"type": "string", "default": "out"},
        "source": {"type": "array", "items": "table", "default": []},
        "source[].id": {"type": "string", "required": True},
        "source[].tags": {"type": "array", "items": "string", "items_enum": ["x", "y"], "default": []},
        "source[].weights": {"type": "table"},
        "source[].weights.*.steps": {"type": "integer|null", "min": 1, "default": None, "aliases": ["max_steps"]},
        "table": {"type": "null|table", "default": None},
        "table.steps": {"type": "integer|null", "min": 1, "default": None, "aliases": ["max_steps"]},
    }


def test_one_generation_is_replaced_and_the_rest_stays(catalogue):
    shipped = json.loads(SHIPPED.read_text())
    generation = catalogue["generations"]["0.7"]
    assert generation["prime_rl"] == {"tag": "v9", "commit": "abc", "date": "2026-01-02"}
    assert generation["protected_env_vars"] == ["A", "B"]
    assert generation["roots"]["rl"]["open_tables"] == ["source[].weights.*", "table"]
    assert generation["roots"]["rl"]["unknown_keys"] == "forbid"
    assert generation["soft_prefixes"] == shipped["generations"]["0.7"]["soft_prefixes"]
    assert catalogue["generations"]["0.8"] == shipped["generations"]["0.8"]
    assert catalogue["renamed_0.7_to_0.8"] == shipped["renamed_0.7_to_0.8"]
    assert catalogue["notes"] == shipped["notes"]
