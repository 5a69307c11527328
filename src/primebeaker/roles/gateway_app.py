"""The tool gateway: LiteRegistry's own, with a route for judges. Imported by every gateway worker."""

from __future__ import annotations

import os
from typing import Any

from literegistry import get_kvstore
from literegistry.client import RegistryClient
from literegistry.gateway import (
    GatewayConfig,
    GatewayRequestError,
    ProxyRoute,
    RetryConfig,
    create_app,
    default_proxy_routes,
)

__all__ = ["build", "judge_route"]

_JUDGE_TIMEOUT = "240"
_CACHE_SECONDS = "5"


def prepare_judge(payload: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The service a judge request goes to: its ``model_path``, by default ``judge``."""
    service = payload.get("model_path", "judge")
    if not isinstance(service, str) or not service:
        raise GatewayRequestError("model_path must be a non-empty string")
    return service, dict(payload)


def judge_route() -> ProxyRoute:
    """``POST /judge``."""
    return ProxyRoute("/judge", "judge", prepare_judge, retry="judge", name="judge")


def build() -> Any:
    """The application of one worker; everything comes from the environment."""
    config = GatewayConfig.from_env()
    judge = RetryConfig(
        timeout=float(os.environ.get("JUDGE_TIMEOUT", _JUDGE_TIMEOUT)),
        connect_timeout=3,
        max_retries=int(os.environ.get("JUDGE_MAX_RETRIES", "1")),
        retry_backoff_seconds=0.1,
    )
    # The configuration is frozen, but the mapping of retry classes in it is this call's own.
    config.retry["judge"] = judge
    registry = RegistryClient(
        store=get_kvstore(os.environ["REGISTRY_PATH"]),
        service_type="model_path",
        cache_ttl=int(os.environ.get("REGISTRY_CACHE_TTL_SECONDS", _CACHE_SECONDS)),
    )
    return create_app(
        config,
        registry=registry,
        routes=[*default_proxy_routes(), judge_route()],
        enable_strict_affinity=True,
        enable_docker_mirror=False,
    )
