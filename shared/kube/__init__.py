"""Kubernetes over HTTP: configuration, a lean transport, the reflector, writes. Nobody else speaks to the API server."""
