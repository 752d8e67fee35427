"""The trace's files as objects of the engine's own world.

Nodes: `sn, cpu_milli, memory_mib, gpu, model`. Pods: `name, cpu_milli, memory_mib, num_gpu, gpu_milli[, gpu_spec, …]`.
Arrivals: lines `P <seed> <index into the pods sorted by name> …` and `N <seed> <rank of the i-th node sorted by sn> …`.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import msgspec

from shared.book.book import Book
from shared.book.states import PodState, pod_state
from shared.contracts.facts import Put
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, Resources

GPU_MIB = 16_000
"""The trace says nothing of GPU memory; a share of a GPU takes the same part of it."""


_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")


class TraceNode(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True):
    cpu_milli: int
    memory_mib: int
    gpus: int
    milli: int
    """Per GPU; below 1000 only where `gpus` is 1."""
    models: str

    @property
    def total_milli(self) -> int:
        return self.gpus * self.milli

    @property
    def size(self) -> str:
        """How pods are classified where it matters which are refused."""
        return "cpu-only" if not self.gpus else "slice" if self.milli < 1000 else f"{self.gpus}-gpu"


class Trace(msgspec.Struct, frozen=True):
    name: str
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]
    """Sorted by name."""

    @property
    def capacity_milli(self) -> int:
        return 1000 * sum(node.gpus for node in self.nodes)


def read_trace(nodes: Path, pods: Path) -> Trace:
    """Nodes without GPUs are left out. OSError where a file cannot be read, ValueError where it is not such a list."""
    found = sorted(
        (
            TraceNode(r["sn"], int(r["cpu_milli"]), int(r["memory_mib"]), int(r["gpu"]), r["model"])
            for r in read_rows(nodes, _NODE_COLUMNS)
        ),
        key=lambda n: n.name,
    )
    rows = sorted(read_rows(pods, _POD_COLUMNS), key=lambda r: r["name"])
    name = pods.name.removesuffix(".gz").removesuffix(".csv").removeprefix("openb_pod_list_")
    return Trace(name, tuple(n for n in found if n.gpus), tuple(_pod(row) for row in rows))


def _pod(row: dict[str, str]) -> TracePod:
    gpus = int(row["num_gpu"])
    return TracePod(
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        gpus,
        int(row["gpu_milli"]) if gpus else 0,
        row.get("gpu_spec") or "",
    )


class Arrivals(msgspec.Struct, frozen=True):
    pods: tuple[int, ...]
    ranks: tuple[int, ...]


def read_arrivals(path: Path) -> dict[int, Arrivals]:
    """By seed. OSError where the file cannot be read, ValueError where it is no such list."""
    lines: dict[str, dict[int, tuple[int, ...]]] = {"P": {}, "N": {}}
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            kind, *numbers = line.split() or [""]
            if kind not in lines or not numbers or not all(n.isdecimal() for n in numbers):
                raise ValueError(f"{path} line {number}: name P or N, the seed, and then numbers")
            lines[kind][int(numbers[0])] = tuple(map(int, numbers[1:]))
    if not lines["P"] or lines["P"].keys() != lines["N"].keys():
        raise ValueError(
            f"{path} must have a line P (order of the pods) and a line N (ranks of the nodes) for each seed"
        )
    return {seed: Arrivals(order, lines["N"][seed]) for seed, order in lines["P"].items()}


def mismatch(trace: Trace, arrivals: Arrivals) -> str:
    """Why these arrivals are not of this trace; empty where they are."""
    if len(arrivals.ranks) != len(trace.nodes):
        return f"it ranks {len(arrivals.ranks)} nodes with GPUs, and the list has {len(trace.nodes)}"
    if not arrivals.pods or max(arrivals.pods) >= len(trace.pods):
        return (
            f"its pods go up to number {max(arrivals.pods, default=-1)}, and the list has {len(trace.pods)}, "
            "counted from 0"
        )
    return ""


def ranked(trace: Trace, ranks: tuple[int, ...]) -> list[TraceNode]:
    """Nodes in the order in which equals are preferred."""
    return [
        node
        for _, node in sorted((f"{rank:04d}-{node.name}", node) for rank, node in zip(ranks, trace.nodes, strict=True))
    ]


def make_book(nodes: list[TraceNode]) -> Book:
    """The nodes, empty, in this order; their agents have answered."""
    book = Book()
    for node in nodes:
        allocatable: Quantities = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": "100000"}
        meta = Meta(name=node.name, uid=f"node-{node.name}", resource_version="1", labels={names.LABEL_MANAGED: "true"})
        book.apply(Put(object=Node(metadata=meta, status=NodeStatus(allocatable=allocatable))))
        gpus = tuple(
            Gpu(uuid=f"{node.name}/{i}", index=i, model=node.model, memory_mib=GPU_MIB) for i in range(node.gpus)
        )
        book.put_inventory(Inventory(node=node.name, boot_id="1", gpus=gpus, simulated=True))
        book.set_agent_trouble(node.name, "")
    return book


class Pods:
    """Arrivals as pods of the book; equal ones share what can be shared."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._templates: dict[TracePod, PodState] = {}
        self._made = 0

    def template(self, pod: TracePod) -> PodState:
        known = self._templates.get(pod)
        if known is None:
            known = self._templates[pod] = pod_state(_manifest(pod))
            if known.refusal:
                raise ValueError(f"a pod of the trace makes no sense to the engine: {known.refusal}")
        return known

    def arrive(self, pod: TracePod, book: Book) -> PodState:
        """A new pod, waiting on the book."""
        template = self.template(pod)
        self._made += 1
        state = PodState(pod=template.pod, uid=f"p{self._made}", demand=template.demand, request=template.request)
        book.pods[state.uid] = state
        return state


def _manifest(pod: TracePod) -> Pod:
    limits: dict[str, str | int] = {}
    if pod.gpus and pod.milli == 1000:
        limits[names.RESOURCE_GPU] = pod.gpus
    elif pod.gpus and pod.milli % 10 == 0:
        limits[names.RESOURCE_GPU_COMPUTE] = pod.milli // 10
    elif pod.gpus:
        limits[names.RESOURCE_GPU_MEMORY] = f"{pod.milli * GPU_MIB // 1000}Mi"  # finer than a percent: by memory
    requests: dict[str, str | int] = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    annotations = {names.ANNOTATION_GPU_MODEL: pod.models} if pod.models and pod.gpus else {}
    container = Container(name="main", resources=Resources(limits=limits, requests=requests))
    return Pod(
        metadata=Meta(name="pod", namespace="openb", uid="template", resource_version="1", annotations=annotations),
        spec=PodSpec(containers=(container,), scheduler_name=names.SCHEDULER_NAME),
    )


def read_rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Of a table, packed or not. OSError where it cannot be read, ValueError where it lacks one of these columns."""
    with _open(path) as file:
        reader = csv.DictReader(file)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]}; it needs {', '.join(columns)}")
        return list(reader)


def _open(path: Path):  # type: ignore[no-untyped-def]
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
