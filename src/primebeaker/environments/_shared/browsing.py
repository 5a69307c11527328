"""The browser-aware terminal: ``browse URL`` and ``cat ID`` put pages on standard input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from primebeaker.environments._shared.commands import browse_of, cat_of
from primebeaker.environments._shared.pages import PageFault, PageOutage, RolloutPages

__all__ = ["PAGE_OUTAGE", "BrowsingTerminal", "goes_to_plain_terminal"]

#: Key of a result that failed because the page service did; never shown.
PAGE_OUTAGE = "primebeaker_page_outage"


class BrowsingTerminal:
    """Runs terminal commands over the judged output, or over pages of the rollout.

    Args:
        terminal: Runs a command over contents: ``await terminal(command, contents)``.
        fetch: Asks the page service for a URL; a failure is a :class:`PageFault` or any exception.
        page_limit: Characters of a page that are kept; None for all.
        capture_pages: Whether a page that was fetched is put as ``web_asset`` into the result.
    """

    #: The clients behind it make one attempt a call, as those of :func:`pooled` do.
    primebeaker_pooled = True

    def __init__(
        self,
        terminal: Callable[[str, str], Awaitable[Any]],
        fetch: Callable[[str], Awaitable[Any]],
        *,
        page_limit: int | None,
        capture_pages: bool = False,
    ) -> None:
        self._terminal = terminal
        self._fetch = fetch
        self._page_limit = page_limit
        self._capture_pages = capture_pages

    async def execute(self, *, command: str, contents: str, asset_store: RolloutPages) -> Any:
        """Run one command; a page that cannot be read is a result on stderr with exit code 1."""
        browse = browse_of(command)
        if browse is not None:
            try:
                body, fetched = await asset_store.page(browse.url, self._fetch, self._page_limit)
            except PageFault as fault:
                return _failed(f"browse: {browse.url}: {fault}", fault)
            result = await self._terminal(browse.pipeline, body)
            if self._capture_pages and fetched and isinstance(result, dict):
                result = {**result, "web_asset": asset_store.get_by_url(browse.url)}
            return result
        if goes_to_plain_terminal(command, asset_store):
            return await self._terminal(command, contents)
        words, pipeline = cat_of(command) or ([], command)
        bodies = []
        for word in words:
            if word not in asset_store:
                return _failed(f"cat: {word}: No such file or directory")
            asset = asset_store.get(word)
            try:
                bodies.append((await asset_store.page(asset["url"], self._fetch, self._page_limit))[0])
            except PageFault as fault:
                return _failed(f"cat: {word}: {fault}", fault)
        return await self._terminal(pipeline, "\n\n".join(bodies))


def goes_to_plain_terminal(command: str, asset_store: Any) -> bool:
    """Whether a command that is no ``browse URL`` reads the judged output: all but ``cat`` of stored assets."""
    cat = cat_of(command)
    return cat is None or not all(word in asset_store or word.startswith("asset_") for word in cat[0])


def _failed(stderr: str, fault: PageFault | None = None) -> dict[str, Any]:
    result = {"stdout": "", "stderr": stderr, "success": False, "exit_code": 1}
    return result | {PAGE_OUTAGE: True} if isinstance(fault, PageOutage) else result
