"""The training TOML of a resumed run: the source's, with the step pinned and nothing else changed."""

from __future__ import annotations

from primebeaker.config import TomlDocument, detect_generation
from primebeaker.errors import InternalError

__all__ = ["render_resume_config", "resumed_document"]


def render_resume_config(text: str, *, resume_step: int) -> str:
    """The TOML ``text`` made to continue after ``resume_step``; every other byte stays.

    Raises:
        UserError: The text is not TOML, or mixes Prime-RL generations.
    """
    return resumed_document(TomlDocument.from_text(text), resume_step).text


def resumed_document(document: TomlDocument, resume_step: int) -> TomlDocument:
    """See :func:`render_resume_config`."""
    new = detect_generation(document.values, "rl") == "0.8"
    clean = "clean" if new else "clean_output_dir"
    edited = document
    if edited.get(clean) is True:
        edited = edited.with_value(clean, False)
    if new:
        if edited.has("resume.dir"):
            edited = edited.without_value("resume.dir")
        key = "resume.step"
    else:
        key = "ckpt.resume_step"
    edited = edited.with_value(key, resume_step, create=True)
    if edited.get(key) != resume_step or edited.get(clean) is True:
        raise InternalError(f"{key} did not read back as {resume_step}")
    return edited
