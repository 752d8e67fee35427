"""Topology: which of a node's GPUs a pod with several gets."""

from __future__ import annotations

from shared.scheduling.topology.base import Choice, near_of
from shared.scheduling.topology.fabric import Fabric, fabric_of
from shared.scheduling.topology.ring import choose_gpus

__all__ = ["Choice", "Fabric", "choose_gpus", "fabric_of", "near_of"]
