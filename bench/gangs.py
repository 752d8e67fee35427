"""How long a gang takes to be placed, from its last pod to the log record with all of it, through the core that the
service runs.

    python -m bench.gangs [--pods 512] [--nodes 500] [--waiting 1000] [--json]

Nodes have eight GPUs and stand in racks of sixteen. `place_s`: a gang of one-GPU pods on the empty cluster, and with a
preferred rack. `refuse_s`: where one GPU too few is free. `beside_s`: while so many gangs that can never be placed
wait.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from services.placement import messages as m
from services.placement.config import Config
from services.placement.core import Core
from shared.contracts.facts import Put
from shared.contracts.log import DecisionBatch, LogMark
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, Resources

GPUS, RACK = 8, 16


class Cluster:
    """A leader over synced nodes. Appends and syncs are answered at once; `records` has the sizes of what was
    logged."""

    def __init__(self, nodes: int) -> None:
        self.core = Core("bench", Config(max_holds=nodes * GPUS + 1))  # no Binding is sent here
        self.records: list[int] = []
        self._sequence = self._versions = 2
        self.say(m.TermTaken(2, mark=LogMark(term=0, sequence=1)))
        room: Quantities = {"cpu": "128", "memory": "1Ti", "pods": "250"}
        for i in range(nodes):
            meta = Meta(
                name=f"n{i}",
                uid=f"node-{i}",
                resource_version=self._version(),
                labels={"topology.kubernetes.io/rack": f"r{i // RACK}", "kubernetes.io/hostname": f"n{i}"},
            )
            self.say(
                m.FactsSeen((Put(object=Node(metadata=meta, status=NodeStatus(allocatable=room, capacity=room))),))
            )
            gpus = tuple(Gpu(uuid=f"n{i}-{g}", index=g, model="NVIDIA-H100", memory_mib=81920) for g in range(GPUS))
            self.say(m.InventorySeen(Inventory(node=f"n{i}", boot_id="1", generation=1, gpus=gpus)))

    def say(self, event: m.Input) -> None:
        todo = [event]
        while todo:
            for command in self.core.handle(todo.pop(0), 0.0):
                todo += self._answer(command)

    def _answer(self, command: m.Command) -> Iterator[m.Input]:
        match command:
            case m.Append():
                self._sequence += 1
                self.records.append(len(command.record.decisions) if isinstance(command.record, DecisionBatch) else 0)
                yield m.Appended(self._sequence)
            case m.TakeSnapshot():
                yield m.SnapshotSeen(())
            case m.SendSync():
                yield m.SyncAnswered(
                    NodeSyncAnswer(
                        node=command.sync.node,
                        boot_id="1",
                        term=command.sync.term,
                        accepted=True,
                        number=command.sync.number,
                    )
                )
            case m.Again():
                yield m.Tick()

    def gang(self, name: str, pods: int, **notes: str) -> float:
        """Creates a gang, all pods but the last and then the last; returns the seconds that the last one took."""
        annotations = {names.ANNOTATION_GANG: name, names.ANNOTATION_GANG_SIZE: str(pods)} | {
            f"kerf.dev/gang-{k}": v for k, v in notes.items()
        }
        facts = tuple(self.pod(f"{name}-{i}", annotations=annotations) for i in range(pods))
        self.say(m.FactsSeen(facts[:-1]))
        began = time.perf_counter()
        self.say(m.FactsSeen(facts[-1:]))
        return time.perf_counter() - began

    def pod(self, name: str, spec: PodSpec = PodSpec(), **meta: Any) -> Put:  # noqa: B008 - it is frozen
        """A new pod of one GPU. `spec`: what it has besides; `meta`: labels and annotations."""
        container = Container(name="c", resources=Resources(limits={names.RESOURCE_GPU: "1", names.RESOURCE_SLOT: "1"}))
        made = msgspec.structs.replace(spec, scheduler_name=names.SCHEDULER_NAME, containers=(container,))
        identity = Meta(name=name, namespace="bench", uid=name, resource_version=self._version(), **meta)
        return Put(object=Pod(metadata=identity, spec=made))

    def _version(self) -> str:
        self._versions += 1
        return str(self._versions)


class Result(msgspec.Struct, frozen=True):
    pods: int
    nodes: int
    records: int
    """Log records that the gang stood in; one, or something is wrong."""
    place_s: float
    place_preferred_s: float
    refuse_s: float
    waiting: int
    beside_s: float


def run(pods: int, nodes: int, waiting: int) -> Result:
    Cluster(2).gang("warm", 4)  # the policy's kernels are compiled at their first use
    plain = Cluster(nodes)
    place_s = plain.gang("g", pods)
    records = sum(1 for size in plain.records if size)
    place_preferred_s = Cluster(nodes).gang("g", pods, topology="preferred=rack")
    full = Cluster(nodes)
    for number, taken in enumerate(range(0, nodes * GPUS - pods + 1, 500)):
        full.gang(f"before-{number}", min(500, nodes * GPUS - pods + 1 - taken))
    decided = sum(full.records)
    refuse_s = full.gang("g", pods)
    if sum(full.records) != decided:
        raise RuntimeError("a gang was placed where it cannot fit")
    crowd = Cluster(nodes)
    for i in range(waiting):
        crowd.gang(f"doomed-{i}", 2, topology="required=no.such/label")
    return Result(pods, nodes, records, place_s, place_preferred_s, refuse_s, waiting, crowd.gang("g", pods))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gangs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=512)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not 2 <= args.pods <= args.nodes * GPUS:
        parser.error(f"--pods must be at least 2, and --nodes enough for them at {GPUS} GPUs a node")
    result = {
        k: round(v, 5) if isinstance(v, float) else v
        for k, v in msgspec.structs.asdict(run(args.pods, args.nodes, args.waiting)).items()
    }
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
