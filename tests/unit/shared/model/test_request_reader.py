"""A pod's GPU request in its canonical form. Invalid requests are in admission's table of bad pods."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.kube_object import Meta
from shared.model.objects import Container, Pod, PodSpec, Resources
from shared.model.request import GpuAsk, RequestError
from shared.model.request_reader import has_gpu_request, init_share, read_ask, read_request

LONG = {"gpu": "gpu", "memory": "gpu-memory", "compute": "gpu-compute", "percent": "gpu-memory-percent"}


def container(name: str = "c", *, sidecar: bool = False, **limits: Any) -> Container:
    named = {f"kerf.dev/{LONG[key]}": value for key, value in limits.items()}
    return Container(name=name, resources=Resources(limits=named), restart_policy="Always" if sidecar else None)


def pod(*containers: Container, init: tuple[Container, ...] = (), **annotations: str) -> Pod:
    notes = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return Pod(metadata=Meta(name="p", annotations=notes), spec=PodSpec(containers=containers, init_containers=init))


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        ({"gpu": 2}, GpuAsk(count=2, compute_milli=1000, whole=True)),
        ({"memory": "16Gi"}, GpuAsk(count=1, memory_mib=16384)),
        ({"compute": 30}, GpuAsk(count=1, compute_milli=300, memory_milli=300)),
        ({"memory": "16Gi", "compute": 30}, GpuAsk(count=1, memory_mib=16384, compute_milli=300)),
        ({"gpu": 2, "memory": "16Gi"}, GpuAsk(count=2, memory_mib=8192)),
        ({"gpu": 2, "compute": 50}, GpuAsk(count=2, compute_milli=250, memory_milli=250)),
        ({"gpu": 4, "compute": 30}, GpuAsk(count=4, compute_milli=75, memory_milli=75)),
        ({"compute": 100}, GpuAsk(count=1, compute_milli=1000, whole=True)),
        ({"gpu": 2, "compute": 200}, GpuAsk(count=2, compute_milli=1000, whole=True)),
        ({"memory": "16Gi", "compute": 100}, GpuAsk(count=1, memory_mib=16384, compute_milli=1000)),
        ({"memory": "1500k"}, GpuAsk(count=1, memory_mib=2)),
        ({"percent": 50}, GpuAsk(count=1, memory_milli=500)),
        ({"gpu": 2, "percent": 25}, GpuAsk(count=2, memory_milli=125)),
        ({"percent": 100, "compute": 30}, GpuAsk(count=1, memory_milli=1000, compute_milli=300)),
        ({"percent": 100, "compute": 100}, GpuAsk(count=1, compute_milli=1000, whole=True)),
        ({"percent": 50, "compute": 50}, GpuAsk(count=1, memory_milli=500, compute_milli=500)),
        ({}, None),
    ],
)
def test_limits_are_the_containers_total(limits: dict[str, Any], ask: GpuAsk | None) -> None:
    """Spread evenly over its GPUs; alone, a count means whole ones; bytes round up to MiB."""
    assert read_ask(container(**limits)) == ask


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"memory": "16Gi", "percent": 50}, "memory-twice"),
        ({"percent": 101}, "memory-too-large"),
        ({"gpu": 2, "percent": 201}, "memory-too-large"),
        ({"gpu": 3, "percent": 100}, "memory-not-even"),
        ({"gpu": 0, "percent": 50}, "zero-gpus"),
    ],
)
def test_a_percentage_of_memory_has_its_own_bounds(limits: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_ask(container(**limits))
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("app", "init"),
    [({"percent": 50}, {"percent": 51}), ({"memory": "16Gi"}, {"percent": 10}), ({"percent": 50}, {"memory": "1Gi"})],
)
def test_an_init_container_has_no_more_memory_than_its_app_in_the_same_unit(
    app: dict[str, Any], init: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as refused:
        read_request(pod(container("app", **app), init=(container("load", **init),)))
    assert refused.value.code == "init-larger-than-app"


def test_an_opportunistic_pod_keeps_its_part_of_the_memory_without_compute() -> None:
    asked = read_request(pod(container("app", percent=50, compute=30), tier="opportunistic"))
    assert asked is not None
    assert asked.asks["app"] == GpuAsk(count=1, memory_milli=500)


def test_a_pod_without_gpus_has_no_gpu_request() -> None:
    assert read_request(pod(container())) is None


def test_pod_level_gpus_are_seen() -> None:
    """They would otherwise pass as a pod without GPUs."""
    asked = Pod(spec=PodSpec(containers=(container(),), resources=Resources(limits={"kerf.dev/gpu": 1})))
    assert has_gpu_request(asked)
    with pytest.raises(RequestError, match="pod-level"):
        read_request(asked)


def test_sidecars_have_a_request_of_their_own_and_init_containers_share() -> None:
    asked = read_request(
        pod(
            container("app", gpu=1),
            init=(container("load", memory="8Gi"), container("side", sidecar=True, memory="1Gi")),
        )
    )
    assert asked is not None
    assert sorted(asked.asks) == ["app", "side"]


@pytest.mark.parametrize(
    ("app", "init", "fits"),
    [
        ({"gpu": 2}, {"gpu": 2}, True),
        ({"gpu": 2}, {"gpu": 1, "memory": "8Gi"}, True),
        ({"memory": "8Gi"}, {"memory": "8Gi"}, True),
        ({"memory": "8Gi"}, {"memory": "8Gi", "compute": 10}, False),
        ({"memory": "8Gi", "compute": 100}, {"gpu": 1}, False),
    ],
)
def test_an_init_container_fits_into_its_apps_share_or_is_refused(
    app: dict[str, Any], init: dict[str, Any], fits: bool
) -> None:
    asked = pod(container("app", **app), init=(container("init", **init),))
    if fits:
        assert read_request(asked) is not None
        return
    with pytest.raises(RequestError, match="no app container covers the GPU requests of init container 'init'"):
        read_request(asked)


def test_init_containers_share_one_app_container_that_covers_each_of_them() -> None:
    """Whichever is larger by another measure; not a sidecar, which runs already."""
    wide, big = container("wide", gpu=2, memory="8Gi"), container("big", memory="8Gi")
    full, fast = container("full", memory="8Gi", compute=10), container("fast", memory="4Gi", compute=60)
    side = container("side", sidecar=True, memory="40Gi")

    def shared(*apps: Container, **init: Any) -> str:
        return init_share(pod(*apps, init=(side, container("load", **init))))

    assert shared(wide, big, memory="8Gi") == "big"
    assert shared(wide, big, memory="1Gi") == "wide", "the largest of several"
    assert shared(full, fast, memory="1Gi", compute=60) == "fast"
    assert init_share(pod(full, init=(side, container("load")))) == "", "without GPUs it has none to share"


def test_init_containers_that_fit_into_no_one_app_container_are_refused() -> None:
    """A ResourceClaim's devices are no share of an app container. A pod that runs was admitted by other rules."""
    several = pod(
        container("full", memory="8Gi"),
        container("fast", memory="4Gi", compute=60),
        init=(container("load", memory="8Gi"), container("warm", compute=60, memory="4Gi")),
    )
    with pytest.raises(RequestError, match="init container 'load' and init container 'warm'"):
        read_request(several)
    claimed = {"claim/big/gpu": GpuAsk(count=1, memory_mib=16384)}
    with pytest.raises(RequestError, match="init container 'load'"):
        read_request(pod(container("app", memory="4Gi"), init=(container("load", memory="8Gi"),)), claimed)
    bound = msgspec.structs.replace(several, spec=msgspec.structs.replace(several.spec, node_name="n"))
    assert read_request(bound) is not None


