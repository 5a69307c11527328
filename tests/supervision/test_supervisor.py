"""Real children, real signals: what is started is streamed, told about, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..waiting import alive, read_pid, until

Supervise = Callable[..., subprocess.Popen[str]]


def finish(process: subprocess.Popen[str], expected: int = 0, timeout: float = 30) -> str:
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode == expected, errors
    return output


def test_a_child_that_traps_term_gets_its_time_and_the_parent_ends_with_143(supervise: Supervise, tmp_path: Path):
    """TERM to the parent: the child writes its file, and KILL does not come before the grace time."""
    process = supervise(
        """
        async def main():
            async with Supervisor() as supervisor:
                with StopSignals(supervisor.hurry) as stop:
                    supervisor.start(shell("careful", CAREFUL))
                    await stop.wait()
                    await supervisor.shut_down(grace=20)
                return stop.exit_code
        """
    )
    child = read_pid(tmp_path / "careful")
    process.send_signal(signal.SIGTERM)
    finish(process, 143)
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert not alive(child)


def test_the_grace_time_covers_a_group_whose_leader_has_gone(supervise: Supervise, tmp_path: Path):
    """The leader dies of TERM at once; its worker in the same group still saves its file."""
    process = supervise(
        """
        async def main():
            async with Supervisor() as supervisor:
                supervisor.start(shell("leader", 'sh -c "$CAREFUL" & wait'))
                await files("careful")
                await supervisor.shut_down(grace=20)
        """
    )
    finish(process)
    assert (tmp_path / "saved").exists()
    assert not alive(read_pid(tmp_path / "careful"))


def test_a_second_signal_skips_the_grace_time(supervise: Supervise, tmp_path: Path):
    process = supervise(
        """
        async def main():
            async with Supervisor() as supervisor:
                with StopSignals(supervisor.hurry) as stop:
                    supervisor.start(shell("stubborn", STUBBORN))
                    await stop.wait()
                    ready("stopping")
                    await supervisor.shut_down(grace=3600)
                return stop.exit_code
        """
    )
    worker = read_pid(tmp_path / "stubborn")
    process.send_signal(signal.SIGINT)
    until((tmp_path / "stopping").exists)
    process.send_signal(signal.SIGTERM)
    finish(process, 130)
    assert not alive(worker)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('setsid sh -c "$STUBBORN" & wait', id="session of its own"),
        pytest.param('setsid sh -c "$STUBBORN" & exit 0', id="session of its own, parent gone"),
        pytest.param('env -i PATH="$PATH" setsid sh -c "$STUBBORN" & exit 0', id="orphan without environment"),
    ],
)
def test_nothing_that_was_started_outlives_a_shutdown(supervise: Supervise, tmp_path: Path, script: str):
    """A worker that left its group, its session, its parent or its environment is killed after the grace time."""
    process = supervise(
        f"""
        async def main():
            async with Supervisor() as supervisor:
                supervisor.start(shell("torchrun", {script!r}))
                await files("stubborn")
                await supervisor.shut_down(grace=0.1)
                ready("down")
                await asyncio.sleep(3600)
        """
    )
    worker = read_pid(tmp_path / "stubborn")
    until((tmp_path / "down").exists)
    assert not alive(worker)
    assert not children_of(process.pid), "no zombie is left either"


def children_of(pid: int) -> list[str]:
    """Command lines of a process's children, its guardian left out."""
    listed = subprocess.run(
        ["ps", "-ww", "--ppid", str(pid), "-o", "args="], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if "guardian" not in line]


def test_a_detached_process_is_left_alone(supervise: Supervise, tmp_path: Path):
    """What a child started to outlive it, as an experiment made from within another, is not ended with the child."""
    finish(
        supervise(
            """
            async def main():
                async with Supervisor() as supervisor:
                    script = 'PRIMEBEAKER_SUPERVISED_BY=detached setsid sh -c "$STUBBORN" & exit 0'
                    supervisor.start(shell("maker", script))
                    await files("stubborn")
                    await supervisor.shut_down(grace=0.1)
            """
        )
    )
    kept = read_pid(tmp_path / "stubborn")
    assert alive(kept)
    os.kill(kept, signal.SIGKILL)


def test_a_killed_supervisor_leaves_nothing(supervise: Supervise, tmp_path: Path):
    """SIGKILL of the supervisor: its child, and a worker in another session, are gone."""
    process = supervise(
        """
        async def main():
            async with Supervisor() as supervisor:
                supervisor.start(shell("torchrun", 'setsid sh -c "$STUBBORN" & echo $$ > child; wait'))
                await asyncio.sleep(3600)
        """
    )
    worker, child = read_pid(tmp_path / "stubborn"), read_pid(tmp_path / "child")
    process.kill()
    process.wait()
    until(lambda: not alive(child) and not alive(worker), 5)


def test_the_first_exit_is_told_with_its_code(supervise: Supervise):
    """128 + n for signal n; a child that was asked to end is not a first exit."""
    output = finish(
        supervise(
            """
            async def main():
                for script in ("exit 7", "kill -9 $$", "exit 0"):
                    seen = []
                    async with Supervisor(on_exit=lambda child: seen.append(child.name)) as supervisor:
                        supervisor.start(spec("other", "sleep", "3600"))
                        supervisor.start(shell("one", script))
                        child = await supervisor.first_exit()
                        print(child.name, child.exit.code, child.exit.signal, child.ended_by_itself, seen)
                        await supervisor.shut_down(grace=5)
                        print(*[(child.name, child.exit.code, child.ended_by_itself) for child in supervisor.children])
            """
        )
    )
    assert output.splitlines() == [
        "one 7 None True ['one']",
        "('other', 143, False) ('one', 7, True)",
        "one 137 9 True ['one']",
        "('other', 143, False) ('one', 137, True)",
        "one 0 None True ['one']",
        "('other', 143, False) ('one', 0, True)",
    ]


