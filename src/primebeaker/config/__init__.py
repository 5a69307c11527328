"""Training TOMLs: lossless documents, typed edits, data binding, checks; and the strict YAML loader."""

from primebeaker.config.catalogue import protected_env_vars
from primebeaker.config.check import CheckReport, Finding, check_toml
from primebeaker.config.document import TomlDocument
from primebeaker.config.generation import detect_generation, kind_of_toml
from primebeaker.config.render import dump_toml_document

__all__ = [
    "CheckReport",
    "Finding",
    "TomlDocument",
    "check_toml",
    "detect_generation",
    "dump_toml_document",
    "kind_of_toml",
    "protected_env_vars",
]
