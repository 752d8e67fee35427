"""Kubernetes over HTTP: configuration, a lean transport, the reflector, writes. All access to the API server is
here."""
