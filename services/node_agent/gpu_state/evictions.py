"""Asks for the eviction of the pods on GPUs that have failed, where the settings say so. Pure."""

from __future__ import annotations

from services.node_agent import messages as m
from services.node_agent.gpu_state import gpu_pods
from services.node_agent.gpu_state.node_gpus import NodeGpus
from services.node_agent.grant_store import GrantStore

AGAIN_S = 15.0
"""How often the request is repeated."""


class Evictions:
    def __init__(self, store: GrantStore, gpus: NodeGpus, *, enabled: bool) -> None:
        self._store, self._gpus, self._enabled = store, gpus, enabled
        self._due_at = 0.0

    def due(self, now: float) -> list[m.Command]:
        if not self._enabled or now < self._due_at:
            return []
        found = gpu_pods.evictions(self._gpus.by_uuid, self._store.known, self._store.is_running)
        if not found:
            return []
        self._due_at = now + AGAIN_S
        return [m.EvictPods(found)]
