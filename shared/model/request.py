"""What a pod requests, read from its canonical form. Admission writes that form; all other services read it here."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

import msgspec

from shared.model import names
from shared.model.generations import GENERATIONS, capability_tenths
from shared.model.kube_object import Quantities
from shared.model.mig import PROFILES, canonical_profile, nominal
from shared.model.objects import Container, Pod
from shared.model.policies import POLICIES, PolicyName
from shared.model.strategy import ISOLATION_RANK, Isolation
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, mib, quantity

TopologyMode = Literal["", "ring"]
TOPOLOGY_MODES: tuple[str, ...] = ("ring",)

OPPORTUNISTIC = "opportunistic"
"""The tier (`kerf.dev/tier`) of pods that use idle capacity and are preempted for all others."""

MAX_GPUS = 64
MAX_MEMORY_BYTES = 1 << 46
"""64 TiB in one container: far above 64 of the largest GPUs, and far below where the book's arrays would overflow."""


class GpuAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One container's request, per GPU: `count` GPUs, each with `memory_mib` and `compute_milli`.

    A whole GPU has `whole=True`, whatever its memory, and compute_milli 1000. Zero means: of this nothing is named.
    Memory alone reserves no compute; compute alone takes the same fraction of the memory of the GPU it lands on
    (`memory_follows`).
    """

    count: int
    memory_mib: int = 0
    compute_milli: int = 0
    whole: bool = False
    memory_follows: bool = False
    profile: str = ""
    """The number of MIG instances of this profile, on one GPU or on several of the node; memory and compute are then
    what its name says."""

    @property
    def hardness(self) -> tuple[bool, int, int, int]:
        """Larger is harder to place: of several asks the hardest goes first."""
        return self.whole, self.count, self.memory_mib, self.compute_milli


class PodRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    asks: dict[str, GpuAsk]
    """By container name, only containers that use GPUs; and by the entry of a ResourceClaim (shared.model.claims)."""
    isolation: Isolation = "soft"
    models: tuple[str, ...] = ()
    """Any of these, compared without case; a model matches when the node's name contains it. Empty: any."""
    models_not: tuple[str, ...] = ()
    """None of these, matched like `models`."""
    uuids: tuple[str, ...] = ()
    uuids_not: tuple[str, ...] = ()
    generations: tuple[str, ...] = ()
    """Any of `generations.GENERATIONS`; empty: any."""
    memory_min_mib: int = 0
    """What each GPU must have in total, whatever part of it is requested."""
    capability_min: int = 0
    """The least compute capability, in tenths: 8.9 is 89."""
    prefer: Literal["", "cost", "speed"] = ""
    topology: Literal["", "required", "preferred"] = ""
    topology_mode: TopologyMode = ""
    """`ring`: several GPUs of a node are chosen by their best ring, whatever the policy."""
    policy: PolicyName = ""
    tier: str = ""

    @property
    def hardest(self) -> GpuAsk:
        """The ask that is hardest to place."""
        return max(self.asks.values(), key=lambda ask: ask.hardness)


