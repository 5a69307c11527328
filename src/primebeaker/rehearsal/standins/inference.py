"""Stand-in for ``inference``: an OpenAI-compatible server with Prime-RL's admin routes.

Loads for a second, answers chat and completion requests, waits with them while paused, and takes new weights from
files or from the weight group, keeping track of the policy's version.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from primebeaker.errors import ExternalError, UserError
from primebeaker.prime_rl.contract import GEN_0_7
from primebeaker.prime_rl.tables import Table, lookup
from primebeaker.rehearsal.candidates import CandidateBook
from primebeaker.rehearsal.policy import BanditPolicy, load_script
from primebeaker.rehearsal.settings import RehearsalSettings, load_settings, rehearsal_directory
from primebeaker.rehearsal.standins.channel import listen
from primebeaker.rehearsal.standins.orders import active_faults, bad_answers
from primebeaker.rehearsal.standins.program import FlagKind, load_config, log, parse, run, visible_gpus
from primebeaker.rehearsal.standins.replies import Bandit, Reply, Responder, Script, tokens_of
from primebeaker.rehearsal.standins.serving import serve
from primebeaker.rehearsal.standins.weights import EngineSide, WeightGroup
from primebeaker.supervision.processes import child_preparation

#: Flags that stand for config keys, and vLLM's own that have none.
OVERRIDES = ("--server.host", "--server.port", "--parallel.dp", "--api-server-count")
_SLOW_SECONDS = 2.0
_MALFORMED = "<tool_call>{<feedback>"
FLAGS: Mapping[str, FlagKind] = dict.fromkeys((*OVERRIDES, "--data-parallel-size-local"), "value")


class Engine:
    """One engine's state and routes."""

    def __init__(self, model: str, ranks: int, responder: Responder, settings: RehearsalSettings) -> None:
        self.model = model
        self.upstream = Upstream(settings.model) if settings.model.startswith("http") else None
        self.ranks = ranks
        self.responder = responder
        self._faults = active_faults()
        self.loaded_at = time.monotonic() + settings.load_seconds
        self.running = asyncio.Event()
        self.running.set()
        self.group: EngineSide | None = None
        self.version = 0
        self.updates = 0
        self.requests = 0

    def app(self) -> Starlette:
        """The HTTP application."""
        post = ["POST"]
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/liveness", self.liveness),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.chat, methods=post),
                Route("/v1/completions", self.complete, methods=post),
                Route("/pause", self.pause, methods=post),
                Route("/resume", self.resume, methods=post),
                Route("/update_weights", self.update_weights, methods=post),
                Route("/load_lora_adapter", self.load_lora_adapter, methods=post),
                Route("/init_broadcaster", self.init_broadcaster, methods=post),
            ]
        )

    @property
    def bad(self) -> str | None:
        """How a fault spoils the answers now, or None."""
        return bad_answers(self._faults)

    async def health(self, request: Request) -> Response:
        """200 once the model is loaded."""
        return Response(status_code=200 if time.monotonic() >= self.loaded_at else 503)

    async def liveness(self, request: Request) -> Response:
        """200 while the event loop turns."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """The counters, in Prometheus' text form."""
        return PlainTextResponse(
            f"vllm:request_success_total {self.requests}\nrehearsal:policy_version {self.version}\n"
            f"rehearsal:weight_updates_total {self.updates}\n"
        )

    async def models(self, request: Request) -> Response:
        """The served model."""
        return JSONResponse(
            {"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "rehearsal"}]}
        )

    async def pause(self, request: Request) -> Response:
        """Hold requests back until :meth:`resume`."""
        self.running.clear()
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        """Go on answering."""
        self.running.set()
        return JSONResponse({"status": "resumed"})

    async def init_broadcaster(self, request: Request) -> Response:
        """Join the trainer's weight group with this engine's ranks."""
        values = await request.json()
        group = WeightGroup(
            str(values["host"]), int(values["port"]), int(values["inference_world_size"]), float(values["timeout"])
        )
        try:
            self.group = await EngineSide.join(group, offset=int(values["rank_offset"]), ranks=self.ranks)
        except UserError as error:
            return _refuse(500, str(error))
        return JSONResponse({"status": "ok"})

    async def update_weights(self, request: Request) -> Response:
        """Take the next policy: from the weight group if this engine joined one, else from the named folder."""
        directory = (await request.json()).get("weight_dir")
        try:
            if self.group is not None:
                content = await self.group.receive()
            else:
                content = await asyncio.to_thread((Path(directory) / "model.safetensors").read_bytes)
            policy = BanditPolicy.from_bytes(content)
        except (OSError, TypeError, ValueError, ExternalError) as error:
            return _refuse(500, f"weights from {directory}: {error}")
        return self._take(policy)

    async def load_lora_adapter(self, request: Request) -> Response:
        """Take a policy that was written as an adapter."""
        path = (await request.json()).get("lora_path")
        try:
            content = await asyncio.to_thread((Path(path) / "model.safetensors").read_bytes)
            return self._take(BanditPolicy.from_bytes(content))
        except (OSError, TypeError, ValueError) as error:
            return _refuse(404, f"adapter {path}: {error}")

    def _take(self, policy: BanditPolicy) -> Response:
        if isinstance(self.responder, Bandit):
            self.responder.policy = policy
        self.version = policy.version
        self.updates += 1
        log(f"policy version {self.version}")
        return JSONResponse({"status": "ok"})

    async def chat(self, request: Request) -> Response:
        """Answer a chat request, whole or as a stream."""
        body = await _body(request)
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
            return _refuse(400, "messages: expected a non-empty list")
        if body.get("model") != self.model:
            return _refuse(404, f"The model `{body.get('model')}` does not exist.")
        await self.running.wait()
        self.requests += 1
        bad = self.bad
        if bad == "500":
            return _refuse(500, "a fault of the rehearsal")
        if bad == "slow":
            await asyncio.sleep(_SLOW_SECONDS)
        if self.upstream is not None and bad not in ("malformed", "truncated"):
            return await self.upstream.chat(body)
        answer = self._answer(body, bad)
        if body.get("stream"):
            return StreamingResponse(_stream(answer), media_type="text/event-stream")
        return JSONResponse(answer)

    async def complete(self, request: Request) -> Response:
        """Answer a completion request as if its prompt were a user's message."""
        body = await _body(request)
        if not isinstance(body, dict) or not isinstance(body.get("prompt"), str):
            return _refuse(400, "prompt: expected text")
        if body.get("model") != self.model:
            return _refuse(404, f"The model `{body.get('model')}` does not exist.")
        await self.running.wait()
        self.requests += 1
        answer = self._answer({**body, "messages": [{"role": "user", "content": body["prompt"]}]}, self.bad)
        for choice in answer["choices"]:
            choice["text"] = choice.pop("message")["content"] or ""
        return JSONResponse({**answer, "object": "text_completion"})

    def _answer(self, body: Mapping[str, Any], bad: str | None) -> dict[str, Any]:
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or math.inf
        limit = 1 if bad == "truncated" else limit
        choices = []
        spoken = 0
        for number in range(int(body.get("n") or 1)):
            reply = Reply(_MALFORMED) if bad == "malformed" else self.responder.reply(body, number)
            choice, length = _choice(reply, number, limit, with_logprobs=body.get("logprobs"))
            choices.append(choice)
            spoken += length
        asked = sum(len(tokens_of(json.dumps(message))) for message in body["messages"])
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
            "usage": {"prompt_tokens": asked, "completion_tokens": spoken, "total_tokens": asked + spoken},
        }


