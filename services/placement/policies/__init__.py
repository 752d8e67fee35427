"""The policies: which GPUs are chosen if several would do. One file each; `shared/model/policies.py` registers them.
Other packages add policies by the entry point `kerf.policies`."""

from __future__ import annotations

from functools import cache

from services.placement.policies.base import Policy
from shared import plugins
from shared.book.book import Book
from shared.model.policies import BUILT_IN

__all__ = ["Policy", "make_policies", "register", "registered"]


@cache
def registered() -> dict[str, type[Policy]]:
    """The built-in policies, then those of plug-ins, by name. Raises plugins.PluginError."""
    found = plugins.load_classes("kerf.policies", Policy, BUILT_IN)
    return {name: plugins.resolve(path) for name, path in BUILT_IN.items()} | {policy.name: policy for policy in found}


def register(policy: type[Policy]) -> None:
    """Adds a policy to every engine of this process made from now on. No pod can name it.

    Raises ValueError if another policy has its name.
    """
    if registered().setdefault(policy.name, policy) is not policy:
        raise ValueError(f"there is a policy {policy.name!r} already: {registered()[policy.name].__qualname__}")


def make_policies(book: Book) -> dict[str, Policy]:
    """One of each, by name, for one book."""
    return {name: policy(book) for name, policy in registered().items()}
