"""What a decision about a pod costs that has terms about other pods, in the core that the service runs.

    python -m bench.terms [--nodes 2000] [--pods 8000] [--tries 100] [--json]

Nodes have eight GPUs and stand in racks of sixteen. Pods of one GPU, of 40 applications in one namespace, are placed
first; then pods of one application arrive one after the other, each decided before the next one:
`plain`: without terms; `apart`: each on a node of its own among its kind, by required anti-affinity; `preferred_apart`:
the same as a preference; `near`: in one rack with its kind, by required affinity; `spread`: with at
most one more than on the emptiest node, by topologySpreadConstraints; `preferred_spread`: the same as a preference.

By kind `ms_p50`, `ms_p99`, and how many were placed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

import msgspec

from bench.gangs import GPUS, Cluster
from services.placement import messages as m
from shared.model.objects import PodSpec

APPS = 40
HOST, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/rack"


def _required(key: str, app: str) -> list[dict[str, Any]]:
    return [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]


def _preferred(key: str, app: str) -> list[dict[str, Any]]:
    return [{"weight": 100, "podAffinityTerm": _required(key, app)[0]}]


def _spread(app: str, otherwise: str) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "whenUnsatisfiable": otherwise, **_required(HOST, app)[0]}
    return {"topologySpreadConstraints": [constraint]}


_REQUIRED, _PREFERRED = (f"{when}DuringSchedulingIgnoredDuringExecution" for when in ("required", "preferred"))
TERMS: dict[str, Callable[[str], dict[str, Any]]] = {
    "plain": lambda app: {},  # noqa: ARG005 - the form is that of the others
    "apart": lambda app: {"affinity": {"podAntiAffinity": {_REQUIRED: _required(HOST, app)}}},
    "preferred_apart": lambda app: {"affinity": {"podAntiAffinity": {_PREFERRED: _preferred(HOST, app)}}},
    "near": lambda app: {"affinity": {"podAffinity": {_REQUIRED: _required(RACK, app)}}},
    "spread": lambda app: _spread(app, "DoNotSchedule"),
    "preferred_spread": lambda app: _spread(app, "ScheduleAnyway"),
}
"""By kind, what the spec of a pod of that application has besides."""


class Terms(Cluster):
    def arrives(self, name: str, app: str, kind: str = "plain") -> float:
        """Creates a pod; returns the seconds until it has a place, or is set aside."""
        pod = self.pod(name, msgspec.convert(TERMS[kind](app), PodSpec), labels={"app": app})
        began = time.perf_counter()
        self.say(m.FactsSeen((pod,)))
        return time.perf_counter() - began


def measure(nodes: int, pods: int, tries: int, kind: str) -> dict[str, Any]:
    cluster = Terms(nodes)
    for number in range(pods):
        cluster.arrives(f"p{number}", f"a{number % APPS}")
    took = [1000 * cluster.arrives(f"q{number}", "mine", kind) for number in range(tries)]
    percentiles = quantiles(took, n=100)
    return {
        "ms_p50": round(percentiles[49], 3),
        "ms_p99": round(percentiles[98], 3),
        "placed": sum(bool(cluster.core.book.pods[f"q{number}"].charged) for number in range(tries)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.terms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=8000)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="one object on stdout, and nothing else")
    args = parser.parse_args()
    if args.pods + args.tries > args.nodes * GPUS:
        parser.error(f"{args.nodes} nodes have {args.nodes * GPUS} GPUs, fewer than the pods")
    result: dict[str, Any] = {"nodes": args.nodes, "pods": args.pods, "tries": args.tries}
    for kind in TERMS:
        sys.stderr.write(f"{kind}\n")
        result[kind] = measure(args.nodes, args.pods, args.tries, kind)
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
