"""The strategies through their common interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.advisory import Advisory
from services.node_agent.strategies.base import Driver, Offer, Unadjustable
from services.node_agent.strategies.exclusive import Exclusive
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.rules import Override, Policy
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Part, Slice
from services.node_agent.strategies.time_slice import TimeSlice
from shared.model.gpu import ISOLATION_OF, Strategy

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


@pytest.fixture
def interposer(registry: SliceRegistry, clock: Clock) -> Interposer:
    return Interposer(registry, Path("/lib/libkerf.so"), lambda: Offer(ok=True), clock)


def write(registry: SliceRegistry, field: Callable[[], int], value: int) -> None:
    """Writes counters as the interposer does."""
    with (registry.folder(SLICE.key) / "counters").open("r+b") as file:
        file.seek(layout.Counters.gpu.offset + field())
        file.write(value.to_bytes(8, "little"))


def used(registry: SliceRegistry, ns: int) -> None:
    write(registry, lambda: layout.GpuCounters.used_ns.offset, ns)


def test_every_strategy_that_the_contracts_name_is_built() -> None:
    """MIG instances are handed over without a driver of their own."""
    drivers = {Exclusive.name, Advisory.name, Interposer.name, TimeSlice.name}
    assert set(get_args(Strategy)) == drivers | {"mig"} == ISOLATION_OF.keys()


@pytest.mark.parametrize("driver", [Exclusive(), Advisory()], ids=lambda d: d.name)
async def test_a_strategy_without_enforcement_adds_nothing_and_refuses_adjustments(driver: Driver) -> None:
    assert (await driver.probe()).ok
    driver.prepare(SLICE)
    assert (driver.edits(SLICE).mounts, driver.observe(SLICE.key)) == ((), ())
    with pytest.raises(Unadjustable, match="can only be evicted"):
        driver.adjust(SLICE.key, Override(paused=True))
    driver.release(SLICE.key)


def test_no_driver_promises_more_than_its_strategy_can(
    registry: SliceRegistry, clock: Clock, interposer: Interposer
) -> None:
    drivers: list[Driver] = [
        Exclusive(),
        Advisory(),
        interposer,
        TimeSlice(registry, Path("l"), lambda: Offer(ok=True), clock),
    ]
    assert {driver.name: driver.promise for driver in drivers} == {
        driver.name: ISOLATION_OF[driver.name] for driver in drivers
    }


async def test_the_interposer_is_offered_if_the_canary_has_passed(registry: SliceRegistry, clock: Clock) -> None:
    refused = Interposer(registry, Path("l"), lambda: Offer(ok=False, sentence="it leaks"), clock)
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
    driver = TimeSlice(registry, Path("l"), lambda: Offer(ok=True), clock)
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
