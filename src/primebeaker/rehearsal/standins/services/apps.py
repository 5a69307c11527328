"""The stand-ins as web applications; what can be LiteRegistry's own server is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from primebeaker.fileio import atomic_write
from primebeaker.rehearsal.standins.services.corpus import Ranking, body_of, documents_of

__all__ = ["APPS", "Setting", "verdict"]

_WORD = re.compile(r"\w{4,}")


class Setting(NamedTuple):
    """What a stand-in is started with: the name it serves, its corpus, a folder of its own, and its address."""

    name: str
    corpus: Path | None
    folder: Path
    address: str


def local_search(setting: Setting) -> Any:
    """LiteRegistry's BM25 server over a few documents, with our ranking in the place of Lucene."""
    import json

    from literegistry.services.bm25_server import create_app

    documents = documents_of(setting.corpus)
    path = setting.folder / "corpus.jsonl"
    atomic_write(path, "".join(json.dumps(one) + "\n" for one in documents))
    return create_app(path, searcher=Ranking(documents))


def web_search(setting: Setting) -> Any:
    """LiteRegistry's search server, whose search engine and page reader are ours."""
    from fastapi import FastAPI
    from literegistry.services.search_server import SearchRequest, SearchServer, SearchServerConfig

    documents = documents_of(setting.corpus)
    pages = {str(one["url"]): one for one in documents}
    ranking = Ranking(documents)
    by_id = {str(one["docid"]): one for one in documents}
    server = SearchServer(
        SearchServerConfig(
            registry=f"sqlite://{setting.folder}/own.sqlite3",
            provider="generic",
            search_api_url=f"{setting.address}/upstream/search",
            fetch_api_url=f"{setting.address}/upstream/page",
            jina_api_key="rehearsal",
        )
    )
    server.cache = _NoCache()
    app = FastAPI(title="Stand-in: web search")

    async def found(body: dict[str, Any]) -> dict[str, Any]:
        hits = [by_id[name] for name, _ in ranking.search(body["query"], int(body["num_results"]))]
        return {"organic": [{"title": hit["title"], "link": hit["url"], "snippet": body_of(hit)[:180]} for hit in hits]}

    async def page(body: dict[str, Any]) -> dict[str, Any]:
        known = pages.get(body["url"], {"title": body["url"], "contents": "A stand-in page of a rehearsal."})
        return {"data": {"title": known["title"], "content": body_of(known)}}

    async def search(request: SearchRequest) -> Any:
        if server.session is None:
            import aiohttp

            server.session = aiohttp.ClientSession()
        return await server.execute(request)

    search.__annotations__ = {"request": SearchRequest, "return": Any}
    app.post("/upstream/search")(found)
    app.post("/upstream/page")(page)
    app.post("/search")(search)
    return app


def terminal(setting: Setting) -> Any:
    """LiteRegistry's terminal server with the programs there are; its own task refuses to start without all of them."""
    from literegistry.services.terminal_server import TerminalPipelineServer, TerminalServerConfig

    return TerminalPipelineServer(TerminalServerConfig(registry=f"sqlite://{setting.folder}/own.sqlite3")).app


def judge(setting: Setting) -> Any:
    """The judge's protocol: one label a rubric."""
    from fastapi import FastAPI, HTTPException

    app = FastAPI(title="Stand-in: judge")

    async def answer(body: dict[str, Any]) -> dict[str, Any]:
        rubrics = body.get("rubrics")
        if not isinstance(rubrics, list) or not rubrics or not isinstance(body.get("output"), str):
            raise HTTPException(422, "expected input, output, model and a list of rubrics")
        return {
            "judgments": [
                {"rubric_index": number, "label": verdict(body["output"], str(rubric)), "feedback": "A stand-in's."}
                for number, rubric in enumerate(rubrics)
            ]
        }

    app.post("/judge")(answer)
    return app


def verdict(output: str, rubric: str) -> str:
    """``pass`` when the output holds what stands after the rubric's last colon, or half of the words of one without."""
    said = " ".join(output.lower().split())
    head, colon, wanted = rubric.rpartition(":")
    if colon and wanted.strip():
        return "pass" if " ".join(wanted.lower().split()) in said else "fail"
    words = set(_WORD.findall((head or rubric).lower()))
    return "pass" if words and 2 * sum(word in said for word in words) >= len(words) else "fail"


def model(setting: Setting) -> Any:
    """The routes of vLLM that the gateway passes on: chat, completion and classification."""
    from fastapi import FastAPI

    app = FastAPI(title="Stand-in: model")
    text = "A stand-in model of a rehearsal answers this."

    def replied(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": "rehearsal",
            "object": kind,
            "created": int(time.time()),
            "model": setting.name,
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, **choice}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }

    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": setting.name, "object": "model", "owned_by": "rehearsal"}]}

    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        return replied("chat.completion", {"message": {"role": "assistant", "content": text}})

    async def completion(body: dict[str, Any]) -> dict[str, Any]:
        return replied("text_completion", {"text": text})

    async def classify(body: dict[str, Any]) -> dict[str, Any]:
        last = str((body.get("messages") or [{"content": body.get("input", "")}])[-1].get("content") or "")
        # Longer is better, up to a limit: something that a policy could learn.
        good = min(len(last.strip()), 400) / 400
        data = [{"index": 0, "label": "LABEL_1", "probs": [1 - good, good], "num_classes": 2}]
        return {"id": "rehearsal", "object": "list", "model": setting.name, "data": data, "usage": {}}

    app.get("/v1/models")(models)
    app.post("/v1/chat/completions")(chat)
    app.post("/v1/completions")(completion)
    app.post("/classify")(classify)
    return app


class _NoCache:
    """No cache service runs beside a stand-in."""

    async def get(self, key: str) -> Any:
        return type("Miss", (), {"hit": False, "value": None})()

    async def set(self, key: str, value: Any, *, ttl_seconds: int) -> None:
        """Keep nothing."""


#: Kind -> what makes its application.
APPS: Mapping[str, Callable[[Setting], Any]] = {
    "local-search": local_search,
    "web-search": web_search,
    "judge": judge,
    "model": model,
    "terminal": terminal,
}