def test_wishes_are_read_from_annotations() -> None:
    asked = read_request(
        pod(
            container(gpu=1),
            isolation="hard",
            gpu_model=" H200 | H100|H200",
            topology="required",
            policy="spread",
            tier="opportunistic",
        )
    )
    assert asked is not None
    assert (asked.isolation, asked.models, asked.topology, asked.policy) == (
        "hard",
        ("H100", "H200"),
        "required",
        "spread",
    )
    assert asked.tier == "opportunistic"


@pytest.mark.parametrize(
    ("limits", "reserved"),
    [
        ({"memory": "16Gi", "compute": 30}, (16384, 0)),
        ({"memory": "16Gi"}, (16384, 0)),
        ({"compute": 30}, (0, 300)),
        ({"gpu": 1}, (0, 1000)),
        ({"gpu": 2, "memory": "32Gi", "compute": 100}, (16384, 0)),
    ],
)
def test_an_opportunistic_pod_reserves_no_compute_beside_its_memory(
    limits: dict[str, Any], reserved: tuple[int, int]
) -> None:
    asked = read_request(pod(container(**limits), tier="opportunistic"))
    assert asked is not None
    assert (asked.hardest.memory_mib, asked.hardest.compute_milli) == reserved


@given(st.integers(1, 64), st.integers(0, 2**20), st.integers(0, 6400))
def test_reading_a_request_neither_loses_nor_adds_anything(gpus: int, memory_mib: int, percent: int) -> None:
    """The grant per GPU, times the GPUs, is exactly the request; or the request is refused."""
    limits = (
        {"gpu": gpus}
        | ({"memory": f"{memory_mib}Mi"} if memory_mib else {})
        | ({"compute": percent} if percent else {})
    )
    ask = None
    try:
        ask = read_ask(container(**limits))
    except RequestError as error:
        code = error.code
    else:
        code = ""
    if code:
        assert code in ("memory-not-even", "compute-not-even", "compute-too-large")
        return
    assert ask is not None
    assert ask.count == gpus
    if not ask.whole:
        assert ask.compute_milli * gpus == percent * 10
        assert memory_mib <= ask.memory_mib * gpus < memory_mib + gpus


