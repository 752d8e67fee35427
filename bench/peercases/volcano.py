"""Volcano's cases: whether a pod fits a node's GPUs, and on which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peercases.cluster import CaseCluster
from bench.peercases.devices import POD, add_node, add_request, given

Case = dict[str, Any]


def _filter(case: Case) -> str:
    asked, expected = case["input"], case["expected"]
    (container,) = asked["pod"]["containers"]
    config, limits = asked["config"], container["limits"]
    request = {
        "gpus": limits.get(config["count_resource"], 0),
        "memory_mib": limits.get(config["memory_resource"], 0),
        "memory_percent": limits.get(config["memory_percent_resource"], 100),
        "cores_percent": limits.get(config["cores_resource"], 0),
    }
    cluster = CaseCluster(policy="binpack")
    # The cases' devices are all told as unhealthy, and are used all the same.
    add_node(cluster, asked["node"]["name"], asked["node"]["devices"], health=False)
    add_request(cluster, request, asked["pod"]["annotations"], asked["node"]["devices"])
    cluster.settle()
    if (POD in cluster.bound) != expected["fit"]:
        return f"it {'fits' if POD in cluster.bound else 'does not fit'}"
    wanted = {
        (d["uuid"], d["memory_mib"], d["cores_percent"]) for c in expected.get("devices_per_container") or () for d in c
    }
    if not wanted or "device_choice" in case["needs"] or given(cluster) == wanted:
        return ""
    return f"it gets {sorted(given(cluster))} instead of {sorted(wanted)}"


SUITES: dict[str, Callable[[Case], str]] = {"filter": _filter}
