"""Real faults on a real API server, real NATS and separate processes."""
