"""What the RL and SFT roles share: find the peers, watch them, and end together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from primebeaker.errors import UserError
from primebeaker.fileio import atomic_write_json
from primebeaker.prime_rl.checkpoint_rules import CompletenessRule
from primebeaker.prime_rl.contract import CONTRACTS, Contract
from primebeaker.prime_rl.layout import Layout
from primebeaker.prime_rl.subconfigs import digest
from primebeaker.prime_rl.tables import lookup
from primebeaker.roles import phases
from primebeaker.roles.causes import Cause, ExitCode, RoleFault
from primebeaker.roles.clock import utc_now
from primebeaker.roles.config_choice import choose_config, contract_of, engine_plan, load_values
from primebeaker.roles.fence import Fence
from primebeaker.roles.files import DiskFaults, SharedFiles
from primebeaker.roles.http import in_thread
from primebeaker.roles.inputs import RoleInputs, read_inputs
from primebeaker.roles.network import infiniband_devices, interface_of, interfaces, node_address
from primebeaker.roles.plan import RuntimePlan
from primebeaker.roles.polling import Poll
from primebeaker.roles.ports import HeldPorts, hold_engine_ports
from primebeaker.roles.process_role import ProcessRole
from primebeaker.roles.reach import Listener, reach
from primebeaker.roles.rendezvous import Epoch, MemberFile, Paths, Rendezvous
from primebeaker.roles.setup import exported, setup_argv
from primebeaker.roles.topology import Member, inference_slice, role_name, table
from primebeaker.roles.watch import Complete, Watch

__all__ = ["TopologyRole"]

_BEAT_SECONDS = 10.0
_DIGEST_SECONDS = 30.0
_SHUTDOWN_FILE_SECONDS = 10.0


class TopologyRole(ProcessRole):
    """One replica of a multi-node topology; see :class:`ProcessRole` for the arguments."""

    kind: Any = "rl"
    inputs: RoleInputs
    contract: Contract
    files: SharedFiles
    paths: Paths
    fence: Fence
    me: MemberFile
    epoch: Epoch
    members: tuple[Member, ...]
    plan: RuntimePlan
    layout: Layout
    watch: Watch | None = None
    held: HeldPorts | None = None
    assembled = False
    publishing = False
    _files_until = 0.0
    started_at = ""
    prepared: dict[str, Any]

    async def arrive(self) -> None:
        """Everything up to the moment when processes may be started."""
        await self.check()
        await self.directories()
        await self.setup()
        await self.programs()
        await self.assemble()
        await self.prepare()

    async def check(self) -> None:
        """Phase 1: everything the role is told, before anything is created."""
        async with self.phase("check"):
            self.inputs = await in_thread(
                lambda: read_inputs(
                    self.kind,
                    self.env,
                    choose_config=choose_config,
                    gpus_seen=phases.gpus_seen(),
                    tensor_parallel=_tensor_parallel,
                )
            )
            self.contract = contract_of(load_values(self.inputs.config_path))
            self.grace = self.inputs.tunables.grace
            self.drain_timeout = self.inputs.tunables.drain_timeout
            for notice in self.inputs.notices:
                self.events.say(notice)

    async def directories(self) -> None:
        """Phase 2: working directory, caches, the rendezvous directory, this rank's first sign of life."""
        async with self.phase("dirs"):
            self.cwd = self.inputs.working_dir
            self.cwd.mkdir(parents=True, exist_ok=True)
            phases.default_directories(self.env, self.inputs)
            phases.prepare_tmpdir(self.env, self.inputs)
            warning = phases.raise_file_limit()
            if warning is not None:
                self.events.say(warning)
            instance = secrets.token_hex(8)
            self.files = SharedFiles(instance, faults=DiskFaults.from_env(self.env))
            self.paths = Paths(self.inputs.rendezvous_dir)
            await self.files.run(self.paths.create)
            if self.inputs.leads:
                await self.files.run(lambda: self.paths.stop_request.unlink(missing_ok=True))
            self.me = MemberFile(
                rank=self.rank,
                instance=instance,
                host=self.env.get("BEAKER_NODE_HOSTNAME") or socket.gethostname(),
                job_id=self.inputs.job_id,
                phase=self.phase_name,
            )
            self.fence = Fence(self.files, self.paths, self.rank, instance)
            self._publish_lock = asyncio.Lock()
            self._publish_now = asyncio.Event()
            self.publishing = True
            await self.publish()
            self.background(self._beat())

    async def setup(self) -> None:
        """Phase 3: the user's setup command; what it exports reaches every process started later."""
        if self.inputs.setup_command is None:
            return
        async with self.phase("setup"):
            dump = Path(self.env["TMPDIR"]) / "setup-environment"
            code, _ = await self.run_helper("setup", setup_argv(dump), self.env)
            if code != 0:
                raise RoleFault(ExitCode.MISTAKE, "setup", f"the setup command failed with code {code}").with_code(code)
            with contextlib.suppress(OSError):
                self.env = exported(self.env, dump.read_bytes())
                dump.unlink()

    async def programs(self) -> None:
        """Phase 4: what will be started must exist."""
        async with self.phase("programs"):
            names = phases.needed_programs(
                self.inputs, self.contract, inference_gpus=inference_slice(self.inputs).count
            )
            await in_thread(
                lambda: phases.require_programs(names, self.env, prime_rl=self.env.get("PRIMEBEAKER_REHEARSAL") != "1")
            )

    async def assemble(self) -> None:
        """Phase 5: meet the peers, and make sure that they can be reached."""
        async with self.phase("assemble"):
            listener = await Listener.open()
            try:
                self.me.probe_port = listener.port
                await self._place()
                await self.publish()
                rendezvous = Rendezvous(
                    self.paths,
                    self.files,
                    self.me,
                    nodes=self.inputs.nodes,
                    poll=self.inputs.tunables.poll,
                    timeout=self.inputs.rendezvous_timeout,
                    say=self.events.say,
                )
                self.epoch, self.members = await rendezvous.assemble()
                self.fence.epoch = self.epoch
                self.events.epoch = self.epoch.epoch
                self.assembled = True
                self.started_at = utc_now()
                self.watch = Watch(
                    self.files,
                    self.paths,
                    self.epoch,
                    self.members,
                    rank=self.rank,
                    instance=self.me.instance,
                    heartbeat_timeout=self.inputs.tunables.heartbeat_timeout,
                    scan=rendezvous.scan,
                    leader_ends_last=self.kind == "rl",
                )
                self.background(self._watch_peers(self.watch))
                if self.inputs.leads:
                    for line in table(self.inputs, self.members, self._tp()):
                        self.events.say(line)
                await self._reach(self.watch)
                # A slower peer still has to knock.
                self.background(listener.close_later())
            except BaseException:
                listener.close()
                raise

    async def _reach(self, watch: Watch) -> None:
        try:
            await reach(self.members, self.rank)
        except RoleFault:
            # A peer that has just ended cannot be reached either; then its end is the cause.
            found = await watch.look()
            if isinstance(found, Cause):
                self.end(found)
            raise

    async def prepare(self) -> None:
        """Phase 6: the leader decides, everybody reads what it decided."""
        async with self.phase("prepare"):
            directory = self.paths.epoch(self.epoch.epoch)
            if self.inputs.leads:
                await self._prepare_as_leader(directory)
            value = await self._wait_for(directory / "runtime.json")
            self.plan = RuntimePlan.from_json(value)
            self.contract = CONTRACTS[self.plan.generation]
            self.layout = self.contract.layout(self.inputs.output_dir)
            for component in self.used_configs():
                await self._check_digest(component)
            self.events.open(self.layout.logs / "primebeaker" / f"rank_{self.rank}.jsonl")

    def used_configs(self) -> tuple[str, ...]:
        """The sub-configs whose processes this rank starts."""
        raise AssertionError("a topology role names its sub-configs")

    async def publish(self) -> None:
        """Write this rank's member file."""
        async with self._publish_lock:
            self.me.beat += 1
            await self.files.write(self.paths.member(self.rank), self.me.as_json())

    def publish_soon(self) -> None:
        """Write it from the heartbeat task."""
        self._publish_now.set()

    async def phase_changed(self) -> None:
        """Publish the phase with the next heartbeat, which is now."""
        if self.publishing:
            self.me.phase = self.phase_name
            self.publish_soon()

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_SECONDS):
                    await self._publish_now.wait()
            self._publish_now.clear()
            try:
                await self.publish()
            except OSError as error:
                # Peers allow for some silence; a file system that is full or away for a while is no reason to end.
                self.events.say(f"warning: the heartbeat cannot be written: {error.strerror or error}")

    async def _place(self) -> None:
        """This node's address, interface and engine ports."""
        inputs = self.inputs
        address = await in_thread(
            lambda: node_address(
                override=inputs.tunables.node_ip,
                leader=inputs.leads,
                leader_hostname=inputs.leader_hostname,
                nodes=inputs.nodes,
                allow_loopback=self.env.get("PRIMEBEAKER_LOCAL_ENGINE") == "1",
            )
        )
        self.events.say(f"address {address.ip} ({address.rule})")
        interface = interface_of(address.ip, interfaces())
        if interface is not None:
            self.env.setdefault("GLOO_SOCKET_IFNAME", interface)
        devices = infiniband_devices()
        if devices:
            self.env.setdefault("NCCL_IB_HCA", ",".join(devices))
        share = inference_slice(inputs)
        self.me.slice = share
        if share.count:
            plan = engine_plan(load_values(inputs.config_path), self.contract)
            self.held = hold_engine_ports(plan.backend_port, share.count // plan.tp)
            self.me.backend_port = self.held.base
            if self.held.base != plan.backend_port:
                self.events.say(f"engine ports from {plan.backend_port} are busy, {self.held.base} is used")
        # The address last: with it in the member file this rank counts as arrived.
        self.me.ip = address.ip

    def _tp(self) -> int:
        return _tensor_parallel(self.inputs.config_path) if self.kind == "rl" else 1

    async def _prepare_as_leader(self, directory: Path) -> None:
        outcome = Path(self.env["TMPDIR"]) / "prepared.json"
        argv = (
            *(sys.executable, "-m", "primebeaker.multinode", f"prepare-{self.kind}"),
            *("--config", str(self.inputs.config_path)),
            *("--config-dir", str(self.inputs.output_dir / "configs")),
            *("--runtime-dir", str(directory)),
            *("--outcome", str(outcome)),
            *("--validation", "auto" if self.env.get("PRIMEBEAKER_REHEARSAL") == "1" else "required"),
        )
        await self.fence.check()
        code, lines = await self.run_helper("prepare", argv, self.env, show=False)
        if code != 0:
            marker = "primebeaker: error: "
            reasons = [line.partition(marker)[2] for line in lines if marker in line] or lines[-3:]
            detail = tuple(reasons[1:])
            raise RoleFault(ExitCode.MISTAKE, "mistake", reasons[0] if reasons else "prepare failed").with_code(
                code, detail
            )
        self.prepared = json.loads(outcome.read_text(encoding="utf-8"))
        outcome.unlink()
        for notice in self.prepared["notices"]:
            self.events.say(notice)

    async def _wait_for(self, path: Path) -> dict[str, Any]:
        timeout, poll = self.inputs.rendezvous_timeout, Poll(self.inputs.tunables.poll)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if path.name in await self.files.listing(path.parent):
                        value = await self.files.read(path)
                        if value is not None:
                            return value
                    await poll.sleep()
        except TimeoutError:
            raise RoleFault(
                ExitCode.BARRIER_TIMEOUT,
                "timeout",
                f"prepare: {path.name} did not appear within {timeout:g} s{self.files.hanging()}",
            ) from None

    async def _check_digest(self, component: str) -> None:
        path, expected = self.plan.configs[component]
        poll = Poll(self.inputs.tunables.poll)
        try:
            async with asyncio.timeout(_DIGEST_SECONDS):
                while True:
                    with contextlib.suppress(OSError):
                        if digest(await self.files.run(Path(path).read_bytes)) == expected:
                            return
                    await poll.sleep()
        except TimeoutError:
            raise RoleFault(
                ExitCode.BARRIER_TIMEOUT,
                "timeout",
                f"{path}: the shared filesystem shows another file than the leader wrote{self.files.hanging()}",
            ) from None

    async def _watch_peers(self, watch: Watch) -> None:
        poll = Poll(self.inputs.tunables.poll)
        while True:
            found = await watch.look()
            if isinstance(found, Complete):
                if self.inputs.leads:
                    return
                if not found.declared:
                    self.events.say("warning: the leader ended with 0, but complete.json cannot be seen")
                self.policy.complete = True
                self.finished.set()
                return
            if found is not None:
                self.end(found)
                return
            self.peers_seen(watch)
            await poll.sleep()

    def peers_seen(self, watch: Watch) -> None:
        """A subclass looks at the peers' files after each look."""

    async def complete(self) -> None:
        """The leader declares the run complete."""
        self.policy.complete = True
        await self.files.write(
            self.paths.epoch(self.epoch.epoch) / "complete.json",
            {"epoch": self.epoch.epoch, "ended_at": utc_now()},
        )

    async def finish(self, cause: Cause) -> None:
        """Tell the peers, end the children, leave a status."""
        superseded = cause.code == ExitCode.SUPERSEDED
        self._files_until = time.monotonic() + _SHUTDOWN_FILE_SECONDS + self.grace
        if superseded:
            self.events.discard()
        told = asyncio.ensure_future(self._tell_peers(cause))
        await super().finish(cause)
        self._files_until = min(self._files_until, time.monotonic() + _SHUTDOWN_FILE_SECONDS)
        if self.held is not None:
            self.held.release()
        first = await told
        if not superseded and self.publishing:
            await self._bounded(self._leave(cause, first))
        self.first_cause = first or cause
        if self.assembled and self.inputs.leads and cause.code == ExitCode.DONE:
            await self._bounded(self._summarise(int(cause.code)))
        if self.publishing and not superseded:
            await in_thread(lambda: self.events.close(self.paths.early_log(self.rank)))

    async def _tell_peers(self, cause: Cause) -> Cause | None:
        """Create ``shutdown.json`` unless a peer has; returns the cause in it."""
        if not self.assembled or cause.code in (ExitCode.DONE, ExitCode.SUPERSEDED):
            return None
        path = self.paths.epoch(self.epoch.epoch) / "shutdown.json"

        async def tell() -> Cause | None:
            content = cause.as_json(rank=self.rank, role=role_name(self.inputs), ended_at=utc_now())
            if await self.files.create(path, {**content, "by": self.me.instance}):
                return cause
            value = await self.files.read(path)
            return Cause.from_json(value, code=int(value.get("code", 1))) if value is not None else None

        return await self._bounded(tell())

    async def _leave(self, cause: Cause, first: Cause | None) -> None:
        named = first or cause
        if self.assembled:
            status = Cause(code=cause.code, cause=named.cause, process=named.process, message=named.message)
            await self.files.write(
                self.paths.status(self.epoch.epoch, self.rank),
                status.as_json(rank=self.rank, role=role_name(self.inputs), ended_at=utc_now()),
            )
        self.me.phase = "ended"
        self.me.code = int(cause.code)
        self.me.message = cause.message
        await self.publish()

    def _loop_time(self, monotonic: float) -> float:
        return asyncio.get_running_loop().time() + max(0.5, monotonic - time.monotonic())

    async def _bounded[T](self, work: Coroutine[Any, Any, T]) -> T | None:
        """A file system that hangs must not hold up the end; a fence that closes now is no news."""
        try:
            async with asyncio.timeout_at(self._loop_time(self._files_until)):
                return await work
        except (TimeoutError, OSError, RoleFault) as error:
            self.events.say(f"could not tell the peers: {str(error) or 'the file system does not answer'}")
            return None

    def link(self, link: Path, target: Path) -> None:
        """A link to a log, as Prime-RL's own launcher makes it; not awaited, for nothing depends on it."""

        async def make() -> None:
            await self.files.run(lambda: _link(link, target))

        self.background(make())

    def completeness(self, values: Mapping[str, Any]) -> CompletenessRule:
        """What a checkpoint of this kind of run must have."""
        raise AssertionError("a topology role knows its checkpoints")

    async def _summarise(self, code: int) -> None:
        """Leave the run's summary in the output directory."""
        from primebeaker.prime_rl.checkpoints import newest_complete, step_numbers

        values = load_values(self.inputs.config_path)
        own = lookup(values, "ckpt.output_dir") or lookup(values, "trainer.ckpt.output_dir")
        layout = self.contract.layout(self.inputs.output_dir, ckpt_output_dir=Path(own) if own else None)
        rule = self.completeness(values)
        try:
            steps = await in_thread(lambda: step_numbers(layout, rule))
            chosen = (await in_thread(lambda: newest_complete(layout, rule))).chosen
        except UserError as error:
            self.events.say(f"the checkpoints cannot be read: {error}")
            return
        summary = {
            "launch_id": self.inputs.launch_id,
            "epoch": self.epoch.epoch,
            "started_at": self.started_at,
            "ended_at": utc_now(),
            "code": code,
            "last_step": steps[-1] if steps else None,
            "complete_checkpoint": chosen.step if chosen else None,
        }
        path = self.inputs.output_dir / "primebeaker_run_summary.json"
        await self.files.run(lambda: atomic_write_json(path, summary))


def _tensor_parallel(config: Path) -> int:
    values = load_values(config)
    return engine_plan(values, contract_of(values)).tp


def _link(link: Path, target: Path) -> None:
    """Make ``link`` a relative link to ``target``; a real file of that name stays."""
    with contextlib.suppress(OSError):
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        link.symlink_to(os.path.relpath(target, link.parent))
