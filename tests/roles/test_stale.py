"""What an output directory already holds: the step to continue from, and what is moved aside, never deleted."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from role_harness import Topology

from primebeaker.errors import UserError
from primebeaker.prime_rl.checkpoint_rules import rl_rule, sft_rule
from primebeaker.prime_rl.contract import DEFAULT, GEN_0_8
from primebeaker.prime_rl.layout import Layout
from primebeaker.roles.moves import move_aside
from primebeaker.roles.stale import LaunchRecord, clean, decide, plan_moves, refuse_odd_names


def step(layout: Layout, number: int, *, complete: bool = True) -> None:
    """One trainer rank's checkpoint, the orchestrator's, weights, rollouts and a broadcast."""
    trainer = layout.trainer_checkpoint(number)
    trainer.mkdir(parents=True)
    layout.trainer_shard(number, 0).write_bytes(b"shard %d" % number)
    if complete:
        layout.trainer_metadata(number).write_bytes(b"metadata")
    progress = layout.orchestrator_progress(number)
    progress.parent.mkdir(parents=True, exist_ok=True)
    progress.write_bytes(b"progress")
    for root in (layout.weights, layout.broadcasts, *layout.rollout_roots):
        (root / f"step_{number}").mkdir(parents=True)
        (root / f"step_{number}" / "data").write_bytes(b"x")
    for marker in ("STABLE", "NCCL_READY"):
        (layout.broadcast(number) / marker).touch()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return DEFAULT.layout(tmp_path / "out")


def decided(layout: Layout, values: dict, **settings):
    given = {"contract": DEFAULT, "layout": layout, "rule": rl_rule(1), "launch_id": "me"} | settings
    return decide(values, **given)


def resume(value: int | None) -> dict:
    return {"ckpt": {} if value is None else {"resume_step": value}}


@pytest.mark.parametrize(
    ("complete", "incomplete", "asked", "launch", "expected"),
    [
        ([], [], None, None, None),
        ([10, 20], [], -1, None, 20),
        ([10], [20], -1, None, 10),
        ([], [10], -1, None, None),
        ([10, 20], [], 10, None, 10),
        # A restart of the same launch continues from its own newest step, whatever the TOML asks for.
        ([10, 20], [], None, "me", 20),
        ([10, 20, 30], [], 20, "me", 30),
        ([10, 20], [30], 20, "me", 20),
        ([10], [], 20, "me", 20),
        ([], [10], None, "me", None),
    ],
)
def test_the_step_to_continue_from(
    layout: Layout,
    complete: list[int],
    incomplete: list[int],
    asked: int | None,
    launch: str | None,
    expected: int | None,
) -> None:
    for number in complete:
        step(layout, number)
    for number in incomplete:
        step(layout, number, complete=False)
    if launch:
        LaunchRecord(launch, ()).write(layout.output_dir)
    assert decided(layout, resume(asked)).step == expected


def test_skipped_steps_are_told_with_what_they_lack(layout: Layout) -> None:
    step(layout, 10)
    step(layout, 20, complete=False)
    notices = decided(layout, resume(-1)).notices
    assert "step 20 is skipped: trainer .metadata" in notices


def test_an_asked_step_must_be_complete(layout: Layout) -> None:
    step(layout, 20, complete=False)
    with pytest.raises(UserError, match=r"ckpt.resume_step = 20: step 20 is not complete: trainer \.metadata"):
        decided(layout, resume(20))


def test_checkpoints_of_another_launch_are_refused_with_the_ways_out(layout: Layout) -> None:
    step(layout, 5)
    LaunchRecord("other", ()).write(layout.output_dir)
    with pytest.raises(UserError, match="already holds checkpoints of another launch") as caught:
        decided(layout, resume(None))
    for way in ("ckpt.resume_step = -1", "primebeaker rl resume", "another output_dir"):
        assert way in str(caught.value)


def test_cleaning_moves_everything_beside_once(layout: Layout) -> None:
    step(layout, 5)
    (layout.output_dir / "notes.txt").write_text("mine")
    decision = decided(layout, {"clean_output_dir": True})
    assert (decision.clean, decision.step) == (True, None)
    clean(layout, "me")
    aside = layout.output_dir.with_name("out.cleaned-me")
    assert (aside / "notes.txt").read_text() == "mine"
    assert (aside / "checkpoints/step_5/trainer/.metadata").exists()
    assert not list(layout.output_dir.iterdir())
    # The restart of the same launch meets its own record first, and never cleans again.
    LaunchRecord("me", ()).write(layout.output_dir)
    assert decided(layout, {"clean_output_dir": True}).clean is False


def test_sft_needs_the_trainer_alone(tmp_path: Path) -> None:
    layout = DEFAULT.layout(tmp_path)
    step(layout, 4)
    layout.orchestrator_progress(4).unlink()
    assert decided(layout, resume(-1), rule=sft_rule()).step == 4


def test_generation_0_8_asks_in_its_own_table(tmp_path: Path) -> None:
    layout = GEN_0_8.layout(tmp_path)
    step(layout, 3)
    step(layout, 4)
    assert decided(layout, {"resume": {}}, contract=GEN_0_8).step == 4
    assert decided(layout, {"resume": {"step": 3}}, contract=GEN_0_8).step == 3


@pytest.mark.parametrize("name", ["step_20.bak", "step_x", "step_020"])
def test_names_that_make_prime_rl_fail_are_refused(layout: Layout, name: str) -> None:
    (layout.trainer_checkpoints / name).mkdir(parents=True)
    with pytest.raises(UserError, match=f"{name}: Prime-RL fails on this name"):
        refuse_odd_names(layout)


def everything(root: Path) -> dict[str, bytes]:
    return {path.name + str(path.stat().st_ino): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_an_abandoned_branch_is_moved_aside_and_nothing_is_lost(layout: Layout) -> None:
    for number in (10, 20, 30):
        step(layout, number)
    (layout.trainer_checkpoints / "keep-me").mkdir()
    before = everything(layout.output_dir)
    moves = plan_moves(layout, step=20, epoch="7-ab", broadcast="nccl")
    move_aside(moves)
    move_aside(moves)  # again, after a crash: nothing is left to do
    assert everything(layout.output_dir) == before
    assert sorted(path.name for path in layout.trainer_checkpoints.iterdir()) == ["keep-me", "step_10", "step_20"]
    assert not layout.broadcasts.exists(), "the trainer sends the policy anew"
    aside = layout.output_dir / "primebeaker_resume" / "superseded" / "7-ab"
    assert {path.name for path in aside.iterdir()} == {
        *("checkpoints", "run_default_checkpoints", "weights", "rollouts", "run_default_rollouts"),
        "run_default_broadcasts",
    }
    assert (aside / "checkpoints/step_30/trainer/.metadata").exists()


def test_with_the_file_transport_the_policy_of_the_step_stays(layout: Layout) -> None:
    for number in (10, 20, 30):
        step(layout, number)
    move_aside(plan_moves(layout, step=20, epoch="e", broadcast="filesystem"))
    assert [path.name for path in layout.broadcasts.iterdir()] == ["step_20"]
    assert {path.name for path in layout.broadcast(20).iterdir()} == {"data", "STABLE"}


def test_a_fresh_start_moves_what_an_incomplete_run_left(layout: Layout) -> None:
    step(layout, 1, complete=False)
    move_aside(plan_moves(layout, step=None, epoch="e", broadcast="filesystem"))
    assert not list(layout.trainer_checkpoints.iterdir())
    assert not layout.broadcasts.exists()


def test_a_checkpoint_directory_of_its_own_keeps_what_is_moved(tmp_path: Path) -> None:
    layout = DEFAULT.layout(tmp_path / "out", ckpt_output_dir=tmp_path / "ssd")
    step(layout, 9)
    move_aside(plan_moves(layout, step=None, epoch="e", broadcast="nccl"))
    assert (tmp_path / "ssd/primebeaker_resume/superseded/e/checkpoints/step_9/trainer").is_dir()
    assert (tmp_path / "out/primebeaker_resume/superseded/e/run_default_checkpoints/step_9").is_dir()


def test_links_are_moved_as_links(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    layout.trainer_checkpoints.mkdir(parents=True)
    (layout.trainer_checkpoints / "step_9").symlink_to(tmp_path / "elsewhere")
    move_aside(plan_moves(layout, step=None, epoch="e", broadcast="nccl"))
    moved = layout.output_dir / "primebeaker_resume/superseded/e/checkpoints/step_9"
    assert moved.is_symlink()
    assert (tmp_path / "elsewhere").is_dir()


def test_an_existing_target_is_never_overwritten(layout: Layout) -> None:
    step(layout, 9)
    moves = plan_moves(layout, step=None, epoch="e", broadcast="nccl")
    Path(moves[0].target).mkdir(parents=True)
    with pytest.raises(UserError, match="exists"):
        move_aside(moves)


def test_a_run_resumed_at_20_beside_a_complete_30_loses_nothing(launch: Callable[..., Topology]) -> None:
    topology = launch()
    topology.config.write_text(topology.config.read_text().replace("interval = 2", "interval = 2\nresume_step = 20"))
    layout = DEFAULT.layout(topology.output_dir)
    for number in (20, 30):
        step(layout, number)
    topology.start()
    topology.up()
    configs = topology.output_dir / "configs"
    for name in ("trainer", "orchestrator"):
        assert tomllib.loads((configs / f"{name}.toml").read_text())["ckpt"]["resume_step"] == 20
    assert [path.name for path in layout.trainer_checkpoints.iterdir()] == ["step_20"]
    moved = list(topology.output_dir.glob("primebeaker_resume/superseded/*/checkpoints/step_30/trainer/.metadata"))
    assert len(moved) == 1
    assert "continues from step 20" in topology.output()
    record = json.loads((topology.output_dir / "primebeaker_launch.json").read_text())
    assert record["epochs"][0]["resume_step"] == 20


def test_a_used_directory_ends_the_role_before_anything_is_changed(launch: Callable[..., Topology]) -> None:
    topology = launch()
    step(DEFAULT.layout(topology.output_dir), 5)
    before = everything(topology.output_dir)
    topology.start()
    assert topology.codes() == {0: 2, 1: 90}, topology.output()
    assert "already holds checkpoints of another launch" in topology.output()
    assert everything(topology.output_dir) == before
    topology.nothing_left()