class RequestError(ValueError):
    """A contradictory or invalid request. `code` is stable for programs; the text tells a person what to write
    instead."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def has_gpu_request(pod: Pod) -> bool:
    """Whether the pod or any container of it names a canonical GPU resource, sensible or not."""
    return _pod_level(pod) or any(
        resource in container.resources.limits or resource in container.resources.requests
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for resource in (*names.GPU_RESOURCES, *_mig_resources(container))
    )


def _pod_level(pod: Pod) -> bool:
    whole_pod = pod.spec.resources
    return whole_pod is not None and any(names.is_gpu_resource(r) for r in (*whole_pod.limits, *whole_pod.requests))


def read_request(pod: Pod, claimed: Mapping[str, GpuAsk] = MappingProxyType({})) -> PodRequest | None:
    """The pod's GPU request, or None if it requests no GPU. `claimed`: what its ResourceClaims request. Raises
    RequestError that says what to change."""
    annotations = pod.metadata.annotations
    if not has_gpu_request(pod) and not claimed:
        return None
    if _pod_level(pod):
        raise RequestError(
            "pod-level-gpu",
            "GPUs cannot be asked for in pod-level resources; name them in the limits of the container that uses them",
        )
    asks: dict[str, GpuAsk] = dict(claimed)
    for container in pod.spec.containers:
        ask = read_ask(container)
        if ask is not None:
            asks[container.name] = ask
    asks |= _init_asks(pod, asks)
    if not asks:
        raise RequestError(
            "no-gpu-container",
            "the pod names kerf.dev resources but no container asks for a GPU; set kerf.dev/gpu, "
            "kerf.dev/gpu-memory or kerf.dev/gpu-compute to at least 1",
        )
    tier = _choice(annotations, names.ANNOTATION_TIER, ("standard", OPPORTUNISTIC), "")
    return PodRequest(
        asks={name: _in_gaps(ask) for name, ask in asks.items()} if tier == OPPORTUNISTIC else asks,
        isolation=_choice(annotations, names.ANNOTATION_ISOLATION, tuple(ISOLATION_RANK), "soft"),  # type: ignore[arg-type]
        models=_list(annotations, names.ANNOTATION_GPU_MODEL, "GPU models", "H200|H100"),
        models_not=_list(annotations, names.ANNOTATION_GPU_MODEL_NOT, "GPU models", "T4|P4"),
        uuids=_list(annotations, names.ANNOTATION_GPU_UUID, "GPU UUIDs", "GPU-1f0e4c53|GPU-5a1c9a60"),
        uuids_not=_list(annotations, names.ANNOTATION_GPU_UUID_NOT, "GPU UUIDs", "GPU-1f0e4c53|GPU-5a1c9a60"),
        generations=_generations(annotations),
        memory_min_mib=_memory_min(annotations),
        capability_min=_capability_min(annotations),
        prefer=_choice(annotations, names.ANNOTATION_GPU_PREFER, ("cost", "speed"), ""),  # type: ignore[arg-type]
        topology=_choice(annotations, names.ANNOTATION_TOPOLOGY, ("required", "preferred"), ""),  # type: ignore[arg-type]
        topology_mode=_choice(annotations, names.ANNOTATION_TOPOLOGY_MODE, TOPOLOGY_MODES, ""),  # type: ignore[arg-type]
        policy=_choice(annotations, names.ANNOTATION_POLICY, POLICIES, ""),
        tier=tier,
    )


def _in_gaps(ask: GpuAsk) -> GpuAsk:
    """An opportunistic pod reserves memory only. It runs when other pods leave GPU time, also on GPUs whose compute is
    fully reserved. If its memory follows from compute alone, both are reserved; so is all of a whole GPU, and of an
    instance."""
    return ask if ask.whole or ask.profile or ask.memory_follows else msgspec.structs.replace(ask, compute_milli=0)


def read_ask(container: Container) -> GpuAsk | None:
    """One container's request. Raises RequestError on limits that contradict each other."""
    limits, where = container.resources.limits, f"container {container.name!r}"
    mig = _mig_resources(container)
    for resource in (*names.GPU_RESOURCES, *mig):
        requested = container.resources.requests.get(resource)
        if requested is not None and _number(container.resources.requests, resource, where) != _number(
            limits, resource, where
        ):
            raise RequestError(
                "request-not-limit",
                f"{where}: {resource} has request {requested} and limit {limits.get(resource, 'none')}; GPU "
                "resources need a limit, and a request equal to it or none",
            )
    if any(_number(limits, resource, where) for resource in mig):
        return _mig_ask(where, limits, mig)
    count = _number(limits, names.RESOURCE_GPU, where)
    memory_bytes = _number(limits, names.RESOURCE_GPU_MEMORY, where)
    percent = _number(limits, names.RESOURCE_GPU_COMPUTE, where)
    if memory_bytes > MAX_MEMORY_BYTES:
        raise RequestError(
            "memory-too-large",
            f"{where}: kerf.dev/gpu-memory is {limits[names.RESOURCE_GPU_MEMORY]}, more than any machine has; "
            "it is in bytes, written like 16Gi",
        )
    if not count and not memory_bytes and not percent:
        return None
    return ask_for(where, count, memory_bytes, percent, count_named=names.RESOURCE_GPU in limits)


