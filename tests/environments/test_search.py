"""The search environments: tools, results, budget, warnings, exact match, judge."""

import json

import pytest
import verifiers as vf

from primebeaker.environments._shared.search_answers import extracted_answer
from primebeaker.environments._shared.search_tools import search_text, visited_page
from primebeaker.runtime.templates import load_prompt_template

SPACE = "primebeaker.environments"
WT, V = f"{SPACE}.jtc_search_agent_env", f"{SPACE}.jtc_search_agent_visit_env"
WTJ, VJ = f"{SPACE}.jtc_search_agent_webterminal_judge_env", f"{SPACE}.jtc_search_agent_visit_judge_env"
JUDGED = (WTJ, VJ)
ANSWER = '```json\n{"answer":"Paris"}\n```'


@pytest.fixture
def load(rows_file, gateway, reply_of_terminal):
    path = rows_file({"question": " Capital of {x}? ", "answer": "paris"})
    gateway.answers["terminal"] = lambda body: reply_of_terminal(f"{body['command']}<{body['contents']}")

    def search(body):
        if body["mode"] == "url":
            return {"success": True, "data": {"title": "T", "content": f"page {body['url']}"}}
        return {"success": True, "data": {"organic": [{"title": "A", "snippet": "s1", "link": "http://x/a"}]}}

    gateway.answers["search"] = search
    gateway.answers["judge"] = lambda body: {"judgments": [{"label": " PASS "}]}

    def make(module, **arguments):
        given = {"dataset": path, "search_server_url": f"{gateway.url}/search", "local_search_model_path": "m"}
        if module in (WT, WTJ):
            given["terminal_server_url"] = f"{gateway.url}/terminal"
        if module in JUDGED:
            given["judge_model_path"] = "j"
        return vf.load_environment(module, **{**given, **arguments})

    return make


def calls(*pairs):
    return {
        "content": "",
        "tool_calls": [
            {
                "id": f"c{n}",
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            }
            for n, (name, arguments) in enumerate(pairs, start=1)
        ],
    }


SEARCH = ("search", {"query": "q", "num_results": 3})
BROWSE = ("webterminal", {"command": "browse http://x/a | rg a"})


@pytest.mark.parametrize(
    ("module", "replies", "reward"),
    [
        (WT, [calls(SEARCH, BROWSE), f"So: {ANSWER}"], 2.0),
        (WT, [ANSWER.replace("Paris", "Rome")], 1.0),
        (WT, ["Paris"], 0.0),
        (V, [calls(("visit", {"url": "http://x/a"})), ANSWER], 2.0),
        (VJ, ["Paris, http://x/a"], 1.0),
        (WTJ, [calls(("webterminal", {"command": "rg x"}), ("webterminal", {"c": 1}), SEARCH), "Paris"], 0.95),
    ],
)
def test_rewards(load, play, module, replies, reward):
    played = play(load(module), replies)
    assert played.output["error"] is None
    assert played.reward == pytest.approx(reward), played.metrics
    assert played.output["stop_condition"] == "no_tools_called"


def test_wtj_counts_model_caused_stderr_and_a_missing_answer(load, play, gateway, reply_of_terminal):
    gateway.answers["terminal"] = lambda body: reply_of_terminal(stderr="rg: bad", exit_code=2)
    bad = ("webterminal", {"command": "rg ("})
    played = play(load(WTJ), [calls(bad, bad, bad, BROWSE), "Paris"])
    assert played.state["search_agent_model_caused_terminal_stderr_count"] == 3
    assert played.reward == pytest.approx(0.85)
    played = play(load(WTJ, max_tool_calls=1), [calls(SEARCH), calls(SEARCH)])
    assert (played.reward, played.output["stop_condition"]) == (-1.0, "stop_after_tool_budget")
    assert len(gateway.bodies("judge")) == 3


def test_requests(load, play, gateway):
    play(load(WT), [calls(("search", {"query": "q"}), ("search", {"query": "q", "num_results": 99}), BROWSE), ANSWER])
    bodies = gateway.bodies("search")[:3]
    first = {"mode": "query", "query": "q", "num_results": 10, "parameters": {}, "model_path": "m"}
    assert first in bodies and {"mode": "url", "url": "http://x/a", "model_path": "m"} in bodies
    assert [body["num_results"] for body in bodies if body["mode"] == "query"] == [10, 10]
    assert gateway.bodies("terminal")[0] == {"contents": "page http://x/a", "command": "rg a", "truncation": 2000}


