"""A shared disk whose operations take up to 5 s and whose listings are 30 s old, or that does not answer at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from virtual_time import SlowFiles, run

from primebeaker.prime_rl.subconfigs import digest
from primebeaker.roles.causes import Cause, ExitCode, RoleFault
from primebeaker.roles.rendezvous import Epoch, MemberFile, Paths, Rendezvous
from primebeaker.roles.rl_role import RLRole
from primebeaker.roles.topology import Member, Slice
from primebeaker.roles.watch import Complete, Watch

DELAY, STALE = 5.0, 30.0
NODES = 6


class Rank:
    """One rank of a topology on the slow disk."""

    def __init__(self, root: Path, rank: int, *, nodes: int = NODES, timeout: float = 1800, instance: str = "") -> None:
        instance = instance or f"i{rank}"
        self.paths = Paths(root)
        self.files = SlowFiles(instance, delay=DELAY, stale=STALE, seed=rank)
        self.me = MemberFile(
            rank=rank, instance=instance, host=f"n{rank}", ip="127.0.0.1", phase="assemble", slice=Slice(0, 8)
        )
        self.said: list[str] = []
        self.barrier = Rendezvous(
            self.paths, self.files, self.me, nodes=nodes, poll=1.0, timeout=timeout, say=self.said.append
        )
        self.epoch: Epoch
        self.members: tuple[Member, ...]

    async def arrive(self) -> None:
        self.paths.create()
        await self.files.write(self.paths.member(self.me.rank), self.me.as_json())
        self.epoch, self.members = await self.barrier.assemble()

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(10)
            self.me.beat += 1
            await self.files.write(self.paths.member(self.me.rank), self.me.as_json())

    async def watch(self, **settings: Any) -> Cause | Complete:
        """Look until something is found."""
        watch = Watch(
            self.files,
            self.paths,
            self.epoch,
            self.members,
            rank=self.me.rank,
            instance=self.me.instance,
            scan=self.barrier.scan,
            clock=asyncio.get_running_loop().time,
            **({"heartbeat_timeout": 180} | settings),
        )
        while True:
            found = await watch.look()
            if found is not None:
                return found
            await asyncio.sleep(1)


async def assembled(root: Path, nodes: int = NODES) -> list[Rank]:
    ranks = [Rank(root, rank, nodes=nodes) for rank in range(nodes)]
    await asyncio.gather(*(rank.arrive() for rank in ranks))
    return ranks


def test_the_barrier_is_passed_in_one_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> tuple[list[Rank], float]:
        return await assembled(tmp_path), asyncio.get_running_loop().time()

    ranks, seconds = run(work, monkeypatch)
    assert len({rank.epoch.epoch for rank in ranks}) == 1
    assert all([member.instance for member in rank.members] == [f"i{n}" for n in range(NODES)] for rank in ranks)
    # Members, acknowledgements and the start are each seen a stale listing and some operations later.
    assert 30 < seconds < 300


def test_a_second_start_on_the_slow_disk_is_not_taken_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> tuple[list[Rank], list[Rank]]:
        first = await assembled(tmp_path)
        second = [Rank(tmp_path, rank, instance=f"j{rank}") for rank in range(NODES)]
        await asyncio.gather(*(rank.arrive() for rank in second))
        return first, second

    first, second = run(work, monkeypatch)
    assert {rank.epoch.number for rank in second} == {first[0].epoch.number + 1}
    assert all([member.instance for member in rank.members] == [f"j{n}" for n in range(NODES)] for rank in second)


def test_nobody_is_taken_for_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[asyncio.Task[Any]]:
        ranks = await assembled(tmp_path)
        beats = [asyncio.create_task(rank.beat()) for rank in ranks]
        watches = [asyncio.create_task(rank.watch()) for rank in ranks]
        await asyncio.sleep(3600)
        assert not [task for task in beats if task.done()]
        return [task for task in watches if task.done()]

    assert run(work, monkeypatch) == []


def test_a_failure_reaches_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> tuple[list[Any], float]:
        ranks = await assembled(tmp_path)
        watches = [asyncio.create_task(rank.watch()) for rank in ranks]
        await asyncio.sleep(60)
        began = asyncio.get_running_loop().time()
        cause = Cause(code=7, cause="process", process="engine0", message="engine0 on rank 3 ended with 7")
        shutdown = ranks[3].paths.epoch(ranks[3].epoch.epoch) / "shutdown.json"
        await ranks[3].files.create(shutdown, cause.as_json(rank=3, role="inference", ended_at=""))
        return await asyncio.gather(*watches), asyncio.get_running_loop().time() - began

    found, seconds = run(work, monkeypatch)
    assert {(cause.code, cause.message) for cause in found} == {(90, "engine0 on rank 3 ended with 7")}
    assert seconds < STALE + 10 * DELAY


def test_a_completion_reaches_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> list[Any]:
        ranks = await assembled(tmp_path)
        watches = [asyncio.create_task(rank.watch()) for rank in ranks]
        await ranks[0].files.write(ranks[0].paths.epoch(ranks[0].epoch.epoch) / "complete.json", {"epoch": ""})
        return await asyncio.gather(*watches)

    assert run(work, monkeypatch) == [Complete()] * NODES


@pytest.mark.parametrize("rank", [0, 1])
def test_a_disk_that_does_not_answer_is_named_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """The operation never ends; the wait for it does."""

    async def work() -> tuple[str, int, float]:
        mine = Rank(tmp_path, rank, timeout=600)
        task = asyncio.create_task(mine.arrive())
        await asyncio.sleep(100)
        mine.files.hangs = True
        with pytest.raises(RoleFault) as caught:
            await task
        return str(caught.value), caught.value.exit_code, asyncio.get_running_loop().time()

    message, code, seconds = run(work, monkeypatch)
    missing = "ranks 1, 2, 3, 4, 5 of 6 have not arrived" if rank == 0 else "waited 600 s: the leader (rank 0) has not"
    assert missing in message
    assert "; the file system has not answered for 50" in message
    assert code == ExitCode.BARRIER_TIMEOUT
    assert 600 <= seconds < 600 + 2 * DELAY


def test_a_disk_that_answers_late_but_does_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> str:
        with pytest.raises(RoleFault) as caught:
            await Rank(tmp_path, 0, timeout=600).arrive()
        return str(caught.value)

    assert run(work, monkeypatch).endswith("have not arrived")


class Ended:
    """A follower of a leader that ended with a status."""

    def __init__(self, root: Path, code: int) -> None:
        self.root = root
        self.code = code

    async def found(self, *, complete_after: float | None = None, **settings: Any) -> tuple[Any, float]:
        leader, follower = await assembled(self.root, 2)
        directory = leader.paths.epoch(leader.epoch.epoch)
        cause = Cause(code=self.code, cause="process", process="trainer", message="trainer on rank 0 ended")
        await leader.files.write(
            leader.paths.status(leader.epoch.epoch, 0), cause.as_json(rank=0, role="mixed", ended_at="")
        )
        began = asyncio.get_running_loop().time()
        task = asyncio.create_task(follower.watch(heartbeat_timeout=0, **settings))
        if complete_after is not None:
            await asyncio.sleep(complete_after)
            await leader.files.write(directory / "complete.json", {"epoch": leader.epoch.epoch})
        done, _ = await asyncio.wait([task], timeout=900)
        return (task.result() if done else None), asyncio.get_running_loop().time() - began


def test_a_leader_that_ended_well_is_believed_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, seconds = run(lambda: Ended(tmp_path, 0).found(), monkeypatch)
    assert found == Complete(declared=False)
    assert 60 < seconds < 60 + STALE + 12 * DELAY


def test_a_late_completion_is_no_surprise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, seconds = run(lambda: Ended(tmp_path, 0).found(complete_after=10), monkeypatch)
    assert found == Complete()
    assert seconds < 60


def test_an_sft_leader_that_ended_well_may_only_be_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainer has ended; those of the others may go on for as long as the drain time."""
    found, _ = run(lambda: Ended(tmp_path, 0).found(leader_ends_last=False), monkeypatch)
    assert found is None