def _mig_resources(container: Container) -> list[str]:
    resources = container.resources
    return sorted({r for r in (*resources.limits, *resources.requests) if r.startswith(names.PREFIX_MIG)})


def _mig_ask(where: str, limits: Quantities, mig: list[str]) -> GpuAsk:
    asked = [resource for resource in mig if _number(limits, resource, where)]
    beside = [resource for resource in names.GPU_RESOURCES if _number(limits, resource, where)]
    if len(asked) + len(beside) > 1:
        raise RequestError(
            "mig-and-more",
            f"{where} asks for {' and '.join(asked + beside)}; one container can have MIG instances of one "
            "profile, and nothing else of GPUs beside them",
        )
    text = asked[0].removeprefix(names.PREFIX_MIG)
    profile = canonical_profile(text)
    if profile is None:
        near = difflib.get_close_matches(text, [name.replace("+", ".") for name in PROFILES], n=1, cutoff=0.6)
        raise RequestError(
            "unknown-mig-profile",
            f"{where}: {asked[0]} names no MIG profile"
            + (f"; did you mean {names.PREFIX_MIG}{near[0]}?" if near else f", such as {names.PREFIX_MIG}1g.10gb"),
        )
    count = _number(limits, asked[0], where)
    if count > MAX_GPUS:
        raise RequestError(
            "too-many-gpus", f"{where}: {asked[0]} is {count}; one container can have at most {MAX_GPUS} instances"
        )
    memory_mib, compute_milli = nominal(profile)
    return GpuAsk(count=count, memory_mib=memory_mib, compute_milli=compute_milli, profile=profile)


