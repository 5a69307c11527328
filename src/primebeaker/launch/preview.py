"""The launch as one JSON document, and as readable text. Credentials in URLs are masked; the spec file keeps them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from primebeaker.launch.plan import LaunchPlan
from primebeaker.redaction import mask_url_passwords

__all__ = ["masked", "preview", "preview_text", "submit_command", "wandb_run"]


def preview(plan: LaunchPlan, *, warnings: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The document of ``preview``.

    Args:
        plan: The launch.
        warnings: Replaces the plan's own warnings.
    """
    return {
        "experiment_name": plan.experiment_name,
        "launch_id": plan.launch_id,
        "kind": plan.kind,
        "topology": plan.topology.as_dict(),
        "spec_path": plan.paths.spec,
        "spec": masked(plan.spec),
        "submit_command": submit_command(plan),
        "wandb_run": wandb_run(plan),
        "toml": {"path": str(plan.settings.toml), "sha256": plan.config_sha256, "generation": plan.generation},
        "warnings": masked(list(plan.warnings if warnings is None else warnings)),
    }


def submit_command(plan: LaunchPlan) -> list[str]:
    """What creates the experiment once the spec file is written."""
    return [
        "beaker",
        "experiment",
        "create",
        "--name",
        plan.experiment_name,
        "--workspace",
        plan.settings.workspace,
        plan.paths.spec,
    ]


def wandb_run(plan: LaunchPlan) -> dict[str, Any]:
    """Where W&B shows the run; no URL when it is offline or the entity is not known."""
    facts = plan.facts
    url = None
    if plan.entity and not facts.offline:
        parts = [quote(part, safe="") for part in (plan.entity, facts.project, str(plan.settings.wandb_run_id))]
        url = f"https://wandb.ai/{parts[0]}/{parts[1]}/runs/{parts[2]}"
    return {
        "run_id": plan.settings.wandb_run_id,
        "project": facts.project,
        "entity": plan.entity,
        "name": plan.run_name,
        "offline": facts.offline,
        "url": url,
    }


def masked(value: Any) -> Any:
    """The same JSON value with the password of every URL replaced."""
    if isinstance(value, str):
        return mask_url_passwords(value)
    if isinstance(value, dict):
        return {name: masked(item) for name, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return value


def preview_text(document: dict[str, Any]) -> str:
    """The facts of a preview for a reader at a terminal."""
    task = document["spec"]["tasks"][0]
    shape = document["topology"]
    if shape["type"] == "single_node":
        gpus = f"1 node, {shape['gpus']} GPU{'s' if shape['gpus'] != 1 else ''}"
    else:
        gpus = f"{shape['nodes']} nodes x {shape['gpus_per_node']} GPUs = {shape['total_gpus']} GPUs"
    lines = [
        ("experiment", document["experiment_name"]),
        ("kind", f"{document['kind']}, {gpus}"),
    ]
    if "trainer_gpus" in shape:
        beside = f", {shape['mixed_infer_gpus']} inference GPUs beside it" if shape["mixed_infer_gpus"] else ""
        lines.append(("trainer", f"{shape['trainer_gpus']} GPUs on replica 0{beside}"))
        lines.append(("inference", f"{shape['inference_ranks']} ranks"))
    image = task["image"]
    lines += [
        ("image", f"beaker://{image['beaker']}" if "beaker" in image else image["docker"]),
        ("clusters", f"{', '.join(task['constraints']['cluster'])} at priority {task['context']['priority']}"),
        ("training TOML", f"{document['toml']['path']} (Prime-RL {document['toml']['generation']})"),
        (
            "W&B",
            document["wandb_run"]["url"] or f"{document['wandb_run']['project']} / {document['wandb_run']['name']}",
        ),
        ("spec file", document["spec_path"]),
        ("launch id", document["launch_id"]),
    ]
    width = max(len(name) for name, _ in lines)
    variables = [
        f"  {entry['name']}" + (f" = {entry['value']}" if "value" in entry else f"  (secret {entry['secret']})")
        for entry in task["envVars"]
    ]
    head = [f"{name.ljust(width)}  {value}" for name, value in lines]
    return "\n".join([*head, "environment", *variables, "submit with", "  " + " ".join(document["submit_command"])])
