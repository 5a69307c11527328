"""The `label` environment: its rewards, through Verifiers, over a real HTTP model and in process."""

import asyncio
import json
from pathlib import Path

import pytest
import verifiers as vf
from verifiers.types import ClientConfig

MODULE = "primebeaker.environments.jtc_label_env"
EXAMPLES = Path(__file__).parents[2] / "examples" / "rl" / "data"

RIGHT = "<feedback>f</feedback><label> PASS </label>"


@pytest.fixture
def env(rows_file):
    return vf.load_environment(MODULE, dataset=rows_file({"question": "Judge it.", "answer": "pass"}))


@pytest.mark.parametrize(
    ("reply", "valid", "correct"),
    [
        (RIGHT, 1.0, 1.0),
        ("<label>pass</label><feedback>f</feedback>", 1.0, 1.0),
        ("Some text. <FEEDBACK>f\ng</FEEDBACK>\n<Label>Pass</Label> more", 1.0, 1.0),
        ("<think><label>a</label></think><feedback>f</feedback><label>pass</label>", 1.0, 1.0),
        ("<feedback>f</feedback><label>fail</label>", 1.0, 0.0),
        ("<feedback>f</feedback><label>pass</label><label>pass</label>", 0.0, 0.0),
        ("<feedback>f</feedback><feedback>g</feedback><label>pass</label>", 0.0, 0.0),
        ("<feedback>  </feedback><label>pass</label>", 0.0, 0.0),
        ("<feedback>f</feedback><label> </label>", 0.0, 0.0),
        ("<label>pass</label>", 0.0, 0.0),
        ("<feedback>f</feedback>", 0.0, 0.0),
        ('{"feedback":"f","label":"pass"}', 0.0, 0.0),
        ("<think>never closed <feedback>f</feedback><label>pass</label>", 0.0, 0.0),
        ({"content": None, "reasoning_content": RIGHT}, 0.0, 0.0),
        (
            {
                "content": [
                    {"type": "text", "text": "<feedback>f</feedback>"},
                    {"type": "text", "text": "<label>pass</label>"},
                ]
            },
            1.0,
            1.0,
        ),
    ],
)
def test_totals(env, play, reply, valid, correct):
    """A right label in the right form scores 2.0, a wrong one 1.0, anything else 0.0."""
    played = play(env, [reply])
    assert played.metrics == {"valid_format": valid, "correct_label": correct, "num_turns": 1.0}
    assert played.reward == valid + correct


@pytest.mark.parametrize(
    ("answer", "label", "correct"),
    [
        (" Partially  met ", "partially met", 1.0),
        (3, "3", 1.0),
        (True, "true", 1.0),
        (0.5, "0.5", 1.0),
        (3, "3.0", 0.0),
    ],
)
def test_labels_are_compared_as_normalised_text(rows_file, play, answer, label, correct):
    env = vf.load_environment(MODULE, dataset=rows_file({"question": "q", "answer": answer}))
    assert play(env, [f"<feedback>f</feedback><label>{label}</label>"]).metrics["correct_label"] == correct


def test_rows_without_any_answer_load_with_a_warning_and_score_no_label(rows_file, play, caplog):
    env = vf.load_environment(MODULE, dataset=rows_file({"question": "q"}, {"question": "r"}))
    assert [record.message for record in caplog.records if "no row has an answer" in record.message]
    assert play(env, [RIGHT]).metrics["correct_label"] == 0.0


def test_rollouts_over_http_against_the_example_records(model_server):
    """Each example record scores 2 for the right label, 1 for the wrong one, and 0 for a JSON reply."""
    for split in ("train", "validation"):
        path = EXAMPLES / f"{split}.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        env = vf.load_environment(MODULE, dataset=str(path), split=split)
        answers = {record["prompt"][1]["content"]: record["answer"] for record in records}

        def reply(messages, form, answers=answers):
            right = answers[messages[1]["content"]]
            label = right if form != "wrong" else {"pass": "fail", "fail": "pass"}[right]
            if form == "json":
                return json.dumps({"feedback": "f", "label": label})
            return f"<think>t</think><feedback>f</feedback>\n<label>{label}</label>"

        for form, reward in (("right", 2.0), ("wrong", 1.0), ("json", 0.0)):
            with model_server(lambda messages, form=form: reply(messages, form)) as base_url:
                client = ClientConfig(client_type="openai_chat_completions", api_base_url=base_url, api_key_var="X")

                async def run(client=client, env=env, records=records):
                    return await asyncio.gather(
                        *(env.run_rollout(env.get_dataset()[n], client, "m", {}) for n in range(len(records)))
                    )

                outputs = asyncio.run(run())
            assert [output["reward"] for output in outputs] == [reward] * len(records), (split, form)
            assert all(output["error"] is None for output in outputs)


def test_the_judged_output_of_every_example_record_is_part_of_its_prompt():
    """The environment has no tool to fetch it."""
    for path in EXAMPLES.glob("*.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            assert record["output"] in record["prompt"][1]["content"]


def test_a_failing_model_is_an_error_of_the_rollout_and_no_zero(rows_file):
    env = vf.load_environment(MODULE, dataset=rows_file({"question": "q", "answer": "pass"}))
    client = ClientConfig(client_type="openai_chat_completions", api_base_url="http://127.0.0.1:9/v1", max_retries=0)
    output = asyncio.run(env.run_rollout(env.get_dataset()[0], client, "m", {}))
    assert output["error"]["error"] == "ModelError"
