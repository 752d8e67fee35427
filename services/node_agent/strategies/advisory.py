"""A part of a GPU on the container's honour: accounted and shown, not enforced. The way of gpushare, by choice."""

from __future__ import annotations

from services.node_agent.strategies.exclusive import Exclusive
from shared.model.gpu import Isolation, Strategy

CHOSEN = "a part of a GPU with isolation soft, where the node has proven nothing stronger"


class Advisory(Exclusive):
    name: Strategy = "advisory"
    promise: Isolation = "soft"
