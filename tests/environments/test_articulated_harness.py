"""`articulated-harness`: submissions, endings, rewards, rows."""

import json

import pytest
import verifiers as vf

from primebeaker.environments._shared.gold import gold_labels

MODULE = "primebeaker.environments.articulated_harness_env"
GOLD = [{"rubric_id": "a", "label": "PASS"}, {"rubric_id": "b", "label": "fail"}]
ROW = {"prompt": "p", "output": "o", "expected_rubric_ids": ["a", "b"], "gold_submissions": GOLD}


@pytest.fixture
def load(rows_file, gateway):
    def make(*rows, **arguments):
        path = rows_file(*(rows or [ROW]))
        return vf.load_environment(
            MODULE, **{"dataset": path, "terminal_server_url": f"{gateway.url}/terminal", **arguments}
        )

    return make


def calls(*pairs):
    return {
        "content": "",
        "tool_calls": [
            {"id": f"c{number}", "name": name, "arguments": json.dumps(arguments)}
            for number, (name, arguments) in enumerate(pairs, start=1)
        ],
    }


def submit(id, label="pass", feedback="f"):
    return ("submit", {"rubric_id": id, "feedback": feedback, "label": label})


TERMINAL = ("terminal", {"command": "cat"})


@pytest.mark.parametrize(
    ("replies", "reward", "stop"),
    [
        ([calls(TERMINAL), calls(submit("a")), calls(submit("b", "fail"))], 2.0, "all_rubrics_submitted"),
        ([calls(submit("a"), submit("b", "fail"))], 2.0, "all_rubrics_submitted"),
        ([calls(submit("a")), calls(submit("b", "pass"))], 1.5, "all_rubrics_submitted"),
        ([calls(submit("a")), "done"], -4.0, "stop_after_final_or_invalid"),
        ([calls(submit("a", "fail")), calls(submit("a", " Pass "), submit("b", "fail"))], 2.0, "all_rubrics_submitted"),
        ([calls(submit("a", feedback=" ")), calls(submit("a"), submit("b", "fail"))], 1.9, "all_rubrics_submitted"),
        ([calls(submit("z")), calls(submit("a"), submit("b", "fail"))], 1.9, "all_rubrics_submitted"),
        (['{"feedback":"f","label":"pass"}'], -5.0, "stop_after_final_or_invalid"),
        ([calls(("terminal", {"command": ""}))], -5.0, "stop_after_final_or_invalid"),
    ],
)
def test_rewards(load, play, replies, reward, stop):
    played = play(load(), replies)
    assert played.output["error"] is None
    assert (played.reward, played.output["stop_condition"]) == (pytest.approx(reward), stop), played.metrics


def test_the_last_answers_end_the_conversation(load, play):
    played = play(load(), [calls(TERMINAL), calls(submit("a"), submit("b", "fail"))])
    answers = [message["content"] for message in played.output["completion"] if message["role"] == "tool"]
    assert len(answers) == 3 and len(played.prompts) == 2
    assert json.loads(answers[-1])["data"] == {
        "accepted_rubric_id": "b",
        "replaced": False,
        "completed_rubric_ids": ["a", "b"],
        "waiting_rubric_ids": [],
        "all_completed": True,
    }
    assert played.state["jtc_submit_complete"] is True


def test_a_spent_budget_ends_the_episode_and_is_no_invalid_trace(load, play):
    played = play(load(max_tool_calls=2), [calls(TERMINAL), calls(submit("a"), submit("b", "fail"))])
    assert played.prompts[1][-1]["content"].endswith("One tool call of your budget remains.")
    assert played.output["stop_condition"] == "tool_budget_exhausted"
    assert played.reward == pytest.approx(1.0 + 0.5 - 0.5)
    answers = [message for message in played.output["completion"] if message["role"] == "tool"]
    assert "the budget of 2 tool calls is spent" in answers[-1]["content"]
    assert "JSON object" not in json.dumps([answer["content"] for answer in answers])


@pytest.mark.parametrize(
    ("replies", "reward", "stop"),
    [
        ([calls(submit("a")), calls(submit("b", "fail"))], 2.0, "all_rubrics_submitted"),
        ([calls(submit("a")), calls(TERMINAL)], 1.0, "max_turns_reached"),
        ([calls(submit("a")), "done"], -4.0, "stop_after_final_or_invalid"),
    ],
)
def test_calls_of_the_last_turn_run_since_no_answer_has_to_follow(load, play, replies, reward, stop):
    played = play(load(max_turns=2), replies)
    assert played.output["error"] is None
    assert (played.reward, played.output["stop_condition"]) == (pytest.approx(reward), stop), played.metrics
    answers = [message for message in played.output["completion"] if message["role"] == "tool"]
    assert len(answers) == sum("tool_calls" in reply for reply in replies if isinstance(reply, dict))
    assert len(played.prompts) == 2


