"""The browser-aware terminal of `tool-label`, its counting and rewards, and the page store of a rollout."""

import asyncio
import json

import pytest
import verifiers as vf

from primebeaker.environments._shared import pages as pages_module
from primebeaker.environments._shared.pages import PageFault, RolloutPages, fetched_page, stored_page

MODULE = "primebeaker.environments.jtc_tool_label_env"
STRICT = '{"feedback":"f","label":"pass"}'
ENVELOPE = json.dumps({"mode": "url", "data": {"content": "inside"}})


def call(*commands):
    return {
        "content": "",
        "tool_calls": [
            {"id": f"c{number}", "name": "terminal", "arguments": json.dumps({"command": command})}
            for number, command in enumerate(commands)
        ],
    }


@pytest.fixture
def load(rows_file, gateway, reply_of_terminal):
    row = {
        "prompt": "p",
        "output": "see http://x/cited.",
        "answer": "pass",
        "web_pages": {"http://x/stored": "stored", "http://x/wrapped": ENVELOPE, "http://x/gone": None},
    }
    path = rows_file(row)
    gateway.answers["terminal"] = lambda body: reply_of_terminal(f"{body['command']}<{body['contents']}")
    gateway.answers["search"] = lambda body: {"success": True, "data": {"content": f"fetched {body['url']}"}}

    def make(**arguments):
        given = {
            "dataset": path,
            "terminal_server_url": f"{gateway.url}/terminal",
            "local_search_server_url": f"{gateway.url}/search",
            "browser_aware_terminal": True,
        }
        return vf.load_environment(MODULE, **{**given, **arguments})

    return make


@pytest.mark.parametrize(
    ("command", "stdout"),
    [
        ("browse http://x/stored", "cat<stored"),
        ("browse http://x/stored | rg a | head", "rg a | head<stored"),
        ("browse http://x/wrapped", "cat<inside"),
        ("browse http://x/new", "cat<fetched http://x/new"),
        ("browse http://x/gone", "cat<fetched http://x/gone"),
        ("browse a b", "browse a b<see http://x/cited."),
        ("browse", "browse<see http://x/cited."),
        ("cat", "cat<see http://x/cited."),
        ("cat -n", "cat -n<see http://x/cited."),
        ("cat | head", "cat | head<see http://x/cited."),
    ],
)
def test_what_is_on_standard_input(load, play, command, stdout):
    played = play(load(), [call(command), STRICT])
    assert json.loads(played.prompts[1][-1]["content"])["stdout"] == stdout


@pytest.mark.parametrize(
    ("answer", "command", "reason"),
    [
        ((500, {}), "browse http://x/new", "http://x/new: service unavailable"),
        ({"success": False, "error": "no such page"}, "browse http://x/new", "http://x/new: no such page"),
        ({"success": True, "data": {}}, "browse http://x/new", "http://x/new: the page has no text"),
        ({}, "browse ftp://x/new", "ftp://x/new: only http and https URLs"),
        ({}, "browse http://u:p@x/", "only http and https URLs"),
        ({}, "cat asset_nope", "cat: asset_nope: No such file or directory"),
    ],
)
def test_a_page_that_cannot_be_read_is_a_result_and_no_command_error(load, play, gateway, answer, command, reason):
    gateway.answers["search"] = lambda body: answer
    played = play(load(), [call(command), STRICT])
    shown = json.loads(played.prompts[1][-1]["content"])
    assert (shown["stdout"], shown["exit_code"]) == ("", 1)
    assert reason in shown["stderr"] and gateway.url not in shown["stderr"]
    if command.startswith("browse"):
        assert played.state["jtc_tool_command_error_count"] == 0
        assert played.reward == 4.0
    assert gateway.bodies("terminal") == []


