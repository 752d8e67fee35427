"""HAMi's cases of where a pod goes: fit, quotas, and which node and GPU is better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peercases.cluster import CaseCluster, plain_gpu
from bench.peercases.devices import (
    LEAST_MIB,
    POD,
    add_node,
    add_request,
    ask_of,
    exceeds,
    given,
)
from services.placement.free_capacity import gpu_fit
from services.placement.policies.base import Policy as NodePolicy
from services.placement.policies.binpack import Binpack
from services.placement.policies.spread import Spread
from shared.book.book import Book
from shared.book.shares import GpuRoom, fits
from shared.book.states import NodeState, pod_state
from shared.contracts.facts import Put
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.kube_object import Meta
from shared.model.objects import Pod
from shared.model.request import GpuAsk
from shared.model.units import WHOLE_GPU_MILLI
from tests.support import build

Case = dict[str, Any]

_ORDER_MIB = 1000
_POLICIES: dict[str, type[NodePolicy]] = {"binpack": Binpack, "spread": Spread}
_ORDER_DECIDES = {"device_choice", "gpu_policy", "gpu_topology", "numa", "node_policy"}
"""Cases in which another choice is as right: only whether there is one is looked at."""


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
    inits = [bool(container.get("init")) for container in asked["pod"]["containers"]]
    each = [
        (_only(request), init) for request, init in zip(asked["requests_per_container"], inits, strict=True) if request
    ]
    first = next(place for place, (_, init) in enumerate(each) if not init)
    request, beside = each[first][0], each[:first] + each[first + 1 :]
    for node in asked["nodes"]:
        cluster = _placed([(node["name"], node["devices"])], request, asked["pod"]["annotations"], beside)
        fits = POD in cluster.bound and not _denied(asked, request)
        if fits != (node["name"] in expected["feasible"]):
            return f"{node['name']} is {'' if fits else 'not '}feasible"
        held = expected["placements"].get(node["name"], {})
        if fits and (
            problem := _choice(
                case, cluster, [d for containers in held.values() for c in _apps(containers, inits) for d in c]
            )
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


def _placed(
    nodes: list[tuple[str, list[Case]]],
    request: Case,
    annotations: dict[str, str],
    beside: list[tuple[Case, bool]] | None = None,
) -> CaseCluster:
    cluster = CaseCluster(policy="binpack")
    for name, devices in nodes:
        add_node(cluster, name, devices)
    add_request(cluster, request, annotations, beside=beside)
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


def _apps(containers: list[list[Case]], inits: list[bool]) -> list[list[Case]]:
    """An init container shares an app container's slice in Kerf, so only app containers have GPUs of their own."""
    return [devices for devices, init in zip(containers, inits, strict=False) if not init]


def _is_whole(asked: Case) -> bool:
    """Whether the pod is alone on its GPUs, and so gets all of their memory."""
    request = asked.get("request") or next(iter(asked.get("requests") or ()), None)
    return request is not None and "cores_percent" in request and ask_of(request).whole


def _choice(case: Case, cluster: CaseCluster, devices: list[Case]) -> str:
    if _alone(case["input"]) or _is_whole(case["input"]):
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


def _gpu_order(case: Case) -> str:
    """Of two GPUs the better one, which HAMi sorts last. Scores are how full they are."""
    asked = case["input"]
    chain = asked["policy"].split(",")
    policy = next((one for one in chain if one in ("binpack", "spread")), None)
    a, b = asked["a"], asked["b"]
    if policy is None or asked["numa_bind"] or chain[0] == "numa" or a["score"] == b["score"]:
        return "GPUs are sorted by how full they are, and not by their NUMA node"
    rooms = [
        _room(name, place, _ORDER_MIB - one["score"], one["slots_used"])
        for place, (name, one) in enumerate((("a", a), ("b", b)))
    ]
    state = pod_state(Pod(metadata=Meta(name=POD, uid=POD)))
    best = (
        _POLICIES[policy](Book()).order(state, GpuAsk(count=1, memory_mib=LEAST_MIB), rooms, NodeState("n", 0))[0].uuid
    )
    return "" if (best == "b") == case["expected"]["a_before_b"] else f"{best} is the better one"


def _node_order(case: Case) -> str:
    """The better of two nodes by the policy's score. Their scores are how full they are."""
    asked = case["input"]
    book = Book()
    for node, score in (("a", asked["a_score"]), ("b", asked["b_score"])):
        gpu = plain_gpu(node, 0, _ORDER_MIB)
        used = GpuShare(node=node, uuid=gpu.uuid, memory_mib=score * 10, compute_milli=score * 10)
        grant = Grant(grant_id=node, term=1, containers={"c": ContainerGrant(strategy="advisory", gpus=(used,))})
        book.apply(Put(object=build.node(node)))
        book.put_inventory(Inventory(node=node, boot_id="boot", generation=1, gpus=(gpu,), strategies=("advisory",)))
        book.set_agent_trouble(node, "")
        book.apply(Put(object=build.bound(build.gpu_pod(f"on-{node}", compute=score), node, grant)))
    state = pod_state(build.gpu_pod(memory=f"{LEAST_MIB}Mi"))
    rows = np.array([book.nodes[node].row for node in ("a", "b")])
    fit = gpu_fit(state.request.hardest, book.arrays, rows) if state.request else None
    scores = _POLICIES[asked["policy"]](book).score(state, book.arrays, rows, fit)
    if scores is None or scores[0] == scores[1]:
        return "neither is the better one"
    best = "ab"[int(scores.argmax())]
    return "" if (best == "b") == case["expected"]["a_before_b"] else f"{best} is the better one"


def _mig_filter(case: Case) -> str:
    device = case["input"]["device"]
    if device.get("mode") == "mig":
        return "profiles and their sizes are the GPU's own"
    return _fits(case, fits(GpuAsk(count=1, memory_mib=LEAST_MIB), _room("a", 0, _ORDER_MIB, 0)))


def _room(uuid: str, place: int, free_mib: int, containers: int) -> GpuRoom:
    return GpuRoom(
        uuid=uuid,
        column=place,
        index=place,
        model="GPU",
        total_mib=_ORDER_MIB,
        free_mib=free_mib,
        free_milli=WHOLE_GPU_MILLI * free_mib // _ORDER_MIB,
        containers=containers,
        usable=True,
    )


SUITES: dict[str, Callable[[Case], str]] = {
    "quota": _quota,
    "quota_in_fit": _quota_in_fit,
    "quota_admission": _quota_admission,
    "fit": _fit,
    "fit_container": _fit,
    "node_fit_and_score": _nodes,
    "pod_filter": _pod_filter,
    "gpu_order": _gpu_order,
    "node_order": _node_order,
    "mig_filter": _mig_filter,
}
