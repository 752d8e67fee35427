"""Topology modes: which of a node's GPUs a pod with several gets. One file each; a new mode is one line here."""

from __future__ import annotations

from shared.scheduling.topology.base import Choice, Mode
from shared.scheduling.topology.best_effort import BestEffort
from shared.scheduling.topology.fabric import Fabric, fabric_of
from shared.scheduling.topology.ring import RING
from shared.scheduling.topology.simple import Simple
from shared.scheduling.topology.static_dgx1 import StaticDgx1Pascal, StaticDgx1Volta

MODES: dict[str, Mode] = {
    mode.name: mode for mode in (RING, BestEffort(), Simple(), StaticDgx1Pascal(), StaticDgx1Volta())
}
DEFAULT_MODE = RING.name

__all__ = ["DEFAULT_MODE", "MODES", "Choice", "Fabric", "Mode", "fabric_of"]