def test_the_second_wave_is_asked_when_the_first_is_gone(supervise: Supervise, tmp_path: Path):
    finish(
        supervise(
            """
            LATER = "trap 'test -e saved && echo > right; exit 0' TERM; echo > later; while :; do sleep 0.02; done"

            async def main():
                async with Supervisor() as supervisor:
                    supervisor.start(shell("later", LATER, wave=1))
                    supervisor.start(shell("first", CAREFUL))
                    await files("careful", "later")
                    await supervisor.shut_down(grace=60)
            """
        )
    )
    assert (tmp_path / "right").exists()


def test_the_second_wave_is_asked_after_half_the_grace_time(supervise: Supervise, tmp_path: Path):
    """A first wave that does not go leaves the second the other half."""
    output = finish(
        supervise(
            """
            async def main():
                async with Supervisor() as supervisor:
                    first = supervisor.start(shell("first", STUBBORN))
                    later = supervisor.start(shell("later", CAREFUL, wave=1))
                    await files("careful", "stubborn")
                    await supervisor.shut_down(grace=2)
                    print(first.exit.code, later.exit.code)
            """
        )
    )
    assert output.split() == ["137", "0"]
    assert (tmp_path / "saved").exists()


def test_one_child_is_ended_alone(supervise: Supervise, tmp_path: Path):
    """Its escaped worker goes with it; its sibling and the sibling's worker stay."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    output = finish(
        supervise(
            """
            from primebeaker.supervision.processes import look_up

            async def main():
                async with Supervisor(adopt=False) as supervisor:
                    one, two = (
                        supervisor.start(shell(name, 'setsid sh -c "$STUBBORN" & wait', cwd=here / name))
                        for name in ("one", "two")
                    )
                    await files("one/stubborn", "two/stubborn")
                    await supervisor.end_child(one, grace=1)
                    for name in ("one", "two"):
                        process = look_up(int(Path(name, "stubborn").read_text()))
                        print(name, process is not None and process.alive)
                    print(one.exit.code, two.exit)
            """
        )
    )
    assert output.splitlines() == ["one False", "two True", "143 None"]


def test_a_missing_program_or_folder_is_one_line(supervise: Supervise):
    output = finish(
        supervise(
            """
            from dataclasses import replace

            async def main():
                async with Supervisor() as supervisor:
                    for wrong in (spec("engine0", "no-such-program"), replace(spec("x", "true"), cwd=here / "nowhere")):
                        try:
                            supervisor.start(wrong)
                        except Exception as error:
                            print(type(error).__name__, error)
            """
        )
    )
    first, second = output.splitlines()
    assert first == "ExternalError engine0: cannot start no-such-program: No such file or directory"
    assert second.startswith("ExternalError x: cannot start ")
    assert "nowhere: No such file" in second


def test_children_start_with_usual_signal_handling(supervise: Supervise):
    """A supervisor started in the background of a shell ignores INT; its children must not."""
    output = finish(
        supervise(
            """
            async def main():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                async with Supervisor() as supervisor:
                    child = supervisor.start(spec("child", "sleep", "3600"))
                    child.signal(signal.SIGINT)
                    print((await child.wait()).code)
            """
        )
    )
    assert output == "130\n"


def test_starting_a_supervisor_imports_nothing_heavy():
    script = "import sys; from primebeaker.supervision import Supervisor; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "cyclopts", "httpx", "yaml", "multiprocessing"} & set(loaded)


def test_a_system_without_proc_and_parent_death_signal(supervise: Supervise, tmp_path: Path):
    """What other systems lack is taken away: exits are still told, groups ended, pids not confused."""
    output = finish(
        supervise(
            """
            from primebeaker.supervision import processes, supervisor
            processes.HAS_PROC = False
            processes._prctl = lambda: None
            del os.pidfd_open

            async def main():
                async with Supervisor() as supervisor:
                    other = supervisor.start(shell("other", 'sh -c "$CAREFUL" & wait'))
                    stubborn = supervisor.start(shell("stubborn", 'sh -c "$STUBBORN" & exec sleep 600'))
                    one = supervisor.start(shell("one", "exit 7"))
                    await files("careful", "stubborn")
                    first = await supervisor.first_exit()
                    print(first.name, first.exit.code)
                    await supervisor.shut_down(grace=2)
                    print(*[(child.name, child.exit.code) for child in supervisor.children])
            """
        )
    )
    assert output.splitlines() == ["one 7", "('other', 143) ('stubborn', 143) ('one', 7)"]
    assert not alive(read_pid(tmp_path / "stubborn"))
    assert not alive(read_pid(tmp_path / "careful"))


def test_the_guardian_takes_the_place_of_the_parent_death_signal(supervise: Supervise, tmp_path: Path):
    """A killed supervisor's child ends also where the system would not do it by itself."""
    process = supervise(
        """
        from primebeaker.supervision import processes
        processes._prctl = lambda: None

        async def main():
            async with Supervisor() as supervisor:
                supervisor.start(shell("stubborn", STUBBORN))
                await asyncio.sleep(3600)
        """
    )
    worker = read_pid(tmp_path / "stubborn")
    process.kill()
    process.wait()
    until(lambda: not alive(worker), 5)
