"""The fake NVML of the devices' tests."""

from tests.unit.services.node_agent.devices.conftest import library, machine

__all__ = ["library", "machine"]
