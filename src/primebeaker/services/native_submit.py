"""The child process in which a native launcher submits: ``python -m primebeaker.services.native_submit``.

It runs in a session of its own, so that a Ctrl-C in the user's terminal cannot end ``beaker`` half-way through a
creation, and with its own ``PATH`` and ``TMPDIR``.  The request comes on stdin, since a registry URL may carry a
password, and the outcome goes to stdout, both as one JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from primebeaker.services.mounts import with_mounts_here
from primebeaker.services.stacks import STACKS, NativeStack, load_native

__all__ = ["main", "submit_as"]


def submit_as(
    native: NativeStack, values: dict[str, Any], experiment_name: str, *, mounts_here: bool = False
) -> dict[str, Any]:
    """Submit through the native launcher, under a name chosen beforehand.

    Args:
        native: The stack.
        values: Its fields.
        experiment_name: The name.
        mounts_here: Leave out mounts that this machine does not have, for the embedded engine.

    Returns:
        ``{"outcome": …}`` with ``created`` (and what Beaker printed under ``beaker``), ``not_json`` (``output``),
        ``refused`` (``detail``), ``killed`` (``signal``), ``no_beaker``, or ``directory`` (``path``, ``detail``).
    """

    class Named(native.launcher_class):  # type: ignore[misc, name-defined]
        """The native launcher, whose spec is the one that was checked."""

        def build_spec(self, *, experiment_name: str | None = None) -> tuple[str, dict[str, Any]]:
            name, spec = super().build_spec(experiment_name=experiment_name or chosen)
            return str(name), with_mounts_here(spec) if mounts_here else dict(spec)

    chosen = experiment_name
    try:
        receipt = Named(native.config_class(**values)).submit()
    except json.JSONDecodeError as error:
        return {"outcome": "not_json", "output": error.doc}
    except RuntimeError as error:
        code = getattr(error.__cause__, "returncode", 0)
        if code < 0:
            return {"outcome": "killed", "signal": -code}
        return {"outcome": "refused", "detail": str((error.__cause__ and _detail(error.__cause__)) or error)}
    except OSError as error:
        if error.filename == "beaker":
            return {"outcome": "no_beaker"}
        return {"outcome": "directory", "path": str(error.filename or ""), "detail": error.strerror or str(error)}
    return {"outcome": "created", "beaker": receipt["beaker"]}


def _detail(cause: BaseException) -> str:
    """What ``beaker`` itself said."""
    return str(getattr(cause, "stderr", "") or getattr(cause, "stdout", "") or "").strip()


def main() -> int:
    """Read the request, submit, write the outcome."""
    request = json.load(sys.stdin)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in request["values"].items()}
    native = load_native(STACKS[request["stack"]])
    outcome = submit_as(native, values, request["experiment_name"], mounts_here=request["mounts_here"])
    sys.stdout.write(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main())
