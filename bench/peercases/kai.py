"""KAI-Scheduler's cases: a cluster, jobs that are gangs of tasks, and what becomes of them.

A task is a pod, a job of several tasks a gang (`kerf.dev/gang`), its minimum `kerf.dev/gang-min`, its priority and age
the pods'. KAI's `pipelined` (nothing now; what is being released is promised) is for Kerf: not placed now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from bench.peercases.cluster import CASE_NAMESPACE, CaseCluster
from bench.peercases.eviction import Eviction
from bench.peercases.layout import gpus_of, shares_of
from shared.contracts.policy import CONFIG_MAP, CONFIG_NAMESPACE, QUEUES_KEY
from shared.kube.gangs.decoder import decoder_of
from shared.model import names
from shared.model.affinity import Affinity
from shared.model.gang import KEEP, LEVELS
from shared.model.grant import Grant
from shared.model.kube_object import Meta, Quantities
from shared.model.objects import ConfigMap, Gang

Case = dict[str, Any]

_GIVES_WAY = {
    "preemption",
    "evictions",
    "reclaim",
    "consolidation",
    "victim_moves",
    "stale_gang",
    "min_runtime",
    "preemption_delay",
    "elastic_preemptor",
}
_DIRECTORIES = ("allocate", "numa", "deletion_tests")
"""Of suites whose cases place pending work on what is free."""
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_PLACED = {"binding", "running"}
_WAITS = {"pending", "pipelined"}
_PRIORITY = 100
"""Of a queue that names none."""
_NON_PREEMPTIBLE = 100
_DELETED = {"releasing": "2026-01-01T01:00:00Z", "stuck_in_releasing": "1969-12-31T00:00:00Z"}
"""When grace periods end: the cases' clock begins at 1970."""
_OWN_LABELS = "peercases/own"
_POD_GROUP, _SUBGROUP = "pod-group-name", "kai.scheduler/subgroup-name"


def needs_preemptor(case: Case) -> bool:
    return bool(_GIVES_WAY & set(case["needs"])) or case["suite"].split("/")[1] not in _DIRECTORIES


def run(case: Case) -> str:
    """What is wrong; empty where all is as expected."""
    eviction = (
        Eviction(
            comes_again=case["suite"].startswith("cycle/"),
            consolidates="consolidation" in case["needs"],
            incomplete_gang_s=(case["settings"].get("default_staleness_grace_seconds") or 0)
            if "stale_gang" in case["needs"]
            else 0,
        )
        if needs_preemptor(case)
        else None
    )
    cluster = CaseCluster("binpack", eviction)
    tasks = {task["name"]: (job, task) for job in case["jobs"] for task in job["tasks"]}
    for node in case["nodes"]:
        amounts: Quantities = {
            "cpu": f"{node['cpu_milli']}m",
            "memory": str(node["memory_bytes"]),
            "pods": str(node["max_pods"]),
        }
        cluster.add_node(node["name"], gpus_of(node), allocatable=amounts, labels=_labels(node))
    cluster.others.append(queues_of(case))
    cluster.others += [pod_group_of(job) for job in case["jobs"] if job.get("groups")]
    held = shares_of(case)
    for name, (job, task) in tasks.items():
        if task["state"] != "failed":
            _add(cluster, name, job, task, held.get(name, ()))
    if "stale_gang" in case["needs"]:
        cluster.settle(within_s=max(job.get("stale_for_seconds") or 0 for job in case["jobs"]))
    else:
        cluster.settle()
    return _wrong(case, cluster, tasks) or ("" if eviction is None else _too_many(case, eviction))


def _labels(node: Case) -> dict[str, str]:
    """A case's levels are labels of its nodes by the same name; Kerf has short words for well-known ones."""
    labels = node.get("labels") or {}
    return {**labels, **{LEVELS[key]: value for key, value in labels.items() if key in LEVELS}}


def _too_many(case: Case, eviction: Eviction) -> str:
    """No pod is evicted besides those that the case evicts."""
    most = case["expected"].get("max_evictions_per_round")
    if most is not None and len(eviction.evicted) > most:
        return f"{len(eviction.evicted)} are evicted, and {most} would do: {', '.join(eviction.evicted)}"
    return ""


