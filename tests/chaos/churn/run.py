"""One churn from its start to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from shared.contracts import subjects
from shared.contracts.queries import StatusAnswer
from shared.kube.transport import TransportError
from shared.model.objects import Pod
from tests.chaos.churn import removals
from tests.chaos.churn.auditor import Auditor, granted_mib
from tests.chaos.churn.cluster import MEMORY_MIB, NAMESPACE, NODES, ChurnCluster, links
from tests.chaos.churn.faults import Faults
from tests.chaos.churn.load import ChurnLoad
from tests.chaos.churn.removals import Plans
from tests.chaos.churn.waits import Waits, fitting
from tests.chaos.processes import Process
from tests.chaos.site import on_site
from tests.support.waiting import within
from tools.control_plane import ControlPlane, find_binaries

LOOK_S = 0.15
TELL_S = 10.0
CALM_S = 120.0
"""So long Kerf may take to put everything in order when the faults are over."""
SETTLED_S = 5.0
"""So long everything is in order before that is believed."""
FREE_S = 80.0
POLL_S = 0.5


class Options(msgspec.Struct, frozen=True):
    seconds: float = 600.0
    """Of faults; the calm after them comes in addition."""
    seed: int = 1
    renew_s: float = 20.0
    """Placement's renew_term_s."""
    pods: int = 330
    """How many exist at the same time."""
    faults: int = 0
    """After how many faults it ends, whatever `seconds` says; 0: after `seconds`."""
    spares_one: bool = False
    """No fault keeps the last placement or watcher that works from working (`faults.py`)."""


class Report(msgspec.Struct, frozen=True):
    seconds: float
    seed: int
    faults: int
    kinds: dict[str, int]
    """Faults by kind."""
    pods_created: int
    max_bound: int
    looks: int
    double_bookings: int
    lost: int
    leaks_mib: int
    leaks: int
    stuck: dict[str, float]
    """By name, the pods that fitted for longer than `waits.STUCK_S`: for how many seconds."""
    stuck_in_service: dict[str, float]
    """The same, counting only time in which Kerf was able to work, as `waits` defines it."""
    gap_s: float
    """`Waits.longest_gap_s`, until the last fault."""
    violations: tuple[str, ...]


async def churn(options: Options, say: Callable[[str], None]) -> Report:
    """`say` gets the progress. The logs are kept if something was violated, or a pod was stuck."""
    state = Path(tempfile.mkdtemp(prefix="kerf-churn-"))
    say(f"state and logs: {state}")
    plane = ControlPlane(state / "plane", binaries=find_binaries(), apiserver_flags=removals.flags(state))
    await asyncio.to_thread(plane.start)
    try:
        async with (
            on_site(plane, state) as site,
            links(site.nats.port) as linked,
            links(site.wire.port, "watcher") as ways,
        ):
            cluster = ChurnCluster(site, linked, ways)
            cluster.prepare(seed=options.seed, renew_s=options.renew_s)
            await cluster.start()
            report = await Churn(cluster, options, say).run()
    finally:
        plane.stop()
    if not report.violations and not report.stuck:
        shutil.rmtree(state)
    return report


