"""The instance ids of MIG instances."""

from __future__ import annotations

import asyncio

import pytest

from services.node_agent.cdi.mig_ids import MigIdReader
from tests.unit.services.node_agent.devices.machine import Machine


async def test_the_ids_of_an_instance_come_from_nvml(machine: Machine) -> None:
    machine.also("mig 1 9 4 3g.71gb 71000 MIG-b\nmig 1 7 0 1g.18gb 18000 MIG-a\n")
    reader = MigIdReader(5.0)
    assert await reader.read(("MIG-a", "MIG-b")) == {"MIG-a": (7, 0), "MIG-b": (9, 0)}
    both = await asyncio.gather(reader.read(("MIG-a",)), reader.read(("MIG-b",)))
    assert both == [{"MIG-a": (7, 0)}, {"MIG-b": (9, 0)}], "two containers that start at once"
    with pytest.raises(ValueError, match="MIG-gone"):
        await reader.read(("MIG-gone",))


async def test_without_mig_nvml_is_not_called(machine: Machine) -> None:
    machine.also("hang\n")
    assert await MigIdReader(5.0).read(()) == {}
