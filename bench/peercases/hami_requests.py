"""HAMi's cases of what a pod asks for: its containers, annotations and defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peercases.devices import (
    POD,
    accepts_model,
    effective_of,
    gpu_of,
)
from services.admission.core import review
from services.admission.dialects import Setting, Vgpu, vgpu
from services.admission.dialects.hami import NAMES, PRIORITY, SCHEDULER
from services.admission.dialects.selection import selection
from services.admission.messages import Allowed, Policy, Refused, Request
from shared.book.accepts import mismatch
from shared.model import names
from shared.model.kube_object import Meta
from shared.model.objects import Container, Pod, PodSpec, Resources
from shared.model.request import RequestError
from shared.model.request_reader import read_request

Case = dict[str, Any]


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


def _setting(config: Case) -> Vgpu:
    return Vgpu(
        memory_factor=max(1, config["memory_factor"]),
        default_gpus=config["default_gpus"],
        default_memory_mib=config["default_memory"],
        default_cores=config["default_cores_percent"],
    )


def _container(case: Case, limits: Case, requests: Case) -> Case:
    """The container with HAMi's own names, whatever the case's installation calls them."""
    config = case["input"].get("config") or {}
    words = {
        config.get("count_resource"): NAMES.count,
        config.get("memory_resource"): NAMES.memory,
        config.get("memory_percent_resource"): NAMES.percent,
        config.get("cores_resource"): NAMES.cores,
        config.get("priority_resource"): PRIORITY,
    }
    halves = {"limits": limits, "requests": requests}
    return {
        "name": "c",
        "resources": {
            half: {words.get(name, name): str(value) for name, value in given.items()} for half, given in halves.items()
        },
    }


def _request_parsing(case: Case) -> str:
    asked, expected = case["input"], case["expected"]
    container = _container(case, asked["container"]["limits"], asked["container"]["requests"])
    try:
        ask = vgpu.read(container, NAMES, _setting(asked["config"]))
    except RequestError as error:
        return "" if expected is None else f"it is refused: {error}"
    found = None if ask is None else (ask.count, ask.memory_mib, ask.percent, ask.cores)
    wanted = (
        None
        if expected is None
        else (
            expected["gpus"],
            expected["memory_mib"],
            0 if expected["memory_mib"] else expected["memory_percent"],
            expected["cores_percent"],
        )
    )
    return "" if found == wanted else f"it is read as {found} instead of {wanted}"


def _reviewed(container: Case, config: Case, annotations: Case | None = None) -> Allowed | Refused:
    pod = {
        "metadata": {"name": POD, "annotations": annotations or {}},
        "spec": {"schedulerName": SCHEDULER, "containers": [container]},
    }
    return review(Request(pod=pod), Policy(setting=Setting(hami=_setting(config))))


def _admission(case: Case) -> str:
    """Refused or not; a request for GPUs or not; and what HAMi's admission adds means nothing new."""
    asked, expected = case["input"], case["expected"]
    before = _container(case, asked["container"]["limits"], asked["container"]["requests"])
    decided = _reviewed(before, asked["config"], (asked.get("pod") or {}).get("annotations"))
    if isinstance(decided, Refused) != expected["rejected"]:
        return f"it is {'refused: ' + decided.sentence if isinstance(decided, Refused) else 'admitted'}"
    if isinstance(decided, Refused):
        return ""
    if bool(decided.dialect) != expected["has_gpu_request"]:
        return f"it has {'a' if decided.dialect else 'no'} request for GPUs"
    after = _container(case, expected["limits_after"], expected["requests_after"])
    setting = _setting(asked["config"])
    told, meant = (vgpu.read(container, NAMES, setting) for container in (before, after))
    same = (told and vgpu.canonical(told)) == (meant and vgpu.canonical(meant))
    return "" if same else "what HAMi's admission adds is another request"


def _pod_requests(case: Case) -> str:
    """Which containers ask for GPUs, and for how many. How much of each is a test double's answer in these cases."""
    for container, wanted in zip(case["input"]["pod"]["containers"], case["expected"]["per_container"], strict=True):
        ask = vgpu.read(_container(case, container["limits"], container["requests"]), NAMES, Vgpu())
        gpus = sum(request["gpus"] for request in wanted.values())
        if (0 if ask is None else ask.count) != gpus:
            return f"container {container['name']} asks for {0 if ask is None else ask.count} GPUs instead of {gpus}"
    return ""


