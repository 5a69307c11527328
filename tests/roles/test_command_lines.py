"""What every process of a topology is started with."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from role_harness import Topology, wait_until

Launch = Callable[..., Topology]

COMMON = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
}


def argv(topology: Topology, rank: int, process: str) -> list[str]:
    program, *rest = topology.record(rank, process)["argv"]
    return [Path(program).name, *rest]


def test_a_mixed_two_node_rl_run(launch: Launch) -> None:
    topology = launch(gpus=8, cp=4)
    topology.start()
    topology.up()
    configs, logs = topology.output_dir / "configs", topology.output_dir / "logs"
    runtime = json.loads(next(topology.rendezvous.glob("epochs/*/runtime.json")).read_text())
    engines = [engine["url"] for engine in runtime["engines"]]
    assert len(engines) == 12
    assert [engine["gpus"] for engine in runtime["engines"]] == [[n] for n in (*range(4, 8), *range(8))]
    assert runtime["admin_urls"] == [f"{url}/v1" for url in engines]

    assert argv(topology, 0, "router") == [
        *("vllm-router", "--policy", "consistent_hash", "--host", "0.0.0.0", "--port", str(topology.router)),
        *("--request-id-headers", "x-session-id", "--prometheus-port", str(topology.router + 21000)),
        *("--worker-startup-timeout-secs", "4200", "--worker-urls", *engines),
    ]
    for rank, first_gpu, count in ((0, 4, 4), (1, 0, 8)):
        urls = [engine["url"] for engine in runtime["engines"] if engine["rank"] == rank]
        for number in range(count):
            record = topology.record(rank, f"engine{number}")
            assert argv(topology, rank, f"engine{number}") == [
                *("inference", "@", str(configs / "inference.toml"), "--server.host", "0.0.0.0"),
                *("--server.port", urls[number].rpartition(":")[2], "--parallel.dp", "1"),
                *("--data-parallel-size-local", "1", "--api-server-count", "1"),
            ]
            own = topology.root / f"tmp{rank}" / "inference" / f"node_{rank}_rank{number}"
            expected = COMMON | {
                "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
                "VLLM_ENGINE_READY_TIMEOUT_S": "4200",
                "UCX_TLS": "all",
                "CUDA_VISIBLE_DEVICES": str(first_gpu + number),
                "VLLM_RPC_BASE_PATH": str(own / "rpc"),
                "VLLM_CACHE_ROOT": str(own / "vllm"),
                "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor"),
            }
            assert expected.items() <= record["env"].items()
            assert (own / "rpc").is_dir()
            assert (logs / "inference" / f"node_{rank}_rank{number}.log").exists()

    assert argv(topology, 0, "trainer") == [
        *("torchrun", "--role=trainer", "--standalone", "--nnodes=1", "--nproc-per-node=4", "--node-rank=0"),
        *(f"--log-dir={logs}/trainer/torchrun", "--tee=3", "--redirects=3", "--local-ranks-filter=0"),
        *("-m", "prime_rl.trainer.rl.train", "@", str(configs / "trainer.toml")),
        *("--rollout_transport.host", "127.0.0.1"),
    ]
    trainer = topology.record(0, "trainer")["env"]
    assert trainer["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert (trainer["WANDB_SHARED_LABEL"], trainer["WANDB_SHARED_MODE"]) == ("trainer", "1")
    assert (trainer["MASTER_ADDR"], trainer["PYTORCH_CUDA_ALLOC_CONF"]) == ("127.0.0.1", "expandable_segments:True")

    assert argv(topology, 0, "orchestrator") == [
        *("orchestrator", "@", str(configs / "orchestrator.toml")),
        *("--model.client.base-url", f"http://127.0.0.1:{topology.router}/v1"),
        *("--model.client.admin-base-url", *(f"{url}/v1" for url in engines)),
        *("--weight_broadcast.host", "127.0.0.1", "--rollout_transport.host", "127.0.0.1"),
    ]
    orchestrator = topology.record(0, "orchestrator")["env"]
    assert orchestrator["WANDB_SHARED_LABEL"] == "orchestrator"
    assert "CUDA_VISIBLE_DEVICES" not in orchestrator

    gateway = topology.record(0, "gateway")
    assert gateway["argv"][1:] == [
        *("--port", str(topology.gateway), "--workers", "1", "--timeout", "800", "--judge-timeout", "800")
    ]
    assert gateway["env"]["REGISTRY_PATH"] == "redis://user:hunter2secret@127.0.0.1:1"

    written = {name: tomllib.loads((configs / f"{name}.toml").read_text()) for name in ("trainer", "orchestrator")}
    for table in written.values():
        assert table["weight_broadcast"]["inference_world_size"] == 12
    assert written["trainer"]["weight_broadcast"]["host"] == "0.0.0.0"
    assert written["orchestrator"]["num_train_workers"] == 1
    assert tomllib.loads((configs / "inference.toml").read_text())["router"] == "None"
    wait_until((logs / "trainer.log").is_symlink, "logs are linked")
    assert (logs / "trainer.log").resolve() == logs / "trainer" / "node_0.log"
    wait_until((logs / "inference.log").is_symlink, "logs are linked")
    assert (logs / "inference.log").resolve() == logs / "inference" / "node_0_rank0.log"


def test_a_two_node_sft_run(launch: Launch) -> None:
    topology = launch(kind="sft")
    topology.start()
    topology.up()
    runtime = json.loads(next(topology.rendezvous.glob("epochs/*/runtime.json")).read_text())
    logs = topology.output_dir / "logs"
    for rank in (0, 1):
        assert argv(topology, rank, "trainer") == [
            *("torchrun", "--role=trainer", "--nnodes=2", "--nproc-per-node=2", f"--node-rank={rank}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{runtime['master_port']}"),
            f"--rdzv-id=primebeaker_launch1_{runtime['epoch']}",
            *(f"--log-dir={logs}/trainer/torchrun", "--tee=3", "--redirects=3", "--local-ranks-filter=0"),
            *("-m", "prime_rl.trainer.sft.train", "@", str(topology.output_dir / "configs" / "sft.toml")),
        ]
        env = topology.record(rank, "trainer")["env"]
        assert COMMON.items() <= env.items()
        assert (logs / "trainer" / f"node_{rank}.log").read_text().startswith("=== ")


def test_devices_are_indexes_into_the_roles_own_list(launch: Launch) -> None:
    topology = launch(env={"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb"})
    topology.start()
    topology.up()
    assert topology.record(0, "trainer")["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-aa"
    assert topology.record(0, "engine0")["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-bb"
    assert topology.record(0, "orchestrator")["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-aa,GPU-bb"


def test_a_device_list_that_is_too_short_is_a_mistake(launch: Launch) -> None:
    topology = launch(env={"CUDA_VISIBLE_DEVICES": "3"})
    topology.start()
    assert topology.codes() == {0: 2, 1: 2}, topology.output()
    assert "CUDA_VISIBLE_DEVICES = '3': expected at least 2 devices" in topology.output()
    topology.nothing_left()


def test_no_credential_is_in_a_process_list_or_a_log(launch: Launch) -> None:
    topology = launch()
    topology.start()
    topology.up()
    words = [word for rank, process in topology.processes for word in topology.record(rank, process)["argv"]]
    topology.order(0, "trainer", "exit 4")
    topology.codes()
    logs = [path for path in topology.output_dir.rglob("*") if path.is_file()]
    logs += [path for path in topology.rendezvous.rglob("*") if path.is_file()]
    everything = " ".join(words) + topology.output() + "".join(path.read_text(errors="replace") for path in logs)
    assert "hunter2secret" not in everything


def test_exports_of_the_setup_command_reach_trainer_and_engines(launch: Launch) -> None:
    text = "export A='x y'\nexport PATH=/opt/t:$PATH; export LAUNCH_ID=evil BEAKER_X=evil # note \\"
    topology = launch(env={"PRIMEBEAKER_SETUP_COMMAND": text})
    topology.start()
    topology.up()
    for rank, process in ((0, "trainer"), (1, "engine0")):
        env = topology.record(rank, process)["env"]
        assert env["A"] == "x y"
        assert env["PATH"].startswith("/opt/t:")
        assert env["LAUNCH_ID"] == "launch1"
        assert "BEAKER_X" not in env


def test_a_setup_command_that_fails_keeps_its_code(launch: Launch) -> None:
    topology = launch(nodes=1, cp=1, env={"PRIMEBEAKER_SETUP_COMMAND": "true\nfalse || exit 41\nexport NEVER=1"})
    topology.start()
    assert topology.codes() == {0: 41}, topology.output()
    assert "the setup command failed with code 41" in topology.output()
    assert not topology.output_dir.exists()
    early = (topology.rendezvous / "logs" / "rank_0.jsonl").read_text().splitlines()
    assert json.loads(early[-1])["event"] == "shutdown"


def test_a_moved_port_is_told_and_used(launch: Launch) -> None:
    import socket

    topology = launch()
    with socket.socket() as busy, socket.socket() as busy_gateway:
        busy.bind(("0.0.0.0", topology.router))
        busy.listen()
        topology.start()
        topology.up()
        assert f"router: port {topology.router} is busy, {topology.router + 1} is used" in topology.output()
        assert str(topology.router + 1) in argv(topology, 0, "router")
        assert f"http://127.0.0.1:{topology.router + 1}/v1" in argv(topology, 0, "orchestrator")
        topology.order(0, "trainer", "exit 4")
        topology.codes()
        topology.forget_records()
        # The environments name the gateway's port, so it cannot move.
        busy_gateway.bind(("0.0.0.0", topology.gateway))
        busy_gateway.listen()
        topology.start()
        assert topology.codes() == {0: 2, 1: 90}, topology.output()
    assert f"GATEWAY_PORT = {topology.gateway}: the port is busy" in topology.output()
    assert "--gateway-port" in topology.output()


def test_replicas_on_one_host_never_choose_the_same_engine_ports(launch: Launch) -> None:
    topology = launch()
    topology.start()
    topology.up()
    ports = [
        topology.record(rank, process)["argv"][topology.record(rank, process)["argv"].index("--server.port") + 1]
        for rank, process in topology.processes
        if process.startswith("engine")
    ]
    assert len(set(ports)) == len(ports) == 3


def test_start_up_imports_nothing_heavy() -> None:
    import subprocess

    names = ("torch", "vllm", "verifiers", "datasets", "literegistry", "pydantic")
    program = (
        f"import sys, primebeaker.multinode, primebeaker.roles.run; print([n for n in {names} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_real_gateway_and_waits_with_a_registry_on_disk(launch: Launch) -> None:
    from role_harness import SOURCE

    topology = launch(env={"PYTHONPATH": str(SOURCE), "REQUIRED_LITEREGISTRY_SERVICES": "{}"})
    topology.env["REGISTRY"] = f"sqlite://{topology.root}/registry.db"
    topology.start()
    topology.record(0, "orchestrator")
    assert "gateway ready after" in topology.replicas[0].text
    assert "GATEWAY_URL=" in (topology.output_dir / "literegistry-gateway.log").read_text()
    topology.order(0, "orchestrator", "exit 0")
    topology.order(0, "trainer", "exit 0")
    assert topology.codes() == {0: 0, 1: 0}, topology.output()
    topology.nothing_left()


def test_a_required_service_that_never_comes_is_named(launch: Launch) -> None:
    from role_harness import SOURCE

    topology = launch(env={"PYTHONPATH": str(SOURCE), "RENDEZVOUS_TIMEOUT_SECONDS": "8"})
    topology.env["REGISTRY"] = f"sqlite://{topology.root}/registry.db"
    topology.start()
    assert topology.codes() == {0: 94, 1: 90}, topology.output()
    assert "services: not ready in time: terminal: 0 of 1 healthy" in topology.output()
    topology.nothing_left()


def test_missing_programs_are_named_together(launch: Launch) -> None:
    topology = launch(env={"PRIMEBEAKER_REHEARSAL": "0"})
    for name in ("torchrun", "vllm-router"):
        (topology.bin / name).unlink()
    (leader,) = topology.start(0)
    assert topology.code(leader) == 2, topology.output()
    assert "not found in this image: torchrun, vllm-router, the Python package prime_rl" in leader.text
    assert not topology.output_dir.exists()
