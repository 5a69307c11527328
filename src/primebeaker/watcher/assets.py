"""The packaged scripts and styles: a fixed list, named by their content, never a path from a request."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Asset", "asset_url", "assets"]

_FOLDER = Path(__file__).parent / "assets"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_NAMES = ("htmx.js", "uplot.js", "uplot.css", "tables.js", "watcher.js", "watcher.css", "favicon.svg")


class Asset(NamedTuple):
    """One file as served."""

    name: str
    media_type: str
    content: bytes


@cache
def assets() -> dict[str, Asset]:
    """Served name (``watcher.<hash>.js``) -> file."""
    served: dict[str, Asset] = {}
    for name in _NAMES:
        content = (_FOLDER / name).read_bytes()
        stem, _, suffix = name.rpartition(".")
        digest = hashlib.sha256(content).hexdigest()[:12]
        served[f"{stem}.{digest}.{suffix}"] = Asset(name, _TYPES[f".{suffix}"], content)
    return served


@cache
def asset_url(name: str) -> str:
    """Path of a packaged file below the base path."""
    return next(f"/assets/{served}" for served, asset in assets().items() if asset.name == name)
