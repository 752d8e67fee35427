"""The published policies that Kerf's own is measured against. Importing this package registers them with placement."""

from __future__ import annotations

from bench.policies.bestfit import BestFit
from bench.policies.fgd import Fgd
from services.placement.policies import register

__all__ = ["BestFit", "Fgd"]

for _policy in (Fgd, BestFit):
    register(_policy)
