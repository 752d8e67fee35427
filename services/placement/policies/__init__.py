"""The policies: which GPUs are chosen if several would do. One file each; a new policy is one line here."""

from __future__ import annotations

from services.placement.policies.base import Policy
from services.placement.policies.bestfit import BestFit
from services.placement.policies.binpack import Binpack
from services.placement.policies.fgd import Fgd
from services.placement.policies.kerf.policy import Kerf
from services.placement.policies.least_loaded_nearest import LeastLoadedNearest
from services.placement.policies.spread import Spread
from shared.book.book import Book

__all__ = ["Policy", "make_policies"]

_POLICIES: tuple[type[Policy], ...] = (Kerf, Fgd, BestFit, Binpack, Spread, LeastLoadedNearest)


def make_policies(book: Book) -> dict[str, Policy]:
    """One of each, by name, for one book."""
    return {policy.name: policy(book) for policy in _POLICIES}
