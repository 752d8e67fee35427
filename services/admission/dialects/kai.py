"""KAI and Run:ai: the annotations `gpu-fraction` or `gpu-memory` (MiB), of each of `gpu-fraction-num-devices` GPUs.

They are for one container. Whole GPUs and MIG instances are NVIDIA's resources.

What the container may use beyond its share, while it is free, is `gpu-fraction.limit`, `gpu-memory.limit` (with a
unit) or `kai.scheduler/container.<name>.gpu-memory.portion.limit`; of NvFractions' annotations
`nvidia.com/container.<name>.gpu-memory.request` and `.limit` the limit, which is the request, too, where there is none
(pkg/common/resources: ValidateGPUFractionRequest, and docs/gpu-sharing/nv-fraction). In Run:ai it is the variable
RUNAI_GPU_MEMORY_LIMIT of the container: a fraction beside `gpu-fraction`, else a quantity (Dynamic GPU Fractions in its
documentation). A limit of a fraction is one of memory and compute alike, as the fraction is.

As docs/gpu-sharing and pkg/binder/plugins/gpusharing/gpu-request of KAI-Scheduler have it. The annotations have no
prefix, so they are read only where the pod names one of its schedulers or its queue. Whole GPUs are read where plain
NVIDIA is. A fraction is the same part of memory and compute; memory reserves no compute.

Not preemptible is what its label says, else a pod of priority 100 and above (docs/developer/designs/
priority-preemptibility-separation): `build` (100) and `inference` (125), not `train` (50) and `build-preemptible` (75).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from services.admission.dialects.base import (
    Json,
    Manifest,
    Place,
    Setting,
    Translation,
    amount,
    containers,
    named_resources,
    own_priority_class,
    refuse_annotations,
    where_of,
)
from services.admission.dialects.nvidia_mig import RESOURCES as MIG
from services.admission.dialects.nvidia_mig import instances
from shared.model import names
from shared.model.request import RequestError
from shared.model.resize import quoted
from shared.model.units import QuantityError, mib, quantity

GPU = "nvidia.com/gpu"
FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"
QUEUES = ("kai.scheduler/queue", "runai/queue")
PREEMPTIBILITY = "kai.scheduler/preemptibility"
PRIORITY_CLASS = "priorityClassName"
"""A label: the PriorityClass, before the one of the pod's field (pkg/podgrouper: CalcPodGroupPriorityClass)."""
NOTEBOOK = "notebook-name"
"""A label of Kubeflow's notebooks' pods."""
NON_PREEMPTIBLE_FROM = 100
CLASSES = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}
"""As its chart installs them."""
_REFUSED = {
    "gpu-sm-percentage": f"write {names.RESOURCE_GPU_COMPUTE}, the percentage that the container gets",
    "gpu-sm-cores": f"a number of cores is another part of each model; write {names.RESOURCE_GPU_COMPUTE}",
}
FRACTION_LIMIT = "gpu-fraction.limit"
MEMORY_LIMIT = "gpu-memory.limit"
LIMIT_VARIABLE = "RUNAI_GPU_MEMORY_LIMIT"
_NUMBER = re.compile(r"[0-9]{1,40}")
"""Bounded, because Python's int() raises ValueError on more than 4,300 digits."""
_OF_CONTAINER = re.compile(
    r"(?:nvidia\.com/container\.(?P<nv>[a-z0-9-]+)\.(?P<what>gpu-memory\.(?:request|limit)|gpu-compute\.mode)"
    r"|kai\.scheduler/container\.(?P<kai>[a-z0-9-]+)\.gpu-memory\.portion\.limit)"
)


class Kai:
    name = "kai"
    resources = frozenset((GPU,)) | MIG
    schedulers: tuple[str, ...] = ("kai-scheduler", "runai-scheduler")

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        if manifest.scheduler not in self.schedulers and not any(label in manifest.labels for label in QUEUES):
            return False
        if FRACTION in manifest.annotations or MEMORY in manifest.annotations or _nv(manifest.annotations):
            return True
        return setting.taken_over or (setting.plain_nvidia and not manifest.named.isdisjoint(self.resources))

    def translate(self, pod: Json, setting: Setting) -> Translation:
        metadata = pod.get("metadata") or {}
        annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
        found = {place: asked for place, container in containers(pod) if (asked := _whole(container))}
        shared = FRACTION in annotations or MEMORY in annotations or bool(_nv(annotations))
        claims = (pod.get("spec") or {}).get("resourceClaims")
        has_gpus = shared or bool(found or claims) or any(map(names.is_gpu_resource, named_resources(pod)))
        if has_gpus:
            refuse_annotations(pod, _REFUSED)
        limits: dict[str, str] = {}
        if shared:
            if found:
                raise RequestError(
                    "mixed-dialects",
                    f"the pod asks for whole GPUs by {GPU} and for a part of one by annotation; keep one of them",
                )
            place, annotations = _plain(pod, annotations)
            found = {place: _share(annotations)}
            limits = _limits(annotations)
        return Translation(
            amounts=found,
            removed=self.resources,
            annotations=_preemptible(pod, labels, own_priority_class(pod, setting), has_gpus=has_gpus)
            | limits
            | {names.ANNOTATION_DIALECT: self.name},
            labels=next(({names.LABEL_QUEUE: labels[label]} for label in QUEUES if labels.get(label)), {}),
            priority_class=str(labels.get(PRIORITY_CLASS) or ""),
        )


