"""The orchestrator's side of inference: readiness, the weight group, and policy updates in the real order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from primebeaker.errors import ExternalError
from primebeaker.rehearsal.standins.weights import WeightGroup

__all__ = ["InferencePool"]

_POLL_SECONDS = 0.1
_ADMIN_SECONDS = 60.0


class InferencePool:
    """The client URL all rollouts use, and one admin URL an engine.

    Args:
        base_url: What rollouts are sent to, ending in ``/v1``.
        admin_urls: One URL an engine, in the order of their ranks.
    """

    def __init__(self, base_url: str, admin_urls: Sequence[str]) -> None:
        self.base_url = base_url
        self.roots = [url.rstrip("/").removesuffix("/v1") for url in admin_urls]
        # Admin calls go to this machine or to the cluster's own nodes, never through a proxy.
        self._client = httpx.AsyncClient(timeout=_ADMIN_SECONDS, trust_env=False)

    async def wait_ready(self, model: str, seconds: float) -> None:
        """Wait until the client URL and every engine are healthy and serve the model.

        Raises:
            ExternalError: One was not within ``seconds``, or serves other models.
        """
        deadline = time.monotonic() + seconds
        front = self.base_url.rstrip("/").removesuffix("/v1")
        for root in dict.fromkeys([front, *self.roots]):
            while not await self._is_healthy(root):
                if time.monotonic() > deadline:
                    raise ExternalError(f"inference at {root} was not healthy within {seconds:g} s")
                await asyncio.sleep(_POLL_SECONDS)
            answer = await self._client.get(f"{root}/v1/models")
            served = [entry["id"] for entry in answer.json()["data"]]
            if model not in served:
                raise ExternalError(f"inference at {root} serves {', '.join(served)}, not {model}")

    async def join_weight_group(self, group: WeightGroup) -> None:
        """Let every engine join the trainer's weight group, each with its share of the ranks, in the URLs' order.

        Raises:
            ExternalError: An engine refused.
        """
        share = group.inference_ranks // len(self.roots)
        await asyncio.gather(
            *(
                self._post(
                    root,
                    "/init_broadcaster",
                    {
                        "host": group.host,
                        "port": group.port,
                        "timeout": group.timeout,
                        "rank_offset": number * share,
                        "inference_world_size": group.inference_ranks,
                    },
                    seconds=group.timeout,
                )
                for number, root in enumerate(self.roots)
            )
        )

    async def update(self, directory: Path, *, in_memory: bool) -> None:
        """Give every engine the policy of ``directory``: pause all, mark readiness, update all, resume all.

        Raises:
            ExternalError: An engine refused or went away.
        """
        await asyncio.gather(*(self._post(root, "/pause?mode=keep&clear_cache=false") for root in self.roots))
        try:
            if in_memory:
                # The trainer sends only once every engine stands still.
                await asyncio.to_thread((directory / "NCCL_READY").touch)
            body = {"weight_dir": str(directory)}
            await asyncio.gather(*(self._post(root, "/update_weights", body) for root in self.roots))
        finally:
            await asyncio.gather(*(self._post(root, "/resume") for root in self.roots))

    async def _is_healthy(self, root: str) -> bool:
        try:
            return (await self._client.get(f"{root}/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def _post(
        self, root: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = _ADMIN_SECONDS
    ) -> None:
        try:
            answer = await self._client.post(f"{root}{path}", json=body or {}, timeout=seconds)
        except httpx.HTTPError as error:
            raise ExternalError(f"{root}{path}: {type(error).__name__} {error}") from error
        if answer.status_code != 200:
            raise ExternalError(f"{root}{path}: {answer.status_code} {answer.text[:300]}")
