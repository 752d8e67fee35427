"""How long answers take, and what they cost the leader: openb's mix of nodes and pods scaled to N nodes, its GPUs full.

    python -m bench.explain [--nodes 1213] [--pods 8000] [--questions 30] [--json]

Each question is asked of the book in the slices in which the service answers it (`explaining.steps`). `ms` is the time
of an answer by itself; `slice_ms` the longest step, during which the leader does nothing else. Then the leader decides
on pods that come and go, without questions and with a stream of them in the same event loop, and its decisions' times
are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from bench.openb.trace import Pods, Trace, TraceNode, TracePod, make_book
from cli import openb
from services.placement.engine.engine import Engine
from services.placement.explain.consolidation_advice import Goal, advise
from services.placement.explain.explainer import Explainer
from services.placement.explain.steps import SLICE_S, Steps, in_slices, undisturbed
from services.placement.explain.what_if_clusters import change
from services.placement.explain.when import when
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.queries import AddNodes, WhatIfQuery
from shared.model.grant import Grant
from shared.model.life import Life

NOW = 1_800_000_000.0
_DECISIONS = 4000


class FullCluster:
    """A cluster, its pods, and those that wait. Seven of ten pods say how long they run."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.random = random.Random(1)
        mix = [node for node in openb.nodes() if node.gpus]
        cluster = [
            TraceNode(f"n{i:05d}", n.cpu_milli, n.memory_mib, n.gpus, n.model)
            for i in range(nodes)
            for n in (mix[i % len(mix)],)
        ]
        self.book = make_book(cluster)
        self.engine = Engine(self.book)
        self.explainer = Explainer.of(self.book, self.engine)
        self.trace = [
            TracePod(p.cpu_milli, p.memory_mib, p.gpus, p.gpu_milli if p.gpus else 0, p.models)
            for p in openb.pods(8152)
        ]
        self.pods = Pods(Trace("", (), ()))
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.grants = 0
        for _ in range(pods):
            state = self.arrive(self.random.choice(self.trace))
            if not self.place(state):
                self.waiting.append(state.uid)

    def arrive(self, pod: TracePod) -> PodState:
        state = self.pods.arrive(pod, self.book)
        meta = msgspec.structs.replace(state.pod.metadata, name=state.uid, uid=state.uid)
        state.pod = msgspec.structs.replace(state.pod, metadata=meta)
        self.book.uid_by_key[state.key] = state.uid
        if self.random.random() < 0.7:
            state.life = Life(expected_s=self.random.randrange(60, 100_000))
        return state

    def place(self, state: PodState) -> bool:
        place = self.engine.decide(state)
        self.engine.meet(state, placed=place is not None)
        if place is None:
            return False
        self.grants += 1
        self.book.hold(
            state.uid,
            place.node,
            Grant(grant_id=f"g{self.grants}", term=1, containers=place.containers) if place.containers else None,
        )
        state.seen_bound = True
        self.running.append(state.uid)
        return True

    def leave(self) -> None:
        at = self.random.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        uid = self.running.pop()
        self.book.unhold(uid)
        state = self.book.pods.pop(uid)
        self.book.uid_by_key.pop(state.key, None)
        self.engine.forget(uid)


def questions(cluster: FullCluster) -> dict[str, Callable[[], Steps[Any]]]:
    book, engine, pick = cluster.book, cluster.engine, cluster.random.choice
    gangs = Gangs(book)

    def waiting() -> PodState:
        return book.pods[pick(cluster.waiting)]

    def ghost() -> PodState:
        """Not on the book: what-if's pod. Larger than what is free."""
        state = cluster.pods.template(
            TracePod(4000, 16_000, pick((1, 2, 4, 8)), 1000, pick(("", "T4", "G2|G3", "P100")))
        )
        return PodState(pod=state.pod, uid="what-if/p", demand=state.demand, request=state.request)

    def world_of(**query: Any) -> Steps[Any]:
        return undisturbed(engine, lambda still: change(WhatIfQuery(**query), still, gangs, cluster.waiting, NOW))

    return {
        "why (waiting)": lambda: cluster.explainer.explain(waiting(), max_nodes=5, now=NOW),
        "why (placed)": lambda: cluster.explainer.explain(book.pods[pick(cluster.running)], max_nodes=5, now=NOW),
        "what-if (pod)": lambda: cluster.explainer.explain(ghost(), max_nodes=5, exists=False, now=NOW),
        "what-if (drain)": lambda: world_of(drain=(pick(list(book.nodes)),)),
        "what-if (nodes)": lambda: world_of(add_nodes=(AddNodes(like=pick(list(book.nodes)), count=3),)),
        "when": lambda: when(waiting(), engine, NOW),
        "advise (pod)": lambda: _advise(engine, Goal(states=(ghost(),))),
        "advise (gpus)": lambda: _advise(engine, Goal(gpus=pick((2, 4, 8)))),
    }


