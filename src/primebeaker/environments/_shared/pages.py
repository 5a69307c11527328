"""Web pages of a rollout: those stored with its row, and those fetched, each at most once."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from literegistry_tool_client import WebAssetStore

from primebeaker.environments._shared.commands import is_fetchable

__all__ = ["MOST_CACHED_BYTES", "PageFault", "PageOutage", "RolloutPages", "stored_page"]

#: Text of fetched pages that one rollout keeps; the least recently used page goes first.
MOST_CACHED_BYTES = 16 * 2**20


class PageFault(Exception):
    """A page cannot be read; the text is a short reason for the model."""


class PageOutage(PageFault):
    """The page service itself failed."""


def stored_page(value: str) -> str | None:
    """The body of a stored page: the JSON text of a whole URL-fetch reply counts as its content; None when empty."""
    if value.lstrip().startswith("{"):
        try:
            reply = json.loads(value)
        except (ValueError, RecursionError):
            reply = None
        if isinstance(reply, Mapping) and reply.get("mode") == "url" and isinstance(reply.get("data"), Mapping):
            data = reply["data"]
            body = data["content"] if data.get("content") is not None else data.get("text")
            return body if isinstance(body, str) and body else None
    return value or None


def fetched_page(reply: Any) -> str:
    """The body in a reply of the page service.

    Raises:
        PageFault: The reply says that it failed, or has no body.
    """
    if not isinstance(reply, Mapping):
        raise PageFault("service unavailable")
    if reply.get("success") is not True:
        raise PageFault(" ".join(str(reply.get("error") or "the request failed").split())[:200])
    data = reply.get("data")
    found = data if isinstance(data, Mapping) else {}
    for key in ("content", "text", "markdown"):
        body = found.get(key)
        if isinstance(body, str) and body:
            return body
    raise PageFault("the page has no text")


class RolloutPages(WebAssetStore):  # type: ignore[misc]  # LiteRegistry has no type information
    """The asset store of one rollout: stored pages stay, fetched ones are bounded in size.

    Args:
        web_pages: The pages stored with the row, URL to text.
    """

    def __init__(self, web_pages: Mapping[str, str] | None = None) -> None:
        bodies = {url: stored_page(page) for url, page in (web_pages or {}).items()}
        super().__init__({url: body for url, body in bodies.items() if body is not None})
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._cached_bytes = 0
        self._fetching: dict[str, asyncio.Future[str]] = {}

    def get(self, asset_id: str) -> dict[str, Any]:
        """A copy of an asset, which counts as a use of its page."""
        if asset_id in self._sizes:
            self._sizes.move_to_end(asset_id)
        found: dict[str, Any] = super().get(asset_id)
        return found

    def update(self, asset_id: str, key: Any = None, value: Any = None, /, **fields: Any) -> dict[str, Any]:
        """Change an asset; pages beyond the bound lose their text, least recently used first."""
        changed: dict[str, Any] = super().update(asset_id, key, value, **fields)
        self._keep_within_bound(asset_id, changed.get("content"))
        return changed

    def _keep_within_bound(self, asset_id: str, content: Any) -> None:
        self._cached_bytes -= self._sizes.pop(asset_id, 0)
        if not isinstance(content, str):
            return
        self._sizes[asset_id] = len(content.encode("utf-8", "surrogatepass"))
        self._cached_bytes += self._sizes[asset_id]
        while self._cached_bytes > MOST_CACHED_BYTES and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            self._cached_bytes -= self._sizes.pop(oldest)
            super().update(oldest, "content", None)

    async def page(self, url: str, fetch: Callable[[str], Awaitable[Any]], limit: int | None) -> tuple[str, bool]:
        """The text of a page, and whether this call fetched it; concurrent calls for one URL share a fetch.

        Args:
            url: The page.
            fetch: Asks the page service.
            limit: Characters that are kept.

        Raises:
            PageFault: The page cannot be read.
        """
        known = self._content(url)
        if known is not None:
            return known, False
        if not is_fetchable(url):
            raise PageFault("only http and https URLs with a host and without user info can be read")
        if url in self._fetching:
            return await asyncio.shield(self._fetching[url]), False
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # A fault nobody else waits for is no "exception was never retrieved".
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._fetching[url] = future
        try:
            body = fetched_page(await fetch(url))[:limit]
        except PageFault as fault:
            future.set_exception(fault)
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            del self._fetching[url]
        self.set(self.add_url(url), "content", body)
        future.set_result(body)
        return body, True

    def _content(self, url: str) -> str | None:
        content = self.get_by_url(url).get("content") if self.has_url(url) else None
        return content if isinstance(content, str) else None
