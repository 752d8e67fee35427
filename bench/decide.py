"""How fast placement decides, on one core: openb's mix of nodes scaled to N, at 85 % allocation, pods coming and going.

    python -m bench.decide [--nodes 1213] [--decisions 20000] [--policy kerf] [--weighed] [--json]

A decision is what the service does once a pod's turn has come: choose node and GPUs on the book as it stands, let the
policy learn, and book the hold. Pods are of openb's mix (by default its 151 kinds), already read and in their lines.
Each decision is followed by the ends of random pods, as many as keep allocation at 85 %; their release from the book is
in `decisions_per_s` (all work between the first decision and the last), not in a decision's own time (p50, p99).
With `--weighed` all pods with GPUs declare what they do there, and accept three times the time (`kerf.dev/gpu-use`,
`kerf.dev/max-slowdown`): sharing is weighed on every GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from bench.openb.fill import place
from bench.openb.trace import Pods, Trace, TraceNode, TracePod, make_book, read_trace
from services.placement.engine.engine import Engine
from shared.book.states import PodState
from shared.model.use import UseProfile

DATA = Path(__file__).parent / "data" / "openb"
LEVEL = 0.85
_USE = UseProfile(busy_milli=600, sm_milli=500, bandwidth_milli=200, request_us=6000)


class Result(msgspec.Struct, frozen=True):
    nodes: int
    gpus: int
    policy: str
    decisions: int
    refused: int
    decisions_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    allocation_percent: float
    rss_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.decide", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1213)
    parser.add_argument("--decisions", type=int, default=20_000)
    parser.add_argument("--policy", default="kerf")
    parser.add_argument("--weighed", action="store_true")
    parser.add_argument("--pods", type=Path, default=DATA / "openb_pod_list_default.csv.gz")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.nodes < 1 or args.decisions < 1:
        parser.error("--nodes and --decisions must be at least 1")
    trace = read_trace(DATA / "openb_node_list_gpu_node.csv", args.pods)
    result = run(trace, args.nodes, args.decisions, args.policy, weighed=args.weighed)
    if args.json:
        print(json.dumps(msgspec.structs.asdict(result)))
    else:
        print(
            f"{result.decisions_per_s:.0f} decisions/s on {result.nodes} nodes; p50 {result.p50_us:.0f} us, p99 "
            f"{result.p99_us:.0f} us, {result.rss_mb:.0f} MB"
        )


def scaled(trace: Trace, count: int) -> list[TraceNode]:
    """That many nodes of the trace's mix, in a shuffled order."""
    nodes = [msgspec.structs.replace(trace.nodes[i % len(trace.nodes)], name=f"node-{i:05d}") for i in range(count)]
    random.Random(count).shuffle(nodes)
    return nodes


class TurnoverCluster:
    """The cluster, its pods, and whose turn it is to leave."""

    def __init__(self, trace: Trace, nodes: int, policy: str, *, weighed: bool = False) -> None:
        self.trace, self.weighed = trace, weighed
        self.random = random.Random(7)
        cluster = scaled(trace, nodes)
        self.capacity = 1000 * sum(node.gpus for node in cluster)
        self.engine = Engine(make_book(cluster), policy)
        self.pods = Pods(trace)
        self.running: list[tuple[str, int]] = []
        self.used = self.made = self.refused = 0

    def next_pod(self) -> tuple[TracePod, PodState]:
        pod = self.trace.pods[self.random.randrange(len(self.trace.pods))]
        state = self.pods.arrive(pod, self.engine.book)
        if self.weighed and state.request is not None:
            state.request = msgspec.structs.replace(state.request, max_slowdown_milli=3000)
            state.uses, state.adaptive = dict.fromkeys(state.request.asks, _USE), True
        self.engine.key_of(state)
        return pod, state

    def decide(self, pod: TracePod, state: PodState) -> None:
        self.made += 1
        if place(self.engine, state, self.made):
            self.used += pod.total_milli
            self.running.append((state.uid, pod.total_milli))
        else:
            self.refused += 1

    def leave(self) -> None:
        """Random pods end until the level is kept."""
        while self.used > LEVEL * self.capacity:
            at = self.random.randrange(len(self.running))
            self.running[at], self.running[-1] = self.running[-1], self.running[at]
            uid, milli = self.running.pop()
            self.engine.book.unhold(uid)
            del self.engine.book.pods[uid]
            self.used -= milli


def run(trace: Trace, nodes: int, decisions: int, policy: str, *, weighed: bool = False) -> Result:
    cluster = TurnoverCluster(trace, nodes, policy, weighed=weighed)
    print(f"filling {nodes} nodes to {LEVEL:.0%}", file=sys.stderr)
    while cluster.used < LEVEL * cluster.capacity:
        cluster.decide(*cluster.next_pod())
    for _ in range(2000):  # pods have come and gone for a while, and all code is warm
        cluster.decide(*cluster.next_pod())
        cluster.leave()
    gc.collect()
    gc.freeze()
    print(f"deciding {decisions} times", file=sys.stderr)
    arriving = [cluster.next_pod() for _ in range(decisions)]
    cluster.refused = 0
    took = np.zeros(decisions)
    began = time.perf_counter()
    for number, (pod, state) in enumerate(arriving):
        start = time.perf_counter()
        cluster.decide(pod, state)
        took[number] = time.perf_counter() - start
        cluster.leave()
    seconds = time.perf_counter() - began
    p50, p99, p999 = (float(np.percentile(took, q) * 1e6) for q in (50, 99, 99.9))
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Result(
        nodes,
        cluster.capacity // 1000,
        policy,
        decisions,
        cluster.refused,
        round(decisions / seconds, 1),
        round(p50, 1),
        round(p99, 1),
        round(p999, 1),
        round(float(took.max() * 1e6), 1),
        round(100 * cluster.used / cluster.capacity, 2),
        round(rss_mb, 1),
    )


if __name__ == "__main__":
    main()
