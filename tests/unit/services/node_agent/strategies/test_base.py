"""The strategies through their common interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from services.node_agent.messages import SliceNotReady
from services.node_agent.strategies import layout
from services.node_agent.strategies.advisory import Advisory
from services.node_agent.strategies.base import NodeTools, Offer, Unadjustable
from services.node_agent.strategies.driver_limited import DriverLimited
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.exclusive import Exclusive
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.mps import Mps
from services.node_agent.strategies.policed import Policed
from services.node_agent.strategies.rules import Override, Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from services.node_agent.strategies.time_slice import TimeSlice
from shared.model.strategies import registered

GPU = "GPU-00000000-0000-0000-0000-000000000001"
SLICE = Slice(
    uid="u", container="main", strategy="interposer", parts=(Part(uuid=GPU, memory_mib=64, compute_milli=300),)
)


class Clock:
    ns = 10**9

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(tmp_path: Path, clock: Clock) -> Iterator[SliceRegistry]:
    made = SliceRegistry(tmp_path / "slices", Policy(), clock)
    yield made
    made.close()


def tools(registry: SliceRegistry, clock: Clock, offer: Offer | None = None) -> NodeTools:
    return NodeTools(
        registry=registry, library=Path("/lib/libkerf.so"), offer=lambda: offer or Offer(ok=True), clock=clock
    )


@pytest.fixture
def interposer(registry: SliceRegistry, clock: Clock) -> Interposer:
    return Interposer(registered()["interposer"], tools(registry, clock))


def write(registry: SliceRegistry, field: Callable[[], int], value: int) -> None:
    """Writes counters as the interposer does."""
    with (registry.folder(SLICE.key) / "counters").open("r+b") as file:
        file.seek(layout.Counters.gpu.offset + field())
        file.write(value.to_bytes(8, "little"))


def used(registry: SliceRegistry, ns: int, launches: int | None = None) -> None:
    write(registry, lambda: layout.GpuCounters.used_ns.offset, ns)
    if launches is not None:
        write(registry, lambda: layout.GpuCounters.launches.offset, launches)


def test_what_a_dead_process_left_is_no_use_of_a_slice(registry: SliceRegistry, interposer: Interposer) -> None:
    interposer.prepare(SLICE)
    at = layout.Counters.from_buffer_copy((registry.folder(SLICE.key) / "counters").read_bytes())
    at.gpu[0].account, at.process[0].state, at.process[0].charged_bytes[0] = 48 << 20, 1, 40 << 20
    (registry.folder(SLICE.key) / "counters").write_bytes(bytes(at))
    assert interposer.observe(SLICE.key)[0].memory_mib == 8


@pytest.mark.parametrize("name", ["exclusive", "advisory"])
async def test_a_strategy_without_enforcement_adds_nothing_and_refuses_adjustments(
    registry: SliceRegistry, clock: Clock, name: str
) -> None:
    driver = make_drivers(tools(registry, clock))[name]
    assert (await driver.probe()).ok
    driver.prepare(SLICE)
    assert (driver.edits(SLICE).mounts, driver.observe(SLICE.key)) == ((), ())
    with pytest.raises(Unadjustable, match=f"strategy {name} cannot change .* can only be evicted"):
        driver.adjust(SLICE.key, Override(paused=True))
    driver.release(SLICE.key)


def test_each_strategy_with_a_driver_gets_the_one_that_it_names(registry: SliceRegistry, clock: Clock) -> None:
    assert {name: type(driver) for name, driver in make_drivers(tools(registry, clock)).items()} == {
        "exclusive": Exclusive,
        "interposer": Interposer,
        "time_slice": TimeSlice,
        "policed": Policed,
        "driver": DriverLimited,
        "mps": Mps,
        "advisory": Advisory,
    }


@pytest.mark.parametrize("name", ["interposer", "time_slice", "policed", "mps"])
def test_no_container_starts_on_an_interposer_that_is_not_installed(
    registry: SliceRegistry, clock: Clock, name: str
) -> None:
    """The linker would only warn, and nothing would hold the container."""
    why = ["No space left on device"]
    kit = msgspec.structs.replace(tools(registry, clock), not_installed=lambda: why[0])
    driver = make_drivers(kit)[name]
    slice_ = msgspec.structs.replace(SLICE, strategy=name)
    driver.prepare(slice_)
    with pytest.raises(SliceNotReady, match=r"not installed on this node, .*: No space left"):
        driver.edits(slice_)
    why[0] = ""
    assert "/etc/ld.so.preload" in {mount.container_path for mount in driver.edits(slice_).mounts}


def mps_slice(compute_milli: int, *more: Part) -> Slice:
    parts = (Part(uuid=GPU, memory_mib=64, compute_milli=compute_milli), *more)
    return Slice(uid="u", container="main", strategy="mps", parts=parts)


@pytest.mark.parametrize(("compute_milli", "percentage"), [(300, "30"), (695, "69"), (4, "1"), (0, None)])
def test_a_client_of_mps_has_its_share_as_a_cap_that_is_never_more(
    registry: SliceRegistry, clock: Clock, compute_milli: int, percentage: str | None
) -> None:
    """Rounded up, the shares of a GPU could add up to more than all of it."""
    driver = Mps(registered()["mps"], tools(registry, clock))
    driver.prepare(mps_slice(compute_milli))
    said = dict(line.split("=", 1) for line in driver.edits(mps_slice(compute_milli)).env)
    assert said.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == percentage
    assert (said["CUDA_MPS_PIPE_DIRECTORY"], said["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]) == ("/tmp/nvidia-mps", "0=64M")


def test_a_container_with_parts_of_two_gpus_is_no_client_of_mps(registry: SliceRegistry, clock: Clock) -> None:
    driver = Mps(registered()["mps"], tools(registry, clock))
    two = mps_slice(300, Part(uuid=GPU.replace("1", "2"), memory_mib=64, compute_milli=300))
    driver.prepare(two)
    with pytest.raises(ValueError, match="this slice has 2 GPUs"):
        driver.edits(two)


def test_a_client_of_mps_can_be_shrunk_and_not_paused(registry: SliceRegistry, clock: Clock) -> None:
    driver = Mps(registered()["mps"], tools(registry, clock))
    driver.prepare(mps_slice(300))
    driver.adjust(("u", "main"), Override(memory_mib={GPU: 32}))
    said = layout.Orders.from_buffer_copy((registry.folder(("u", "main")) / "orders").read_bytes())
    assert (said.gpu[0].memory_limit_bytes, said.gpu[0].compute_milli) == (32 << 20, 0)
    with pytest.raises(Unadjustable, match="cannot be paused"):
        driver.adjust(("u", "main"), Override(paused=True))


async def test_mps_is_not_offered_before_it_and_the_interposer_are_proven(
    registry: SliceRegistry, clock: Clock
) -> None:
    proven = msgspec.structs.replace(tools(registry, clock), offer_mps=lambda: Offer(ok=True))
    assert (await Mps(registered()["mps"], proven).probe()).ok
    assert not (await Mps(registered()["mps"], tools(registry, clock)).probe()).ok
    leaky = msgspec.structs.replace(proven, offer=lambda: Offer(ok=False, sentence="it leaks"))
    assert await Mps(registered()["mps"], leaky).probe() == Offer(ok=False, sentence="it leaks")


async def test_the_interposer_is_offered_if_the_canary_has_passed(registry: SliceRegistry, clock: Clock) -> None:
    refused = Interposer(registered()["interposer"], tools(registry, clock, Offer(ok=False, sentence="it leaks")))
    assert await refused.probe() == Offer(ok=False, sentence="it leaks")


def test_a_running_slice_is_throttled_shrunk_and_paused_at_once_and_back(
    registry: SliceRegistry, interposer: Interposer
) -> None:
    interposer.prepare(SLICE)
    interposer.adjust(SLICE.key, Override(compute_milli=100, memory_mib={GPU: 32}, paused=True))
    said = layout.Orders.from_buffer_copy((registry.folder(SLICE.key) / "orders").read_bytes())
    assert (said.paused, said.gpu[0].compute_milli, said.gpu[0].memory_limit_bytes) == (1, 100, 32 << 20)
    interposer.adjust(SLICE.key, Override())
    said = layout.Orders.from_buffer_copy((registry.folder(SLICE.key) / "orders").read_bytes())
    assert (said.paused, said.gpu[0].compute_milli, said.gpu[0].memory_limit_bytes) == (0, 300, 64 << 20)
    with pytest.raises(KeyError):
        interposer.adjust(("unknown", "c"), Override(paused=True))


def test_a_time_sliced_slice_is_paused_like_any_other(registry: SliceRegistry, clock: Clock) -> None:
    driver = TimeSlice(registered()["time_slice"], tools(registry, clock))
    driver.prepare(SLICE)
    driver.adjust(SLICE.key, Override(paused=True))
    assert layout.Orders.from_buffer_copy((registry.folder(SLICE.key) / "orders").read_bytes()).paused == 1


def test_use_is_measured_since_the_last_observation(
    registry: SliceRegistry, clock: Clock, interposer: Interposer
) -> None:
    interposer.prepare(SLICE)
    used(registry, 5 * 10**8)
    (first,) = interposer.observe(SLICE.key)
    assert (first.compute_milli, first.memory_limit_mib, first.compute_limit_milli) == (None, 64, 300)
    used(registry, 8 * 10**8)
    clock.ns += 10**9
    (second,) = interposer.observe(SLICE.key)
    assert second.compute_milli == 300
    assert (first.launches_per_s, first.launch_us, second.launches_per_s, second.launch_us) == (None, None, None, None)


def test_launches_and_their_length_are_measured_since_the_last_observation(
    registry: SliceRegistry, clock: Clock, interposer: Interposer
) -> None:
    """500 launches in two seconds that took 0.3 s of GPU time."""
    interposer.prepare(SLICE)
    used(registry, 5 * 10**8, launches=1000)
    interposer.observe(SLICE.key)
    used(registry, 8 * 10**8, launches=1500)
    clock.ns += 2 * 10**9
    (seen,) = interposer.observe(SLICE.key)
    assert (seen.launches_per_s, seen.launch_us) == (250, 600)


@pytest.mark.parametrize("forged", [0, (1 << 64) - 1])
def test_forged_counters_are_clamped_before_they_are_published(
    registry: SliceRegistry, clock: Clock, interposer: Interposer, forged: int
) -> None:
    interposer.prepare(SLICE)
    used(registry, 10**9)
    interposer.observe(SLICE.key)
    used(registry, forged)
    clock.ns += 10**9
    (seen,) = interposer.observe(SLICE.key)
    assert seen.compute_milli is not None
    assert 0 <= seen.compute_milli <= 1 << 31


def test_a_released_slice_is_not_observed_any_more(registry: SliceRegistry, interposer: Interposer) -> None:
    interposer.prepare(SLICE)
    interposer.release(SLICE.key)
    assert interposer.observe(SLICE.key) == ()
    assert not registry.folder(SLICE.key).exists()
    interposer.release(SLICE.key)


def test_a_slice_that_the_driver_holds_is_throttled_and_paused_and_not_shrunk(
    registry: SliceRegistry, clock: Clock
) -> None:
    held = DriverLimited(registered()["driver"], tools(registry, clock))
    held.prepare(SLICE)
    held.adjust(SLICE.key, Override(compute_milli=100, paused=True))
    assert registry.override_of(SLICE.key) == Override(compute_milli=100, paused=True)
    with pytest.raises(Unadjustable, match="the driver holds the memory"):
        held.adjust(SLICE.key, Override(memory_mib={GPU: 32}))
    assert registry.override_of(SLICE.key) == Override(compute_milli=100, paused=True)