class Upstream:
    """An OpenAI-compatible server that answers in this engine's place.

    Args:
        url: With or without the final ``/v1``.
    """

    def __init__(self, url: str) -> None:
        self._root = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(600.0, connect=5.0))
        self._model: str | None = None

    async def chat(self, body: Mapping[str, Any]) -> Response:
        """Pass a chat request on under the first model that server names, and its answer back, whole."""
        try:
            if self._model is None:
                self._model = str((await self._client.get(f"{self._root}/v1/models")).json()["data"][0]["id"])
            asked = {**body, "model": self._model, "stream": False}
            answer = await self._client.post(f"{self._root}/v1/chat/completions", json=asked)
        except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            return _refuse(502, f"{self._root}: {type(error).__name__}: {error}")
        if not body.get("stream") or answer.status_code != 200:
            return Response(answer.content, status_code=answer.status_code, media_type="application/json")
        return StreamingResponse(_stream(answer.json()), media_type="text/event-stream")


def _choice(reply: Reply, number: int, limit: float, *, with_logprobs: Any) -> tuple[dict[str, Any], int]:
    tokens = tokens_of(reply.text)
    cut = len(tokens) > limit
    tokens = tokens[: int(limit)] if cut else tokens
    message: dict[str, Any] = {"role": "assistant", "content": "".join(tokens) if tokens else None}
    if reply.tool_calls:
        message["tool_calls"] = list(reply.tool_calls)
    choice: dict[str, Any] = {
        "index": number,
        "message": message,
        "finish_reason": "tool_calls" if reply.tool_calls else "length" if cut else "stop",
        "logprobs": None,
    }
    if with_logprobs:
        logprob = -1.0 / max(len(tokens), 1)
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}
                for token in tokens
            ]
        }
    return choice, max(len(tokens), 1)


