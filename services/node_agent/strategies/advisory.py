"""The strategy `advisory`: a part of a GPU that is accounted and reported, but not enforced, as gpushare does it."""

from __future__ import annotations

from services.node_agent.strategies.exclusive import Exclusive


class Advisory(Exclusive):
    """Nothing to prepare, and nothing to change while a slice runs."""
