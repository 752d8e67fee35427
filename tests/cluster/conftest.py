"""A real API server for the tests of this folder: one a session, a namespace a test."""

from tests.support.cluster import control_plane, namespace

__all__ = ["control_plane", "namespace"]
