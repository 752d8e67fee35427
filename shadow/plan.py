"""A recorded history on another fleet: what waits how long there, and how many nodes are enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from shadow.compare import Side, ask_words, kerfs_side, waits_with
from shadow.history import History, NodeIs
from shadow.peers import Device
from shadow.requests import Wanted
from shadow.rerun import Rerun, rerun
from shared.formats import decode_yaml
from shared.model.gpu import MOST_MIB
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Node, NodeStatus
from shared.model.units import QuantityError, quantity

MAX_NODES = 10_000
_LONGEST = 20


class FleetError(ValueError):
    """A list of nodes that cannot be read. The text says what to write."""


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many equal nodes."""

    model: str
    """As GPU feature discovery names it, such as NVIDIA-H100-80GB-HBM3."""
    memory_mib: int
    """Of each GPU."""
    gpus: int = 8
    """Of each node."""
    count: int = 1
    cpu: str | int = "128"
    memory: str | int = "1024Gi"
    """Both of each node, as quantities of Kubernetes."""
    labels: dict[str, str] = {}
    """What pods select nodes by."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    pod: str
    asks: str
    wait_s: float
    started: bool
    why: str


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and what Kerf makes of it."""

    nodes: int
    gpus: int
    counts: tuple[int, ...]
    """Nodes of each kind, in the order of the file."""
    kerf: Side
    longest: tuple[Waiting, ...]
    """The pods that wait longest."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    watched_s: float
    pods: int
    planned: Planned
    enough: Planned | None = None
    """With the fewest nodes of the last kind that serve all pods in the time asked for (`plan`); None: not asked for,
    or not reached with a node for each pod."""


def read_fleet(text: str) -> tuple[Kind, ...]:
    """A list of kinds in YAML or JSON. Raises FleetError."""
    example = "- {model: NVIDIA-H100-80GB-HBM3, memory_mib: 81559, gpus: 8, count: 4}"
    try:
        kinds = decode_yaml(text, tuple[Kind, ...])
    except msgspec.DecodeError as error:
        raise FleetError(f"{error}; each node kind is an entry such as {example}") from None
    for kind in kinds:
        if not (0 < kind.gpus <= 64 and 0 < kind.memory_mib <= MOST_MIB and 0 <= kind.count <= MAX_NODES):
            raise FleetError(
                f"{kind.count} nodes of {kind.gpus} GPUs with {kind.memory_mib} MiB: a node has 1 to 64 GPUs with 1 to "
                f"{MOST_MIB} MiB each, and there are at most {MAX_NODES} of a kind"
            )
        for field in ("cpu", "memory"):
            text = str(getattr(kind, field))
            try:
                amount = quantity(text)
            except QuantityError as error:
                raise FleetError(f"{field}: {error}") from None
            if amount <= 0:
                raise FleetError(f"{field} is {text}; a node has more than 0")
    if not kinds:
        raise FleetError(f"there is no node kind; write a list such as {example}")
    return kinds


def plan(history: History, kinds: tuple[Kind, ...], policy: str, enough_s: float | None = None) -> Plan:
    """The history on these nodes.

    `enough_s`: also looks for the fewest nodes of the last kind with which 99 % of the pods wait no longer, those that
    ran when the watching began wait no longer either, and each pod that started there starts.
    """
    return Plan(
        source=history.source,
        watched_s=round(history.ended_s - history.began_s, 1),
        pods=sum(1 for life in history.lives.values() if isinstance(life.wanted, Wanted)),
        planned=_planned(*_moved(history, kinds, policy), kinds),
        enough=None if enough_s is None else _enough(history, kinds, policy, enough_s),
    )


def _enough(history: History, kinds: tuple[Kind, ...], policy: str, enough_s: float) -> Planned | None:
    """Doubles until it is enough, then halves the rest.

    With one node fewer than the answer it was not enough; that fewer still would not be either is assumed.
    """
    found: dict[int, Planned] = {}

    def serves(count: int) -> bool:
        last = msgspec.structs.replace(kinds[-1], count=count)
        moved, made = _moved(history, (*kinds[:-1], last), policy)
        found[count] = _planned(moved, made, (*kinds[:-1], last))
        return found[count].kerf.p99_wait_s <= enough_s and not _lacks(moved, made, enough_s)

    if serves(0):
        return found[0]
    most = min(MAX_NODES, len(history.lives))  # a node for each pod: more would not help
    low, high = 0, 1
    while not serves(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if serves(middle) else (middle, high)
    return found[high]


def _lacks(history: History, made: Rerun, enough_s: float) -> bool:
    """Whether a pod that started there does not here, or one that ran when the watching began waits too long.

    The percentile of the waits shows neither: a pod that never starts counts until the end of the recording, which may
    be sooner than `enough_s`, and a pod that ran before does not count.
    """
    waits = waits_with(history, made)
    return any(
        (life.bound_s is not None and uid not in made.placed) or (life.ran_before and waits[uid] > enough_s)
        for uid, life in history.lives.items()
        if uid in waits
    )


def _moved(history: History, kinds: tuple[Kind, ...], policy: str) -> tuple[History, Rerun]:
    """The history on these nodes, and what Kerf makes of it."""
    moved = msgspec.structs.replace(history, steps=tuple(_nodes(history.began_s, kinds)), others=())
    return moved, rerun(moved, policy)


def _planned(moved: History, made: Rerun, kinds: tuple[Kind, ...]) -> Planned:
    return Planned(
        nodes=sum(kind.count for kind in kinds),
        gpus=sum(kind.count * kind.gpus for kind in kinds),
        counts=tuple(kind.count for kind in kinds),
        kerf=kerfs_side(moved, made),
        longest=tuple(_longest(moved, made)),
    )


def _longest(history: History, made: Rerun) -> Iterator[Waiting]:
    waits = sorted(waits_with(history, made).items(), key=lambda item: (-item[1], item[0]))
    for uid, wait_s in waits[:_LONGEST]:
        life = history.lives[uid]
        if wait_s >= 1.0 and isinstance(life.wanted, Wanted):
            yield Waiting(
                pod=life.key,
                asks="; ".join(ask_words(ask) for ask in life.wanted.asks),
                wait_s=round(wait_s, 1),
                started=uid in made.placed,
                why=made.waits.get(uid, ""),
            )


def _nodes(at_s: float, kinds: tuple[Kind, ...]) -> Iterator[NodeIs]:
    for number, kind in enumerate(kinds):
        for index in range(kind.count):
            name = f"plan-{number}-{index}"
            devices = tuple(
                Device(node=name, uuid=f"{name}/gpu-{gpu}", index=gpu, model=kind.model, memory_mib=kind.memory_mib)
                for gpu in range(kind.gpus)
            )
            amounts: Quantities = {
                "cpu": str(kind.cpu),
                "memory": str(kind.memory),
                "pods": "1000",
                "ephemeral-storage": "100Ti",
            }
            labels: dict[str, Any] = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": kind.model}
            meta = Meta(name=name, uid=f"uid-{name}", resource_version="1", labels=labels | kind.labels)
            node = Node(metadata=meta, status=NodeStatus(allocatable=amounts, capacity=amounts))
            yield NodeIs(at_s, name, devices, node)
