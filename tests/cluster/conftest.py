"""A real API server for the tests of this folder: one per session, a namespace per test."""

from tests.support.cluster import control_plane, namespace

__all__ = ["control_plane", "namespace"]
