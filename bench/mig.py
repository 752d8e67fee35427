"""MIG instances that come and go: how much of the GPUs is allocated, and which pods are refused.

    python -m bench.mig [--policy kerf|binpack|...] [--offered 1.1] [--seeds 1,2,3] [--mix instances|beside]
                        [--fill] [--without-papers] [--json]

16 nodes: half have 8 A100 of 40 GB, half 8 H100 of 80 GB, all in MIG mode and cut on demand; with `--mix beside` every
other GPU is not, and shared softly. Pods arrive at random and are tried once; each asks for an instance by name, for an
A100 or for an H100, or (`beside`) for a part by memory that both kinds of GPU can serve, or for a whole one. Lives are
exponential. Time is in mean lives: three to settle, and five that count. Allocation is the mean over time of what was
asked for, instances in memory slices. With `--fill` no pod ends, and allocation is what it is when 130 % of the GPUs
have been asked for.

`acceptance` and `makespan`, by policy, are those of `bench.mig_papers`: Kerf beside first fit and others in the set-ups
of two papers. `least_makespan_s`: no makespan can be shorter.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections import Counter
from typing import Any

import msgspec

from bench import mig_papers
from bench.openb.fill import place
from services.placement.engine.engine import Engine
from shared.book.book import Book
from shared.book.states import PodState, pod_state
from shared.contracts.facts import Put
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import Container, Node, NodeStatus, Pod, PodSpec, Resources

NODES, GPUS = 16, 8
CAPACITY_MILLI = 1000 * NODES * GPUS
FILLED = 1.3
SETTLE_LIVES, COUNTED_LIVES = 3.0, 5.0
MAKES = (("NVIDIA-A100-SXM4-40GB", 40_960, (5, 10, 20, 40)), ("NVIDIA-H100-80GB-HBM3", 81_559, (10, 20, 40, 80)))
SLICES = ((1, 1, 30), (1, 2, 10), (2, 2, 20), (3, 4, 20), (4, 4, 10), (7, 8, 10))
"""Of profiles: compute slices, memory slices, and how many of a hundred pods ask for one."""


class Kind(msgspec.Struct, frozen=True):
    label: str
    milli: int
    """Of a GPU, as allocation counts it."""
    weight: int
    state: PodState


class Run(msgspec.Struct, frozen=True):
    seed: int
    allocation_percent: float
    refused_percent: dict[str, float]
    """Of the pods that requested something, by what they requested."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.mig", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="kerf")
    parser.add_argument("--offered", type=float, default=1.1, help="load over capacity")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--mix", choices=("instances", "beside"), default="instances")
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--without-papers", action="store_true", help="no acceptance and no makespan")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    runs, seeds = [], [int(part) for part in args.seeds.split(",")]
    for seed in seeds:
        runs.append(
            fill(args.policy, args.mix, seed) if args.fill else churn(args.policy, args.mix, args.offered, seed)
        )
        print(f"{args.policy} {args.mix} seed {seed}: {runs[-1].allocation_percent} %", file=sys.stderr)
    offered = FILLED if args.fill else args.offered
    mean = round(sum(run.allocation_percent for run in runs) / len(runs), 2)
    result: dict[str, Any] = {
        "policy": args.policy,
        "mix": args.mix,
        "offered": args.offered,
        "mean_percent": mean,
        "runs": [msgspec.structs.asdict(r) for r in runs],
    }
    if not args.without_papers:
        result["acceptance"] = mig_papers.accepted_by_policy(args.offered, seeds)
        result["makespan"] = mig_papers.finished_by_policy(seeds)
        result["least_makespan_s"] = mig_papers.mean_least_makespan_s(seeds)
    print(
        json.dumps(result)
        if args.json
        else f"{args.policy} on {args.mix} at {offered}: {mean} % allocated, mean of {len(runs)} seeds"
    )
    if not args.json and not args.without_papers:
        for policy, found in result["acceptance"].items():
            print(f"{policy}: {found['mean_percent']} % accepted, {found['allocation_percent']} % allocated")
        for policy, found in result["makespan"].items():
            spans = (
                f"{order} {f['without_moves_s']} s, with moves {f['with_moves_s']} s" for order, f in found.items()
            )
            print(f"{policy}: {'; '.join(spans)}")
        print(f"no policy can end before {result['least_makespan_s']} s")