def _type_selection(case: Case) -> str:
    asked = case["input"]
    own = {asked.get("use_key"): "nvidia.com/use-gputype", asked.get("nouse_key"): "nvidia.com/nouse-gputype"}
    annotations = {own.get(key, key): value for key, value in asked["annotations"].items()}
    model = asked.get("device_model") or asked["device"]["model"]
    container = {"name": "c", "resources": {"limits": {NAMES.count: "1"}}}
    config = {"memory_factor": 1, "default_gpus": 1, "default_memory": 0, "default_cores_percent": 0}
    refused = isinstance(_reviewed(container, config, annotations), Refused)
    allowed = not refused and accepts_model(annotations, model)
    return "" if allowed == case["expected"]["match"] else f"the GPU is {'' if allowed else 'not '}allowed"


def _peak(case: Case) -> str:
    """Init containers run one after another and count by their peak, as Kerf counts every resource of a pod."""
    return _usage(case, with_inits=True)


def _app_usage(case: Case) -> str:
    return _usage(case, with_inits=False)


def _usage(case: Case, *, with_inits: bool) -> str:
    containers = case["input"]["pod"]["containers"]
    by_device: dict[tuple[str, str], list[tuple[Case, bool]]] = {}
    for vendor, held in (case["input"]["devices_per_container"] or {}).items():
        for container, devices in zip(containers, held, strict=False):
            for device in devices:
                by_device.setdefault((vendor, device["uuid"]), []).append((device, bool(container.get("init"))))
    found = {
        place: used
        for place, uses in by_device.items()
        if any(used := effective_of([use for use in uses if with_inits or not use[1]]))
    }
    wanted = {
        (vendor, device["uuid"]): (device["memory_mib"], device["cores_percent"])
        for vendor, held in (case["expected"]["effective_usage"] or {}).items()
        for devices in held
        for device in devices
        if device["memory_mib"] or device["cores_percent"]
    }
    return "" if found == wanted else f"{found} are used instead of {wanted}"


def _policy_tokens(case: Case) -> str:
    """Whether a chain of policies has the one that wants GPUs alone."""
    asked = case["input"]
    if asked["token"] != "mutex":
        return f"Kerf looks for no {asked['token']!r} in a chain"
    container = {"name": "c", "resources": {"limits": {NAMES.count: "1", NAMES.memory: "100"}}}
    config = {"memory_factor": 1, "default_gpus": 1, "default_memory": 0, "default_cores_percent": 0}
    decided = _reviewed(container, config, {"hami.io/gpu-scheduler-policy": asked["policy"]})
    alone = isinstance(decided, Allowed) and not any(names.RESOURCE_GPU_MEMORY in str(p) for p in decided.patches)
    return "" if alone == case["expected"]["contains"] else f"it is {'' if alone else 'not '}found"


def _score_weights(case: Case) -> str:
    """Weights of HAMi's own score: the annotation is refused, whatever it says."""
    asked = case["input"]
    annotations = (asked.get("pod") or {}).get("annotations") or {}
    annotations |= {"hami.io/device-scoring-weights": asked["value"]} if "value" in asked else {}
    container = {"name": "c", "resources": {"limits": {NAMES.count: "1"}}}
    config = {"memory_factor": 1, "default_gpus": 1, "default_memory": 0, "default_cores_percent": 0}
    refused = isinstance(_reviewed(container, config, annotations), Refused)
    return "" if refused == case["expected"]["rejected"] else f"it is {'refused' if refused else 'admitted'}"


SUITES: dict[str, Callable[[Case], str]] = {
    "uuid_selection": _uuid_selection,
    "request_parsing": _request_parsing,
    "admission": _admission,
    "pod_requests": _pod_requests,
    "type_selection": _type_selection,
    "init_container_peak": _peak,
    "app_container_usage": _app_usage,
    "policy_tokens": _policy_tokens,
    "score_weights": _score_weights,
}