def test_the_judge_request_and_record(load, play, gateway):
    played = play(load(VJ), ["<think>hm</think> Paris "])
    request = {
        "input": "Capital of {x}?",
        "output": "Paris",
        "rubrics": ["The final answer the model concluded is: paris"],
        "model": "j",
        "model_path": "judge",
    }
    assert gateway.bodies("judge")[0] == request
    assert played.output["info"]["judge"] == {"request": request, "response": {"judgments": [{"label": " PASS "}]}}


@pytest.mark.parametrize(
    "reply", [(500, {}), {"judgments": []}, {"judgments": [{"label": "maybe"}]}, {"judgments": [{"label": "pass"}] * 2}]
)
def test_a_judge_that_fails_is_an_infrastructure_error(load, play, gateway, no_waiting, reply):
    gateway.answers["judge"] = lambda body: reply
    for module in JUDGED:
        played = play(load(module), ["Paris"])
        assert (played.output["error"]["error"], played.reward) == ("InfraError", 0.0)
        assert played.metrics["judge_error"] == 1.0
        assert played.output["info"]["judge"]["error"]


def test_a_fail_label_scores_0_without_an_error(load, play, gateway):
    gateway.answers["judge"] = lambda body: {"judgments": [{"label": "Fail"}]}
    played = play(load(VJ), ["Paris"])
    assert (played.reward, played.output["error"]) == (0.0, None)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("search", "{bad"), "search: the arguments are not JSON"),
        (("search", "[1]"), "search: the arguments are not a JSON object"),
        (("search", {"query": " "}), "search: query is required and must be string"),
        (("search", {"query": "q", "num_results": "5"}), "search: num_results is required and must be integer"),
        (("search", {"query": "q", "limit": 5}), "search: there is no argument 'limit'"),
        (("bash", {"command": "ls"}), "bash: unknown tool; available: search, webterminal"),
        (("webterminal", {"command": "browse ftp://x"}), "browse: ftp://x: only http and https"),
    ],
)
def test_each_call_is_judged_by_itself(load, play, call, says):
    played = play(load(WT), [calls(call, SEARCH), ANSWER])
    first, second = played.prompts[1][-2:]
    assert says in first["content"] and (first["tool_call_id"], second["tool_call_id"]) == ("c1", "c2")
    assert second["content"] == "**A**\ns1\nSource: http://x/a"
    assert played.state["search_agent_tool_call_count"] == 2
    assert played.reward == 2.0


def test_malformed_text_calls_are_answered(load, play):
    text = '<tool_call>{bad}</tool_call><tool_call>{"name":"search","arguments":{"query":"q"}}</tool_call>'
    played = play(load(WT), [text, ANSWER])
    assert [message["tool_call_id"] for message in played.prompts[1][-2:]] == ["call_1", "search_2"]


def test_budget_refusals_and_the_final_warning(load, play):
    played = play(load(WT, max_tool_calls=2), [calls(SEARCH, SEARCH, SEARCH), ANSWER])
    first, second, third = played.prompts[1][-3:]
    assert "last allowed tool call" not in first["content"]
    assert "last allowed tool call" in second["content"] and "json block" in second["content"]
    assert "the budget of 2 tool calls is spent" in third["content"]
    assert "without a JSON block" in play(load(VJ, max_tool_calls=1), [calls(SEARCH), "x"]).prompts[1][-1]["content"]


def test_budget_warnings_state_the_true_numbers(load, play):
    env = load(WT, max_tool_calls=3, turn_budget_warning_fraction=0.5, token_budget_warning_fraction=0.25)
    env.set_max_total_completion_tokens(20)
    played = play(env, [calls(SEARCH), calls(SEARCH), calls(SEARCH), ANSWER])
    answers = [message["content"] for message in played.prompts[-1] if message["role"] == "tool"]
    assert "remain" not in answers[0]
    assert "Only 2 of 4 turns remain, which is 50% or less" in answers[1]
    assert "Only 5 of 20 completion tokens remain, which is 25% or less" in answers[2]
    assert "turns remain" not in answers[2]


