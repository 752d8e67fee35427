"""Each command of a core carries the number of the input that caused it: a log of both can be read as a story."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec.structs import force_setattr


class Caused(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all commands."""

    cause: int = 0
    """The number of the input among all that its core has handled, from 1 on; 0 before a core returns it."""


C = TypeVar("C", bound=Caused)


class Inputs:
    """Counts the inputs of a core. `count` is the number of the present one."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self) -> None:
        self.count += 1

    def mark(self, commands: list[C]) -> list[C]:
        """Names the present input as the cause of these commands."""
        for command in commands:
            force_setattr(command, "cause", self.count)
        return commands
