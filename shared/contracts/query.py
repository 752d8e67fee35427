"""What a question on the bus is: its types, its asker and the service that answers."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.contracts import subjects
from shared.contracts.base import Message


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """One question on the bus: its types, which services ask it, and which service answers."""

    name: str
    """The last token of its subject."""
    question: type[Message]
    answer: type[Message]
    """It has the field `error`: why there is no answer."""
    receivers: Literal["placement", "preemptor", "metrics", "every service"]
    """Of `every service` each instance answers."""
    publisher: str = "cli"
    description: str
    examples: tuple[Message, ...] = ()
    """Of question and answer, where they need no objects of `example_objects.py`."""

    @property
    def subject(self) -> str:
        return f"{subjects.VERSION}.query.{self.name}"