def test_one_fetch_a_page_and_a_visit_that_is_cut(load, play, gateway):
    visit = ("visit", {"url": "http://x/a"})
    played = play(load(V, visit_max_content_length=80), [calls(visit, visit), ANSWER])
    assert [message["content"] for message in played.prompts[1][-2:]] == ["# T\n\npage http://x/a"] * 2
    assert len(gateway.bodies("search")) == 3
    gateway.answers["search"] = lambda body: {"success": True, "data": {"content": "x" * 500}}
    cut = play(load(V, visit_max_content_length=80), [calls(visit), ANSWER]).prompts[1][-1]["content"]
    assert len(cut) == 80 and cut.endswith("[The rest of the output was truncated; 420 characters omitted]")


def test_outages_are_counted_told_and_end_the_rollout(load, play, gateway):
    gateway.answers["search"] = lambda body: (500, {"detail": gateway.url})
    played = play(load(V), [calls(SEARCH, ("visit", {"url": "http://x/a"})), ANSWER])
    assert [message["content"] for message in played.prompts[1][-2:]] == [
        "search: service unavailable",
        "visit: service unavailable",
    ]
    assert (played.metrics["tool_infrastructure_errors"], played.reward) == (2.0, 2.0)
    played = play(load(V, max_consecutive_infrastructure_errors=2), [calls(SEARCH), calls(SEARCH), ANSWER])
    assert (played.output["error"]["error"], played.reward) == ("InfraError", 0.0)


def test_a_page_service_that_fails_is_an_outage_for_the_terminal_too(load, play, gateway):
    gateway.answers["search"] = lambda body: (500, {"detail": gateway.url})
    played = play(load(WT), [calls(BROWSE), ANSWER])
    shown = json.loads(played.prompts[1][-1]["content"])
    assert shown["stderr"] == "browse: http://x/a: service unavailable" and shown["exit_code"] == 1
    assert (played.metrics["tool_infrastructure_errors"], played.reward) == (1.0, 2.0)
    played = play(load(WTJ, max_consecutive_infrastructure_errors=2), [calls(BROWSE), calls(BROWSE), "Paris"])
    assert (played.output["error"]["error"], played.reward) == ("InfraError", 0.0)
    gateway.answers["search"] = lambda body: {"success": False, "error": "no such page"}
    played = play(load(WT, max_consecutive_infrastructure_errors=1), [calls(BROWSE), ANSWER])
    assert (played.metrics["tool_infrastructure_errors"], played.reward) == (0.0, 2.0)


def test_prompts_come_from_the_template_and_keep_the_braces_of_the_question(load, rows_file):
    prompt = load(WT, max_tool_calls=7).get_dataset()[0]["prompt"]
    assert prompt[1] == {"role": "user", "content": "Capital of {x}?"}
    assert "7 tool calls" in prompt[0]["content"] and "2000 characters" in prompt[0]["content"]
    own = rows_file({"prompt": "own", "question": "q", "answer": 3}, name="own.jsonl")
    assert load(WT, dataset=own).get_dataset()[0]["prompt"] == [{"role": "user", "content": "own"}]


