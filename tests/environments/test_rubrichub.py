"""`rubrichub-judge`: rows, sample, request, score, failures, shadow judge."""

import asyncio
import hashlib
import json

import pytest
import verifiers as vf

from primebeaker.environments._shared.rubric_rows import Rubric, has_orphan_think_close, sampled_rubrics

MODULE = "primebeaker.environments.jtc_rubrichub_judge_env"


@pytest.fixture
def load(rows_file, gateway):
    def make(*weights, row=None, **arguments):
        rubrics = [{"text": f" c{n} ", "weight": weight} for n, weight in enumerate(weights or (5, 3))]
        path = rows_file(row or {"prompt": "q", "record_id": "r", "rubrics": rubrics, "info": {"k": 1}})
        given = {"dataset": path, "judge_model_path": "j", "judge_server_url": f"{gateway.url}/judge"}
        return vf.load_environment(MODULE, **{**given, **arguments})

    return make


def labels(*given):
    return lambda body: {"judgments": [{"rubric_index": n, "label": label} for n, label in enumerate(given)][::-1]}


@pytest.mark.parametrize(
    ("weights", "given", "reply", "score"),
    [
        ((5, 3), ("pass", "fail"), "a", 0.625),
        ((5, -5), ("pass", "pass"), "a", 0.0),
        ((5, -5), ("fail", " PASS "), "a", -1.0),
        ((3, -7), ("fail", "pass"), "a", -1.0),
        ((5, 3), ("pass", "fail"), "x</think>a", 0.425),
        ((5, 3), (), {"content": "</think>a", "truncated": True}, -0.45),
        ((5, 3), (), {"content": "a", "truncated": True}, -0.25),
        ((5, 3), (), " </think> ".replace("</think>", ""), 0.0),
    ],
)
def test_scores(load, play, gateway, weights, given, reply, score):
    gateway.answers["judge"] = labels(*given)
    played = play(load(*weights), [reply])
    assert played.output["error"] is None
    assert played.reward == pytest.approx(score)
    assert bool(gateway.bodies("judge")) == bool(given)


def test_the_request_and_the_audit(load, play, gateway):
    gateway.answers["judge"] = labels("pass", "fail")
    played = play(load(5, -2), ["the answer"])
    body = gateway.bodies("judge")[0]
    assert {key: body[key] for key in ("input", "output", "model", "model_path")} == {
        "input": "q",
        "output": "the answer",
        "model": "j",
        "model_path": "judge",
    }
    assert body["rubrics"][0] == "c0" and body["rubrics"][1].endswith("c1") and "fault" in body["rubrics"][1]
    audit = played.output["info"]["jtc_rubrichub_judge"]
    assert played.output["info"]["k"] == 1
    assert (audit["status"], audit["source_record_id"], audit["judge_called"]) == ("judged", "r", True)
    assert (audit["weighted_pass_sum"], audit["selected_weight_sum"], audit["score"]) == (5.0, 5.0, 1.0)
    assert [entry["weighted_pass"] for entry in audit["judgments"]] == [5.0, 0.0]
    assert played.metrics["num_selected_rubrics"] == 2.0


@pytest.mark.parametrize(
    "reply",
    [
        (500, {}),
        {"judgments": [{"rubric_index": 0, "label": "pass"}]},
        {"judgments": [{"rubric_index": 0, "label": "pass"}] * 2},
        {"judgments": [{"rubric_index": True, "label": "pass"}, {"rubric_index": 0, "label": "pass"}]},
        {"judgments": [{"rubric_index": 0, "label": "pass"}, {"rubric_index": 1, "label": "ok"}]},
    ],
)
def test_a_judge_that_fails_is_an_infrastructure_error(load, play, gateway, no_waiting, reply):
    gateway.answers["judge"] = lambda body: reply
    played = play(load(), ["a"])
    assert (played.output["error"]["error"], played.reward, played.metrics["judge_error"]) == ("InfraError", 0.0, 1.0)
    assert played.output["info"]["jtc_rubrichub_judge"]["status"] == "judge_failed"


@pytest.mark.parametrize(
    ("seed", "most", "chosen"), [(0, 4, [2, 4, 7, 10]), (7, 4, [2, 4, 5, 11]), (0, 8, [2, 3, 4, 5, 7, 8, 9, 10])]
)
def test_the_sample_is_the_same_everywhere(seed, most, chosen):
    rubrics = [Rubric(number, "t", 1.0) for number in range(12)]
    assert [
        rubric.original_index for rubric in sampled_rubrics(rubrics, most=most, seed=seed, record_id="rec-1")
    ] == chosen


def test_a_sample_has_a_positive_rubric():
    rubrics = [Rubric(number, "t", 1.0 if number == 0 else -1.0) for number in range(12)]
    for seed in range(20):
        chosen = sampled_rubrics(rubrics, most=3, seed=seed, record_id="x")
        assert any(rubric.weight > 0 for rubric in chosen) and len(chosen) == 3


@pytest.mark.parametrize(
    ("text", "orphan"),
    [
        ("a</think>b", True),
        ("<think>x</think>y</think>", True),
        ("</think><think>", True),
        ("<think>x</think>y", False),
        ("<think>x", False),
        ("<think><think></think>", False),
        ("</THINK>", False),
    ],
)
def test_orphan_tags(text, orphan):
    assert has_orphan_think_close(text) is orphan


