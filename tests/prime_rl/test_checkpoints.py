"""Which checkpoint steps count as complete, each condition alone and in both layouts."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.prime_rl.checkpoint_rules import find_layout, rl_rule, rl_rule_of, sft_rule
from primebeaker.prime_rl.checkpoints import list_steps, newest_complete, read_step, select_step


@dataclass(frozen=True)
class Index:
    fqn: str


@dataclass
class StorageInfo:
    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    storage_data: dict = field(default_factory=dict)


def write_metadata(path: Path, extents: dict[str, tuple[int, int]]) -> None:
    stored = {Index(name): StorageInfo(name, offset, length) for name, (offset, length) in extents.items()}
    path.write_bytes(pickle.dumps(Metadata(stored)))


def write_step(layout, step: int, ranks: int = 2) -> Path:
    trainer = layout.trainer_checkpoint(step)
    trainer.mkdir(parents=True)
    for rank in range(ranks):
        (trainer / f"__{rank}_0.distcp").write_bytes(b"x" * 128)
    write_metadata(trainer / ".metadata", {f"__{rank}_0.distcp": (28, 100) for rank in range(ranks)})
    progress = layout.orchestrator_progress(step)
    progress.parent.mkdir(parents=True)
    with zipfile.ZipFile(progress, "w") as archive:
        archive.writestr("progress", "1")
    policy = layout.broadcasts / f"step_{step}"
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(b"w")
    (policy / "STABLE").touch()
    return trainer


@pytest.fixture(params=["0.7", "0.8", "0.7 with ckpt.output_dir"])
def layout(request, tmp_path):
    generation = request.param[:3]
    elsewhere = tmp_path / "elsewhere" if "with" in request.param else None
    layout = find_layout(tmp_path / "run", generation=generation, checkpoint_dir=elsewhere)
    write_step(layout, 3)
    return layout


def missing(layout, rule) -> tuple[str, ...]:
    state = read_step(layout, rule, 3)
    assert state is not None
    return state.missing


FILES = rl_rule(2, policy_files=True)


def test_a_whole_step_is_complete_and_describes_itself(layout):
    state = read_step(layout, FILES, 3)
    assert state.complete and state.verified and state.warnings == ()
    assert [tuple(shard) for shard in state.trainer_shards] == [("__0_0.distcp", 128), ("__1_0.distcp", 128)]
    assert state.policy_dir == layout.broadcasts / "step_3"
    row = state.as_dict()
    assert (row["step"], row["complete"], row["trainer"], row["orchestrator"], row["policy"]) == (
        3,
        True,
        True,
        True,
        True,
    )
    assert row["bytes"] == 256 + state.trainer_metadata.stat().st_size + layout.orchestrator_progress(3).stat().st_size
    assert row["modified_at"].endswith("Z")


@pytest.mark.parametrize("empty", [True, False])
def test_1_metadata_commits_the_trainers_part(layout, empty):
    path = layout.trainer_checkpoint(3) / ".metadata"
    path.write_bytes(b"") if empty else path.unlink()
    assert missing(layout, FILES) == ("trainer .metadata",)


@pytest.mark.parametrize("empty", [True, False])
def test_2_every_rank_needs_a_non_empty_shard(layout, empty):
    write_metadata(layout.trainer_checkpoint(3) / ".metadata", {"__0_0.distcp": (0, 1)})
    path = layout.trainer_checkpoint(3) / "__1_0.distcp"
    path.write_bytes(b"") if empty else path.unlink()
    assert missing(layout, FILES) == ("trainer shard __1_0.distcp",)


def test_2_a_later_file_of_the_rank_is_enough(layout):
    trainer = layout.trainer_checkpoint(3)
    (trainer / "__1_0.distcp").rename(trainer / "__1_7.distcp")
    write_metadata(trainer / ".metadata", {"__1_7.distcp": (0, 128)})
    assert missing(layout, FILES) == ()


@pytest.mark.parametrize("name", ["__2_0.distcp", "__00_0.distcp", "model.distcp", "__1_.distcp"])
def test_3_a_shard_of_another_world_or_name_is_unexpected(layout, name):
    (layout.trainer_checkpoint(3) / name).write_bytes(b"x")
    assert missing(layout, FILES) == (f"unexpected shard {name} (expected R=2 ranks)",)


def test_4_a_cut_pickle_is_truncated(layout):
    path = layout.trainer_checkpoint(3) / ".metadata"
    path.write_bytes(path.read_bytes()[:-9])
    assert missing(layout, FILES) == ("truncated .metadata",)


def test_4_a_short_shard_is_named_with_both_sizes(layout):
    (layout.trainer_checkpoint(3) / "__0_0.distcp").write_bytes(b"x" * 100)
    assert missing(layout, FILES) == ("shard __0_0.distcp is 100 bytes, needs 128",)


@pytest.mark.parametrize("path", ["../__0_0.distcp", "/etc/hostname"])
def test_4_a_path_out_of_the_checkpoint_is_refused(layout, path):
    write_metadata(layout.trainer_checkpoint(3) / ".metadata", {path: (0, 1)})
    assert missing(layout, FILES) == (f"shard {path} lies outside the checkpoint",)


def test_4_a_named_file_must_exist(layout):
    write_metadata(layout.trainer_checkpoint(3) / ".metadata", {"__0_9.distcp": (0, 4)})
    assert missing(layout, FILES) == ("shard __0_9.distcp is missing, needs 4",)


@pytest.mark.parametrize("damage", ["remove", "empty", "cut"])
def test_5_progress_must_be_whole(layout, damage):
    path = layout.orchestrator_progress(3)
    content = path.read_bytes()
    path.unlink()
    if damage != "remove":
        path.write_bytes(b"" if damage == "empty" else content[:20])
    assert missing(layout, FILES) == ("orchestrator progress.pt",)


@pytest.mark.parametrize("damage", ["STABLE", "model.safetensors"])
def test_6_the_policy_must_lie_there_when_files_carry_it(layout, damage):
    (layout.broadcasts / "step_3" / damage).unlink()
    assert missing(layout, FILES) == ("policy weights broadcasts/step_3",)
    assert missing(layout, rl_rule(2)) == ()


def test_6_weights_beside_the_orchestrators_step_are_a_policy_too(layout):
    (layout.broadcasts / "step_3" / "STABLE").unlink()
    (layout.orchestrator_checkpoints / "step_3" / "weight").mkdir()
    (layout.orchestrator_checkpoints / "step_3" / "STABLE").touch()
    assert missing(layout, FILES) == ()


def test_7_a_newer_temporary_metadata_means_a_save_under_way(layout):
    trainer = layout.trainer_checkpoint(3)
    (trainer / ".metadata.tmp").write_bytes(b"x")
    committed = (trainer / ".metadata").stat().st_mtime
    os.utime(trainer / ".metadata.tmp", (committed + 5, committed + 5))
    assert missing(layout, FILES) == ("save in progress",)
    os.utime(trainer / ".metadata.tmp", (committed - 5, committed - 5))
    assert missing(layout, FILES) == ()


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_hostile_pickle_runs_nothing_and_the_step_is_judged_without_it(layout, tmp_path):
    (layout.trainer_checkpoint(3) / ".metadata").write_bytes(pickle.dumps([Bomb(tmp_path / "ran")]))
    state = read_step(layout, FILES, 3)
    assert not (tmp_path / "ran").exists()
    assert state.complete and not state.verified
    assert "not verified" in state.warnings[0]


def test_unknown_kinds_of_files_count_as_present_with_a_warning(layout):
    (layout.trainer_checkpoint(3) / ".metadata").write_bytes(b"{}")
    layout.orchestrator_progress(3).write_bytes(b"state")
    state = read_step(layout, FILES, 3)
    assert state.complete and not state.verified
    assert [warning.split(": ")[1] for warning in state.warnings] == [
        "not verified (not a pickle)",
        "not verified (not a zip file)",
    ]


def test_sft_accepts_any_world_and_needs_the_trainer_alone(tmp_path):
    layout = find_layout(tmp_path)
    trainer = write_step(layout, 3, ranks=4)
    layout.orchestrator_progress(3).unlink()
    assert missing(layout, sft_rule()) == ()
    (trainer / "__1_0.distcp").unlink()
    assert missing(layout, sft_rule()) == ("shard __1_0.distcp is missing, needs 128",)
    (trainer / ".metadata").write_bytes(b"{}")
    assert missing(layout, sft_rule()) == ("trainer shard __1_0.distcp",)


def test_selection_takes_the_newest_complete_step_and_says_why_others_were_skipped(tmp_path):
    """Step 10 complete, 20 lacks a shard, 30 has an empty progress file."""
    layout = find_layout(tmp_path)
    for step in (10, 20, 30):
        write_step(layout, step)
    (layout.trainer_checkpoint(20) / "__1_0.distcp").unlink()
    layout.orchestrator_progress(30).write_bytes(b"")
    selection = select_step(layout, rl_rule(2))
    assert selection.chosen.step == 10
    assert [(state.step, state.missing[0]) for state in selection.skipped] == [
        (30, "orchestrator progress.pt"),
        (20, "trainer shard __1_0.distcp"),
    ]
    with pytest.raises(UserError, match=r"step 20 is incomplete: trainer shard __1_0.distcp.*complete steps: 10$"):
        select_step(layout, rl_rule(2), 20)
    with pytest.raises(UserError, match=r"step 40 is not in .*complete steps: 10$"):
        select_step(layout, rl_rule(2), 40)
    assert select_step(layout, rl_rule(2), 10).chosen.step == 10


def test_without_a_complete_step_the_message_names_patterns_and_the_newest_three(tmp_path):
    layout = find_layout(tmp_path)
    for step in (1, 2, 3, 4):
        (write_step(layout, step) / ".metadata").unlink()
    with pytest.raises(UserError) as caught:
        select_step(layout, rl_rule(2))
    text = str(caught.value)
    assert f"{tmp_path}/checkpoints/step_*/trainer/.metadata" in text
    assert all(f"step {step} lacks trainer .metadata" in text for step in (2, 3, 4)) and "step 1" not in text


def test_a_missing_root_is_named(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path / "checkpoints")):
        select_step(find_layout(tmp_path), rl_rule(1))


def test_only_exact_step_names_count_and_links_to_directories_do(tmp_path):
    layout = find_layout(tmp_path)
    write_step(layout, 5)
    for name in ("step_06", "step_7.bak", "step_-1", "incomplete-step_8", "step_"):
        (layout.trainer_checkpoints / name).mkdir()
    (layout.trainer_checkpoints / "step_9").write_text("a file")
    (layout.trainer_checkpoints / "step_11").symlink_to("step_5")
    assert [state.step for state in list_steps(layout, rl_rule(2))] == [5, 11]


def test_a_step_that_vanishes_is_skipped(tmp_path):
    assert read_step(find_layout(tmp_path), rl_rule(2), 3) is None


def test_a_step_only_the_orchestrator_has_is_listed_as_incomplete(tmp_path):
    layout = find_layout(tmp_path)
    write_step(layout, 1)
    layout.orchestrator_progress(2).parent.mkdir(parents=True)
    layout.orchestrator_progress(2).write_bytes(b"x")
    assert [(state.step, state.complete) for state in list_steps(layout, rl_rule(2))] == [(1, True), (2, False)]
    assert newest_complete(layout, rl_rule(2)).chosen.step == 1


def test_an_unreadable_directory_is_an_error_not_an_incomplete_step():
    # Not tmp_path: its parents are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        layout = find_layout(Path(folder))
        write_step(layout, 1).chmod(0)
        with (
            as_an_ordinary_user(),
            pytest.raises(UserError, match=r"step_1/trainer: cannot be read \(Permission denied"),
        ):
            list_steps(layout, rl_rule(2))


@contextlib.contextmanager
def as_an_ordinary_user():
    """Root ignores mode bits, so the check runs under another effective user."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_the_other_layout_is_tried_when_none_of_the_roots_is_there(tmp_path):
    write_step(find_layout(tmp_path / "old", generation="0.7"), 1)
    write_step(find_layout(tmp_path / "new", generation="0.8"), 1)
    assert find_layout(tmp_path / "new").generation == "0.8"
    assert find_layout(tmp_path / "old").generation == "0.7"
    elsewhere = find_layout(tmp_path / "x", generation="0.7", checkpoint_dir=tmp_path / "disk")
    write_step(elsewhere, 1)
    assert find_layout(tmp_path / "x", generation="0.8", checkpoint_dir=tmp_path / "disk") == elsewhere


@pytest.mark.parametrize(
    ("config", "ranks", "by_files"),
    [
        ({"deployment": {"num_train_gpus": 3}, "inference": {}}, 3, False),
        ({"inference": {}}, 1, False),
        ({}, 1, True),
        ({"inference": {}, "trainer": {"model": {"lora": {"rank": 8}}}}, 1, True),
        ({"inference": {}, "trainer": {"model": {"lora": "None"}}}, 1, False),
        ({"inference": {}, "weight_broadcast": {"type": "filesystem"}}, 1, True),
        (
            {"deployment": {"type": "multi_node"}, "inference": {}, "trainer": {"model": {"cp": 2, "dp_replicate": 4}}},
            8,
            False,
        ),
    ],
)
def test_the_rule_of_a_training_toml(config, ranks, by_files):
    rule = rl_rule_of(config)
    assert (rule.ranks, rule.orchestrator, rule.policy_files) == (ranks, True, by_files)
    assert rl_rule_of(config, generation="0.8").policy_files is False


@pytest.mark.parametrize("ranks", [0, -1])
def test_fewer_than_one_rank_is_refused(ranks):
    with pytest.raises(UserError, match="at least 1"):
        rl_rule(ranks)
