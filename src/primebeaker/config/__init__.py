"""Training TOMLs: lossless documents, typed edits, data binding, checks; and the strict YAML loader."""

from primebeaker.config.document import TomlDocument
from primebeaker.config.render import dump_toml_document

__all__ = ["TomlDocument", "dump_toml_document"]
