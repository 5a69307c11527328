"""Many rollouts at once: no cross-talk, bounded requests, and nothing left behind, cancelled or not."""

import asyncio
import gc
import json
import threading

import pytest
import verifiers as vf

MODULE = "primebeaker.environments.jtc_tool_label_env"
ROLLOUTS = 512


def call(*commands):
    return {
        "content": "",
        "tool_calls": [
            {"id": f"c{number}", "name": "terminal", "arguments": json.dumps({"command": command})}
            for number, command in enumerate(commands)
        ],
    }


def verdict(label):
    return json.dumps({"feedback": "f", "label": label})


def own_index(state):
    return state["input"]["prompt"][0].content


def test_512_rollouts_do_not_mix(rows_file, gateway, scripted_client, reply_of_terminal):
    path = rows_file(
        *({"prompt": f"row-{number}", "output": f"output-{number}", "answer": f"l{number % 7}"} for number in range(64))
    )
    in_flight = most = 0

    async def answer(body):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.01)
        in_flight -= 1
        return reply_of_terminal(f"{body['contents']}|{body['command']}")

    gateway.answers["terminal"] = answer
    env = vf.load_environment(MODULE, dataset=path, terminal_server_url=f"{gateway.url}/terminal")

    def reply(state):
        name = own_index(state)
        number = int(name.removeprefix("row-"))
        if len(state["trajectory"]) < 2:
            return call(f"a {name}", f"b {name}")
        return verdict(f"l{number % 7}")

    async def run():
        dataset = env.get_dataset()
        client = scripted_client(reply)
        work = [
            env.run_rollout(dict(dataset[n % 64]), client, "m", {}, state_columns=["jtc_tool_history"])
            for n in range(ROLLOUTS)
        ]
        outputs = await asyncio.gather(*work)
        return outputs, len(asyncio.all_tasks())

    outputs, tasks = asyncio.run(run())
    assert tasks == 1
    assert 8 < most <= 256
    for number, output in enumerate(outputs):
        row = number % 64
        assert output["reward"] == pytest.approx(4.0)
        stdouts = [event["output"]["stdout"] for event in output["jtc_tool_history"]]
        assert stdouts == [f"output-{row}|{command} row-{row}" for command in ("a", "b")] * 2


def test_a_cancelled_run_leaves_no_task_no_slot_and_no_connection(rows_file, gateway, scripted_client):
    path = rows_file({"prompt": "p", "output": "o", "answer": "pass"})
    closed = 0

    async def hang(body):
        nonlocal closed
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            closed += 1
            raise

    gateway.answers["terminal"] = hang
    env = vf.load_environment(MODULE, dataset=path, terminal_server_url=f"{gateway.url}/terminal")

    async def run():
        row = dict(env.get_dataset()[0])
        client = scripted_client([call("a", "b"), verdict("pass")])
        rollouts = [asyncio.create_task(env.run_rollout(row, client, "m", {})) for _ in range(20)]
        while len(gateway.bodies("terminal")) < 40:
            await asyncio.sleep(0.01)
        pool = env.behaviour.pool
        for rollout in rollouts:
            rollout.cancel()
        results = await asyncio.gather(*rollouts, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        assert pool.session is None
        assert pool.tool_slot()._value == 256
        return len(asyncio.all_tasks())

    assert asyncio.run(run()) == 1


def test_a_rollout_that_times_out_stops_its_requests_and_touches_no_other(
    rows_file, gateway, scripted_client, reply_of_terminal
):
    path = rows_file({"prompt": "p", "output": "o", "answer": "pass"})

    async def answer(body):
        await asyncio.sleep(600 if body["command"] == "slow" else 0)
        return reply_of_terminal("ok")

    gateway.answers["terminal"] = answer
    env = vf.load_environment(
        MODULE, dataset=path, terminal_server_url=f"{gateway.url}/terminal", timeout_seconds=1.5, timeout=60
    )

    async def run():
        row = dict(env.get_dataset()[0])
        slow = scripted_client([call("slow"), verdict("pass")])
        quick = scripted_client([call("quick"), verdict("pass")])
        return await asyncio.gather(
            *(env.run_rollout(row, client, "m", {}) for client in (quick, slow, quick)),
        ), len(asyncio.all_tasks())

    outputs, tasks = asyncio.run(run())
    assert tasks == 1
    assert [output["reward"] for output in outputs][::2] == [4.0, 4.0]
    assert outputs[1]["stop_condition"] == "timeout_reached"


def test_a_long_reply_is_read_and_scored_beside_the_event_loop(rows_file, scripted_client, monkeypatch):
    """Parsing a megabyte takes long enough for the other rollouts of the loop to notice."""
    from primebeaker.environments._shared import final_answer

    threads = {}
    real = final_answer.final_verdict

    def noting(text):
        threads.setdefault(len(text) > 100_000, set()).add(threading.current_thread() is threading.main_thread())
        return real(text)

    monkeypatch.setattr(final_answer, "final_verdict", noting)
    env = vf.load_environment(MODULE, dataset=rows_file({"prompt": "p", "output": "o", "answer": "pass"}))

    async def run():
        row = dict(env.get_dataset()[0])
        replies = (verdict("pass"), "word " * 200_000 + verdict("pass"))
        return [(await env.run_rollout(row, scripted_client([reply]), "m", {}))["reward"] for reply in replies]

    assert asyncio.run(run()) == [4.0, 3.0]
    assert threads == {False: {True}, True: {False}}


def test_finished_rollouts_are_not_kept(rows_file, gateway, scripted_client):
    path = rows_file({"prompt": "p", "output": "o" * 100_000, "answer": "pass"})
    env = vf.load_environment(MODULE, dataset=path, terminal_server_url=f"{gateway.url}/terminal")

    async def run():
        row = dict(env.get_dataset()[0])
        for _ in range(5):
            await env.run_rollout(row, scripted_client([call("a"), verdict("pass")]), "m", {})

    asyncio.run(run())
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is vf.State]
