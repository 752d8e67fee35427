"""The faults of the churn that spare one of each service that placing a pod needs."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from tests.chaos.churn.cluster import ChurnCluster
from tests.chaos.churn.faults import Faults
from tests.chaos.processes import Process

NEEDED = {"placement": ("placement-0", "placement-1"), "watcher": ("watcher-0", "watcher-1")}


class Part:
    """Of a process, what the faults use; and of a connection."""

    def __init__(self, name: str) -> None:
        self.name, self.module = name, name.partition("-")[0]
        self.alive, self.frozen, self.passes = True, False, True

    def kill(self) -> None:
        self.alive = False

    def start(self) -> None:
        assert not self.alive
        self.alive, self.frozen = True, False

    def freeze(self) -> None:
        self.frozen, self.passes = True, False

    def thaw(self) -> None:
        self.frozen, self.passes = False, True


class Site:
    def __init__(self, chance: random.Random) -> None:
        names = (*NEEDED["placement"], *NEEDED["watcher"], "agent-0")
        self.services = {name: cast(Process, Part(name)) for name in names}
        self._chance = chance

    async def status(self) -> str:
        return self._chance.choice(NEEDED["placement"])

    def process_of(self, status: str) -> Process:
        return self.services[status]


async def _least_working(seed: int, *, spares_one: bool) -> int:
    """The fewest placements, or watchers, that worked after any of 400 faults; none of them is mended."""
    chance = random.Random(seed)
    links = {name: Part(name) for names in NEEDED.values() for name in names}
    ways = {name: Part(name) for name in NEEDED["watcher"]}
    site = cast(Any, Site(chance))
    site.plane = SimpleNamespace(request=None)
    cluster = ChurnCluster(site, cast(Any, links), cast(Any, ways))
    faults = Faults(cluster, chance, lambda process: None, lambda text: None, spares_one=spares_one)
    least = 2
    for fault in chance.choices(("kill", "kill-leader", "freeze", "freeze-leader", "part", "cut-off"), k=400):
        await faults._strike(fault)
        for names in NEEDED.values():
            least = min(least, sum(cluster._works(name) for name in names))
    return least


async def test_one_placement_and_one_watcher_always_work_if_one_is_spared() -> None:
    assert [await _least_working(seed, spares_one=True) for seed in range(20)] == [1] * 20


async def test_without_sparing_there_are_times_with_none() -> None:
    assert 0 in [await _least_working(seed, spares_one=False) for seed in range(20)]


async def test_a_fault_that_would_strike_the_last_one_strikes_nothing() -> None:
    site = cast(Any, Site(random.Random(1)))
    site.plane = SimpleNamespace(request=None)
    links = {name: Part(name) for names in NEEDED.values() for name in names}
    cluster = ChurnCluster(site, cast(Any, links), {})
    faults = Faults(cluster, random.Random(1), lambda process: None, lambda text: None, spares_one=True)
    site.services["placement-1"].freeze()
    site.services["watcher-1"].freeze()
    site.services = {name: process for name, process in site.services.items() if not name.startswith("agent")}
    assert await faults._strike("freeze") is None
    assert not any(site.services[name].frozen for name in ("placement-0", "watcher-0"))
