"""HAMi's cases: one function of its scheduler each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peercases.cluster import CaseCluster
from bench.peercases.devices import LEAST_MIB, POD, add_node, add_request, exceeds, given, gpu_of
from services.admission.dialects.selection import selection
from shared.book.accepts import mismatch
from shared.model import names
from shared.model.kube_object import Meta
from shared.model.objects import Container, Pod, PodSpec, Resources
from shared.model.request_reader import read_request

Case = dict[str, Any]

_ORDER_DECIDES = {"device_choice", "gpu_policy", "gpu_topology", "numa", "node_policy"}
"""Cases in which another choice is as right: only whether there is one is looked at."""


def _uuid_selection(case: Case) -> str:
    asked, told = case["input"], {"use_key": "nvidia.com/use-gpuuuid", "nouse_key": "nvidia.com/nouse-gpuuuid"}
    annotations = {
        told[which]: asked["annotations"][asked[which]]
        for which in told
        if asked["annotations"].get(asked[which]) is not None
    }
    notes = selection({"metadata": {"annotations": annotations}})
    container = Container(name="c", resources=Resources(limits={names.RESOURCE_GPU: "1"}))
    request = read_request(Pod(metadata=Meta(annotations=notes), spec=PodSpec(containers=(container,))))
    allowed = request is not None and mismatch(request, gpu_of(asked["device_uuid"])) is None
    return "" if allowed == case["expected"]["match"] else f"the GPU is {'' if allowed else 'not '}allowed"


def _quota(case: Case) -> str:
    asked = case["input"]
    request = {"memory_mib": asked["memory"], "cores_percent": asked["cores_percent"]}
    return _fits(case, not exceeds(asked["quota"], asked["namespace"], [(request, False)], asked["memory_factor"]))


def _quota_in_fit(case: Case) -> str:
    asked = case["input"]
    chosen = [
        d
        for held in (asked["already_chosen_for_container"], asked["already_allocated"])
        for c in (held or {}).get("NVIDIA", ())
        for d in c
    ]
    return _fits(
        case,
        not exceeds(asked["quota"], asked["namespace"], [(d, False) for d in (*chosen, asked)], asked["memory_factor"]),
    )


def _quota_admission(case: Case) -> str:
    asked, pod = case["input"], case["input"]["pod"]
    named = {name for container in pod["containers"] for name in container["requests"] | container["limits"]}
    resource = next(
        (r for r in asked["resource_names"].values() if named & {r["count"], r["memory"], r["cores"]}), None
    )
    if resource is None:
        return _fits(case, True)  # it asks for nothing that is counted
    containers = []
    for container in pod["containers"]:
        limits = container["requests"] | container["limits"]
        count, memory, cores = (limits.get(resource[kind], 0) for kind in ("count", "memory", "cores"))
        amounts = {"memory_mib": memory * count * max(1, resource["factor"]), "cores_percent": cores * count}
        containers.append((amounts, bool(container.get("init"))))
    return _fits(case, not exceeds(asked["quota"], pod["namespace"], containers, resource["factor"]))


def _fits(case: Case, fits: bool) -> str:
    return "" if fits == case["expected"]["fit"] else f"it {'fits' if fits else 'does not fit'}"


def _fit(case: Case) -> str:
    """One node, one container."""
    asked, expected = case["input"], case["expected"]
    request = asked.get("request") or _only(asked["requests"])
    if _alone(asked):
        request = request | {"memory_mib": 0, "memory_percent": 100, "cores_percent": 100}
    cluster = _placed([("node", asked["devices"])], request, asked["pod"]["annotations"])
    if _denied(asked, request):
        return _fits(case, False)
    problem = _fits(case, POD in cluster.bound)
    devices = expected.get("devices") or [
        d for held in (expected.get("allocated") or {}).values() for c in held for d in c
    ]
    return problem or (_choice(case, cluster, devices) if expected["fit"] else "")


def _nodes(case: Case) -> str:
    """Each node by itself: feasible or not, and which GPUs."""
    asked, expected = case["input"], case["expected"]
    request = _only(asked["requests_per_container"])
    for node in asked["nodes"]:
        cluster = _placed([(node["name"], node["devices"])], _only(request), asked["pod"]["annotations"])
        fits = POD in cluster.bound and not _denied(asked, _only(request))
        if fits != (node["name"] in expected["feasible"]):
            return f"{node['name']} is {'' if fits else 'not '}feasible"
        held = expected["placements"].get(node["name"], {})
        if fits and (
            problem := _choice(case, cluster, [d for containers in held.values() for c in containers for d in c])
        ):
            return problem
    return ""


def _pod_filter(case: Case) -> str:
    """All nodes at once: the one that is picked."""
    asked, expected = case["input"], case["expected"]
    request = _only(_only(asked["requests_per_container"]))
    cluster = _placed(
        [(n["name"], n["devices"]) for n in asked["nodes"] if n["name"] in asked["offered_nodes"]],
        request,
        asked["pod"]["annotations"],
    )
    found = None if _denied(asked, request) else cluster.bound.get(POD, (None, None))[0]
    if "node_policy" in case["needs"] and None not in (found, expected["node"]):
        return ""
    return "" if found == expected["node"] else f"{found} is picked"


def _placed(nodes: list[tuple[str, list[Case]]], request: Case, annotations: dict[str, str]) -> CaseCluster:
    cluster = CaseCluster(policy="binpack")
    for name, devices in nodes:
        add_node(cluster, name, devices)
    add_request(cluster, request, annotations, [device for _, devices in nodes for device in devices])
    cluster.settle()
    return cluster


def _denied(asked: Case, request: Case) -> bool:
    amounts = {
        "memory_mib": request["memory_mib"] * request["gpus"],
        "cores_percent": (request["cores_percent"] or 0) * request["gpus"],
    }
    return exceeds(asked["quota"], asked["pod"]["namespace"], [(amounts, False)], asked.get("quota_memory_factor") or 1)


def _alone(asked: Case) -> bool:
    """HAMi's mutex policy, only unused GPUs: a request for whole ones in Kerf."""
    annotations = asked["pod"]["annotations"]
    return "mutex" in (
        annotations.get("hami.io/gpu-scheduler-policy"),
        asked.get("default_gpu_policy"),
        asked.get("gpu_policy"),
    )


def _choice(case: Case, cluster: CaseCluster, devices: list[Case]) -> str:
    if _alone(case["input"]):
        return (
            ""
            if {uuid for uuid, _, _ in given(cluster)} == {d["uuid"] for d in devices}
            else f"it gets {sorted(given(cluster))}"
        )
    wanted = {(d["uuid"], max(LEAST_MIB, d["memory_mib"]), d["cores_percent"]) for d in devices}
    if not wanted or _ORDER_DECIDES & set(case["needs"]) or given(cluster) == wanted:
        return ""
    return f"it gets {sorted(given(cluster))} instead of {sorted(wanted)}"


def _only(entries: Any) -> Any:
    """The only container, or the only vendor, of a request."""
    found = list(entries.values()) if isinstance(entries, dict) else [entry for entry in entries if entry]
    if len(found) != 1:
        raise ValueError(f"{len(found)} requests where one can be told")
    return found[0]


SUITES: dict[str, Callable[[Case], str]] = {
    "uuid_selection": _uuid_selection,
    "quota": _quota,
    "quota_in_fit": _quota_in_fit,
    "quota_admission": _quota_admission,
    "fit": _fit,
    "fit_container": _fit,
    "node_fit_and_score": _nodes,
    "pod_filter": _pod_filter,
}