async def _stream(answer: Mapping[str, Any]) -> AsyncIterator[str]:
    head = {key: answer[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in answer["choices"]:
        message = choice["message"]
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        deltas += [{"content": token} for token in tokens_of(message["content"] or "")]
        if message.get("tool_calls"):
            deltas.append({"tool_calls": [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]})
        for delta in deltas:
            yield _event({**head, "choices": [{"index": choice["index"], "delta": delta, "finish_reason": None}]})
        end = {"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}
        yield _event({**head, "choices": [end]})
    yield _event({**head, "choices": [], "usage": answer["usage"]})
    yield "data: [DONE]\n\n"


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _body(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError:
        return None


def _refuse(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "rehearsal", "code": status}}, status_code=status)


def make_responder(settings: RehearsalSettings, directory: Path) -> Responder:
    """What answers, by the settings.

    Raises:
        UserError: The script cannot be read.
    """
    if settings.model == "scripted":
        return Script(load_script(Path(settings.rules)) if settings.rules else [])
    return Bandit(CandidateBook.open(directory), settings.seed)


def main(words: list[str]) -> int:
    """Serve one engine, with the router in front of it where the config has one."""
    arguments = parse(words, FLAGS)
    config = load_config(arguments, OVERRIDES)
    gpus = visible_gpus()
    tp, dp = int(lookup(config, "parallel.tp", 1)), int(lookup(config, "parallel.dp", 1))
    if len(gpus) != tp * dp:
        raise UserError(f"CUDA_VISIBLE_DEVICES = {','.join(gpus)}: expected {tp * dp} GPUs (tp {tp} x dp {dp})")
    settings = load_settings()
    asyncio.run(_serve(config, tp * dp, settings))
    return 0


async def _serve(config: Table, ranks: int, settings: RehearsalSettings) -> None:
    port = int(lookup(config, "server.port", GEN_0_7.ports.router))
    router = config.get("router")
    routed = isinstance(router, dict)
    # The router owns the client-facing port; the engine moves behind it.
    own_port = int(lookup(config, "backend_port", port + GEN_0_7.ports.backend_offset)) if routed else port
    listener = listen(str(lookup(config, "server.host", "0.0.0.0")), own_port)  # noqa: S104  the real default
    model = str(lookup(config, "model.name", GEN_0_7.default_model))
    engine = Engine(model, ranks, make_responder(settings, rehearsal_directory()), settings)
    log(f"serving {model} on port {own_port}")
    serving = asyncio.create_task(serve(engine.app(), listener))
    if routed:
        await _run_router(config, port, own_port)
    await serving


async def _run_router(config: Table, port: int, engine_port: int) -> None:
    program = shutil.which(GEN_0_7.programs.router)
    if program is None:
        raise UserError(f"{GEN_0_7.programs.router} is not on PATH")
    process = await asyncio.create_subprocess_exec(
        program,
        *("--policy", str(lookup(config, "router.policy", GEN_0_7.router_policy))),
        *("--host", "0.0.0.0", "--port", str(port)),  # noqa: S104  the real default
        *("--prometheus-port", str(GEN_0_7.router_metrics_port(port))),
        *("--worker-urls", f"http://127.0.0.1:{engine_port}"),
        preexec_fn=child_preparation(),
    )
    code = await process.wait()
    raise ExternalError(f"{Path(program).name} ended with {code} (process {os.getpid()})")


if __name__ == "__main__":
    run("inference", main)