def test_a_leader_that_failed_is_noticed_by_its_status_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run(lambda: Ended(tmp_path, 7).found(), monkeypatch)
    assert (found.code, found.message) == (90, "trainer on rank 0 ended")


class Reader:
    """A rank that reads the sub-config which the leader wrote."""

    def __init__(self, path: Path) -> None:
        self.role = object.__new__(RLRole)
        self.role.files = SlowFiles("i1", delay=DELAY, stale=STALE, seed=1)
        self.role.plan = cast(Any, SimpleNamespace(configs={"inference": (str(path), digest(b"right"))}))
        self.role.inputs = cast(Any, SimpleNamespace(tunables=SimpleNamespace(poll=1.0)))

    async def check(self) -> float:
        await self.role._check_digest("inference")
        return asyncio.get_running_loop().time()


def test_a_sub_config_that_shows_up_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "inference.toml"

    async def work() -> float:
        task = asyncio.create_task(Reader(path).check())
        await asyncio.sleep(5)
        path.write_bytes(b"wrong")
        await asyncio.sleep(10)
        path.write_bytes(b"right")
        return await task

    assert 15 <= run(work, monkeypatch) < 30


def test_another_sub_config_than_the_leaders_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "inference.toml"
    path.write_bytes(b"wrong")
    with pytest.raises(RoleFault, match=r"inference\.toml: the shared filesystem shows another file") as caught:
        run(lambda: Reader(path).check(), monkeypatch)
    assert caught.value.exit_code == ExitCode.BARRIER_TIMEOUT
