"""Making and destroying MIG instances through the real pynvml.

With KERF_TEST_MIG_GPU, the UUID of a real GPU in MIG mode without instances, the tests run on that GPU instead: start
them on its host as root. They leave no instance behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pynvml
import pytest

from services.node_agent.mig import nvml
from services.node_agent.mig.layout import Own, Place, Standing
from services.node_agent.mig.nvml import MigError
from tests.unit.services.node_agent.devices.machine import Machine

REAL = os.environ.get("KERF_TEST_MIG_GPU", "")


@pytest.fixture(params=[REAL or "GPU-a"])
def gpu(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """UUID and handle of a GPU in MIG mode without instances: the fake one, or the real one."""
    if not REAL:
        request.getfixturevalue("a100")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByUUID(request.param)
    assert standing(handle) == ()
    yield request.param, handle
    for one in standing(handle):
        nvml.destroy(handle, Own(place=Place(gpu=request.param, profile=one.profile, start=one.start), id=one.id))
    assert standing(handle) == ()
    pynvml.nvmlShutdown()


def standing(handle: Any) -> tuple[Standing, ...]:
    return nvml.standing(handle, nvml.profiles(handle))


def smallest(gpu: tuple[str, Any], start: int) -> Place:
    names = [name for name, seen in nvml.profiles(gpu[1]).items() if seen.compute_slices == 1 and len(seen.starts) > 4]
    return Place(gpu=gpu[0], profile=min(names, key=len), start=start)


def make(handle: Any, place: Place) -> Own:
    """Makes an instance whole."""
    own = Own(place=place)
    own = msgspec.structs.replace(own, id=nvml.make_gpu_instance(handle, own))
    assert nvml.fill(handle, own)[0] == own.id
    return own


def devices(handle: Any) -> dict[str, tuple[int, int]]:
    """The MIG devices as CUDA sees them: ids by UUID."""
    found = {}
    for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except pynvml.NVMLError_NotFound:
            continue
        ids = pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device)
        found[pynvml.nvmlDeviceGetUUID(device)] = ids
    return found


def test_an_instance_is_made_at_its_place_and_destroyed(gpu: tuple[str, Any]) -> None:
    handle, place = gpu[1], smallest(gpu, 2)
    own = make(handle, place)
    assert [(one.profile, one.start, one.empty) for one in standing(handle)] == [(place.profile, 2, False)]
    assert list(devices(handle).values()) == [nvml.fill(handle, own)], "one compute instance fills it, once"
    assert nvml.make_gpu_instance(handle, own) == own.id, "a second time there is nothing to do"
    nvml.destroy(handle, own)
    assert (standing(handle), devices(handle)) == ((), {})
    nvml.destroy(handle, own)  # there is none: nothing happens


def test_an_instance_beside_others_leaves_them_alone(gpu: tuple[str, Any]) -> None:
    handle = gpu[1]
    first, second = make(handle, smallest(gpu, 0)), make(handle, smallest(gpu, 1))
    nvml.destroy(handle, second)
    assert list(devices(handle).values()) == [nvml.fill(handle, first)]
    (largest,) = (seen for seen in nvml.profiles(handle).values() if len(seen.starts) == 1 and seen.compute_slices == 7)
    with pytest.raises(MigError, match=r"cannot be made beside .* at 0"):
        nvml.make_gpu_instance(handle, Own(place=Place(gpu=gpu[0], profile=largest.name, start=0)))
    another = msgspec.structs.replace(first, id=90)
    nvml.destroy(handle, another)
    assert len(devices(handle)) == 1, "in the same place, and not the agent's"


def test_half_of_an_instance_is_completed(gpu: tuple[str, Any]) -> None:
    """As a crash between the two calls leaves it, before or after its id was noted."""
    handle, own = gpu[1], Own(place=smallest(gpu, 3))
    made = nvml.make_gpu_instance(handle, own)
    assert (devices(handle), standing(handle)[0].empty) == ({}, True)
    assert nvml.make_gpu_instance(handle, own) == made
    assert nvml.fill(handle, msgspec.structs.replace(own, id=made))[0] == made
    assert len(devices(handle)) == 1


@pytest.mark.skipif(bool(REAL), reason="starts no process on a real GPU")
def test_an_instance_in_use_is_not_destroyed(a100: Machine, nvml_open: Callable[[], Any]) -> None:
    handle = nvml_open()
    own = make(handle, Place(gpu="GPU-a", profile="2g.10gb", start=2))
    a100.also(f"process 0 4711 100 {own.id}\n")
    with pytest.raises(MigError, match=r"2g\.10gb at slice 2 of GPU GPU-a is used by process 4711"):
        nvml.destroy(handle, own)
    assert len(devices(handle)) == 1


@pytest.mark.skipif(bool(REAL), reason="of the fake's driver")
def test_a_profile_that_the_driver_does_not_offer_is_named(a100: Machine, nvml_open: Callable[[], Any]) -> None:
    with pytest.raises(MigError, match=r"no MIG profile 1g\.99gb"):
        nvml.make_gpu_instance(nvml_open(), Own(place=Place(gpu="GPU-a", profile="1g.99gb", start=0)))


@pytest.fixture
def nvml_open() -> Iterator[Callable[[], Any]]:
    pynvml.nvmlInit()
    yield lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-a")
    pynvml.nvmlShutdown()
