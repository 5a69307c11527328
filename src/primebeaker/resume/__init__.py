"""Resume a multi-node RL run as a fresh, complete topology from a step that trainer and orchestrator both finished."""

from __future__ import annotations

from primebeaker.resume.checkpoints import discover_common_checkpoints, select_common_checkpoint
from primebeaker.resume.plan import ResumePlan, plan_resume
from primebeaker.resume.render import render_resume_config
from primebeaker.resume.run import resume
from primebeaker.resume.source import ResumeSettings

__all__ = [
    "ResumePlan",
    "ResumeSettings",
    "discover_common_checkpoints",
    "plan_resume",
    "render_resume_config",
    "resume",
    "select_common_checkpoint",
]