@pytest.mark.parametrize("gold", [[{"rubric_id": "a", "label": "yes"}], [{"id": "a", "label": "pass"}, "x"]])
def test_a_submission_is_not_paid_for_gold_that_is_not_usable(load, play, gold):
    played = play(load({**ROW, "gold_submissions": gold}), [calls(submit("a"), submit("b"))])
    assert played.metrics["rubric_completion_reward"] == 0.0


@pytest.mark.parametrize(
    ("gold", "says"),
    [
        ({"a": "pass"}, "expected a list of objects with rubric_id and label"),
        (json.dumps(GOLD), "expected a list of objects with rubric_id and label"),
        ([*GOLD, {"rubric_id": " a", "label": "fail"}], "the rubric id 'a' is labelled both pass and fail"),
    ],
)
def test_gold_that_cannot_be_meant_fails_the_load(load, play, gold, says):
    for row in (
        {**ROW, "gold_submissions": gold},
        {**ROW, "gold_submissions": None, "info": {"gold_submissions": gold}},
    ):
        with pytest.raises(RuntimeError) as caught:
            load(row)
        assert f":1: gold_submissions: {says}" in str(caught.value)
    given = {**ROW, "example_id": 0, "prompt": [{"role": "user", "content": "p"}], "gold_submissions": gold}
    played = play(load(), [calls(submit("a"), submit("b"))], row=given)
    assert played.reward == 0.0 and "gold_submissions" in str(played.output["error"])


def test_without_gold_every_submission_counts(load, play):
    row = {key: value for key, value in ROW.items() if key != "gold_submissions"}
    played = play(load(row), [calls(submit("a")), "text"])
    assert played.metrics["rubric_completion_reward"] == 0.5
    assert played.metrics["missing_rubric_penalty"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tools": ["terminal"]}, "must contain 'submit'"),
        ({"rubric_completion_reward_coef": -1}, "rubric_completion_reward_coef=-1"),
        ({"tools": ["submit"], "browser_aware_terminal": True}, "needs 'terminal' in tools"),
    ],
)
def test_wrong_arguments(load, arguments, says):
    with pytest.raises(RuntimeError) as caught:
        load(**arguments)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"prompt": "p"}, ":2: expected_rubric_ids: missing"),
        ({"prompt": "p", "rubric_ids": ["a", "a"]}, ":2: rubric_ids: the rubric id 'a' is given twice"),
        ({"prompt": "p", "indexed_rubrics": [{"rubric_id": ""}]}, ":2: indexed_rubrics: expected rubric ids"),
        ({"prompt": "p", "rubric_index": True}, ":2: rubric_index: expected rubric ids"),
    ],
)
def test_rows_that_disagree_or_repeat_fail_the_load(load, second, says):
    with pytest.raises(RuntimeError) as caught:
        load(ROW, second)
    assert says in str(caught.value)


def test_rows_without_any_ids_load_with_a_warning_and_need_them_in_the_input(load, play, caplog):
    env = load({"prompt": "p"}, tools=(), max_tool_calls=0)
    assert sum("no row has rubric ids" in record.message for record in caplog.records) == 1
    env = load({"prompt": "p"})
    assert "no expected rubric ids" in str(play(env, ["x"]).output["error"])
    given = {"example_id": 0, "prompt": [{"role": "user", "content": "p"}], "expected_rubric_ids": [1]}
    assert play(env, [calls(submit(1))], row=given).output["stop_condition"] == "all_rubrics_submitted"


def test_unusable_gold_is_counted_in_one_warning(load, caplog):
    row = {**ROW, "gold_submissions": [GOLD[0], {"rubric_id": "b", "label": "maybe"}, "x"]}
    load(row)
    messages = [record.message for record in caplog.records]
    assert sum("2 gold_submissions entries" in message for message in messages) == 1
    assert sum("1 rubric ids have no gold label" in message for message in messages) == 1
    assert gold_labels(ROW).labels == {"a": "pass", "b": "fail"}
