"""What happens to a cluster in the middle of a run: a takeover, a rolling upgrade, a storm of nodes."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from bench.scale.load import Load
from bench.scale.measured import longest_gap_s
from bench.scale.site import PATIENCE_S, Site
from shared.bus.port import KvEntry
from shared.contracts import subjects
from tests.support.waiting import eventually

LOOK_S = 0.1
STATUS_LOOK_S = 1.0
"""How often placement is asked for its state: at this size an answer takes it tens of milliseconds."""
CAUGHT_UP = 200
"""So many Bindings after a fault it counts as over."""


async def takeover(site: Site, load: Load) -> dict[str, float]:
    """Kills the leading placement (SIGKILL) and starts it again once pods are bound again.

    All until the first Binding that the successor has decided: those that were on their way when the leader ended come
    before it. `gap_s`: the longest time without a Binding. `from_lease_s`: from the moment at which another process
    holds the lease.
    """
    loop, taken = asyncio.get_running_loop(), asyncio.Event()
    process = await site.leader()
    term = max(load.terms)
    at = 0.0
    leased_at = 0.0

    async def leased(entry: KvEntry) -> None:
        nonlocal leased_at
        if at and not taken.is_set() and entry.value and f"-{process.pid}-" not in entry.value.decode():
            leased_at = loop.time()
            taken.set()

    watching = await site.bus.kv(subjects.KV_LEADER).watch(leased, key="placement")
    at = loop.time()
    await site.kill(process)
    await asyncio.wait_for(taken.wait(), PATIENCE_S)
    await watching.stop()

    async def decided() -> bool:
        return load.terms[-1] > term or len(load.bound) >= load.target

    await eventually(decided, within_s=PATIENCE_S, every_s=LOOK_S, what="a Binding that a new leader has decided")
    await _caught_up(load)
    after = next((time for time, of in zip(load.times, load.terms, strict=True) if of > term), None)
    if after is None:
        raise RuntimeError("every pod was bound before a new leader could decide one: take more pods")
    found = {
        "gap_s": round(longest_gap_s(load.times, at, after), 2),
        "from_kill_s": round(after - at, 2),
        "from_lease_s": round(after - leased_at, 2),
    }
    await site.start(process)
    await _ready(site, process.name)
    return found


async def upgrade(site: Site, load: Load) -> dict[str, Any]:
    """Ends one process after the other in order (SIGTERM), starts it again, and goes on when it says that it is
    ready."""
    loop = asyncio.get_running_loop()
    began, restarts = loop.time(), {}
    # The simulated API server is gone with its watcher.
    for process in [one for one in site.services.values() if site.kube is not None or one.module != "watcher"]:
        at = loop.time()
        await site.end(process)
        await site.start(process)
        await _ready(site, process.name)
        restarts[process.name] = round(loop.time() - at, 2)
    await eventually(site.whole, within_s=PATIENCE_S, every_s=STATUS_LOOK_S, what="a whole cluster after the upgrade")
    await _caught_up(load)
    return {
        "restart_s": restarts,
        "seconds": round(loop.time() - began, 1),
        "longest_gap_s": load.longest_gap_s(began),
    }


async def storm(site: Site, load: Load) -> dict[str, float]:
    """Half of the agent processes are killed at once, stay away until the leader has noticed it of each of their nodes,
    and come back at once. `recovery_s`: until each node has answered the leader again."""
    loop = asyncio.get_running_loop()
    killed = [site.services[name] for name in sorted(site.agents)[: (len(site.agents) + 1) // 2]]
    nodes = sum(site.agents[process.name] for process in killed)
    began = loop.time()
    await site.kill(*killed)

    async def noticed() -> bool:
        status = await site.status()
        return status is not None and status.agents_ready <= site.nodes - nodes

    await eventually(noticed, within_s=PATIENCE_S, every_s=STATUS_LOOK_S, what="a leader that misses the nodes")
    noticed_s = loop.time() - began
    back = loop.time()
    await site.start(*killed)
    await eventually(site.whole, within_s=PATIENCE_S, every_s=STATUS_LOOK_S, what="a whole cluster after the storm")
    recovery_s = loop.time() - back
    await _caught_up(load)
    return {
        "nodes": nodes,
        "noticed_s": round(noticed_s, 2),
        "recovery_s": round(recovery_s, 2),
        "longest_gap_s": load.longest_gap_s(began),
    }


async def _ready(site: Site, name: str) -> None:
    await eventually(
        functools.partial(site.is_ready, name), within_s=PATIENCE_S, every_s=LOOK_S, what=f"{name} is ready"
    )


async def _caught_up(load: Load) -> None:
    """Pods are bound as they were before."""
    async with asyncio.timeout(PATIENCE_S):
        await load.reached(min(len(load.bound) + CAUGHT_UP, load.target))
