"""Faults drawn from a seed: bursts, in which one strikes while Kerf still mends the one before, and seconds of rest
between them. What one stops stays stopped until another fault, or the calm at the end, restores it, or until a kubelet
would: a process that ended is started again after a back-off, and one that is frozen is killed for its liveness probe.

kill, kill-leader, freeze, freeze-leader, freeze-agent: of a process. mend: everything runs again. nats, wipe: the NATS
server is killed and started, without its store. api: the same of the API server. cut, freeze-wire: the watchers'
connections to the API server end, or nothing comes through. lose-answers: what they write is done, and the answers are
lost. throttle, webhook: what the watchers write is refused (`refusals.py`). part: one process and NATS do not hear each
other, while both run. cut-off: the same of one watcher and the API server, long enough for the other one to take over.

One can be spared: no fault then keeps the last placement or the last watcher that works from working. If it is killed,
it is started at once. Kerf promises to place pods under this condition, and so do others that run two of each.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from tests.chaos.churn.cluster import ChurnCluster
from tests.chaos.processes import Process
from tests.support.wire import Wire

BURST_S, REST_S = (0.02, 0.5), (6.0, 12.0)
"""A rest is as long as a takeover on two busy cores: 5 s of a lease, and some more to touch all pending pods where the
log is lost. With 3 to 9 s leaders and NATS were killed for a minute in a row before any of them could place a pod."""
RESTS = 0.15
"""Of the pauses between two faults; the others are those of a burst."""
LEADER_FROZEN_S = (4.0, 12.0)
WIRE_FROZEN_S = (1.0, 8.0)
REFUSED_S = (1.0, 8.0)
PARTED_S = (1.0, 12.0)
CUT_OFF_S = (1.0, 40.0)
RESTARTED_AT_ONCE = 0.8
"""Of the killed processes, as a kubelet does with those that ran for long; the others wait for its back-off."""
BACK_OFF_S = 10.0
"""The kubelet's first one. Its later ones are as long as five minutes: they would leave out most of the services."""
PROBED_S = 60.0
"""How long a service may leave its liveness probe without an answer, by the chart: six times ten seconds."""

Fault = Literal[
    "kill",
    "kill-leader",
    "freeze",
    "freeze-leader",
    "freeze-agent",
    "mend",
    "nats",
    "wipe",
    "api",
    "cut",
    "freeze-wire",
    "lose-answers",
    "throttle",
    "webhook",
    "part",
    "cut-off",
]
_WEIGHTS: dict[Fault, int] = {
    "kill": 5, "kill-leader": 4, "freeze": 3, "freeze-leader": 4, "freeze-agent": 2, "mend": 7,
    "nats": 2, "wipe": 1, "api": 1, "cut": 2, "freeze-wire": 1,
    "lose-answers": 2, "throttle": 2, "webhook": 2, "part": 4,
    "cut-off": 2,
}  # fmt: skip
assert set(_WEIGHTS) == set(get_args(Fault))


