"""The strategies through their common interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.advisory import Advisory
from services.node_agent.strategies.base import NodeTools, Offer, Unadjustable
from services.node_agent.strategies.driver_limited import DriverLimited
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.exclusive import Exclusive
from services.node_agent.strategies.interposer import Interposer
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


def used(registry: SliceRegistry, ns: int) -> None:
    write(registry, lambda: layout.GpuCounters.used_ns.offset, ns)


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
        "advisory": Advisory,
    }


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
