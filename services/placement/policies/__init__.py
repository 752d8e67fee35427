"""How GPUs are chosen where several would do. One file each; a new one is a line here."""

from __future__ import annotations

from services.placement.policies.base import Policy
from services.placement.policies.binpack import Binpack
from services.placement.policies.least_loaded_nearest import LeastLoadedNearest
from services.placement.policies.spread import Spread

POLICIES: dict[str, Policy] = {policy.name: policy for policy in (Binpack(), Spread(), LeastLoadedNearest())}