def test_one_fetch_a_url_and_rollout_cut_to_the_limit_and_captured(load, play, gateway):
    replies = [call("browse http://x/n", "browse http://x/n | wc"), call("browse http://x/n"), STRICT]
    played = play(load(fetch_max_content_length=7, capture_web_assets=True, local_search_model_path="m"), replies)
    assert gateway.bodies("search")[0] == {"mode": "url", "url": "http://x/n", "model_path": "m"}
    assert len(gateway.bodies("search")) == 3
    assert gateway.bodies("terminal")[0]["contents"] == "fetched"
    assets = [event["output"].get("web_asset") for event in played.state["jtc_tool_history"]]
    assert [asset and asset["content"] for asset in assets] == ["fetched", None, None]
    assert "web_asset" not in json.dumps(played.prompts)
    assert played.state["jtc_successful_browse_count"] == 3
    assert played.state["jtc_browse_url_not_in_output_count"] == 3


def test_browse_rewards(load, play):
    env = load(browse_url_not_in_output_penalty=0.5, browse_success_reward_coef=0.25)
    played = play(env, [call("browse http://x/cited"), call("browse http://x/stored", "browse a b"), STRICT])
    assert played.reward == pytest.approx(4.0 - 0.5 + 0.25)
    assert (played.metrics["browse_call_count"], played.metrics["successful_browse_count"]) == (3.0, 2.0)
    assert played.metrics["browse_url_not_in_output_count"] == 1.0


def test_the_offered_tool_is_called_terminal_and_says_that_it_browses(load, monkeypatch, caplog):
    definition = load().tool_defs[0]
    assert definition.name == "terminal" and "browse <url>" in definition.description
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    load(local_search_server_url="none")
    assert sum("only stored pages can be browsed" in record.message for record in caplog.records) == 1


def test_standalone_commands_are_counted(load, play):
    env = load(standalone_command_repeat_penalty=1.0, standalone_command_repeat_free_count=0)
    played = play(env, [call("cat", "cat | wc", "rg a", "browse http://x/stored"), STRICT])
    state = played.state
    assert (state["jtc_standalone_command_count"], state["jtc_targeted_standalone_command_count"]) == (3, 1)
    assert state["jtc_targeted_standalone_excess_fraction"] == pytest.approx(1 / 3)
    assert played.reward == pytest.approx(4.0 - 1 / 3)


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ("text", "text"),
        ('{"a": 1}', '{"a": 1}'),
        (ENVELOPE, "inside"),
        ('{"mode":"url","data":{"text":"t"}}', "t"),
        ('{"mode":"url","data":{"content":""}}', None),
        ('{"mode":"url","data":{}}', None),
        ("", None),
    ],
)
def test_stored_pages(value, body):
    assert stored_page(value) == body


def test_a_reply_without_text_is_a_fault():
    with pytest.raises(PageFault):
        fetched_page({"success": True, "data": {"content": ""}})


def test_the_store_is_bounded_and_drops_the_least_recently_used_page(monkeypatch):
    monkeypatch.setattr(pages_module, "MOST_CACHED_BYTES", 25)
    asked = []

    async def fetch(url):
        asked.append(url)
        return {"success": True, "data": {"content": url[-1] * 10}}

    async def run():
        store = RolloutPages({"http://x/s": "s" * 1000})
        for url in ("http://x/a", "http://x/b", "http://x/a", "http://x/c", "http://x/a", "http://x/s", "http://x/b"):
            await store.page(url, fetch, None)

    asyncio.run(run())
    assert asked == ["http://x/a", "http://x/b", "http://x/c", "http://x/b"]


def test_concurrent_readers_of_one_page_share_a_fetch_and_its_failure():
    asked = []

    async def fetch(url):
        asked.append(url)
        await asyncio.sleep(0)
        return {"success": False, "error": "gone"}

    async def run():
        store = RolloutPages()
        return await asyncio.gather(*(store.page("http://x/a", fetch, None) for _ in range(5)), return_exceptions=True)

    results = asyncio.run(run())
    assert asked == ["http://x/a"]
    assert all(isinstance(result, PageFault) for result in results)
