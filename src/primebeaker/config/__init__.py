"""Training TOMLs: lossless documents, typed edits, data binding, checks; and the strict YAML loader."""

from primebeaker.config.binding import DataArtifacts, TrainingData
from primebeaker.config.catalogue import protected_env_vars
from primebeaker.config.check import CheckReport, Finding, check_toml
from primebeaker.config.document import TomlDocument
from primebeaker.config.generation import detect_generation, kind_of_toml
from primebeaker.config.render import dump_toml_document
from primebeaker.config.training import (
    RLTrainingToml,
    SFTTrainingToml,
    TrainingToml,
    load_toml,
    load_training_toml,
    render_training_toml,
)

__all__ = [
    "CheckReport",
    "DataArtifacts",
    "Finding",
    "RLTrainingToml",
    "SFTTrainingToml",
    "TomlDocument",
    "TrainingData",
    "TrainingToml",
    "check_toml",
    "detect_generation",
    "dump_toml_document",
    "kind_of_toml",
    "load_toml",
    "load_training_toml",
    "protected_env_vars",
    "render_training_toml",
]
