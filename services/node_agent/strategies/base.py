"""One way of sharing a GPU, and what the agent asks of it.

Six verbs, in the order of a slice's life. Which of them a strategy needs differs; that all fit is shown here for those that
are built and those that are to come:

| | probe | prepare | edits | adjust | observe | release |
|---|---|---|---|---|---|---|
| exclusive, advisory | always | - | - | - | by NVML | - |
| interposer | library and canary | the page | library, page | page: rates, limits, pause | page | page removed |
| time_slice | the same | the same, and its rank | the same | the same; turns by locks for what the page does not reach | page | locks undone |
| mps | control daemon answers | a server, its limits set | pipe directory, environment | limits of new clients | server's list | server told |
| mig | MIG mode | the instance is cut | its device nodes | raises Unadjustable | NVML of the instance | instance removed |
| driver (r615) | symbol in NVML | limit keyed on the pod's cgroup | - | the same call again | NVML | limit lifted |
| remote | endpoint's canary | a server in a slice of the other node | client, endpoint | passed on to that node | passed on | server ended |

Live resize is `adjust` with a `Override` of other amounts. What blocks or may hang goes to a worker inside the driver.

The rule when a strategy is chosen stands in its file (`CHOSEN`), for people; placement's `shared.book.shares.strategy_for` is
that rule for programs.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slices import Key, Slice
from shared.model.gpu import Isolation, Strategy


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node offers a strategy now. `sentence`: why not."""

    ok: bool
    sentence: str = ""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Limit and truth of a slice on one GPU. None: nobody can say."""

    uuid: str
    memory_limit_mib: int
    memory_mib: int | None = None
    peak_mib: int | None = None
    refused: int = 0
    """Allocations that failed at the limit, since the container's start."""
    compute_limit_milli: int = 0
    """0: none was asked for."""
    compute_milli: int | None = None
    """GPU time per mille of the time, since it was asked last."""
    waited_milli: int | None = None
    """Time that launches waited, per mille of the time and summed over threads."""
    damage: str = ""
    """What the container must have done to its counters: what they say counts for nothing then."""


class Unadjustable(Exception):
    """This strategy cannot do that to a running slice; the text says what it can."""


class Driver(Protocol):
    """One strategy on one node. Not safe for threads: the agent asks serially."""

    name: Strategy
    promise: Isolation

    async def probe(self) -> Offer:
        """Whether the node can offer it now. May be asked at any time, and answers from what is known: a canary runs elsewhere."""

    def prepare(self, slice_: Slice, override: Override | None = None) -> None:
        """Everything that must stand before the container starts. The same slice again changes nothing: containers restart.
        `override`: what it begins with; None: what was wished last.

        Raises OSError or ValueError: then the container must not start, and nothing is left behind.
        """

    def edits(self, slice_: Slice) -> ContainerEdits:
        """What the container gets besides its GPU. Of a slice that was prepared."""

    def adjust(self, key: Key, override: Override) -> None:
        """Changes a running slice at once, within its grant. Raises Unadjustable, KeyError where it is not known."""

    def observe(self, key: Key) -> tuple[Observed, ...]:
        """By GPU. Empty where this strategy sees nothing of its own: NVML's samples then say it all."""

    def release(self, key: Key) -> None:
        """Its container is gone for good. Nothing where it is not known."""
