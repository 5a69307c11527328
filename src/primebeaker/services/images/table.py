"""Which images a stack needs, and what they are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["STACK_IMAGES", "StackImage", "stack_images"]


@dataclass(frozen=True)
class StackImage:
    """One image.

    Args:
        argument: The launcher's field that takes its ID.
        repository: The local repository that the companion's build script tags.
        beaker_name: Start of its name on Beaker. The stacks' Redis images differ and must not share a name.
    """

    argument: str
    repository: str
    beaker_name: str

    def local_tag(self, version: str) -> str:
        """The local image reference."""
        return f"{self.repository}:{version}"

    def name(self, version: str) -> str:
        """The name on Beaker."""
        return f"{self.beaker_name}-{re.sub(r'[^A-Za-z0-9-]', '-', version)}"


#: Stack -> its images, in the order of upload.
STACK_IMAGES: Mapping[str, tuple[StackImage, ...]] = {
    "base": (
        StackImage("redis_image", "literegistry-redis", "literegistry-redis-base"),
        StackImage("services_image", "literegistry-base-services", "literegistry-base-services"),
        StackImage("terminal_image", "literegistry-base-terminal", "literegistry-base-terminal"),
        StackImage("vllm_image", "literegistry-base-vllm", "literegistry-base-vllm"),
    ),
    # The warm-up image belongs here because the Podman stack starts it by default.
    "podman": (
        StackImage("redis_image", "literegistry-redis", "literegistry-redis-podman"),
        StackImage("gateway_image", "literegistry-podman-gateway", "literegistry-podman-gateway"),
        StackImage("podman_image", "literegistry-podman-server", "literegistry-podman-server"),
        StackImage("docker_mirror_image", "literegistry-docker-mirror", "literegistry-docker-mirror"),
        StackImage("warmup_image", "literegistry-podman-warmup", "literegistry-podman-warmup"),
    ),
}

_LOCAL_SEARCH = StackImage("local_search_image", "jtc-local-search-lucene-bm25", "jtc-local-search-lucene-bm25")


def stack_images(stack: str, *, local_search: bool = False) -> tuple[StackImage, ...]:
    """The images of a stack, the BM25 image included when asked for (base stack only)."""
    images = STACK_IMAGES[stack]
    return (*images, _LOCAL_SEARCH) if local_search and stack == "base" else images
