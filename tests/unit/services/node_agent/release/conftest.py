"""The fake NVML, as the devices' tests have it."""

from tests.unit.services.node_agent.devices.conftest import library, machine

__all__ = ["library", "machine"]