def churn(policy: str, mix: str, offered: float, seed: int) -> Run:
    random_ = random.Random(f"{mix} {seed} {offered}")
    engine, kinds = Engine(make_book(beside=mix == "beside"), policy), make_kinds(beside=mix == "beside")
    weights = [kind.weight for kind in kinds]
    rate = offered * CAPACITY_MILLI / (sum(k.milli * k.weight for k in kinds) / sum(weights))
    now = last = area = 0.0
    used = number = 0
    ends: list[tuple[float, str, int]] = []
    asked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    while now < SETTLE_LIVES + COUNTED_LIVES:
        now += random_.expovariate(rate)
        while ends and ends[0][0] <= now:
            ended, uid, milli = heapq.heappop(ends)
            area, last = area + used * max(0.0, ended - max(last, SETTLE_LIVES)), ended
            engine.book.unhold(uid)
            del engine.book.pods[uid]
            used -= milli
        area, last = area + used * max(0.0, now - max(last, SETTLE_LIVES)), now
        kind, life = random_.choices(kinds, weights)[0], random_.expovariate(1.0)
        number += 1
        placed = _arrive(engine, kind, number)
        if placed:
            used += kind.milli
            heapq.heappush(ends, (now + life, f"p{number}", kind.milli))
        if now >= SETTLE_LIVES:
            asked[kind.label] += 1
            refused[kind.label] += not placed
    return Run(seed, round(100 * area / (now - SETTLE_LIVES) / CAPACITY_MILLI, 3), _percent(refused, asked))


def fill(policy: str, mix: str, seed: int) -> Run:
    random_ = random.Random(seed)
    engine, kinds = Engine(make_book(beside=mix == "beside"), policy), make_kinds(beside=mix == "beside")
    weights = [kind.weight for kind in kinds]
    load = used = number = 0
    asked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    while load < FILLED * CAPACITY_MILLI:
        kind = random_.choices(kinds, weights)[0]
        number += 1
        load += kind.milli
        placed = _arrive(engine, kind, number)
        used += kind.milli * placed
        asked[kind.label] += 1
        refused[kind.label] += not placed
    return Run(seed, round(100 * used / CAPACITY_MILLI, 3), _percent(refused, asked))


def _arrive(engine: Engine, kind: Kind, number: int) -> bool:
    """Whether such a pod, of the uid `p<number>`, has found a place."""
    sample = kind.state
    state = PodState(pod=sample.pod, uid=f"p{number}", demand=sample.demand, request=sample.request)
    engine.book.pods[state.uid] = state
    return place(engine, state, number)


def _percent(refused: Counter[str], asked: Counter[str]) -> dict[str, float]:
    return {label: round(100 * refused[label] / count, 2) for label, count in sorted(asked.items())}


def make_book(*, beside: bool) -> Book:
    book = Book()
    for number in range(NODES):
        name, (model, memory_mib, _) = f"n{number}", MAKES[number % 2]
        gpus = tuple(
            Gpu(uuid=f"{name}/{i}", index=i, model=model, memory_mib=memory_mib, mig_enabled=cut, mig_on_demand=cut)
            for i, cut in enumerate((not beside or bool(i % 2)) for i in range(GPUS))
        )
        allocatable: Quantities = {"cpu": "1000", "memory": "8Ti", "pods": "1000"}
        book.apply(
            Put(
                object=Node(
                    metadata=Meta(name=name, uid=name, resource_version="1"), status=NodeStatus(allocatable=allocatable)
                )
            )
        )
        strategies = ("exclusive", "advisory", "mig")
        book.put_inventory(Inventory(node=name, boot_id="1", gpus=gpus, strategies=strategies, simulated=True))
        book.set_agent_trouble(name, "")
    return book


def make_kinds(*, beside: bool) -> list[Kind]:
    kinds = []
    for model, memory_mib, gb in MAKES:
        only = {names.ANNOTATION_GPU_MODEL: model}
        for compute, memory, weight in SLICES:
            profile = f"{compute}g.{gb[(1, 2, 4, 8).index(memory)]}gb"
            kinds.append(_kind(f"{compute}g/{memory}", memory * 125, weight, {f"{names.PREFIX_MIG}{profile}": 1}, only))
        if beside:
            for eighths in (1, 2, 3):  # nine tenths of so many slices: what an instance has
                limits: dict[str, str | int] = {names.RESOURCE_GPU_MEMORY: f"{memory_mib * eighths * 9 // 80}Mi"}
                kinds.append(_kind(f"part/{eighths}", eighths * 9 * 1000 // 80, 30, limits, only))
            kinds.append(_kind("whole", 1000, 10, {names.RESOURCE_GPU: 1}, only))
    return kinds


def _kind(label: str, milli: int, weight: int, limits: dict[str, str | int], annotations: dict[str, str]) -> Kind:
    container = Container(name="c", resources=Resources(limits=limits, requests={"cpu": "1"}))
    meta = Meta(name=label, namespace="bench", uid=label, resource_version="1", annotations=annotations)
    state = pod_state(Pod(metadata=meta, spec=PodSpec(scheduler_name=names.SCHEDULER_NAME, containers=(container,))))
    if state.refusal:
        raise ValueError(f"the pod {label} makes no sense to the engine: {state.refusal}")
    return Kind(label, milli, weight, state)


if __name__ == "__main__":
    main()
