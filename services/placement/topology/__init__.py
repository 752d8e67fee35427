"""Topology modes: which of a node's GPUs a pod with several gets. One file each; a new mode is one line here."""

from __future__ import annotations

from services.placement.topology.base import Choice, Mode
from services.placement.topology.best_effort import BestEffort
from services.placement.topology.fabric import Fabric, fabric_of
from services.placement.topology.ring import RING
from services.placement.topology.simple import Simple
from services.placement.topology.static_dgx1 import StaticDgx1Pascal, StaticDgx1Volta

MODES: dict[str, Mode] = {
    mode.name: mode for mode in (RING, BestEffort(), Simple(), StaticDgx1Pascal(), StaticDgx1Volta())
}
DEFAULT_MODE = RING.name

__all__ = ["DEFAULT_MODE", "MODES", "Choice", "Fabric", "Mode", "fabric_of"]
