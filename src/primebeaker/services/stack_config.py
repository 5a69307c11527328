"""From given values to a validated native launcher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from primebeaker.errors import Mistakes, UserError
from primebeaker.services.fields import ALIAS, stack_fields
from primebeaker.services.stacks import NativeLauncher, NativeStack

__all__ = ["SECRET_NAME", "Given", "build_launcher", "given_by_flags", "placeholder_mistakes"]

#: What a Beaker secret may be called; anything else in a secret field is probably the token itself.
SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
#: How the placeholders of the examples are spelled, so that a human sees them.
_PLACEHOLDERS = ("IMMUTABLE_", "YOUR_")
#: Container references that are used inside the stack, not Beaker images.
_CONTAINER_REFERENCES = frozenset({"podman_session_image"})


@dataclass(frozen=True)
class Given:
    """A value someone gave for a field.

    Args:
        value: The value, already of the field's type.
        key: The flag or the dotted key it was given by.
        file: The YAML file it is from.
        line: Its 1-based line there.
    """

    value: Any
    key: str
    file: str | None = None
    line: int | None = None

    def mistake(self, message: str, *, hint: str | None = None) -> UserError:
        """A mistake about this value."""
        return UserError(message, hint=hint, file=self.file, line=self.line, key=self.key)


def given_by_flags(values: Mapping[str, Any]) -> dict[str, Given]:
    """Values given as flags or keyword arguments, by field."""
    return {name: Given(value, "--" + name.replace("_", "-")) for name, value in values.items()}


def build_launcher(native: NativeStack, given: Mapping[str, Given]) -> NativeLauncher:
    """Build the native launcher, which validates its config.

    Args:
        native: The stack with its native classes.
        given: The values given, by field; fields left out get the native defaults.

    Raises:
        UserError: A value is refused, by us or by the native config; independent mistakes are reported together.
    """
    mistakes = Mistakes()
    values: dict[str, Any] = {}
    fields = stack_fields(native.config_class)
    for name, one in given.items():
        with mistakes.collect():
            if name == ALIAS and "service_clusters" in given:
                key = one.key.rpartition(".")[0] or None
                raise UserError(f"give only one of service_clusters, {ALIAS}", file=one.file, line=one.line, key=key)
            field = fields["service_clusters" if name == ALIAS else name]
            values[field.name] = _checked(field.name, one)
    mistakes.raise_if_any()
    try:
        launcher: NativeLauncher = native.launcher_class(native.config_class(**values))
    except (ValueError, TypeError) as error:
        raise _native_mistake(native, str(error), fields, given) from error
    return launcher


def placeholder_mistakes(given: Mapping[str, Given]) -> list[UserError]:
    """One mistake for each value in which a placeholder of an example is left; a preview only warns of them."""
    return [
        one.mistake(f"{text}: this is a placeholder of an example", hint="write your own value")
        for one in given.values()
        for text in (one.value if isinstance(one.value, tuple) else (one.value,))
        if isinstance(text, str) and any(word in text for word in _PLACEHOLDERS)
    ]


def _checked(name: str, given: Given) -> Any:
    value = given.value
    if not isinstance(value, str):
        return value
    if name.endswith("_secret") and not SECRET_NAME.fullmatch(value):
        raise given.mistake(
            "expected the name of a Beaker secret (letters, digits, _ . -); the value given is not shown",
            hint="write a token with `beaker secret write` and give the secret's name here",
        )
    if name.endswith("_image") and name not in _CONTAINER_REFERENCES:
        # The native launcher writes the value verbatim under image.beaker, where a scheme makes the experiment fail.
        image = value.removeprefix("beaker://")
        if image.startswith("docker://"):
            raise given.mistake("expected a Beaker image, not a docker:// one")
        if not image:
            raise given.mistake("expected the name or ID of a Beaker image")
        return image
    return value


def _native_mistake(
    native: NativeStack, message: str, fields: Mapping[str, Any], given: Mapping[str, Given]
) -> UserError:
    """The one-line mistake for what the native config said, with the field it speaks of and where that was written."""
    words = re.findall(r"\w+", message)
    # A field whose name is an ordinary word (registry, priority) is only meant when it was given.
    field = next((word for word in words if word in fields and ("_" in word or word in given)), None)
    place = f"services {native.stack.name}"
    one = given.get(field or "")
    hint = f"see {one.file}:{one.line}" if one is not None and one.file is not None else None
    return UserError(message, hint=hint, key=f"{place}: {field}" if field else place)