class Faults:
    def __init__(
        self,
        cluster: ChurnCluster,
        chance: random.Random,
        killed: Callable[[Process], None],
        say: Callable[[str], None],
        *,
        spares_one: bool,
    ) -> None:
        """`killed` is called as soon as a process is dead, before it is started again. `spares_one`: as told above."""
        self.struck = 0
        self.kinds: Counter[str] = Counter()
        """How many of each kind have struck."""
        self._cluster, self._chance, self._killed, self._say = cluster, chance, killed, say
        self._spares_one = spares_one
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """By what each of them ends: of one there is one at a time."""

    async def go_on(self, count: int = 0) -> None:
        """Strikes `count` times; 0: for ever."""
        while not count or self.struck < count:
            rests = self._chance.random() < RESTS
            await asyncio.sleep(self._chance.uniform(*(REST_S if rests else BURST_S)))
            struck = None
            while struck is None:
                fault = self._chance.choices(tuple(_WEIGHTS), tuple(_WEIGHTS.values()))[0]
                struck = await self._strike(fault)
            self.struck += 1
            self.kinds[fault] += 1
            self._say(f"{fault} {struck}".rstrip())

    def calm(self) -> None:
        """All is as it should be, and no timer is left. Answers that are held are lost, as they were to be."""
        if "answers" in self._timers:
            self._lose_answers()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._cluster.repair()

    async def _strike(self, fault: Fault) -> str | None:
        """The part that it hit, or nothing if it hits no single one; None: there is no part that it may hit."""
        cluster = self._cluster
        match fault:
            case "kill":
                process = self._any("")
                again = self._chance.random() < RESTARTED_AT_ONCE
                self._kill(process, again=again or self._spared(process.name))
                return process.name
            case "freeze" | "freeze-agent":
                process = self._any("agent" if fault == "freeze-agent" else "")
                if self._spared(process.name) or process.frozen or not process.alive:
                    return None
                process.freeze()
                self._after(PROBED_S, f"probe of {process.name}", functools.partial(self._probe, process))
                return process.name
            case "kill-leader" | "freeze-leader":
                return await self._strike_leader(fault)
            case "mend":
                self.calm()
            case "nats" | "wipe":
                await cluster.site.nats.restart(wipe=fault == "wipe")
            case "api":
                cluster.site.plane.kill_api_server()
                await asyncio.to_thread(cluster.site.plane.start_api_server)
            case "cut":
                cluster.site.wire.cut()
            case "freeze-wire":
                cluster.site.wire.freeze()
                self._later("wire", WIRE_FROZEN_S, cluster.site.wire.thaw)
            case "lose-answers":
                cluster.site.wire.hold_answers()
                self._later("answers", WIRE_FROZEN_S, self._lose_answers)
            case "throttle" | "webhook":
                cluster.refusals.begin(fault)
                self._later(fault, REFUSED_S, functools.partial(cluster.refusals.end, fault))
            case "part":
                return self._hold_up("link", cluster.links, PARTED_S)
            case "cut-off":
                return self._hold_up("way", cluster.ways, CUT_OFF_S)
        return ""

    def _lose_answers(self) -> None:
        """What watchers wrote since is done, and they are never told."""
        self._timers.pop("answers").cancel()
        self._cluster.site.wire.cut()
        self._cluster.site.wire.hold_answers(False)

    def _hold_up(self, what: str, wires: Mapping[str, Wire], within: tuple[float, float]) -> str | None:
        """Lets nothing through by one of these connections for a while. Returns its process, as `_strike` does."""
        name = self._chance.choice(sorted(wires))
        if self._spared(name):
            return None
        wires[name].freeze()
        self._later(f"{what} of {name}", within, wires[name].thaw)
        return name

    def _spared(self, name: str) -> bool:
        return self._spares_one and self._cluster.is_last(name)

    async def _strike_leader(self, fault: Fault) -> str | None:
        status = await self._cluster.site.status()
        process = None if status is None else self._cluster.site.process_of(status)
        if process is None:
            return None
        if fault == "kill-leader":
            self._kill(process, again=True)
        elif self._spared(process.name):
            return None
        else:
            process.freeze()
            self._later(process.name, LEADER_FROZEN_S, lambda: process.thaw() if process.frozen else None)
        return process.name

    def _any(self, prefix: str) -> Process:
        return self._cluster.site.services[
            self._chance.choice(sorted(name for name in self._cluster.site.services if name.startswith(prefix)))
        ]

    def _kill(self, process: Process, *, again: bool) -> None:
        self._forget(f"probe of {process.name}")
        process.kill()
        self._killed(process)
        if again:
            process.start()
        else:
            self._after(BACK_OFF_S, f"back-off of {process.name}", functools.partial(_revive, process))

    def _probe(self, process: Process) -> None:
        if process.frozen:
            self._kill(process, again=True)

    def _forget(self, what: str) -> None:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()

    def _later(self, what: str, within: tuple[float, float], mend: Callable[[], None]) -> None:
        self._after(self._chance.uniform(*within), what, mend)

    def _after(self, delay_s: float, what: str, mend: Callable[[], None]) -> None:
        self._forget(what)
        self._timers[what] = asyncio.get_running_loop().call_later(delay_s, mend)


def _revive(process: Process) -> None:
    if not process.alive:
        process.start()
