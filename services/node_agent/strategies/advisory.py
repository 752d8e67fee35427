"""The strategy `advisory`: a part of a GPU that is accounted and reported, but not enforced, as gpushare does it."""

from __future__ import annotations

from services.node_agent.strategies.exclusive import Exclusive
from shared.model.gpu import Isolation, Strategy


class Advisory(Exclusive):
    """Chosen when the container requests a part of a GPU with isolation soft, and the node has
    proven nothing stronger."""

    name: Strategy = "advisory"
    promise: Isolation = "soft"