@pytest.mark.parametrize(
    ("module", "arguments", "says"),
    [
        (WT, {"max_turns": 3}, "must be at least 21: one turn is kept for the final answer"),
        (WT, {"max_tool_calls": 0}, "at least 1"),
        (VJ, {"search_server_url": "http://x/find"}, "set judge_server_url"),
        (VJ, {"judge_rubric_template": "no place"}, "must contain {answer}"),
        (VJ, {"judge_rubric_template": "{answer} {b}"}, "no other placeholder"),
        (WT, {"turn_budget_warning_fraction": 1.5}, "at most 1"),
        (WT, {"max_tool_call": 1}, "did you mean 'max_tool_calls'"),
        (VJ, {"validate_judge_profile": True}, "validate_judge_profile=True: no catalog of judge profiles"),
    ],
)
def test_wrong_arguments(load, module, arguments, says):
    with pytest.raises(RuntimeError) as caught:
        load(module, **arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("Search well.", "no placeholder {question}, so the model would never see the question"),
        ("{question} {budget}", "placeholder {budget}"),
        ("{question} {", "message 1, character 12"),
    ],
)
def test_wrong_templates(load, tmp_path, content, says):
    path = tmp_path / "own.json"
    template = {"name": "own", "input_variables": ["question", "budget"]}
    path.write_text(json.dumps({**template, "chat_template": [{"role": "user", "content": content}]}))
    with pytest.raises(RuntimeError) as caught:
        load(V, template_path=str(path))
    assert f"{path}: {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "a"}, "prompt: missing or empty; accepted columns are prompt, question"),
        ({"messages": [{"role": "user", "content": "q"}], "answer": "a"}, "prompt: missing or empty"),
        ({"question": "q"}, "answer: expected text"),
        ({"question": "q", "answer": True}, "answer: expected text"),
    ],
)
def test_rows_need_a_question_and_an_answer(load, rows_file, row, says):
    with pytest.raises(RuntimeError) as caught:
        load(WT, dataset=rows_file(row, name="bad.jsonl"))
    assert f"bad.jsonl:1: {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (ANSWER, "Paris"),
        ('```JSON\n{"answer":" Paris "}\n```\n ', "Paris"),
        (f'```json\n{{"answer":"Rome"}}\n```\ntext\n{ANSWER}', "Paris"),
        ('```json\n{"answer":"a ``` b"}\n```', "a ``` b"),
        ('Done. ```JSON {"answer":"use ```json"}\n```', "use ```json"),
        ('```json\n{"answer":"x","more":1}\n```', None),
        ('```json\n{"answer":"x","answer":"Paris"}\n```', None),
        ('```json\n{"answer":1}\n```', None),
        ('```json\n{"answer":" "}\n```', None),
        ('```json\n{"a":{"answer":"x"}}\n```', None),
        ('```\n{"answer":"x"}\n```', None),
        (f"{ANSWER} after", None),
        ('{"answer":"x"}', None),
    ],
)
def test_answers_in_the_final_block(text, answer):
    assert extracted_answer(text) == answer


@pytest.mark.parametrize(("gold", "said"), [("straße", "STRASSE"), ("é", "e\u0301"), (3, "3")])
def test_exact_match_ignores_case_and_form(load, play, rows_file, gold, said):
    env = load(WT, dataset=rows_file({"question": "q", "answer": gold}, name="gold.jsonl"))
    assert play(env, [f"```json\n{json.dumps({'answer': said})}\n```"]).metrics["answer_exact_match"] == 1.0


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            {"data": {"organic": [{"title": " A ", "snippet": "s1", "link": "http://x/a"}, 3, {"url": "http://x/b"}]}},
            "**A**\ns1\nSource: http://x/a\n\n**Untitled result**\nSource: http://x/b",
        ),
        ({"data": {"results": [{"title": "B", "description": "d"}]}}, "**B**\nd"),
        ({"data": {"organic": []}}, "search: nothing was found for 'q'"),
        ({"success": False, "error": "no quota"}, "search: no quota"),
    ],
)
def test_search_results(reply, text):
    assert search_text("q", reply) == text


def test_visited_pages():
    assert visited_page({"success": True, "data": "plain"}, None) == "plain"
    assert visited_page({"success": True, "data": {"markdown": " m "}}, None) == "m"


@pytest.mark.parametrize(
    ("module", "template"),
    [
        (WT, "search-agent"),
        (WTJ, "search-agent-webterminal-10k"),
        (V, "search-agent-visit"),
        (VJ, "search-agent-visit-judge"),
    ],
)
def test_templates_take_their_numbers_from_the_arguments(load, module, template):
    shipped = load_prompt_template(f"templates/{template}.json")
    assert {"question", "max_tool_calls"} <= set(shipped["input_variables"])
    assert load(module, template_path=f"templates/{template}.json").get_dataset()[0]["prompt"][1]["role"] == "user"


def test_schemas_are_strict_and_hide_the_page_store(load):
    for module in (WT, V):
        for definition in load(module).tool_defs:
            assert definition.strict is True
            assert definition.parameters["additionalProperties"] is False
            assert "asset_store" not in str(definition)
