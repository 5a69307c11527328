"""A model that says what the test scripts: in process, or behind a real HTTP server on loopback."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, Usage

Reply = str | Mapping[str, Any]


class LoopbackServer:
    """An aiohttp application on a loopback port, in its own thread and event loop."""

    def __init__(self, app: web.Application) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""

    def __enter__(self) -> "LoopbackServer":
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def connections(self) -> list[Any]:
        """The open connections."""
        return [found for found in self._runner.server.connections if found.transport is not None]

    async def _start(self) -> str:
        self._runner = web.AppRunner(self._app, shutdown_timeout=1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"


def completion(reply: Reply, *, model: str = "scripted") -> dict[str, Any]:
    """The body of a chat completion that says ``reply`` (text, or a message with content and tool_calls)."""
    message = {"role": "assistant", "content": reply} if isinstance(reply, str) else {"role": "assistant", **reply}
    calls = message.get("tool_calls")
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }


@pytest.fixture
def model_server():
    """Serve a function from a request's messages to the reply as an OpenAI-compatible model; gives the base URL."""
    return _model_server


@contextmanager
def _model_server(answer: Callable[[list[dict[str, Any]]], Reply]) -> Iterator[str]:
    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(completion(answer(body["messages"]), model=body["model"]))

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/chat/completions", chat)
    with LoopbackServer(app) as server:
        yield f"{server.url}/v1"


@pytest.fixture
def tool_call():
    """Make a structured call in the wire form of a server."""
    return _tool_call


def _tool_call(name: str, arguments: Any, id: str = "c1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


@pytest.fixture
def rows_file(tmp_path):
    """Write rows to a JSON-lines file and give its path."""

    def write(*rows: Any, name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


class ScriptedClient(Client):
    """A Verifiers client in this process: the n-th request of a rollout gets the n-th scripted message."""

    def __init__(self, replies: Sequence[Reply] | Callable[[Any], Reply]) -> None:
        super().__init__(object())
        self.replies = replies
        self.prompts: list[list[dict[str, Any]]] = []

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        return tool

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        raise AssertionError("get_response answers")

    async def raise_from_native_response(self, response):
        return None

    async def from_native_response(self, response):
        return response

    async def close(self):
        return None

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        state = kwargs["state"]
        self.prompts.append([message.model_dump(exclude_none=True) for message in prompt])
        reply = self.replies(state) if callable(self.replies) else self.replies[len(state["trajectory"])]
        message = {"content": reply} if isinstance(reply, str) else dict(reply)
        if message.get("tool_calls"):
            message["tool_calls"] = [
                {"id": call["id"], **call["function"]} if "function" in call else call for call in message["tool_calls"]
            ]
        truncated = bool(message.pop("truncated", False))
        return Response(
            id="r",
            created=1,
            model=model,
            usage=Usage(prompt_tokens=10, reasoning_tokens=0, completion_tokens=5, total_tokens=15),
            message=ResponseMessage(**{"content": None, **message}, finish_reason="stop", is_truncated=truncated),
        )


@pytest.fixture
def scripted_client():
    """Make a Verifiers client from replies, or from a function of the rollout's state."""
    return ScriptedClient


class Played(NamedTuple):
    """A finished rollout: its output as Verifiers gives it, its state, and the prompts the model was sent."""

    output: dict[str, Any]
    state: dict[str, Any]
    prompts: list[list[dict[str, Any]]]

    @property
    def reward(self) -> float:
        return self.output["reward"]

    @property
    def metrics(self) -> dict[str, float]:
        return self.output["metrics"]


@pytest.fixture
def play():
    """Run one rollout against scripted replies, through both scoring paths, which must agree.

    ``play(env, replies, row=0)`` answers the n-th request of the rollout with ``replies[n]``.
    """

    def run(env, replies, *, row: int | dict[str, Any] = 0, columns: Sequence[str] = ()) -> Played:
        return asyncio.run(play_async(env, replies, row=row, columns=columns))

    return run


async def play_async(env, replies, *, row=0, columns=()) -> Played:
    """The same inside a running loop."""
    client = ScriptedClient(replies)
    given = dict(env.get_dataset()[row]) if isinstance(row, int) else row
    states: list[dict[str, Any]] = []
    run_one, run_many = env._run_rollout_state, env._run_group_states

    async def keeping_one(*args, **kwargs):
        states.append(await run_one(*args, **kwargs))
        return states[-1]

    env._run_rollout_state = keeping_one
    try:
        alone = await env.run_rollout(given, client, "scripted", {}, state_columns=list(columns))
        grouped = await env.run_group([given, given], ScriptedClient(replies), "scripted", {})
    finally:
        env._run_rollout_state, env._run_group_states = run_one, run_many
    for member in grouped:
        assert member["reward"] == pytest.approx(alone["reward"])
        assert member["metrics"] == pytest.approx(alone["metrics"])
        assert (member["error"] is None) == (alone["error"] is None)
        assert member["stop_condition"] == alone["stop_condition"]
    return Played(alone, states[0], client.prompts)


class FakeGateway:
    """A gateway on loopback whose routes answer what the test scripts, and that keeps every request body."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {}
        #: From the number of a request to ``status``, ``hang`` or ``drop`` when it is to fail so.
        self.fault: Callable[[int], str | None] = lambda number: None
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{route}", self._answer)
        self.server = LoopbackServer(app)

    @property
    def url(self) -> str:
        return self.server.url

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        route, body = request.match_info["route"], await request.json()
        self.requests.append((route, body))
        fault = self.fault(len(self.requests))
        if fault == "status":
            return web.json_response({"detail": "busy"}, status=503)
        if fault == "hang":
            await asyncio.sleep(600)
        if fault == "drop" and request.transport is not None:
            request.transport.close()
        answer = self.answers.get(route)
        if answer is None:
            return web.json_response({"detail": "no such route"}, status=404)
        found = answer(body)
        if asyncio.iscoroutine(found):
            found = await found
        if isinstance(found, web.StreamResponse):
            return found
        if isinstance(found, tuple):
            return web.json_response(found[1], status=found[0])
        return web.json_response(found)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.server.connections())

    def bodies(self, route: str) -> list[dict[str, Any]]:
        """The request bodies a route got."""
        return [body for name, body in self.requests if name == route]


def terminal_reply(stdout: str = "", stderr: str = "", exit_code: int = 0) -> dict[str, Any]:
    """A reply of the terminal service."""
    return {
        "stdout": stdout,
        "stderr": stderr,
        "success": exit_code == 0,
        "exit_code": exit_code,
        "execution_time": 0.01,
        "truncated": False,
        "truncated_characters": 0,
    }


@pytest.fixture
def gateway():
    """A fake gateway whose terminal says ``S:`` and its command."""
    fake = FakeGateway()
    fake.answers["terminal"] = lambda body: terminal_reply(f"S:{body['command']}")
    with fake.server:
        yield fake


@pytest.fixture
def reply_of_terminal():
    """Make a reply of the terminal service."""
    return terminal_reply


@pytest.fixture
def no_waiting(monkeypatch):
    """Retries without their waits."""
    from primebeaker.environments._shared import services

    async def at_once(seconds: float) -> None:
        return None

    monkeypatch.setattr(services, "retry_sleep", at_once)