def _whole(container: Json) -> dict[str, str]:
    count = amount(container, GPU)
    return ({names.RESOURCE_GPU: str(count)} if count else {}) | instances(container)


def _nv(annotations: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """NvFractions' annotations, by container."""
    found: dict[str, dict[str, str]] = {}
    for key, text in annotations.items():
        if (of := _OF_CONTAINER.fullmatch(key)) is not None and of["nv"]:
            found.setdefault(of["nv"], {})[of["what"]] = text
    return {name: of for name, of in found.items() if of.keys() - {"gpu-compute.mode"}}


def _plain(pod: Json, annotations: Mapping[str, str]) -> tuple[Place, dict[str, str]]:
    """The container with the share, and the annotations in the forms without a container's name."""
    plain, of_nv = dict(annotations), _nv(annotations)
    named = {of["nv"] or of["kai"] for key in annotations if (of := _OF_CONTAINER.fullmatch(key)) is not None}
    name = annotations.get(CONTAINER) or next(iter(of_nv), None)
    place, container = _place(pod, name)
    if named - {container.get("name")}:
        raise RequestError(
            "foreign-field",
            f"annotations name containers {', '.join(sorted(named))}, and {container.get('name')!r} has the share; KAI "
            "gives a share to one container of a pod",
        )
    portion = annotations.get(f"kai.scheduler/container.{container.get('name')}.gpu-memory.portion.limit")
    _set(plain, FRACTION_LIMIT, portion)
    for asked in of_nv.values():
        if asked.get("gpu-compute.mode", "time-slicing") != "time-slicing":
            raise RequestError(
                "foreign-field",
                f"gpu-compute.mode is {asked['gpu-compute.mode']!r}; Kerf's slices take turns: write time-slicing, and "
                f"{names.RESOURCE_GPU_COMPUTE} for a reserved part of the time",
            )
        request = asked.get("gpu-memory.request") or asked.get("gpu-memory.limit") or ""
        _set(plain, MEMORY, str(mib(_bytes("gpu-memory.request", request))))
        _set(plain, MEMORY_LIMIT, asked.get("gpu-memory.limit"))
    variables = container.get("env") or []
    if not isinstance(variables, list) or not all(isinstance(variable, dict) for variable in variables):
        raise RequestError("malformed", f"{where_of(container)}: env is no list of variables with name and value")
    for variable in variables:
        if variable.get("name") == LIMIT_VARIABLE:
            _set(plain, FRACTION_LIMIT if FRACTION in plain else MEMORY_LIMIT, variable.get("value"))
    return place, plain


def _set(plain: dict[str, str], key: str, text: str | None) -> None:
    if text is not None and plain.setdefault(key, text) != text:
        raise RequestError("mixed-dialects", f"{key} is {plain[key]!r} and {text!r} in another form; keep one of them")


def _limits(annotations: Mapping[str, str]) -> dict[str, str]:
    """Kerf's annotations for what the container may use beyond its share."""
    devices = _number(annotations, DEVICES, "1", "a number of GPUs")
    if MEMORY_LIMIT in annotations:
        if MEMORY not in annotations:
            raise RequestError(
                "foreign-field", f"{MEMORY_LIMIT} goes with {MEMORY}; with {FRACTION} {FRACTION_LIMIT} does"
            )
        return {names.ANNOTATION_GPU_MEMORY_LIMIT: str(_bytes(MEMORY_LIMIT, annotations[MEMORY_LIMIT]) * devices)}
    if FRACTION_LIMIT not in annotations:
        return {}
    if FRACTION not in annotations:
        raise RequestError("foreign-field", f"{FRACTION_LIMIT} goes with {FRACTION}; with {MEMORY} {MEMORY_LIMIT} does")
    text = annotations[FRACTION_LIMIT]
    each = _fraction(text, FRACTION_LIMIT) * 1000
    if each.denominator != 1:
        raise RequestError(
            "foreign-fraction",
            f"{FRACTION_LIMIT} is {text!r}; Kerf counts thousandths of a GPU: write {int(each) / 1000:g}",
        )
    percent = f"{float(each * devices / 10):g}"
    return {names.ANNOTATION_GPU_MEMORY_LIMIT: f"{percent}%", names.ANNOTATION_GPU_COMPUTE_LIMIT: percent}


def _bytes(key: str, text: str) -> int:
    """Bytes. KAI wants a unit, for the request of the same name without one is in MiB."""
    try:
        value = quantity(str(text))
    except QuantityError:
        value = Fraction(0)
    if value <= 0 or value.denominator != 1:
        raise RequestError(
            "foreign-amount", f"{key} is {quoted(str(text))}; write an amount of memory with its unit, such as 24Gi"
        )
    return int(value)


def _place(pod: Json, name: str | None) -> tuple[Place, Json]:
    """The container that gets the share: the one that is named, else the first. Raises RequestError without one."""
    for place, container in containers(pod):
        if (container.get("name") == name) if name else place == ("containers", 0):
            return place, container
    if not name:
        raise RequestError("foreign-field", "the pod has no container that could have the share; name one in the spec")
    raise RequestError(
        "foreign-field",
        f"annotation {CONTAINER} is {name!r}, and no container of the pod has that name; write its name",
    )


def _share(annotations: Mapping[str, str]) -> dict[str, str]:
    if FRACTION in annotations and MEMORY in annotations:
        raise RequestError(
            "mixed-dialects", f"annotations {FRACTION} and {MEMORY} exclude each other; keep one of them"
        )
    devices = _number(annotations, DEVICES, "1", f"a number of GPUs, from 1 on, as {names.RESOURCE_GPU} has it")
    gpus = {names.RESOURCE_GPU: str(devices)}
    if MEMORY in annotations:
        each = _number(
            annotations, MEMORY, "", f"a number of MiB, from 1 on; in Kerf's words {names.RESOURCE_GPU_MEMORY}"
        )
        return gpus | {names.RESOURCE_GPU_MEMORY: f"{each * devices}Mi"}
    percent = _fraction(annotations[FRACTION]) * 100 * devices
    if percent.denominator != 1:
        raise RequestError(
            "foreign-fraction",
            f"annotation {FRACTION} is {annotations[FRACTION]!r} of {devices} GPU(s), which is {float(percent):g} %; "
            f"Kerf counts compute in whole percent. Write {int(percent) / (100 * devices):g} or "
            f"{(int(percent) + 1) / (100 * devices):g}, or {names.RESOURCE_GPU_COMPUTE} in percent",
        )
    return gpus | {names.RESOURCE_GPU_COMPUTE: str(percent)}


def _fraction(text: str, key: str = FRACTION) -> Fraction:
    try:
        value = quantity(str(text))
    except QuantityError:
        value = Fraction(0)
    if not 0 < value < 1:
        raise RequestError(
            "foreign-amount",
            f"annotation {key} is {quoted(str(text))}; it is a part of one GPU between 0 and 1, such as 0.5. Whole "
            f"GPUs are {GPU}, or {names.RESOURCE_GPU}",
        )
    return value


def _number(annotations: Mapping[str, str], key: str, default: str, what: str) -> int:
    text = str(annotations.get(key, default))
    if not _NUMBER.fullmatch(text) or not 0 < int(text) < 1 << 24:
        raise RequestError("foreign-amount", f"annotation {key} is {quoted(text)}; write {what}")
    return int(text)


def _preemptible(pod: Json, labels: Mapping[str, str], own_class: str, *, has_gpus: bool) -> dict[str, str]:
    """Kerf's annotation where the pod is not preemptible in KAI. An unknown word falls back to the priority, as there.

    A pod that is preemptible above a minimum of its gang needs nothing: so is every gang in Kerf. Raises RequestError
    for a pod with GPUs of which that cannot be told; for its own sake no other is preempted.
    """
    word = str(labels.get(PREEMPTIBILITY) or "").lower()
    if word in ("preemptible", "semi-preemptible"):
        return {}
    if word == "non-preemptible":
        return {names.ANNOTATION_PREEMPTIBLE: "false"}
    label, spec = str(labels.get(PRIORITY_CLASS) or ""), pod.get("spec") or {}
    if label in (own_class, *CLASSES, ""):
        priority = CLASSES.get(label or own_class or _default_class(pod), spec.get("priority") or 0)
        return {names.ANNOTATION_PREEMPTIBLE: "false"} if priority >= NON_PREEMPTIBLE_FROM else {}
    if not has_gpus:
        return {}
    raise RequestError(
        "foreign-field",
        f"label {PRIORITY_CLASS} is {quoted(label)}, and the pod alone does not tell whether KAI preempts pods of that "
        f"class; write label {PREEMPTIBILITY} too, preemptible or non-preemptible",
    )


def _default_class(pod: Json) -> str:
    """The class of a pod that names none: a Deployment is inference there, a notebook of Kubeflow's builds, all else
    trains (pkg/podgrouper/podgrouper/plugins/deployment, notebook, defaultgrouper)."""
    if NOTEBOOK in ((pod.get("metadata") or {}).get("labels") or {}):
        return "build"
    owners = (pod.get("metadata") or {}).get("ownerReferences") or ()
    return "inference" if any(owner.get("kind") == "ReplicaSet" for owner in owners) else "train"
