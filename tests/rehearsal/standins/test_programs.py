"""The stand-ins as processes: strict about their command lines, true to the layout, gone when told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import tomllib
from pathlib import Path

import httpx
import pytest
import tomlkit
from tests.ports import free_block
from tests.rehearsal.standins.conftest import wait_until

from primebeaker.prime_rl.checkpoint_rules import find_layout, rl_rule, sft_rule
from primebeaker.prime_rl.checkpoints import newest_complete, read_step
from primebeaker.rehearsal.settings import RehearsalSettings

EXAMPLES = Path(__file__).parents[3] / "examples"
MODEL = "PrimeIntellect/Qwen3-0.6B"
GPUS = {"BEAKER_ASSIGNED_GPU_COUNT": "2"}


def example(name: str, directory: Path, **changes) -> Path:
    """An example's TOML with other values, on ports of its own, writing into ``directory``."""
    config = tomllib.loads((EXAMPLES / name / "config.toml").read_text())
    config["output_dir"] = str(directory / "out")
    config["ckpt"].pop("resume_step")
    if name == "rl":
        port = free_block(1)
        config["inference"] |= {"server": {"port": port}, "backend_port": free_block(1)}
        config["orchestrator"]["model"] = {"client": {"base_url": [f"http://localhost:{port}/v1"]}}
        config["weight_broadcast"]["port"] = free_block(1)
        config["rollout_transport"] = {"type": "zmq", "port": free_block(2)}
    for key, value in changes.items():
        *tables, last = key.split("__")
        node = config
        for table in tables:
            node = node.setdefault(table, {})
        node[last] = value
    path = directory / "run.toml"
    path.write_text(tomlkit.dumps(config))
    return path