def ask_for(where: str, count: int, memory_bytes: int, percent: int, *, count_named: bool) -> GpuAsk:
    """A request from its totals over `count` GPUs. Raises RequestError, beginning with `where`, on one that makes no
    sense."""
    if count_named and count == 0:
        raise RequestError(
            "zero-gpus",
            f"{where}: kerf.dev/gpu is 0 beside a memory or compute limit; set it to 1 or more, or leave it out "
            "for one GPU",
        )
    gpus = count or 1
    if gpus > MAX_GPUS:
        raise RequestError(
            "too-many-gpus",
            f"{where}: kerf.dev/gpu is {gpus}; one container can have at most {MAX_GPUS}. kerf.dev/gpu counts "
            "GPUs, not memory",
        )
    if not memory_bytes and not percent:
        return GpuAsk(count=gpus, compute_milli=WHOLE_GPU_MILLI, whole=True)
    if memory_bytes % gpus:
        raise RequestError(
            "memory-not-even",
            f"{where}: kerf.dev/gpu-memory is the container's total and is spread evenly; {memory_bytes} bytes "
            f"cannot be divided over {gpus} GPUs",
        )
    if memory_bytes and memory_bytes < 1024 * 1024:
        raise RequestError(
            "memory-too-small",
            f"{where}: kerf.dev/gpu-memory is {memory_bytes} bytes; write it with a unit, such as 16Gi (at least 1Mi)",
        )
    if percent > 100 * gpus:
        raise RequestError(
            "compute-too-large",
            f"{where}: kerf.dev/gpu-compute is {percent}; it is the container's total in percent of one GPU, so "
            f"{gpus} GPU(s) allow at most {100 * gpus}",
        )
    if percent % gpus and (percent * 10) % gpus:
        raise RequestError(
            "compute-not-even",
            f"{where}: kerf.dev/gpu-compute {percent} cannot be divided over {gpus} GPUs; use a multiple of {gpus}",
        )
    if percent == 100 * gpus and not memory_bytes:
        return GpuAsk(count=gpus, compute_milli=WHOLE_GPU_MILLI, whole=True)
    per_gpu_memory = mib(memory_bytes // gpus)
    return GpuAsk(
        count=gpus, memory_mib=per_gpu_memory, compute_milli=percent * 10 // gpus, memory_follows=not memory_bytes
    )


def _init_asks(pod: Pod, asks: dict[str, GpuAsk]) -> dict[str, GpuAsk]:
    """Sidecars request for themselves; an ordinary init container shares the slice of an app container that is as
    large."""
    sidecars: dict[str, GpuAsk] = {}
    for container in pod.spec.init_containers:
        ask = read_ask(container)
        if ask is None:
            continue
        if container.restart_policy == "Always":
            sidecars[container.name] = ask
        elif not any(_covers(app, ask) for app in asks.values()):
            raise RequestError(
                "init-larger-than-app",
                f"init container {container.name!r} asks for more GPU than any app container; init containers "
                "share an app container's slice, so give one of those at least as much",
            )
    return sidecars


def _covers(app: GpuAsk, init: GpuAsk) -> bool:
    if app.count < init.count or app.profile != init.profile or (init.whole and not app.whole):
        return False
    return app.whole or (app.memory_mib >= init.memory_mib and app.compute_milli >= init.compute_milli)


def _number(quantities: Quantities, resource: str, where: str) -> int:
    text = quantities.get(resource)
    if text is None:
        return 0
    try:
        number = Fraction(text) if isinstance(text, int) else quantity(text)
    except QuantityError as error:
        raise RequestError("not-a-quantity", f"{where}: {resource}: {error}") from None
    if number < 0:
        raise RequestError("negative", f"{where}: {resource} is {text}; it cannot be negative")
    if number.denominator != 1:
        raise RequestError(
            "fraction",
            f"{where}: {resource} is {text}, and Kubernetes counts such resources in whole numbers. For a part of one "
            "GPU set kerf.dev/gpu-memory (such as 16Gi) or kerf.dev/gpu-compute (percent) and leave kerf.dev/gpu out",
        )
    return int(number)


def _choice(annotations: dict[str, str], key: str, allowed: tuple[str, ...], default: str) -> str:
    value = annotations.get(key)
    if value is None:
        return default
    if value not in allowed:
        raise RequestError("bad-annotation", f"annotation {key} is {value!r}; it must be {_one_of(allowed)}")
    return value


def _one_of(allowed: tuple[str, ...]) -> str:
    return allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"


def _list(annotations: dict[str, str], key: str, what: str, example: str) -> tuple[str, ...]:
    """Alternatives, in an order of their own so that equal wishes look equal."""
    text = annotations.get(key)
    if text is None:
        return ()
    parts = tuple(sorted({part.strip() for part in text.split("|")} - {""}))
    if not parts:
        raise RequestError(
            "bad-annotation", f"annotation {key} is {text!r}; name {what} separated by |, such as {example}"
        )
    return parts


def _generations(annotations: dict[str, str]) -> tuple[str, ...]:
    known = {name.lower(): name for name in GENERATIONS}
    wanted = _list(annotations, names.ANNOTATION_GPU_GENERATION, "generations", "Ampere|Hopper")
    unknown = [name for name in wanted if name.lower() not in known]
    if unknown:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_GPU_GENERATION} names {unknown[0]!r}; the generations are "
            f"{', '.join(GENERATIONS)}",
        )
    return tuple(sorted({known[name.lower()] for name in wanted}))


def _memory_min(annotations: dict[str, str]) -> int:
    text = annotations.get(names.ANNOTATION_GPU_MEMORY_MIN)
    if text is None:
        return 0
    amount = _number({names.ANNOTATION_GPU_MEMORY_MIN: text}, names.ANNOTATION_GPU_MEMORY_MIN, "annotations")
    if not 0 < amount <= MAX_MEMORY_BYTES:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_GPU_MEMORY_MIN} is {text!r}; it is what one GPU has in all, in "
            "bytes, written like 40Gi",
        )
    return mib(amount)


def _capability_min(annotations: dict[str, str]) -> int:
    text = annotations.get(names.ANNOTATION_GPU_CAPABILITY_MIN)
    if text is None:
        return 0
    tenths = capability_tenths(text)
    if tenths is None:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_GPU_CAPABILITY_MIN} is {text!r}; write a compute capability such as "
            "8.0 or 9.0",
        )
    return tenths