def _advise(engine: Engine, goal: Goal) -> Steps[Any]:
    return undisturbed(engine, lambda still: advise(still, goal, NOW))


def ask(make: Callable[[], Steps[Any]], count: int) -> dict[str, float]:
    took, slices = [], []
    for _ in range(count):
        steps, began = make(), time.perf_counter()
        running = True
        while running:
            start = time.perf_counter()
            while running and time.perf_counter() - start < SLICE_S:
                running = next(steps, StopIteration) is not StopIteration
            slices.append(time.perf_counter() - start)
        took.append(time.perf_counter() - began)
    return {
        "p50_ms": _ms(took, 50),
        "p99_ms": _ms(took, 99),
        "slice_p99_ms": _ms(slices, 99),
        "slice_max_ms": _ms(slices, 100),
    }


def _ms(seconds: list[float], percentile: int) -> float:
    return round(float(np.percentile(seconds, percentile)) * 1000, 2)


async def lead(cluster: FullCluster, asked: list[Callable[[], Steps[Any]]]) -> dict[str, float]:
    """Decisions, each in its own turn of the event loop, beside questions one after another."""
    answers: list[float] = []
    done = False

    async def ask_on() -> None:
        while asked and not done:
            for make in asked:
                began = time.perf_counter()
                await in_slices(make())
                answers.append(time.perf_counter() - began)

    asking = asyncio.create_task(ask_on())
    took, late = [], []
    due = time.perf_counter()
    for _ in range(_DECISIONS):
        state = cluster.arrive(cluster.random.choice(cluster.trace))
        due = max(due + 0.0005, time.perf_counter())
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        start = time.perf_counter()
        late.append(start - due)
        placed = cluster.place(state)
        took.append(time.perf_counter() - start)
        if placed:
            cluster.leave()
        else:
            del cluster.book.pods[state.uid]
            cluster.engine.forget(state.uid)
    done = True
    await asking
    figures = {
        "decide_p50_ms": _ms(took, 50),
        "decide_p99_ms": _ms(took, 99),
        "delayed_p50_ms": _ms(late, 50),
        "delayed_p99_ms": _ms(late, 99),
        "delayed_max_ms": _ms(late, 100),
    }
    return figures | (
        {"answers": float(len(answers)), "answer_p50_ms": _ms(answers, 50), "answer_p99_ms": _ms(answers, 99)}
        if answers
        else {}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.explain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1213)
    parser.add_argument("--pods", type=int, default=8000)
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    print(f"placing {args.pods} pods on {args.nodes} nodes", file=sys.stderr)
    cluster = FullCluster(args.nodes, args.pods)
    if not cluster.waiting:
        parser.error("every pod found a place; ask for more pods or fewer nodes")
    gc.collect()
    gc.freeze()
    asked = questions(cluster)
    answers = {}
    for name, make in asked.items():
        ask(make, 1)  # rows of its shapes are there from the first question on
        answers[name] = ask(make, args.questions)
    alone = asyncio.run(lead(cluster, []))
    beside = asyncio.run(
        lead(cluster, [asked[name] for name in ("why (waiting)", "what-if (pod)", "when", "why (placed)")])
    )
    result = {
        "nodes": args.nodes,
        "pods": len(cluster.running),
        "waiting": len(cluster.waiting),
        "questions": answers,
        "leader_alone": alone,
        "leader_asked": beside,
    }
    if args.json:
        print(json.dumps(result))
        return
    for name, row in answers.items():
        print(f"{name:18}" + "  ".join(f"{key} {value:7.2f}" for key, value in row.items()))
    print(f"leader alone: {alone}\nleader asked: {beside}")


if __name__ == "__main__":
    main()
