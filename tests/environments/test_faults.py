"""512 rollouts against services of which every tenth request fails: counted, masked, unmixed, and nothing left."""

import asyncio
import gc
import json
import time

import pytest
import verifiers as vf

SPACE = "primebeaker.environments"
ROLLOUTS, ROWS = 512, 64
FAULTS = ("status", "hang", "drop")


def every_tenth(number):
    return FAULTS[number // 10 % len(FAULTS)] if number % 10 == 0 else None


def call(name, **arguments):
    return {"content": "", "tool_calls": [{"id": f"{name}-1", "name": name, "arguments": json.dumps(arguments)}]}


def own_name(state):
    return state["input"]["prompt"][-1].content.split()[-1]


class Labels:
    """``tool-label``: two terminal calls, then the label of the rollout's own output."""

    module, route = f"{SPACE}.jtc_tool_label_env", "terminal"
    rows = tuple({"prompt": f"row-{n}", "output": f"out-{n}", "answer": f"l-{n}"} for n in range(ROWS))
    right = 4.0

    @staticmethod
    def arguments(url):
        return {"terminal_server_url": f"{url}/terminal", "timeout": 5, "max_retries": 1}

    @staticmethod
    def answer(body):
        return {"stdout": body["contents"], "stderr": "", "success": True, "exit_code": 0}

    @staticmethod
    def reply(state):
        if len(state["trajectory"]) < 2:
            return call("terminal", command=f"rg {own_name(state)}")
        return json.dumps({"feedback": "f", "label": own_name(state).replace("row", "l")})


class Visits:
    """``search-agent-visit``: two pages, then the answer."""

    module, route = f"{SPACE}.jtc_search_agent_visit_env", "search"
    rows = tuple({"prompt": f"row-{n}", "answer": f"a-{n}"} for n in range(ROWS))
    right = 2.0

    @staticmethod
    def arguments(url):
        return {"search_server_url": f"{url}/search", "timeout": 5, "max_retries": 1}

    @staticmethod
    def answer(body):
        return {"success": True, "data": {"content": f"page of {body['url']}"}}

    @staticmethod
    def reply(state):
        turn = len(state["trajectory"])
        if turn < 2:
            return call("visit", url=f"http://pages/{own_name(state)}/{turn}")
        return f'```json\n{{"answer": "{own_name(state).replace("row", "a")}"}}\n```'


class Rubrics:
    """``rubrichub-judge``: the judge passes what names the question."""

    module, route = f"{SPACE}.jtc_rubrichub_judge_env", "judge"
    rows = tuple({"prompt": f"row-{n}", "rubrics": [{"text": f"says row-{n}", "weight": 1 + n}]} for n in range(ROWS))
    right = 1.0

    @staticmethod
    def arguments(url):
        return {
            "judge_server_url": f"{url}/judge",
            "judge_model_path": "j",
            "judge_timeout": 5,
            "judge_max_retries": 1,
        }

    @staticmethod
    def answer(body):
        same = body["rubrics"] == [f"says {body['input']}"] and body["output"] == f"answer to {body['input']}"
        return {"judgments": [{"rubric_index": 0, "label": "pass" if same else "fail"}]}

    @staticmethod
    def reply(state):
        return f"answer to {own_name(state)}"


FAMILIES = pytest.mark.parametrize("family", [Labels, Visits, Rubrics])


@pytest.fixture
def load(rows_file, gateway):
    def make(family, **more):
        gateway.answers[family.route] = family.answer
        arguments = {**family.arguments(gateway.url), **more}
        return vf.load_environment(family.module, dataset=rows_file(*family.rows), **arguments)

    return make


async def all_rollouts(env, client, columns=()):
    dataset = env.get_dataset()
    return [
        asyncio.create_task(env.run_rollout(dict(dataset[n % ROWS]), client, "m", {}, state_columns=list(columns)))
        for n in range(ROLLOUTS)
    ]


def closed(gateway):
    deadline = time.monotonic() + 60
    while gateway.connections and time.monotonic() < deadline:
        time.sleep(0.05)
    return gateway.connections == 0


@pytest.mark.parametrize(
    ("family", "ends"), [(Labels, False), (Labels, True), (Visits, False), (Visits, True), (Rubrics, True)]
)
def test_every_tenth_request_fails(load, gateway, scripted_client, family, ends):
    """A failure is told and counted, or ends its rollout as an outage; it never costs reward and touches no other."""
    gateway.fault = every_tenth
    # A judge that fails always ends its rollout.
    more = {} if family is Rubrics else {"max_consecutive_infrastructure_errors": 1 if ends else None}
    env = load(family, **more)

    async def run():
        outputs = await asyncio.gather(*await all_rollouts(env, scripted_client(family.reply)))
        assert env.behaviour.pool.session is None
        return outputs, len(asyncio.all_tasks())

    outputs, tasks = asyncio.run(run())
    assert tasks == 1
    failed = 0
    for number, output in enumerate(outputs):
        if output["error"] is not None:
            assert (output["error"]["error"], output["reward"]) == ("InfraError", 0.0)
            failed += 1
            continue
        assert output["reward"] == family.right
        told = [message["content"] for message in output["completion"] if message["role"] == "tool"]
        for content in told:
            if "service unavailable" in content:
                failed += 1
            else:
                assert f"-{number % ROWS}" in content.replace("/", "-"), content
    assert bool(failed) and failed < ROLLOUTS
    assert any(output["error"] for output in outputs) == ends
    assert closed(gateway)
    del outputs
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is vf.State]


@FAMILIES
def test_cancelling_512_rollouts_leaves_nothing(load, gateway, scripted_client, family):
    env = load(family)

    async def hang(body):
        await asyncio.sleep(600)

    gateway.answers[family.route] = hang

    async def run():
        rollouts = await all_rollouts(env, scripted_client(family.reply))
        pool = env.behaviour.pool
        slots, most = (pool.scorer_slot(), 64) if family is Rubrics else (pool.tool_slot(), 256)
        while len(gateway.requests) < most and not any(rollout.done() for rollout in rollouts):
            await asyncio.sleep(0.01)
        for rollout in rollouts:
            rollout.cancel()
        results = await asyncio.gather(*rollouts, return_exceptions=True)
        assert pool.session is None
        assert slots._value == most
        return results, len(asyncio.all_tasks())

    results, tasks = asyncio.run(run())
    assert tasks == 1
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert closed(gateway)