class Churn:
    def __init__(self, cluster: ChurnCluster, options: Options, say: Callable[[str], None]) -> None:
        self._cluster, self._options, self._say = cluster, options, say
        self._auditor, self._plans = Auditor(cluster.gpus), Plans()
        self._load = ChurnLoad(
            cluster.site.kube, NAMESPACE, seed=options.seed, memory_mib=MEMORY_MIB, target=options.pods
        )
        self._faults = Faults(cluster, random.Random(options.seed), self._killed, say, spares_one=options.spares_one)
        self._waits = Waits()
        self._max_bound = 0
        self._told = 0
        self._refusing: asyncio.Task[None] | None = None

    async def run(self) -> Report:
        # The stream has what was published while we were not connected; the subscription has what a wiped stream had.
        await self._cluster.site.bus.subscribe(subjects.PREEMPTIONS, self._plans.heard)
        await self._cluster.site.bus.follow_events(self._plans.heard)
        auditing = asyncio.create_task(self._audit())
        refusing = self._refusing = asyncio.create_task(self._cluster.refusals.keep())
        striking = asyncio.create_task(self._faults.go_on(self._options.faults))
        troubles = [*(asyncio.create_task(work) for work in self._load.workers()), striking]
        began = time.monotonic()
        try:
            await self._go_on([auditing, refusing, *troubles], striking)
            seconds, gap_s = time.monotonic() - began, self._waits.longest_gap_s
            await _end(troubles)
            self._say("calm")
            self._faults.calm()
            pods = await self._calm()
            self._judge(pods)
            await _end([auditing])
            leaks_mib = await self._empty()
        finally:
            for task in (auditing, refusing, *troubles):
                task.cancel()
        auditor = self._auditor
        return Report(
            seconds=round(seconds, 1),
            seed=self._options.seed,
            faults=self._faults.struck,
            kinds=dict(sorted(self._faults.kinds.items())),
            pods_created=self._load.created,
            max_bound=self._max_bound,
            looks=auditor.looks,
            double_bookings=auditor.count("double booking"),
            lost=auditor.count("lost"),
            leaks_mib=leaks_mib,
            leaks=auditor.count("leak"),
            stuck=_rounded(self._waits.stuck),
            stuck_in_service=_rounded(self._waits.stuck_in_service),
            gap_s=round(gap_s, 3),
            violations=tuple(f"{violation.kind}: {violation.text}" for violation in auditor.violations),
        )

    async def _go_on(self, tasks: list[asyncio.Task[None]], striking: asyncio.Task[None]) -> None:
        """Runs for the given time, or until `striking` has struck as often as it should. Raises what one of the tasks
        raised."""
        end = time.monotonic() + (math.inf if self._options.faults else self._options.seconds)
        while (left := end - time.monotonic()) > 0 and not striking.done():
            done, _ = await asyncio.wait(tasks, timeout=min(left, TELL_S), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self._tell(await self._status())

    # --- looking ------------------------------------------------------------------------------------------------

    async def _audit(self) -> None:
        """For ever."""
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> list[Pod] | None:
        """None if the API server did not answer."""
        since, expected = time.monotonic(), set(self._load.asks)
        try:
            pods = await self._load.pods()
        except TransportError:
            return None
        for name, journal in self._cluster.journals.items():
            self._auditor.heard(journal.read(), self._cluster.nodes[name])
        self._auditor.look(pods, self._load.asks, since)
        self._look_at_waits(pods)
        self._max_bound = max(self._max_bound, sum(bool(pod.spec.node_name) for pod in pods))
        for name in expected - {pod.metadata.name for pod in pods}:
            await self._load.gone(name)
        return pods

    def _look_at_waits(self, pods: list[Pod]) -> None:
        pending = {pod.metadata.name for pod in pods if not pod.spec.node_name}
        waiting = {name: ask for name, ask in self._load.single.items() if name in pending}
        services = self._cluster.site.services
        running = {
            node
            for name, nodes in self._cluster.nodes.items()
            if services[name].alive and not services[name].frozen
            for node in nodes
        }
        fits = fitting(waiting, self._cluster.gpus, self._auditor.used, running)
        bound = {pod.metadata.uid for pod in pods if pod.spec.node_name}
        self._waits.look(time.monotonic(), bound, fits, able=self._cluster.able())

    def _killed(self, process: Process) -> None:
        journal = self._cluster.journals.get(process.name)
        if journal is not None:
            journal.read()  # containers of its last lines have ended too
            self._auditor.gone_dark(self._cluster.nodes[process.name])

    async def _status(self) -> StatusAnswer | None:
        status = await self._cluster.site.status()
        if status is not None and status.double_bookings:
            self._auditor.found(
                "double booking", f"the book of term {status.term} has {status.double_bookings}, by its own audit"
            )
        return status

    def _tell(self, status: StatusAnswer | None) -> None:
        book = "no leader answers" if status is None else (
            f"term {status.term}, {status.pods_bound} bound, {status.pods_waiting} waiting, "
            f"{status.pods_holding} holding, {status.pods_leaving} leaving"
        )  # fmt: skip
        load = self._load
        pods = f"{load.created} pods made, {len(load.asks)} there, {len(load.vanished)} removed by Kerf"
        gap = f"longest time without a Binding {self._waits.longest_gap_s:.1f} s"
        self._say(f"{self._faults.struck} faults; {pods}; {book}; {gap}")
        for violation in self._auditor.violations[self._told :]:
            self._say(f"VIOLATION {violation.kind}: {violation.text}")
        self._told = len(self._auditor.violations)

    # --- the verdict --------------------------------------------------------------------------------------------

    async def _calm(self) -> list[Pod]:
        """The pods when everything has been in order for a while, or at the end of the time limit: what is not in order
        then stays so."""
        status: StatusAnswer | None = None
        pods: list[Pod] | None = None
        since: float | None = None

        async def settled() -> bool:
            nonlocal status, pods, since
            self._repair()
            status, pods = await self._status(), await self._look()
            if pods is None or self._unsettled(status, pods) or self._lost(pods):
                since = None
                return False
            now = time.monotonic()
            since = since or now
            return now - since >= SETTLED_S

        if not await within(settled, CALM_S, every_s=POLL_S):
            self._tell(status)
            for text in self._unsettled(status, pods):
                self._auditor.found("unsettled", f"{CALM_S:.0f} s after the last fault: {text}")
        return pods or []

    def _repair(self) -> None:
        """Raises what ended the task that ends refusals."""
        assert self._refusing is not None
        if self._refusing.done():
            self._refusing.result()
        self._cluster.repair()

    def _unsettled(self, status: StatusAnswer | None, pods: list[Pod] | None) -> list[str]:
        if status is None or pods is None:
            return ["no leader answers" if status is None else "the API server does not answer"]
        out = []
        if status.synced_nodes != NODES:
            out.append(f"{status.synced_nodes} of {NODES} nodes are synced")
        if status.pods_holding or status.pods_leaving:
            out.append(f"{status.pods_holding} holds and {status.pods_leaving} leaving grants")
        if status.gpu_memory_mib_allocated != granted_mib(pods):
            book = f"the book has {status.gpu_memory_mib_allocated} MiB allocated"
            out.append(f"{book}, and the pods' grants have {granted_mib(pods)}")
        return out

    def _lost(self, pods: list[Pod]) -> list[str]:
        vanished = self._load.vanished
        gone = removals.account(vanished, removals.read(self._cluster.site.state), self._plans)
        return self._auditor.lost(pods, gone, {name for name, kind in vanished.items() if kind.controller})

    def _judge(self, pods: list[Pod]) -> None:
        for text in self._lost(pods):
            self._auditor.found("lost", text)

    async def _empty(self) -> int:
        """All pods are deleted; how much is not free after that, in MiB."""
        await self._load.clear()
        status: StatusAnswer | None = None

        async def free() -> bool:
            nonlocal status
            self._repair()
            status = await self._status()
            return status is not None and not _booked(status)

        if await within(free, FREE_S, every_s=POLL_S):
            return 0
        still = "no leader answers" if status is None else _booked(status)
        self._auditor.found("leak", f"{FREE_S:.0f} s after the deletion of all pods: {still}")
        return 0 if status is None else status.gpu_memory_mib_allocated


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}


def _booked(status: StatusAnswer) -> str:
    """What is not free, and which pods are still known."""
    fields = (
        "gpu_memory_mib_allocated",
        "gpu_milli_allocated",
        "pods_bound",
        "pods_holding",
        "pods_waiting",
        "pods_leaving",
    )
    return ", ".join(f"{field} {getattr(status, field)}" for field in fields if getattr(status, field))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
