"""What happened: Prometheus, usage, and the read API of the CLI."""
