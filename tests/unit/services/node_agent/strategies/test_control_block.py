"""Files on which a process holds a lease: the agent never waits for it."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from services.node_agent.strategies import layout
from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Reading, Rules, Surcharge
from tests.support.leases import is_leased, lease
from tests.support.waiting import eventually

RULES = Rules(gpus=(GpuRule(uuid="GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11", compute_milli=250),))


def clock() -> int:
    return 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A control block that an earlier agent has made."""
    ControlBlock(tmp_path / "a", clock).close()
    return tmp_path / "a"


@pytest.mark.parametrize("name", ["orders", "counters", "signal"])
def test_no_process_gets_a_lease_while_an_agent_runs(folder: Path, name: str) -> None:
    kept = ControlBlock(folder, clock)
    with lease(folder / name) as granted:
        assert not granted
    kept.close()


@pytest.mark.parametrize("name", ["orders", "counters", "signal"])
async def test_a_lease_is_reported_and_not_waited_for(folder: Path, name: str) -> None:
    """It was taken while no agent ran. /proc/locks shows that nothing waited until the kernel ended it."""
    with lease(folder / name) as granted:
        assert granted
        kept = ControlBlock(folder, clock)
        kept.write(RULES, context_bytes=0)
        kept.heartbeat()
        reading = kept.read()
        assert reading.damage == f"one of its processes holds a lease on its {name}"
        assert (reading.is_known, len(reading.gpus)) == ((False, 0) if name == "counters" else (True, 1))
        assert kept.busy_until_ns() == 0
        assert is_leased(folder / name)

    def reads() -> bool:
        kept.heartbeat()
        return kept.read().damage == ""

    def has_rules_that_were_written_meanwhile() -> bool:
        kept.heartbeat()
        orders = layout.Orders.from_buffer_copy((folder / "orders").read_bytes())
        return (orders.gpu[0].compute_milli, orders.heartbeat_ns) == (250, 7)

    await eventually(reads)
    await eventually(has_rules_that_were_written_meanwhile)
    with lease(folder / name) as granted:
        assert not granted
    kept.close()


async def test_orders_whose_lease_has_ended_since_the_last_heartbeat_are_no_problem(folder: Path) -> None:
    """The sample may come before the heartbeat that maps them."""
    with lease(folder / "orders") as granted:
        assert granted
        kept = ControlBlock(folder, clock)
        kept.write(RULES, context_bytes=0)
    await eventually(lambda: kept.read().damage == "")
    assert len(kept.read().gpus) == 1
    kept.close()
    assert kept.read() == Reading(damage="its file counters is not open yet", is_known=False)


async def test_files_that_are_closed_while_their_opening_waits_stay_closed(folder: Path) -> None:
    with lease(folder / "signal"):
        ControlBlock(folder, clock).close()
    await eventually(lambda: _can_be_leased(folder / "signal"))


async def test_the_length_of_a_file_is_restored_beside_the_agents_loop(folder: Path) -> None:
    """A container that writes holds the inode's lock, and memory takes time to free."""
    kept = ControlBlock(folder, clock)
    counters, size = folder / "counters", ctypes.sizeof(layout.Counters)
    with counters.open("ab") as file:
        file.write(b"x" * (1 << 20))
    assert kept.read().damage == f"its counters were extended to {size + (1 << 20)} bytes"
    await eventually(lambda: counters.stat().st_size == size)
    assert kept.read().damage == ""
    kept.close()


def _can_be_leased(path: Path) -> bool:
    with lease(path) as granted:
        return granted


def test_a_surcharge_is_written_beside_the_rules_and_survives_a_change_of_them(tmp_path: Path) -> None:
    kept = ControlBlock(tmp_path / "a", clock)
    uuid = RULES.gpus[0].uuid

    def written() -> tuple[int, int, int]:
        gpu = layout.Orders.from_buffer_copy((tmp_path / "a" / "orders").read_bytes()).gpu[0]
        return gpu.surcharge_bytes, gpu.private_milli, gpu.compute_milli

    kept.write(RULES, context_bytes=0)
    kept.set_surcharges({uuid: Surcharge(memory_bytes=5, private_milli=50)})
    assert written() == (5, 50, 250)
    kept.write(Rules(gpus=(GpuRule(uuid=uuid, compute_milli=100),)), context_bytes=0)
    assert written() == (5, 50, 100)
    kept.set_surcharges({})
    assert written() == (0, 0, 100)
    kept.close()
