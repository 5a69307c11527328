"""What ``sft`` and ``rl`` have in common: preview and submit."""

from __future__ import annotations

from typing import Any

from primebeaker.cli.launching import LaunchOptions, planned
from primebeaker.cli.output import Result, warn
from primebeaker.launch.preview import preview, preview_text
from primebeaker.launch.topology import Kind

__all__ = ["ONLY_PREVIEW", "ONLY_RL", "ONLY_SUBMIT", "run_preview", "run_submit"]

ONLY_SUBMIT = {"--engine": "it belongs to submit", "--skip-preflight": "it belongs to submit"}
ONLY_PREVIEW = {"--write-spec": "it belongs to preview; submit always writes the spec file"}
_RL_FLAGS = ("--registry", "--gateway-port", "--gateway-workers", "--required-service")
ONLY_RL = dict.fromkeys(_RL_FLAGS, "it belongs to RL launches")


def run_preview(kind: Kind, options: LaunchOptions, *, write_spec: bool) -> Result:
    """Show a launch; with ``write_spec`` also write its files as submit would."""
    plan = planned(kind, options)
    if write_spec:
        from primebeaker.launch.files import write_launch_files

        write_launch_files(plan)
    document = preview(plan)
    warn(plan.warnings)
    return Result(document, text=lambda: preview_text(document), template_safe=True)


def run_submit(kind: Kind, options: LaunchOptions, *, engine: str | None, skip_preflight: bool) -> Result:
    """Create the experiment and show the receipt."""
    from primebeaker.cli.engines import open_engine
    from primebeaker.launch.submit import refuse_unready, submit

    plan = planned(kind, options)
    refuse_unready(plan)
    receipt = submit(plan, open_engine(engine), skip_preflight=skip_preflight)
    warn(receipt["warnings"])
    return Result(receipt, text=lambda: _receipt_text(receipt), template_safe=True)


def _receipt_text(receipt: dict[str, Any]) -> str:
    where = receipt["experiment_url"] or receipt["experiment_id"] or receipt["stdout"].strip()
    lines = [
        f"submitted   {receipt['experiment_name']} to {receipt['workspace']} ({receipt['engine']})",
        f"experiment  {where}",
        f"W&B         {receipt['wandb_run']['url'] or receipt['wandb_run']['name']}",
        f"spec file   {receipt['spec_path']}",
    ]
    return "\n".join(lines)