def test_a_pod_may_be_choosy_about_its_gpus() -> None:
    asked = read_request(
        pod(
            container(gpu=2),
            gpu_model_not="T4 | P4",
            gpu_generation="hopper|Ampere",
            gpu_memory_min="40Gi",
            gpu_capability_min="8.9",
            gpu_uuid="GPU-b|GPU-a",
            gpu_uuid_not="GPU-c",
            gpu_prefer="cost",
            topology_mode="ring",
        )
    )
    assert asked is not None
    assert (asked.models_not, asked.generations, asked.memory_min_mib, asked.capability_min) == (
        ("P4", "T4"),
        ("Ampere", "Hopper"),
        40960,
        89,
    )
    assert (asked.uuids, asked.uuids_not, asked.prefer, asked.topology_mode) == (
        ("GPU-a", "GPU-b"),
        ("GPU-c",),
        "cost",
        "ring",
    )


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        ("gpu-generation", "Hopper|Turning", "'Turning'"),
        ("gpu-generation", "|", "Ampere|Hopper"),
        ("gpu-memory-min", "0", "40Gi"),
        ("gpu-memory-min", "40Gib", "40Gib"),
        ("gpu-capability-min", "sm_90", "9.0"),
        ("gpu-prefer", "both", "cost, speed"),
        ("topology-mode", "best-effort", "annotation kerf.dev/topology-mode is 'best-effort'; it must be ring"),
        ("policy", "fgd", "is 'fgd'; it must be one of kerf, binpack, spread, least-loaded-nearest"),
        ("gpu-uuid", " ", "UUIDs"),
        ("gpu-model", "|".join(f"H{i}" for i in range(65)), "has 65 names; it may have 64 at most"),
        ("gpu-uuid-not", "G" * 4097, "has 4097 characters; it may have 4096 at most"),
        ("gpu-model", "H100\x1b[2J", r"has the control character '\x1b'; take it out"),
        ("gpu-uuid", "GPU-1\x9b2J", r"has the control character '\x9b'; take it out"),
    ],
)
def test_an_invalid_annotation_is_refused_with_what_to_write(annotation: str, value: str, says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        read_request(pod(container(gpu=1), **{annotation: value}))


def test_a_pod_that_runs_keeps_what_it_named_before_there_was_a_bound() -> None:
    """It was bound by an earlier version, and is read again by this one."""
    many = "|".join(f"H{number}" for number in range(65))
    new = pod(*(container(f"c{number}", gpu=1) for number in range(257)), **{"gpu-model-not": many})
    bound = msgspec.structs.replace(new, spec=msgspec.structs.replace(new.spec, node_name="n"))
    request = read_request(bound)
    assert request is not None
    assert (len(request.asks), len(request.models_not)) == (257, 65)