def metrics(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_single_node_rl_runs_real_rollouts_and_leaves_prime_rls_layout(stage):
    code, output = stage.run("rl", "@", str(example("rl", stage.directory)), **GPUS)
    assert code == 0, output
    out = stage.directory / "out"
    state = read_step(find_layout(out), rl_rule(1), 2)
    assert state.complete and state.verified, state
    rows = metrics(out / "run_default" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    traces = metrics(out / "run_default/rollouts/step_1/train/all/traces.jsonl")
    assert len(traces) == 2 and all(trace["env_name"] == "tiny-label-train" for trace in traces)
    mean = sum(sum(trace["rewards"].values()) for trace in traces) / 2
    assert rows[0]["train/agg/all/reward/mean"] == pytest.approx(mean)
    assert (out / "run_default/rollouts/step_2/eval/all/traces.jsonl").is_file()
    assert (out / "run_default/broadcasts/step_0/NCCL_READY").is_file()
    assert sorted(path.name for path in (out / "weights/step_2").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
    ]
    assert not (out / "checkpoints/step_1").exists(), "keep_last = 1"


def test_the_policy_learns_from_the_label_rubric(stage):
    changes = {"max_steps": 12, "orchestrator__batch_size": 4, "ckpt__interval": 12}
    code, output = stage.run("rl", "@", str(example("rl", stage.directory, **changes)), **GPUS)
    assert code == 0, output
    rows = metrics(stage.directory / "out/run_default/metrics.jsonl")
    rewards = [row["train/agg/all/reward/mean"] for row in rows]
    assert len(rewards) == 12
    assert sum(rewards[-3:]) > sum(rewards[:3])


def test_the_file_transport_leaves_policies_that_a_resume_finds(stage):
    changes = {"weight_broadcast": {"type": "filesystem"}, "rollout_transport": {"type": "filesystem"}}
    stage.write(RehearsalSettings(rollouts=False))
    code, output = stage.run("rl", "@", str(example("rl", stage.directory, **changes)), **GPUS)
    assert code == 0, output
    out = stage.directory / "out"
    assert read_step(find_layout(out), rl_rule(1, policy_files=True), 2).complete
    path = example("rl", stage.directory, **changes, max_steps=4, ckpt__resume_step=2)
    code, output = stage.run("rl", "@", str(path), **GPUS)
    assert code == 0, output
    assert newest_complete(find_layout(out), rl_rule(1, policy_files=True)).chosen.step == 4
    assert [row["step"] for row in metrics(out / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("broken", "words"),
    [("checkpoints", "checkpoint not found at"), ("run_default/checkpoints", "orchestrator checkpoint not found")],
)
def test_resuming_from_a_step_that_is_not_there_fails_as_the_real_programs_do(stage, broken, words):
    stage.write(RehearsalSettings(rollouts=False))
    assert stage.run("rl", "@", str(example("rl", stage.directory)), **GPUS)[0] == 0
    step = stage.directory / "out" / broken / "step_2"
    step.rename(step.with_name("gone"))
    code, output = stage.run("rl", "@", str(example("rl", stage.directory, ckpt__resume_step=2, max_steps=3)), **GPUS)
    assert code == 1 and words in output


def test_single_node_sft_reads_the_rows_and_its_loss_falls(stage):
    code, output = stage.run("sft", "@", str(example("sft", stage.directory)), **GPUS)
    assert code == 0, output
    out = stage.directory / "out"
    state = read_step(find_layout(out), sft_rule(), 2)
    assert state.complete and len(state.trainer_shards) == 2
    assert (out / "checkpoints/step_2/trainer/dataloader/rank_1.pt").is_file()
    losses = [row["loss/mean"] for row in metrics(out / "metrics.jsonl") if "loss/mean" in row]
    assert len(losses) == 2 and losses[1] < losses[0] < 2.0
    assert [row["step"] for row in metrics(out / "metrics.jsonl") if "val/loss" in row] == [0, 1, 2]


def test_rows_an_sft_trainer_cannot_use_are_named(stage):
    data = stage.directory / "rows.jsonl"
    data.write_text('{"messages": []}\n{"text": "x"}\n')
    path = example("sft", stage.directory, data__name=str(data))
    code, output = stage.run("sft", "@", str(path), **GPUS)
    assert code == 1
    assert "rows.jsonl:2: expected messages, or prompt and completion; found text" in output


def test_two_nodes_of_torchrun_meet_and_end_together(stage):
    port = free_block(1)
    config = stage.directory / "sft.toml"
    example("sft", stage.directory).rename(config)
    words = ["--role=trainer", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    words += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=run_1", f"--log-dir={stage.directory}/logs"]
    words += ["--tee=3", "--redirects=3", "--local-ranks-filter=0"]
    module = ["-m", "prime_rl.trainer.sft.train", "@", str(config)]
    first = stage.start("torchrun", *words, "--node-rank=0", *module, CUDA_VISIBLE_DEVICES="0,1", **GPUS)
    second = stage.start("torchrun", *words, "--node-rank=1", *module, CUDA_VISIBLE_DEVICES="0,1", **GPUS)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert "[trainer0]:Step 2" in outputs[0]
    state = read_step(find_layout(stage.directory / "out"), sft_rule(), 2)
    assert [shard.name for shard in state.trainer_shards] == [f"__{rank}_0.distcp" for rank in range(4)]
    assert (stage.directory / "logs/run_1/attempt_0/0/stdout.log").is_file()


def test_two_runs_of_torchrun_that_chose_the_same_port_do_not_meet(stage):
    """The first one's second node comes late, so that the endpoint is taken when the second run comes to it."""
    port = free_block(1)
    config = example("sft", stage.directory)
    module = ["-m", "prime_rl.trainer.sft.train", "@", str(config)]

    def agent(run: str, node: int):
        words = ["--role=trainer", "--nnodes=2", "--nproc-per-node=1", f"--rdzv-endpoint=127.0.0.1:{port}"]
        words += [f"--rdzv-id={run}", f"--node-rank={node}"]
        return stage.start("torchrun", *words, *module, CUDA_VISIBLE_DEVICES="0", **GPUS)

    waiting = agent("first", 0)
    wait_until(lambda: _listens(port), "the first run's meeting place")
    others = [agent("second", 1), agent("second", 0)]
    outputs = [process.communicate(timeout=90)[0] for process in others]
    assert [process.returncode for process in others] == [0, 0], outputs
    assert f"port {port} of 0.0.0.0 cannot be used" in outputs[1] and "the nodes meet at port" in outputs[1]
    late = agent("first", 1)
    assert [late.wait(60), waiting.wait(60)] == [0, 0]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_dead_worker_ends_the_others_on_every_node(stage):
    port = free_block(1)
    config = example("sft", stage.directory, max_steps=10_000, ckpt__interval=10_000)
    words = ["--role=trainer", "--nnodes=2", "--nproc-per-node=2", f"--rdzv-endpoint=127.0.0.1:{port}"]
    words += ["--rdzv-id=run_1"]
    module = ["-m", "prime_rl.trainer.sft.train", "@", str(config)]
    agents = [
        stage.start("torchrun", *words, f"--node-rank={rank}", *module, CUDA_VISIBLE_DEVICES="0,1", **GPUS)
        for rank in range(2)
    ]
    wait_until((stage.directory / "out/metrics.jsonl").exists, "the first step")
    children = Path(f"/proc/{agents[1].pid}/task/{agents[1].pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    outputs = [agent.communicate(timeout=30)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [1, 1], outputs


def test_term_ends_an_agent_with_all_its_workers(stage):
    config = example("sft", stage.directory, max_steps=10_000, ckpt__interval=10_000)
    agent = stage.start(
        "torchrun",
        "--nproc-per-node=2",
        *("-m", "prime_rl.trainer.sft.train", "@", str(config)),
        CUDA_VISIBLE_DEVICES="0,1",
        **GPUS,
    )
    wait_until((stage.directory / "out/metrics.jsonl").exists, "the first step")
    agent.terminate()
    agent.communicate(timeout=30)
    assert agent.returncode == 143


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["torchrun", "--nproc-per-nod=2", "-m", "x"], "unknown flag --nproc-per-nod; did you mean '--nproc-per-node'"),
        (["torchrun", "--nproc-per-node=2", "-m", "prime_rl.trainer.dpo"], "no module named prime_rl.trainer.dpo"),
        (["inference"], "no config file"),
        (["inference", "@", "/nowhere/inference.toml"], "/nowhere/inference.toml: no such config file"),
        (["inference", "@", "README.md"], "README.md: not TOML"),
        (["inference", "@", "x.toml", "--server.prt", "1"], "unknown flag --server.prt"),
        (["vllm-router", "--worker-urls"], "--worker-urls needs at least one value"),
        (["vllm-router", "--worker-urls", "localhost:8100"], "expected http://host:port"),
        (["vllm-router", "--policy", "sticky", "--worker-urls", "http://a:1"], "--policy = 'sticky'"),
        (["orchestrator", "--model.client.base-ur", "x"], "unknown flag --model.client.base-ur"),
        (["rl", "config.toml"], "unexpected word 'config.toml'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(stage, words, line):
    code, output = stage.run(*words, CUDA_VISIBLE_DEVICES="0")
    assert code == 2
    assert line in output and len(output.splitlines()) == 1


def test_stand_ins_refuse_to_run_outside_a_rehearsal(stage):
    for missing in ("PRIMEBEAKER_REHEARSAL", "PRIMEBEAKER_LOCAL_ENGINE"):
        code, output = stage.run("inference", **{missing: "0"})
        assert code == 2 and "stand-in for rehearsals" in output


def test_a_gpu_outside_the_replica_is_refused(stage):
    config = stage.directory / "inference.toml"
    config.write_text("[server]\nport = 1\n")
    code, output = stage.run("inference", "@", str(config), CUDA_VISIBLE_DEVICES="5", GPUS_PER_NODE="4")
    assert code == 2 and "GPU 5 is outside this replica's 4 GPUs" in output


@pytest.fixture
def served(stage):
    """Two engines behind a router; gives the router's root and the engines' roots."""
    engines = []
    for number in range(2):
        port = free_block(1)
        config = stage.directory / f"inference{number}.toml"
        config.write_text(f'router = "None"\n[model]\nname = "{MODEL}"\n')
        stage.start(
            *("inference", "@", str(config), "--server.host", "127.0.0.1", "--server.port", str(port)),
            *("--parallel.dp", "1", "--data-parallel-size-local", "1", "--api-server-count", "1"),
            CUDA_VISIBLE_DEVICES=str(number),
            **GPUS,
        )
        engines.append(f"http://127.0.0.1:{port}")
    port = free_block(2)
    words = ["--policy", "consistent_hash", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--request-id-headers", "x-session-id", "--prometheus-port", str(port + 1)]
    stage.start("vllm-router", *words, "--worker-startup-timeout-secs", "60", "--worker-urls", *engines)
    root = f"http://127.0.0.1:{port}"
    wait_until(lambda: status(f"{root}/health") == 200, "a healthy router")
    return root, engines


def status(url: str) -> int:
    try:
        return httpx.get(url, timeout=5).status_code
    except httpx.HTTPError:
        return 0


def ask(root: str, **more) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello there"}], **more}
    return httpx.post(f"{root}/v1/chat/completions", json=body, timeout=10)


def test_the_server_speaks_openais_protocol(served):
    root, _ = served
    assert httpx.get(f"{root}/v1/models").json()["data"][0]["id"] == MODEL
    answer = ask(root, n=2, logprobs=True, max_tokens=3).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert len(answer["choices"][0]["logprobs"]["content"]) == 3
    assert answer["usage"]["completion_tokens"] == 6
    with httpx.stream(
        "POST", f"{root}/v1/chat/completions", json=json.loads(ask(root).request.content) | {"stream": True}
    ) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    text = "".join(
        choice["delta"].get("content", "") for line in lines[:-1] for choice in json.loads(line[6:])["choices"]
    )
    assert text == ask(root).json()["choices"][0]["message"]["content"]
    completed = httpx.post(f"{root}/v1/completions", json={"model": MODEL, "prompt": "Hello there"}).json()
    assert completed["choices"][0]["text"] == text


@pytest.mark.parametrize(
    ("more", "code"), [({"model": "other"}, 404), ({"messages": []}, 400), ({"messages": "x"}, 400)]
)
def test_wrong_requests_are_refused(served, more, code):
    assert ask(served[0], **more).status_code == code


def test_a_session_stays_with_its_engine(served):
    root, engines = served
    for _ in range(6):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        httpx.post(f"{root}/v1/chat/completions", json=body, headers={"x-session-id": "one"})
    counts = [httpx.get(f"{engine}/metrics").text.split()[1] for engine in engines]
    assert sorted(counts) == ["0", "6"]


def test_a_paused_engine_holds_requests_back_until_it_resumes(served):
    _, engines = served
    httpx.post(f"{engines[0]}/pause")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{engines[0]}/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "x"}]},
            timeout=0.5,
        )
    httpx.post(f"{engines[0]}/resume")
    assert ask(engines[0]).status_code == 200


def test_the_router_answers_503_without_workers(stage, served):
    root, _ = served
    for process in stage.started[:2]:
        process.terminate()
        assert process.wait(timeout=5) == 143 or process.returncode == -signal.SIGTERM
    wait_until(lambda: status(f"{root}/health") == 503 and ask(root).status_code == 503, "503 of the router")


def test_a_url_answers_in_the_engines_place(stage, served):
    root, _ = served
    stage.write(RehearsalSettings(model=root))
    port = free_block(1)
    config = stage.directory / "front.toml"
    config.write_text(f'router = "None"\n[model]\nname = "front"\n[server]\nport = {port}\n')
    stage.start("inference", "@", str(config), CUDA_VISIBLE_DEVICES="0")
    front = f"http://127.0.0.1:{port}"
    wait_until(lambda: status(f"{front}/health") == 200, "the front engine")
    answer = ask(front, model="front")
    assert answer.json()["model"] == MODEL
    assert "Hello there" in answer.json()["choices"][0]["message"]["content"]


def test_a_wrong_world_size_names_the_ranks_that_never_joined(stage):
    config = stage.directory / "trainer.toml"
    port = free_block(1)
    broadcast = f'type = "nccl"\nhost = "localhost"\nport = {port}\ntimeout = 1\ninference_world_size = 4\n'
    config.write_text(f'output_dir = "{stage.directory}/out"\nmax_steps = 1\n[weight_broadcast]\n{broadcast}')
    words = ("--nproc-per-node=1", "-m", "prime_rl.trainer.rl.train", "@", str(config))
    code, output = stage.run("torchrun", *words, CUDA_VISIBLE_DEVICES="0", **GPUS)
    assert code == 1
    assert "weight group: 0 of 4 inference ranks joined within 1 s" in output


def test_a_port_in_use_is_told_in_one_line(stage, served):
    _, engines = served
    port = engines[0].rpartition(":")[2]
    config = stage.directory / "again.toml"
    config.write_text(f'router = "None"\n[server]\nhost = "127.0.0.1"\nport = {port}\n')
    code, output = stage.run("inference", "@", str(config), CUDA_VISIBLE_DEVICES="0")
    assert (code, output) == (2, f"inference: port {port} of 127.0.0.1 cannot be used: Address already in use\n")
