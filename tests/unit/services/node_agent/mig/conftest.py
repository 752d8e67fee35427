"""The fake NVML of the devices' tests, with one A100 in MIG mode."""

from __future__ import annotations

import pytest

from tests.unit.services.node_agent.devices.conftest import library
from tests.unit.services.node_agent.devices.conftest import machine as machine
from tests.unit.services.node_agent.devices.machine import Machine
from tests.unit.services.node_agent.mig.a100 import A100

__all__ = ["library", "machine"]


@pytest.fixture
def a100(machine: Machine) -> Machine:
    machine.become(A100)
    return machine
