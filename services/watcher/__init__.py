"""Kubernetes' only door: objects in as facts; bindings, evictions and status out."""
