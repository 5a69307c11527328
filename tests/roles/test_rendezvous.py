"""The barrier itself: many replicas, few file operations, nothing of an earlier start."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from primebeaker.errors import UserError
from primebeaker.roles import files as files_module
from primebeaker.roles.causes import RoleFault
from primebeaker.roles.fence import judge_epoch
from primebeaker.roles.files import DiskFaults, SharedFiles
from primebeaker.roles.rendezvous import Epoch, MemberFile, MemberScan, Paths, Rendezvous, named_ranks
from primebeaker.roles.topology import Slice
from primebeaker.roles.watch import Silence, Watch


async def join(
    root: Path, rank: int, nodes: int, *, instance: str = "", poll: float = 0.05, limit: float = 30, faults=None
):
    files = SharedFiles(instance or f"i{rank}", faults=faults)
    paths = Paths(root)
    me = MemberFile(
        rank=rank,
        instance=instance or f"i{rank}",
        host=f"n{rank}",
        ip="127.0.0.1",
        phase="assemble",
        slice=Slice(0, 8),
        backend_port=8100,
    )
    await files.write(paths.member(rank), me.as_json())
    barrier = Rendezvous(paths, files, me, nodes=nodes, poll=poll, timeout=limit)
    epoch, members = await barrier.assemble()
    return epoch, members, files


def make(root: Path) -> Path:
    Paths(root).create()
    return root


def test_every_rank_gets_the_same_epoch_and_members(tmp_path: Path) -> None:
    make(tmp_path)

    async def all_of_them():
        return await asyncio.gather(*(join(tmp_path, rank, 5) for rank in range(5)))

    outcomes = asyncio.run(all_of_them())
    assert len({epoch.epoch for epoch, _, _ in outcomes}) == 1
    assert all([member.rank for member in members] == [0, 1, 2, 3, 4] for _, members, _ in outcomes)


def test_128_replicas_pass_the_barrier(tmp_path: Path) -> None:
    """With the default ceiling of a second, within five seconds after the last arrives; the limit here is generous."""
    make(tmp_path)
    nodes = 128

    async def all_of_them():
        early = [asyncio.create_task(join(tmp_path, rank, nodes, poll=1.0)) for rank in range(nodes - 1)]
        await asyncio.sleep(1.5)
        arrived = time.monotonic()
        await asyncio.gather(join(tmp_path, nodes - 1, nodes, poll=1.0), *early)
        return time.monotonic() - arrived, [task.result()[2] for task in early]

    seconds, files = asyncio.run(all_of_them())
    assert seconds < 15
    assert all(file.operations["list"] < 40 for file in files[1:])


def test_a_followers_look_lists_one_directory_and_opens_at_most_three_files(tmp_path: Path) -> None:
    make(tmp_path)

    async def wait_alone():
        task = asyncio.create_task(join(tmp_path, 1, 2, poll=0.05, limit=1))
        with pytest.raises(RoleFault, match="waited 1 s"):
            await task

    seen: list[tuple[str, str]] = []
    real_read, real_list = files_module._content, os.listdir

    def read(path):
        seen.append(("read", path.name))
        return real_read(path)

    def listing(path):
        seen.append(("list", path.name))
        return real_list(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "_content", read)
        patch.setattr(os, "listdir", listing)
        asyncio.run(wait_alone())
    looks = sum(name == "0.json" for _, name in seen)
    assert looks > 5
    assert sum(kind == "list" for kind, _ in seen) <= looks
    assert sum(kind == "read" for kind, _ in seen) <= 3 * looks


def test_files_of_an_earlier_start_satisfy_nothing(tmp_path: Path) -> None:
    make(tmp_path)

    async def start(names: list[str]):
        return await asyncio.gather(
            *(join(tmp_path, rank, len(names), instance=name) for rank, name in enumerate(names))
        )

    async def twice():
        first = await start(["a0", "a1", "a2"])
        # Only some of the second start are there: the old files of the others must not let them pass.
        waiting = [asyncio.create_task(join(tmp_path, rank, 3, instance=f"b{rank}")) for rank in (0, 1)]
        await asyncio.sleep(0.6)
        assert not any(task.done() for task in waiting)
        last = await join(tmp_path, 2, 3, instance="b2")
        return first, [*[await task for task in waiting], last]

    first, second = asyncio.run(twice())
    assert second[0][0].number > first[0][0].number
    assert {member.instance for member in second[0][1]} == {"b0", "b1", "b2"}


def test_a_replica_replaced_before_the_start_gets_a_new_epoch(tmp_path: Path) -> None:
    make(tmp_path)

    async def replace():
        leader = asyncio.create_task(join(tmp_path, 0, 3))
        lost = asyncio.create_task(join(tmp_path, 1, 3, instance="lost"))
        await asyncio.sleep(0.3)
        lost.cancel()
        rest = await asyncio.gather(join(tmp_path, 1, 3, instance="new"), join(tmp_path, 2, 3))
        return await leader, rest

    (_, members, _), rest = asyncio.run(replace())
    assert [member.instance for member in members] == ["i0", "new", "i2"]
    assert rest[0][0].epoch == rest[1][0].epoch


def test_a_slow_disk_with_old_listings_changes_no_result(tmp_path: Path) -> None:
    make(tmp_path)

    async def all_of_them():
        return await asyncio.gather(
            *(join(tmp_path, rank, 4, poll=0.2, faults=DiskFaults(300, seed=rank)) for rank in range(4))
        )

    outcomes = asyncio.run(all_of_them())
    assert len({epoch.epoch for epoch, _, _ in outcomes}) == 1


def test_only_the_last_epochs_are_kept(tmp_path: Path) -> None:
    make(tmp_path)
    for number in range(8):
        asyncio.run(join(tmp_path, 0, 1, instance=f"s{number}"))
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "epochs").iterdir()) == list("45678")


def test_another_schema_version_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "members" / "1.json").write_text('{"schema": "primebeaker.member/v9", "rank": 1}')
    with pytest.raises(UserError, match=r"primebeaker\.member/v9'?: expected 'primebeaker\.member/v1'"):
        asyncio.run(join(tmp_path, 0, 2))


@pytest.mark.parametrize("content", ["", "{", "[]", "\0\0"])
def test_a_file_that_is_not_whole_yet_is_read_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)

    async def look():
        files = SharedFiles("i")
        assert await files.read(path) is None
        await files.write(path, {"a": 1})
        return await files.read(path)

    assert asyncio.run(look()) == {"a": 1}


def test_a_file_that_stays_unreadable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text("{")
    monkeypatch.setattr("primebeaker.roles.files._PATIENCE_SECONDS", 0.1)

    async def look():
        files = SharedFiles("i")
        assert await files.read(path) is None
        await asyncio.sleep(0.2)
        await files.read(path)

    with pytest.raises(RoleFault, match="not a whole JSON object"):
        asyncio.run(look())


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE, errno.EIO])
def test_faults_that_network_file_systems_show_for_a_moment_mean_not_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def stale(*words, **more):
        raise OSError(number, os.strerror(number))

    async def look():
        files = SharedFiles("i")
        await files.write(tmp_path / "x.json", {"a": 1})
        with monkeypatch.context() as patch:
            patch.setattr(files_module, "_PATIENCE_SECONDS", -1)
            patch.setattr(files_module, "open", stale, raising=False)
            assert await files.read(tmp_path / "x.json") is None
        return await files.read(tmp_path / "x.json")

    assert asyncio.run(look()) == {"a": 1}


def test_creating_is_exclusive_and_whole(tmp_path: Path) -> None:
    async def race():
        files = [SharedFiles(f"i{n}") for n in range(8)]
        return await asyncio.gather(*(file.create(tmp_path / "s.json", {"by": n}) for n, file in enumerate(files)))

    assert sum(asyncio.run(race())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


EPOCH = Epoch(epoch="3-aa", number=3, leader_instance="L", members={0: "L", 1: "me"})


@pytest.mark.parametrize(
    ("value", "rank", "code"),
    [
        (EPOCH, 1, None),
        (Epoch(epoch="2-aa", number=2, leader_instance="old", members={0: "old", 1: "x"}), 1, None),
        (Epoch(epoch="4-aa", number=4, leader_instance="M", members={0: "M", 1: "other"}), 1, 96),
        (Epoch(epoch="4-aa", number=4, leader_instance="M", members={0: "M", 1: "me"}), 1, 95),
        (Epoch(epoch="4-aa", number=4, leader_instance="M", members={0: "M", 1: "me"}), 0, 96),
    ],
)
def test_what_another_epoch_means(value: Epoch, rank: int, code: int | None) -> None:
    cause = judge_epoch(value.as_json(), EPOCH, rank=rank, instance="me" if rank else "L")
    assert (cause.code if cause else None) == code


def test_a_leader_that_was_stopped_in_the_midst_of_a_look_is_superseded(tmp_path: Path) -> None:
    """What it finds then are the members of the newer start, which look like replicas restarted without it."""
    make(tmp_path)

    async def start(names: str):
        return await asyncio.gather(*(join(tmp_path, rank, 2, instance=f"{names}{rank}") for rank in (0, 1)))

    async def look():
        (epoch, members, files), _ = await start("a")
        scan = MemberScan(files, Paths(tmp_path), 2)
        real = scan.look

        async def stopped_before_this():
            await start("b")
            return await real()

        scan.look = stopped_before_this
        watch = Watch(files, Paths(tmp_path), epoch, members, rank=0, instance="a0", heartbeat_timeout=0, scan=scan)
        return await watch.look()

    assert asyncio.run(look()).code == 96


def test_silence_is_measured_on_the_watchers_clock_and_its_own_pauses_do_not_count() -> None:
    now = [0.0]
    silence = Silence(10.0, clock=lambda: now[0])
    for at, beats, lost in [
        (0, {1: 1, 2: 1}, []),
        (4, {1: 2, 2: 1}, []),
        (8, {1: 3, 2: 1}, []),
        (11, {1: 3, 2: 1}, [2]),
        (50, {1: 3, 2: 1}, []),  # a pause of its own resets everything
        (54, {1: 3, 2: 2}, []),
        (58, {1: 3, 2: 2}, []),
        (61, {1: 3, 2: 2}, [1]),
    ]:
        now[0] = at
        assert silence.look(beats) == lost, at


def test_a_switched_off_heartbeat_watch_loses_nobody() -> None:
    now = [0.0]
    silence = Silence(0, clock=lambda: now[0])
    for now[0] in range(0, 1000, 4):
        assert silence.look({1: 1}) == []


def test_at_most_ten_ranks_are_named() -> None:
    assert named_ranks([3]) == "rank 3"
    assert named_ranks([3, 7]) == "ranks 3, 7"
    assert named_ranks(list(range(13))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"


def test_a_write_is_tried_again_after_a_fault_of_a_moment(tmp_path: Path) -> None:
    async def write() -> dict | None:
        files = SharedFiles("i")
        task = asyncio.create_task(files.write(tmp_path / "late" / "x.json", {"a": 1}))
        await asyncio.sleep(0.2)
        assert not task.done()
        (tmp_path / "late").mkdir()
        await task
        return await files.read(tmp_path / "late" / "x.json")

    assert asyncio.run(write()) == {"a": 1}


def test_a_write_that_cannot_work_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        asyncio.run(SharedFiles("i").write(tmp_path / "file" / "x.json", {}))
