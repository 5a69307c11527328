"""Images on Beaker: look one up, import a local Docker image under a name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primebeaker.beaker.parse import parse_json, parse_time, single
from primebeaker.beaker.process import run
from primebeaker.errors import ExternalError
from primebeaker.services.images.tools import Ended, stream

__all__ = ["BeakerImages", "Uploaded", "committed_in"]

_READ_SECONDS = 60.0
_PAUSES = (2.0, 4.0, 8.0)
_TAKEN = ("already exists", "already in use", "already taken", "conflict")
_TRANSIENT = re.compile(
    r"connection reset|broken pipe|timed? ?out|timeout|unexpected eof|temporarily unavailable|\b50[0234]\b|bad gateway",
    re.IGNORECASE,
)
_IMAGE_ID_KEYS = ("id", "image_id", "imageId")


@dataclass(frozen=True)
class Uploaded:
    """An image on Beaker; ``reused`` when it was there before."""

    id: str
    reused: bool


@dataclass(frozen=True)
class BeakerImages:
    """The images of one workspace, through the ``beaker`` program.

    Args:
        program: The ``beaker`` executable.
        account: The account that names are looked up under.
        workspace: Where images are imported.
        sleep: Waits between attempts.
    """

    program: str
    account: str
    workspace: str
    sleep: Callable[[float], None] = time.sleep

    def find(self, name: str) -> Mapping[str, Any] | None:
        """The record of an image of ours, None when Beaker does not know it or gives no usable answer."""
        return self.record(f"{self.account}/{name}")

    def record(self, reference: str) -> Mapping[str, Any] | None:
        """The record of an image by ID or full name, None when Beaker does not know it or gives no usable answer."""
        result = run([self.program, "image", "get", reference, "--format", "json"], timeout=_READ_SECONDS)
        if result.code != 0:
            return None
        try:
            return single(parse_json(result.stdout))
        except ValueError:
            return None

    def present(self, name: str) -> str | None:
        """The ID of a finished image of this name in the workspace."""
        return committed_in(self.find(name), self.workspace)

    def upload(self, docker_id: str, name: str) -> Uploaded:
        """Import a local image under ``name``; when that is taken by another image, under a name with its digest.

        Raises:
            ExternalError: Beaker refused, or gave no ID.
        """
        ended = self._create(docker_id, name)
        if ended.code == 0:
            return Uploaded(self._created_id(ended, name), reused=False)
        if not _is_taken(ended):
            raise ExternalError(ended.message)
        record = self.find(name)
        existing = committed_in(record, self.workspace)
        if existing is not None and record is not None and record.get("originalTag") == docker_id:
            return Uploaded(existing, reused=True)
        longer = f"{name}-{docker_id.removeprefix('sha256:')[:12]}"
        ended = self._create(docker_id, longer)
        if ended.code == 0:
            return Uploaded(self._created_id(ended, longer), reused=False)
        existing = self.present(longer) if _is_taken(ended) else None
        if existing is None:
            raise ExternalError(ended.message)
        return Uploaded(existing, reused=True)

    def _create(self, docker_id: str, name: str) -> Ended:
        words = ["image", "create", docker_id, "--name", name, "--workspace", self.workspace, "--format", "json"]
        for pause in _PAUSES:
            ended = stream([self.program, *words])
            if ended.code == 0 or _is_taken(ended) or not _TRANSIENT.search(ended.message):
                return ended
            self.sleep(pause)
        return stream([self.program, *words])

    def _created_id(self, ended: Ended, name: str) -> str:
        try:
            record: Mapping[str, Any] | None = single(parse_json(ended.stdout))
        except ValueError:
            record = self.find(name)
        found = _image_id(record) or _image_id(self.find(name))
        if found is None:
            raise ExternalError(f"beaker imported {name} but told no image ID: {ended.message}")
        return found


def committed_in(record: Mapping[str, Any] | None, workspace: str) -> str | None:
    """The ID of a record that is a finished image of this workspace."""
    if record is None:
        return None
    reference = record.get("workspaceRef")
    place = reference.get("fullName") if isinstance(reference, Mapping) else None
    committed = parse_time(record.get("committed")) is not None
    return _image_id(record) if committed and place == workspace else None


def _image_id(record: Mapping[str, Any] | None) -> str | None:
    values: Sequence[Any] = [record.get(key) for key in _IMAGE_ID_KEYS] if record is not None else []
    return next((value for value in values if isinstance(value, str) and value), None)


def _is_taken(ended: Ended) -> bool:
    return any(words in ended.message.lower() for words in _TAKEN)
