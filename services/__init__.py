"""Independent asyncio processes that talk over NATS. No service imports another."""