def queues_of(case: Case) -> ConfigMap:
    """The case's queues as Kerf's. A queue without end (the fixture's root) says nothing and is left out; KAI's rule
    that jobs which cannot be taken back stay within what their queue deserves is Kerf's `within_guarantee_from`."""
    boundless = {q["name"] for q in case["queues"] if q.get("implicit")}
    rules = []
    for queue in case["queues"]:
        if queue["name"] in boundless:
            continue
        parent = queue.get("parent") or ""
        rule = {
            "name": queue["name"],
            "parent": "" if parent in boundless else parent,
            "weight": max(0, queue.get("over_quota_weight_gpus") or 0),
            "priority": queue.get("priority") or _PRIORITY,
        }
        rules.append(rule | {"guaranteed": _amounts(queue, "deserved"), "limit": _amounts(queue, "limit")})
    text = msgspec.json.encode({"queues": rules, "within_guarantee_from": _NON_PREEMPTIBLE}).decode()
    return ConfigMap(
        metadata=Meta(name=CONFIG_MAP, namespace=CONFIG_NAMESPACE, uid="uid-queues", resource_version="1"),
        data={QUEUES_KEY: text},
    )


def _amounts(queue: Case, which: str) -> dict[str, Any]:
    told = {
        "gpus": queue.get(f"{which}_gpus"),
        "cpu": queue.get(f"{which}_cpu_milli"),
        "memory": queue.get(f"{which}_memory_mb"),
    }
    told = {what: amount for what, amount in told.items() if amount not in (None, "unlimited")}
    units: dict[str, Callable[[Any], Any]] = {
        "gpus": lambda n: n,
        "cpu": lambda n: f"{round(n)}m",
        "memory": lambda n: round(n * 10**6),
    }
    return {what: units[what](amount) for what, amount in told.items()}


def _add(cluster: CaseCluster, name: str, job: Case, task: Case, shares: tuple[Any, ...]) -> None:
    waits = task["state"] in ("pending", "pipelined")
    grace_s = job.get("staleness_grace_seconds")
    stale = {} if grace_s is None else {names.ANNOTATION_GANG_INCOMPLETE: _incomplete(grace_s)}
    notes = {} if not waits and len(job["tasks"]) == 1 and not job.get("groups") else _gang(job)
    labels = {names.LABEL_QUEUE: job["queue"], _OWN_LABELS: job["name"]} | (task.get("labels") or {})
    cluster.add_pod(
        name,
        limits_of(task),
        annotations=notes | (stale if notes else {}),
        labels=labels | ({_SUBGROUP: task["pod_set"]} if task.get("pod_set") else {}),
        created=(_NOW - timedelta(minutes=job["age_minutes"])).strftime("%Y-%m-%dT%H:%M:%SZ"),
        node="" if waits else task["node"],
        shares=() if waits else shares,
        deleted=_DELETED.get(task["state"]),
        priority=job["priority"],
        affinity=_affinity(task),
        job=job["name"],
    )


def _incomplete(grace_s: int) -> str:
    return KEEP if grace_s < 0 else f"evict-after={max(1, grace_s)}"


def limits_of(task: Case) -> Quantities:
    """The task's request in Kerf's words."""
    limits: Quantities = {"cpu": f"{task['cpu_milli']}m", "memory": str(task["memory_bytes"])}
    devices = task.get("gpu_devices") or 1
    if task.get("gpu_fraction"):
        limits[names.RESOURCE_GPU_COMPUTE] = str(round(task["gpu_fraction"] * 100) * devices)
    elif task.get("gpu_memory_mib"):
        limits[names.RESOURCE_GPU_MEMORY] = f"{task['gpu_memory_mib'] * devices}Mi"
    elif task.get("gpus"):
        limits[names.RESOURCE_GPU] = str(task["gpus"])
    if (task.get("gpu_fraction") or task.get("gpu_memory_mib")) and devices > 1:
        limits[names.RESOURCE_GPU] = str(devices)
    for resource, count in (task.get("mig_instances") or {}).items():
        limits[names.PREFIX_MIG + resource.removeprefix("nvidia.com/mig-")] = str(count)
    return limits


def _gang(job: Case) -> dict[str, str]:
    if job.get("groups"):
        return {_POD_GROUP: job["name"]}
    size, least = len(job["tasks"]), job["min_members"] or len(job["tasks"])
    levels = job.get("topology_constraint") or {}
    topology = ",".join(
        f"{how}={levels[f'{how}_level']}" for how in ("required", "preferred") if levels.get(f"{how}_level")
    )
    if size == 1 and least == 1 and not topology:
        return {}
    notes = {names.ANNOTATION_GANG: job["name"].replace("_", "-"), names.ANNOTATION_GANG_SIZE: str(max(size, least))}
    if topology:
        notes[names.ANNOTATION_GANG_TOPOLOGY] = topology
    return notes | ({names.ANNOTATION_GANG_MIN: str(least)} if least < size else {})


def pod_group_of(job: Case) -> Gang:
    """The job's tree of groups, as the PodGroup that KAI has of it."""
    tree = job["groups"]
    spec = {"subGroups": list(_subgroups(tree, "")), "topologyConstraint": _levels(tree)}
    if tree.get("min_groups"):
        spec["minSubGroup"] = tree["min_groups"]
    meta = {"name": job["name"], "namespace": CASE_NAMESPACE, "uid": f"uid-{job['name']}", "resourceVersion": "1"}
    return decoder_of("podgroups", "scheduling.run.ai").decode(msgspec.json.encode({"metadata": meta, "spec": spec}))


