"""Kerf at the size of a large cluster: decisions, Bindings, memory, CPU, traffic and what faults cost.

    python -m bench.scale [--nodes 5000] [--pods 100000] [--simulated] [--faults takeover,upgrade,storm]
                          [--keep DIR] [--json]

A real API server with etcd, one NATS server and Kerf's services as processes: two placements, two watchers, preemptor,
operator, admission and metrics, and an agent process for every thousand hollow nodes of eight GPUs. With `--simulated`
the API server is the simulated one, inside the one watcher.

Pods are whole GPUs, halves, thirds and quarters, created as fast as they are bound: at most 512 wait, so a rate is that
of the whole chain and not of a queue. Until 40 % are bound nothing disturbs them; from this part are the rates, the CPU
and the traffic of a pod. Then the leading placement is killed; at 55 % every process is restarted in order, one after
the other; at 75 % half of the nodes' agents are killed at once, and come back at once when the leader has missed them.
The last pods are created at half of the undisturbed rate, and the latency is theirs, from the answer to their creation
until a watch sees them bound: behind a backlog a latency would be the backlog's length. Everything shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import structlog
import uvloop

from bench.scale import faults, measured
from bench.scale.load import MEMORY_MIB, Load, max_pods
from bench.scale.site import GPUS, PATIENCE_S, Site, on_site
from tests.support.waiting import eventually

WARM = 100
"""The first pods: services load code and caches with them."""
UNDISTURBED = 0.4
FAULTS: dict[str, tuple[float, Callable[[Site, Load], Coroutine[Any, Any, Any]]]] = {
    "takeover": (UNDISTURBED, faults.takeover),
    "upgrade": (0.55, faults.upgrade),
    "storm": (0.75, faults.storm),
}
"""By name: the part of the pods that is bound when it begins."""
PROBED, PROBES_MAX = 0.05, 1000
"""The part of all pods that is created at a steady rate at the end, and how many at most."""
IDLE_S = 10.0
LOOK_S = 0.2

Say = Callable[[str], None]


async def _started(site: Site, say: Say) -> dict[str, float]:
    """Seconds from an empty machine to a leader that every node has answered."""
    loop = asyncio.get_running_loop()
    if site.kube is None:
        await site.start(site.services["watcher-0"])
    began = loop.time()
    await site.create_nodes()
    created = loop.time()
    say(f"{site.nodes} nodes created in {created - began:.1f} s")
    await site.start(*(process for process in site.services.values() if not process.alive))
    await eventually(site.whole, within_s=PATIENCE_S, every_s=LOOK_S, what="a leader that every node has answered")
    say(f"all nodes answered after {loop.time() - created:.1f} s")
    return {"nodes_created_s": round(created - began, 1), "ready_s": round(loop.time() - created, 1)}


async def _idle(site: Site, idle_s: float) -> dict[str, Any]:
    """What runs when nothing happens: traffic a second, and CPU in parts of a core."""
    before, cpu = measured.traffic(site.monitor), site.cpu()
    await asyncio.sleep(idle_s)
    after = site.cpu()
    return {
        "nats_a_second": measured.traffic(site.monitor).since(before, idle_s),
        "cpu_cores": measured.added({name: round((after[name] - at) / idle_s, 4) for name, at in cpu.items()}),
        "rss_mb": measured.added(site.rss()),
        "streams": measured.streams(site.monitor),
    }


async def _undisturbed(site: Site, load: Load, until: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    await load.reached(WARM)
    before, cpu, nats = await site.status(), site.cpu(), measured.traffic(site.monitor)
    began, first = loop.time(), len(load.bound)
    await load.reached(until)
    seconds, pods = loop.time() - began, len(load.bound) - first
    after, spent = await site.status(), site.cpu()
    # On a machine with too little CPU a leader may lose its lease by itself; its successor counts decisions anew.
    decisions = None
    if before is not None and after is not None and before.term == after.term:
        decisions = after.decisions - before.decisions
    return {
        "pods": pods,
        "seconds": round(seconds, 1),
        "leader_changed": decisions is None,
        "decisions_per_s": None if decisions is None else round(decisions / seconds, 1),
        "bindings_per_s": round(pods / seconds, 1),
        "decide_us": None
        if after is None
        else {"p50": round(after.decide_us_p50, 1), "p99": round(after.decide_us_p99, 1)},
        "cpu_us_a_pod": measured.added({name: round((spent[name] - at) * 1e6 / pods) for name, at in cpu.items()}),
        "nats_a_pod": measured.traffic(site.monitor).since(nats, pods),
    }


async def _probed(site: Site, load: Load, count: int, rate: float) -> dict[str, float]:
    first = len(load.created)
    await load.create_at(rate, count)
    async with asyncio.timeout(PATIENCE_S):
        await load.reached(first + count)
    site.check()
    return measured.quantiles(load.latencies_ms(first)) | {"pods": count, "created_per_s": round(rate, 1)}


async def _loaded(site: Site, pods: int, struck: Sequence[str], say: Say) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    probes = min(PROBES_MAX, int(pods * PROBED))
    load = Load(site.create_pod, pods - probes)
    async with contextlib.AsyncExitStack() as stack:
        watching = asyncio.create_task(site.watch(load))
        stack.callback(watching.cancel)
        began = loop.time()
        creating = asyncio.create_task(load.create_all())
        stack.callback(creating.cancel)
        telling = asyncio.create_task(_tell(load, say))
        stack.callback(telling.cancel)

        async def going(work: Any) -> Any:
            """The result of the work, unless the load or the watch fails first."""
            mine = asyncio.create_task(work)
            stack.callback(mine.cancel)
            done: set[asyncio.Future[Any]] = {mine, watching}
            while not mine.done():
                await asyncio.wait(done | ({creating} if not creating.done() else set()), return_when="FIRST_COMPLETED")
                for task in (watching, creating):
                    if task.done():
                        task.result()
            return mine.result()

        found: dict[str, Any] = {"undisturbed": await going(_undisturbed(site, load, int(load.target * UNDISTURBED)))}
        say(f"undisturbed: {found['undisturbed']}")
        for name in struck:
            part, strike = FAULTS[name]
            await going(load.reached(int(load.target * part)))
            found[name] = await going(strike(site, load))
            say(f"{name}: {found[name]}")
        await going(load.reached(load.target))
        await creating
        seconds = loop.time() - began
        found["bindings_per_s_with_faults"] = round(load.target / seconds, 1)
        found["latency_ms"] = await going(_probed(site, load, probes, found["undisturbed"]["bindings_per_s"] / 2))
        say(f"latency: {found['latency_ms']}")
        found |= {"bound_seen": len(load.bound), "creations_repeated": site.creations_repeated}
    return found


async def _tell(load: Load, say: Say) -> None:
    while True:
        await asyncio.sleep(30)
        say(f"{time.strftime('%H:%M:%S')} created {len(load.created)}, bound {len(load.bound)}")


async def _ended(site: Site) -> dict[str, Any]:
    """What is there when all pods are bound."""
    series = await site.series()
    status = await site.status()
    booked = None if site.kube is None else await site.booked()
    return {
        "bound": None if booked is None else booked.bound,
        "double_bookings": None if booked is None else booked.doubled(MEMORY_MIB),
        "double_bookings_in_book": None if status is None else status.double_bookings,
        "rss_mb": measured.added(site.rss()),
        "streams": measured.streams(site.monitor),
        "metrics_series": {name: sum(counts.values()) for name, counts in series.items()},
        "metrics_most": {
            name: dict(sorted(counts.items(), key=lambda one: -one[1])[:3]) for name, counts in series.items()
        },
    }


async def measure(
    state: Path,
    nodes: int,
    pods: int,
    say: Say,
    *,
    simulated: bool = False,
    struck: Sequence[str] = tuple(FAULTS),
    idle_s: float = IDLE_S,
) -> dict[str, Any]:
    """One run with these of FAULTS. Raises RuntimeError with the end of a process's log where one ends by itself."""
    async with on_site(state, nodes, simulated=simulated) as site:
        result: dict[str, Any] = {"nodes": nodes, "gpus": nodes * GPUS, "pods": pods, "simulated": simulated}
        result |= {"start": await _started(site, say), "idle": await _idle(site, idle_s)}
        say(f"idle: {result['idle']}")
        result |= await _loaded(site, pods, struck, say)
        return result | {"end": await _ended(site)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--simulated", action="store_true", help="on the simulated API server, without a real one")
    parser.add_argument("--faults", default=",".join(FAULTS), help="empty for none")
    parser.add_argument("--keep", default="", help="keep state and logs in this folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.pods > max_pods(args.nodes * GPUS):
        parser.error(f"{args.nodes} nodes have room for {max_pods(args.nodes * GPUS)} pods")
    if args.pods < 15 * WARM:
        parser.error(f"--pods must be at least {15 * WARM}: a killed leader must leave some undecided")
    struck = [name for name in FAULTS if name in args.faults.split(",")]
    if unknown := sorted({*args.faults.split(",")} - {*FAULTS, ""}):
        parser.error(f"there is no fault {unknown[0]}; known are {', '.join(FAULTS)}")
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # stdout is for the result

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    folder = Path(args.keep or tempfile.mkdtemp(prefix="kerf-scale-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = uvloop.run(measure(folder, args.nodes, args.pods, say, simulated=args.simulated, struck=struck))
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
