"""The policies: which GPUs are chosen if several would do. One file each; a new policy is one line here."""

from __future__ import annotations

from services.placement.policies.base import Policy
from services.placement.policies.binpack import Binpack
from services.placement.policies.kerf.policy import Kerf
from services.placement.policies.least_loaded_nearest import LeastLoadedNearest
from services.placement.policies.spread import Spread
from shared.book.book import Book

__all__ = ["Policy", "make_policies", "register"]

_policies: dict[str, type[Policy]] = {policy.name: policy for policy in (Kerf, Binpack, Spread, LeastLoadedNearest)}


def register(policy: type[Policy]) -> None:
    """Adds a policy from outside this package to every engine made from now on.

    Raises ValueError if another policy has its name.
    """
    if _policies.setdefault(policy.name, policy) is not policy:
        raise ValueError(f"there is a policy {policy.name!r} already: {_policies[policy.name].__qualname__}")


def make_policies(book: Book) -> dict[str, Policy]:
    """One of each, by name, for one book."""
    return {name: policy(book) for name, policy in _policies.items()}
