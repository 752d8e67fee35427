"""Topology: which of a node's GPUs a pod with several gets."""

from __future__ import annotations

from services.placement.topology.base import Choice
from services.placement.topology.fabric import Fabric, fabric_of
from services.placement.topology.ring import choose_gpus

__all__ = ["Choice", "Fabric", "choose_gpus", "fabric_of"]