@pytest.mark.parametrize(
    ("row", "record_id", "weights"),
    [
        ({"prompt": "q", "id": 77, "Rubrics": [{"criterion": "c1", "points": 5}]}, "77", [5.0]),
        (
            {"extra_info": {"prompt": "q"}, "reward_model": {"rubrics": [{"criterion": "c1", "points": 2}]}},
            None,
            [2.0],
        ),
    ],
)
def test_rows_take_their_normal_form(load, row, record_id, weights):
    env = load(row=row)
    dataset = env.env_args["dataset"]
    read = env.get_dataset()[0]
    answer = json.loads(read["answer"])
    assert answer["record_id"] == (record_id or f"{dataset}:train:0") == read["info"]["rubrichub_record_id"]
    assert [rubric["weight"] for rubric in answer["rubrics"]] == weights
    assert read["prompt"] == [{"role": "user", "content": "q"}]
    again = load(row={"prompt": "q", "answer": read["answer"]}).get_dataset()[0]
    assert again["answer"] == read["answer"]


def test_the_answer_is_compact_with_sorted_keys(load):
    row = {"prompt": "q", "record_id": "r", "rubrics": [{"weight": 5, "text": "c1"}]}
    wanted = '{"record_id":"r","rubrics":[{"original_index":0,"text":"c1","weight":5.0}]}'
    assert load(row=row).get_dataset()[0]["answer"] == wanted


@pytest.mark.parametrize(
    ("rubrics", "says"),
    [
        ([], "not empty"),
        ([{"text": " ", "weight": 1}], "rubric 0: the text is missing or blank"),
        ([{"text": "t", "weight": 0}], "rubric 0: the weight"),
        ([{"text": "t", "weight": True}], "rubric 0: the weight"),
        ([{"text": "t", "weight": -1}], "no rubric has a positive weight"),
        ([{"text": "t", "weight": 1, "original_index": 1}] * 2, "an original_index is given twice"),
        ([{"text": "t", "weight": 1e308}] * 2, "the weights are too large to add up"),
    ],
)
def test_bad_rubrics_fail_the_load(load, rubrics, says):
    with pytest.raises(RuntimeError) as caught:
        load(row={"prompt": "q", "rubrics": rubrics})
    assert f"rows.jsonl:1: rubrics: {says}" in str(caught.value) or says in str(caught.value)


def test_the_judge_reads_text_only(load):
    parts = [{"role": "user", "content": [{"type": "text", "text": "q"}]}]
    with pytest.raises(RuntimeError, match=r"rows\.jsonl:1: prompt: message 1: expected content to be text"):
        load(row={"prompt": parts, "rubrics": [{"text": "t", "weight": 1}]})


def test_a_row_that_a_caller_brings_is_named_by_its_content(load, play, gateway):
    gateway.answers["judge"] = labels("pass")
    prompt = [{"role": "user", "content": "own"}]
    row = {"prompt": prompt, "example_id": 0, "Rubrics": [{"criterion": "c", "points": 2}]}
    played = play(load(), ["a"], row=row)
    rubrics = [{"original_index": 0, "text": "c", "weight": 2.0}]
    content = json.dumps({"prompt": prompt, "rubrics": rubrics}, sort_keys=True, separators=(",", ":"))
    record = played.output["info"]["jtc_rubrichub_judge"]["source_record_id"]
    assert (record, played.reward) == (f"sha256:{hashlib.sha256(content.encode()).hexdigest()}", 1.0)


def test_a_slow_shadow_judge_holds_nothing_up(load, play, gateway):
    gateway.answers["judge"] = labels("pass", "fail")

    async def hang(body):
        await asyncio.sleep(600)

    gateway.answers["shadow"] = hang
    shadow = {"shadow_judge_model_path": "s", "shadow_judge_server_url": f"{gateway.url}/shadow"}
    env = load(**shadow, shadow_judge_sample_rate=1.0, shadow_judge_timeout=0.2)
    played = play(env, ["a"])
    assert (played.reward, played.output["error"], played.metrics["shadow_judge_error"]) == (0.625, None, 1.0)


def test_the_shadow_judge_only_observes(load, play, gateway, tmp_path):
    gateway.answers["judge"] = labels("pass", "fail")
    gateway.answers["shadow"] = labels("fail", "fail")
    shadow = {"shadow_judge_model_path": "s", "shadow_judge_server_url": f"{gateway.url}/shadow"}
    env = load(**shadow, shadow_judge_sample_rate=1.0, shadow_judge_audit_dir=str(tmp_path / "audits"))
    played = play(env, ["a"])
    assert played.reward == 0.625
    assert played.metrics["shadow_judge_sampled"] == 1.0
    assert played.metrics["shadow_judge_label_agreement"] == 0.5
    assert played.metrics["shadow_judge_weighted_label_agreement"] == 3 / 8
    assert played.metrics["shadow_judge_shadow_minus_primary_score"] == -0.625
    files = list((tmp_path / "audits" / "policy_version=unknown").iterdir())
    assert len(files) == 3 and json.loads(files[0].read_text())["status"] == "ok"
    gateway.answers["shadow"] = lambda body: (500, {})
    played = play(load(**shadow, shadow_judge_sample_rate=1.0), ["a"])
    assert (played.reward, played.output["error"], played.metrics["shadow_judge_error"]) == (0.625, None, 1.0)
    played = play(load(**shadow), ["a"])
    assert played.output["info"]["jtc_rubrichub_shadow_judge"]["status"] == "not_sampled"


def test_a_share_of_the_rollouts_is_observed():
    from primebeaker.environments._shared.rubric_judge import _is_sampled

    audit = {"sample_seed": 0, "policy_version": "v", "trajectory_id": "t", "source_record_id": "r"}
    share = int.from_bytes(hashlib.sha256(b"0:v:t:r").digest()[:8], "big") / 2**64
    assert _is_sampled({**audit, "sample_rate": share + 1e-9})
    assert not _is_sampled({**audit, "sample_rate": share})
