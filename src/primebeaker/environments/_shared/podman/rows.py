"""What a row of ``podman-terminal`` says: its image and its private tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from primebeaker.environments._shared.rows import RowFault
from primebeaker.environments._shared.submissions import expected_rubric_ids

__all__ = ["IMAGE_KEYS", "LONGEST_IMAGE", "checked_row", "image_of", "image_reference", "private_tests"]

#: Where the image may stand; the first text that is not blank counts.
IMAGE_KEYS = (
    "original_image",
    "image",
    "container_image",
    "published_container_image",
    "resolved_container_image",
)
_TEST_KEYS = ("test_final_state", "unit_tests")

#: Characters of an image reference that the service takes.
LONGEST_IMAGE = 512

_OUTER = ("info", "source", "misc", "raw")
_INNER = ("misc", "raw")
_UNUSABLE = re.compile(r"[\s\x00-\x1f\x7f]")


def image_of(row: Mapping[str, Any]) -> str:
    """The image reference of a row, as it is sent to the service.

    Raises:
        ValueError: The row names no image, or one that the service cannot take.
    """
    given = _first_text(row, IMAGE_KEYS)
    if given is None:
        raise ValueError(f"the row names no image; accepted keys are {', '.join(IMAGE_KEYS)}")
    return image_reference(given)


def image_reference(given: str) -> str:
    """Complete a short image name with its registry, as Docker does: ``ubuntu`` is ``docker.io/library/ubuntu``.

    Raises:
        ValueError: It is longer than the service takes, or holds white space or control characters.
    """
    given = given.strip()
    if _UNUSABLE.search(given):
        raise ValueError(f"the image {given[:100]!r} holds white space or control characters")
    first, slash, _ = given.partition("/")
    if not slash:
        given = f"docker.io/library/{given}"
    elif "." not in first and ":" not in first and first != "localhost":
        given = f"docker.io/{given}"
    if len(given) > LONGEST_IMAGE:
        raise ValueError(f"the image reference has {len(given)} characters, at most {LONGEST_IMAGE} are possible")
    return given


def private_tests(row: Mapping[str, Any]) -> str | None:
    """The source of the hidden tests of a row; they are put into its container only when the task is finished."""
    return _first_text(row, _TEST_KEYS)


def checked_row(row: dict[str, Any]) -> dict[str, Any]:
    """Check what a row says; for :class:`DatasetRules`.

    Raises:
        RowFault: It has no usable image, tests or rubric ids.
    """
    try:
        image_of(row)
    except ValueError as error:
        raise RowFault("image", str(error)) from None
    try:
        (private_tests(row) or "").encode()
    except UnicodeEncodeError:
        raise RowFault("test_final_state", "holds half of a surrogate pair, which is no text") from None
    expected_rubric_ids(row)
    return row


def _first_text(row: Mapping[str, Any], keys: Sequence[str]) -> str | None:
    for place in _places(row):
        for key in keys:
            value = place.get(key)
            if isinstance(value, str) and value.strip():
                return value
    return None


def _places(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The row, some of its objects, and some of theirs; nothing else, so that a saved trace is never read."""
    yield row
    outer = [row[key] for key in _OUTER if isinstance(row.get(key), Mapping)]
    yield from outer
    for place in outer:
        yield from (place[key] for key in _INNER if isinstance(place.get(key), Mapping))
