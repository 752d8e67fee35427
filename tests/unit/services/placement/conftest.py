"""A real NATS server for tests of the log client."""

from tests.unit.shared.bus.conftest import bus, connect, server

__all__ = ["bus", "connect", "server"]
