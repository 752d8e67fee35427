"""How long the preemptor's core holds its loop to plan on a full cluster, through the core that the service runs.

    python -m bench.plans [--nodes 15000] [--gang 8] [--json]

Nodes of eight GPUs stand in racks of sixteen, each GPU with a pod of its own, of one of four priorities, that has run
for a minute to a day. `tick_s`: the longest tick in which candidates are computed, before any pod waits; `idle_s`: one
after that. Then the longest tick until there is a plan: `gpu_s` for a pod of one GPU, `node_s` for one of eight,
`gang_s` for a gang of such, and `rack_s` for one that must be in one rack.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import sys
import time
from datetime import UTC, datetime

import msgspec

from services.preemptor import messages as m
from services.preemptor.config import Config
from services.preemptor.core import Core
from shared.contracts.facts import Put
from shared.contracts.preemption import Plan
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant, encode_grant
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, PodStatus, Resources

GPUS, RACK, MEMORY_MIB = 8, 16, 81920
_NOW = 1_800_000_000.0
_WITHIN = 1_000
"""Ticks."""


class Cluster:
    """A preemptor's core, and nodes full of pods."""

    def __init__(self, nodes: int) -> None:
        self._numbers = itertools.count(1)
        self.core, self.now, rng = Core(Config(), lambda: f"plan-{next(self._numbers)}"), _NOW, random.Random(1)
        room: Quantities = {"cpu": "128", "memory": "1Ti", "pods": "250"}
        for i in range(nodes):
            meta = Meta(
                name=f"n{i}",
                uid=f"node-{i}",
                resource_version=self._version(),
                labels={"topology.kubernetes.io/rack": f"r{i // RACK}"},
            )
            gpus = tuple(
                Gpu(uuid=f"n{i}-{g}", index=g, model="NVIDIA-H100", memory_mib=MEMORY_MIB) for g in range(GPUS)
            )
            self._say(
                m.FactsSeen((Put(object=Node(metadata=meta, status=NodeStatus(allocatable=room, capacity=room))),))
            )
            self._say(m.InventorySeen(Inventory(node=f"n{i}", boot_id="1", generation=1, gpus=gpus)))
            self._say(m.FactsSeen(tuple(Put(object=self._running(f"n{i}", gpu, rng)) for gpu in range(GPUS))))

    def _say(self, event: m.Input) -> list[m.Command]:
        return self.core.handle(event, self.now)

    def _running(self, node: str, gpu: int, rng: random.Random) -> Pod:
        share = GpuShare(node=node, uuid=f"{node}-{gpu}", memory_mib=MEMORY_MIB, compute_milli=1000)
        grant = Grant(
            grant_id=f"{node}/{gpu}", term=1, containers={"c": ContainerGrant(strategy="exclusive", gpus=(share,))}
        )
        started = datetime.fromtimestamp(_NOW - rng.randint(60, 86_400), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        pod = self._pod(f"{node}-{gpu}", 1, rng.randint(0, 3), {names.ANNOTATION_GRANT: encode_grant(grant)})
        return msgspec.structs.replace(
            pod,
            spec=msgspec.structs.replace(pod.spec, node_name=node),
            status=PodStatus(phase="Running", start_time=started),
        )

    def _pod(self, name: str, gpus: int, priority: int, notes: dict[str, str]) -> Pod:
        container = Container(
            name="c", resources=Resources(limits={names.RESOURCE_GPU: str(gpus), names.RESOURCE_SLOT: "1"})
        )
        meta = Meta(name=name, namespace="bench", uid=name, resource_version=self._version(), annotations=notes)
        return Pod(
            metadata=meta, spec=PodSpec(scheduler_name=names.SCHEDULER_NAME, priority=priority, containers=(container,))
        )

    def tick(self) -> tuple[float, list[Plan]]:
        """A tenth of a second later: how long it took, and what was proposed."""
        self.now += 0.1
        began = time.perf_counter()
        said = self._say(m.Tick())
        return time.perf_counter() - began, [command.plan for command in said if isinstance(command, m.Propose)]

    def plan(self, name: str, gpus: int, members: int = 1, **notes: str) -> float:
        """Seconds of the longest tick until there is a plan for these, which is forgotten then."""
        gang = {names.ANNOTATION_GANG: name, names.ANNOTATION_GANG_SIZE: str(members)} if members > 1 else {}
        for i in range(members):
            self._say(
                m.FactsSeen(
                    (
                        Put(
                            object=self._pod(
                                f"{name}-{i}", gpus, 100, gang | {f"kerf.dev/gang-{k}": v for k, v in notes.items()}
                            )
                        ),
                    )
                )
            )
            self._say(m.Rejected(f"{name}-{i}"))
        longest = 0.0
        for _ in range(_WITHIN):
            took_s, plans = self.tick()
            longest = max(longest, took_s)
            if plans:
                if len(plans) > 1 or len(plans[0].beneficiaries) != members or len(plans[0].victims) != gpus * members:
                    raise RuntimeError(
                        f"{name}: {gpus * members} pods of one GPU each should have been the victims, and no others"
                    )
                self._say(m.Ended(plans[0].plan_id, executed=True))
                return longest
        raise RuntimeError(f"there was no plan for {name}")

    def _version(self) -> str:
        return str(next(self._numbers))


class Result(msgspec.Struct, frozen=True):
    nodes: int
    gang: int
    ticks: int
    """Until all candidates were made."""
    tick_s: float
    idle_s: float
    gpu_s: float
    node_s: float
    gang_s: float
    rack_s: float


def run(nodes: int, gang: int) -> Result:
    cluster = Cluster(nodes)
    gc.collect()
    gc.freeze()
    times = [cluster.tick()[0]]
    while not cluster.core.ready:
        times.append(cluster.tick()[0])
    idle_s = cluster.tick()[0]
    return Result(
        nodes,
        gang,
        len(times),
        max(times),
        idle_s,
        cluster.plan("gpu", 1),
        cluster.plan("node", GPUS),
        cluster.plan("gang", GPUS, gang),
        cluster.plan("rack", GPUS, min(gang, RACK), topology="required=rack"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.plans", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=15_000)
    parser.add_argument("--gang", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not 2 <= args.gang <= args.nodes // 4:
        parser.error("--gang must be at least 2, and --nodes four times as many")
    result = {
        k: round(v, 3) if isinstance(v, float) else v
        for k, v in msgspec.structs.asdict(run(args.nodes, args.gang)).items()
    }
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