def _subgroups(tree: Case, parent: str) -> Iterator[Case]:
    for below in (*tree.get("groups", ()), *tree.get("pod_sets", ())):
        found = {"name": below["name"], "topologyConstraint": _levels(below)} | ({"parent": parent} if parent else {})
        for ours, theirs in (("minMember", "min_members"), ("minSubGroup", "min_groups")):
            if below.get(theirs) is not None:
                found[ours] = below[theirs]
        yield found
        yield from _subgroups(below, below["name"])


def _levels(tree: Case) -> dict[str, str]:
    told = tree.get("topology_constraint") or {}
    found = {f"{how}TopologyLevel": told.get(f"{how}_level") for how in ("required", "preferred")}
    return {key: level for key, level in found.items() if level}


def _affinity(task: Case) -> Affinity | None:
    allowed, near, apart = (
        task.get("allowed_nodes"),
        task.get("pod_affinity_topology_key"),
        task.get("pod_anti_affinity_topology_key"),
    )
    if not (allowed or near or apart):
        return None
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"matchLabels": task.get("labels") or {}}
    told: dict[str, Any] = {}
    if allowed:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": allowed}
        told["nodeAffinity"] = {required: {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    for kind, key in (("podAffinity", near), ("podAntiAffinity", apart)):
        if key:
            told[kind] = {required: [{"labelSelector": own, "topologyKey": key}]}
    return msgspec.convert(told, Affinity)


def _wrong(case: Case, cluster: CaseCluster, tasks: dict[str, tuple[Case, Case]]) -> str:
    expected = case["expected"]
    found: dict[str, tuple[Case, list[str]]] = {}
    for name, (job, task) in tasks.items():
        want = expected.get("tasks", {}).get(name) or expected["jobs"].get(job["name"])
        if want is None:
            continue
        problem = _task_wrong(name, task, want, cluster)
        if problem:
            return problem
        if (
            want.get("gpu_groups")
            and expected.get("gpu_groups_hold_in_peer")
            and not want.get("dont_validate_gpu_group")
        ):
            found[name] = (want, _gpus(name, cluster))
    return _sharing_wrong(found)


def _task_wrong(name: str, task: Case, want: Case, cluster: CaseCluster) -> str:
    status, place = want["status"], cluster.bound.get(name)
    promised = cluster.eviction is not None and name in cluster.eviction.promised
    if task["state"] in ("pending", "pipelined"):
        if status in _PLACED and place is None:
            return f"{name} is not placed"
        if status == "pipelined" and cluster.eviction is not None and not promised:
            return f"{name} is promised nothing"
        if status in _WAITS and place is not None:
            return f"{name} is placed on {place[0]}, and should wait"
        if status in _PLACED and place is not None and want.get("node") not in (None, place[0]):
            return f"{name} is placed on {place[0]}, and should be on {want['node']}"
        return ""
    still = {
        "running": "running",
        "releasing": "releasing",
        "stuck_in_releasing": "stuck_in_releasing",
        "failed": status,
    }[task["state"]]
    if cluster.eviction is not None and name in cluster.eviction.evicted:
        still = (
            ("running" if place else "pending")
            if cluster.eviction.comes_again
            else "pipelined"
            if name in cluster.eviction.kept
            else "releasing"
        )
    return "" if still == status else f"{name} should be {status}, and is {still}"


def _gpus(name: str, cluster: CaseCluster) -> list[str]:
    node, grant = cluster.bound.get(name, ("", None))
    if grant is None:
        pod = cluster.pods.get(name)
        state = cluster.placement.core.book.pods.get(pod.metadata.uid) if pod else None
        kept = "" if cluster.eviction is None else cluster.eviction.kept.get(name, "")
        held = cluster.placement.core.book.grants.get(kept or state.grant_id) if state else None
        node, grant = (held.node, held.grant) if held else ("", None)
    return sorted(
        f"{node}/{share.uuid}"
        for container in (grant or Grant(grant_id="", term=0)).containers.values()
        for share in container.gpus
    )


def _sharing_wrong(found: dict[str, tuple[Case, list[str]]]) -> str:
    """Tasks with one label share a GPU of the node, others do not, whatever the label's name."""
    placed = [(name, (want.get("node"), *want["gpu_groups"]), gpus) for name, (want, gpus) in found.items() if gpus]
    for number, (name, group, gpus) in enumerate(placed):
        for other, other_group, other_gpus in placed[:number]:
            if (group == other_group) != (gpus == other_gpus):
                return f"{name} and {other} {'do not share' if group == other_group else 'share'} a GPU"
    return ""
