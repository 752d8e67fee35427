"""Volcano's cases: what a pod asks for, whether it fits a node's GPUs and on which, and what is then used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peercases.cluster import CaseCluster, plain_gpu
from bench.peercases.devices import POD, accepts_model, add_node, add_request, effective_of, given
from services.admission.dialects import Setting
from services.admission.dialects.volcano import Volcano
from shared.book.book import Book
from shared.contracts.facts import Gone, Put
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.objects import Container, Pod, Resources
from shared.model.request import GpuAsk
from shared.model.request_reader import read_ask
from shared.model.units import WHOLE_GPU_MILLI
from tests.support import build

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
    add_request(cluster, request, asked["pod"]["annotations"])
    cluster.settle()
    if (POD in cluster.bound) != expected["fit"]:
        return f"it {'fits' if POD in cluster.bound else 'does not fit'}"
    wanted = {
        (d["uuid"], d["memory_mib"], d["cores_percent"]) for c in expected.get("devices_per_container") or () for d in c
    }
    if not wanted or "device_choice" in case["needs"] or given(cluster) == wanted:
        return ""
    return f"it gets {sorted(given(cluster))} instead of {sorted(wanted)}"


def _type_selection(case: Case) -> str:
    allowed = accepts_model(case["input"]["annotations"], case["input"]["device_model"])
    return "" if allowed == case["expected"]["match"] else f"the GPU is {'' if allowed else 'not '}allowed"


def _old_memory(case: Case) -> str:
    """The pod's memory by the older plugin; init containers count by their peak."""
    return _total(case, "memory_mib", lambda ask: ask.memory_mib)


def _old_number(case: Case) -> str:
    return _total(case, "gpus", lambda ask: ask.count)


def _total(case: Case, what: str, amount: Callable[[GpuAsk], int]) -> str:
    pod: Case = {"spec": {"containers": [], "initContainers": []}}
    for number, container in enumerate(case["input"]["pod"]["containers"]):
        limits = {name: str(value) for name, value in container["limits"].items()}
        made = {"name": f"c{number}", "resources": {"limits": limits}}
        pod["spec"]["initContainers" if container.get("init") else "containers"].append(made)
    uses = []
    for (field, _), limits in Volcano().translate(pod, Setting()).amounts.items():
        ask = read_ask(Container(name="c", resources=Resources(limits=dict(limits))))
        held = 0 if ask is None else amount(ask)
        uses.append(({"memory_mib": held, "cores_percent": 0}, field == "initContainers"))
    total = effective_of(uses)[0]
    return "" if total == case["expected"][what] else f"{total} in all instead of {case['expected'][what]}"


def _device_accounting(case: Case) -> str:
    """A pod's grant is added to the book, or its slice is released; of a pod that is added twice one counts."""
    asked, device = case["input"], case["input"]["device"]
    book, node = Book(), build.node("n")
    gpu = plain_gpu("n", 0, device["memory_total_mib"], uuid=device["uuid"], model=device["model"])
    book.apply(Put(object=node))
    book.put_inventory(Inventory(node="n", boot_id="boot", generation=1, gpus=(gpu,), strategies=("advisory",)))
    for uid, use in device["pods"].items():
        book.apply(Put(object=_holder(uid, device["uuid"], use["memory_mib"], use["cores_percent"])))
    pod = _holder(asked["pod_uid"], device["uuid"], asked["memory"], asked["cores_percent"])
    if asked["op"] == "remove":
        book.apply(Gone(object=pod))
        book.release(f"grant-{asked['pod_uid']}")
    else:
        book.apply(Put(object=pod))
    room = book.nodes["n"].by_uuid[device["uuid"]]
    found = room.total_mib - room.free_mib, (WHOLE_GPU_MILLI - room.free_milli) // 10, room.containers
    after = case["expected"]["device_after"]
    wanted = after["memory_used_mib"], after["cores_used_percent"], after["slots_used"]
    return "" if found == wanted else f"{found} are used instead of {wanted}"


def _holder(uid: str, gpu: str, memory_mib: int, percent: int) -> Pod:
    share = GpuShare(node="n", uuid=gpu, memory_mib=memory_mib, compute_milli=percent * 10)
    container = ContainerGrant(strategy="advisory", gpus=(share,))
    grant = Grant(grant_id=f"grant-{uid}", term=1, containers={"c": container})
    return build.bound(build.gpu_pod(uid, memory=f"{memory_mib}Mi", uid=uid), "n", grant)


SUITES: dict[str, Callable[[Case], str]] = {
    "filter": _filter,
    "type_selection": _type_selection,
    "gpushare_memory_request": _old_memory,
    "gpushare_number_request": _old_number,
    "device_accounting": _device_accounting,
}
