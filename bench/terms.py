"""What a decision costs whose pod has terms about other pods, in the core that the service runs.

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
from statistics import quantiles
from typing import Any

import msgspec

from bench.gangs import GPUS, Cluster
from services.placement import messages as m
from shared.contracts.facts import Put
from shared.model import names
from shared.model.kube_object import Meta
from shared.model.objects import Container, Pod, PodSpec, Resources

APPS = 40
HOST, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/rack"


def _required(key: str, app: str) -> list[dict[str, Any]]:
    return [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]


def _preferred(key: str, app: str) -> list[dict[str, Any]]:
    return [{"weight": 100, "podAffinityTerm": _required(key, app)[0]}]


def _spread(app: str, otherwise: str) -> dict[str, Any]:
    constraint = {"maxSkew": 1, "whenUnsatisfiable": otherwise, **_required(HOST, app)[0]}
    return {"topologySpreadConstraints": [constraint]}


def terms(kind: str, app: str) -> dict[str, Any]:
    """The part of the pod's spec. `app`: its own application."""
    required, preferred = (f"{when}DuringSchedulingIgnoredDuringExecution" for when in ("required", "preferred"))
    return {
        "plain": {},
        "apart": {"affinity": {"podAntiAffinity": {required: _required(HOST, app)}}},
        "preferred_apart": {"affinity": {"podAntiAffinity": {preferred: _preferred(HOST, app)}}},
        "near": {"affinity": {"podAffinity": {required: _required(RACK, app)}}},
        "spread": _spread(app, "DoNotSchedule"),
        "preferred_spread": _spread(app, "ScheduleAnyway"),
    }[kind]


KINDS = ("plain", "apart", "preferred_apart", "near", "spread", "preferred_spread")


class Terms(Cluster):
    def arrives(self, name: str, app: str, spec: dict[str, Any]) -> float:
        """Creates a pod; returns the seconds until it has a place, or is set aside."""
        container = Container(name="c", resources=Resources(limits={names.RESOURCE_GPU: "1", names.RESOURCE_SLOT: "1"}))
        given = msgspec.convert({**spec, "schedulerName": names.SCHEDULER_NAME}, PodSpec)
        pod = Pod(
            metadata=Meta(
                name=name, namespace="team", uid=name, resource_version=self._version(), labels={"app": app},
                creation_timestamp="2026-11-21T00:00:00Z",
            ),
            spec=msgspec.structs.replace(given, containers=(container,)),
        )  # fmt: skip
        began = time.perf_counter()
        self.say(m.FactsSeen((Put(object=pod),)))
        return time.perf_counter() - began


def measure(nodes: int, pods: int, tries: int, kind: str) -> dict[str, Any]:
    cluster = Terms(nodes)
    for number in range(pods):
        cluster.arrives(f"p{number}", f"a{number % APPS}", {})
    took = [1000 * cluster.arrives(f"q{number}", "mine", terms(kind, "mine")) for number in range(tries)]
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
    for kind in KINDS:
        sys.stderr.write(f"{kind}\n")
        result[kind] = measure(args.nodes, args.pods, args.tries, kind)
    sys.stdout.write(json.dumps(result) + "\n" if args.json else "".join(f"{k}: {v}\n" for k, v in result.items()))


if __name__ == "__main__":
    main()
