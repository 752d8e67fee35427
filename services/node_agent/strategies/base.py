"""The interface of a sharing strategy: one way in which containers share a GPU.

A driver has six methods, in the order of a slice's life. The table shows how each strategy uses them. "Block" is the
container's control block; its rules hold rates, limits and pauses.

| | probe | prepare | edits | adjust | observe | release |
|---|---|---|---|---|---|---|
| exclusive, advisory | always available | - | - | raises Unadjustable | NVML | - |
| interposer | library and canary | create block | mount library, block | write rules | read block | remove block |
| time_slice | as interposer | as interposer, with rank | as interposer | as interposer | read block | remove block |
| policed | as interposer, NVML | as time_slice | as interposer | as interposer | read block | remove block |
| mps | daemon and clients | create block | interposer's, pipe, shm, limits | memory | read block | remove block |

The control block does not reach a process that bypasses the interposer. The agent time-slices such processes with the
CUDA driver's process locks (`time_slicing.py`).

A live resize is another `prepare` of a running slice, with other amounts. A call that may block or hang runs in a
worker inside the driver.

`shared/model/strategies.py` describes each strategy, says when placement chooses it, and names its driver. The code
that chooses is placement's `shared.book.shares.strategy_for`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from services.node_agent.cdi.spec import ContainerEdits
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Slice
from shared.model.strategy import Strategy


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node offers a strategy now. `sentence` says why not."""

    ok: bool
    sentence: str = ""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and actual use of a slice on one GPU. None means that the value is unknown."""

    uuid: str
    memory_limit_mib: int
    granted_mib: int = 0
    """What it is guaranteed; its limit may be higher while nothing else is."""
    memory_mib: int | None = None
    peak_mib: int | None = None
    refused: int = 0
    """Number of allocations that failed at the limit since the container started."""
    compute_limit_milli: int = 0
    """0: the pod requests no compute."""
    compute_milli: int | None = None
    """GPU time used since the last call, per mille of the elapsed time."""
    waited_milli: int | None = None
    """Time that launches waited since the last call, per mille of the elapsed time, summed over threads."""
    launches_per_s: int | None = None
    """Launches since the last call; unknown where launches are not limited, and so not counted."""
    launch_us: int | None = None
    """GPU time of a launch, the mean since the last call."""
    damage: str = ""
    """How the container has damaged its files. Counters that it has destroyed count nothing."""


class Unadjustable(Exception):
    """The strategy cannot make this change to a running slice. The text says what it can do."""


class NodeTools(msgspec.Struct, frozen=True, kw_only=True):
    """What the node offers to the drivers of its strategies."""

    registry: SliceRegistry
    """The slices that have a control block."""
    library: Path
    """The interposer's path on the host, beside its `ld.so.preload`."""
    not_installed: Callable[[], str] = lambda: ""
    """Returns why containers cannot get the interposer; empty if they can."""
    offer: Callable[[], Offer]
    """Returns the canary's result."""
    clock: Callable[[], int]
    """Returns nanoseconds of CLOCK_MONOTONIC."""
    mps_folder: Path = Path("/run/kerf/mps")
    """The folders of the GPUs' MPS daemons, on the host."""
    offer_mps: Callable[[], Offer] = lambda: Offer(ok=False, sentence="the setting mps_nodes does not name this node")
    """Returns whether MPS was proven on this node."""


class Driver(Protocol):
    """One strategy on one node. Not thread-safe: the agent calls it serially."""

    def __init__(self, strategy: Strategy, tools: NodeTools) -> None: ...

    async def probe(self) -> Offer:
        """Returns whether the node can offer the strategy now.

        It can be called at any time and returns at once: the canary runs elsewhere.
        """

    def prepare(self, slice_: Slice, override: Override | None = None) -> None:
        """Creates everything that the container needs before it starts.

        The call is idempotent, because containers restart. For a running container it changes the amounts at once.
        `override` is the override with which the slice starts; None keeps the last one. If it raises OSError or
        ValueError, the container must not start, and nothing is left behind.
        """

    def edits(self, slice_: Slice) -> ContainerEdits:
        """Returns what the container gets besides its GPU. The slice must be prepared. If it raises OSError or
        ValueError, the container must not start."""

    def adjust(self, key: Key, override: Override) -> None:
        """Changes a running slice at once, within its grant.

        Raises Unadjustable, or KeyError if the slice is unknown.
        """

    def observe(self, key: Key) -> tuple[Observed, ...]:
        """Returns limits and use, one item per GPU. Empty if the strategy measures nothing beyond NVML's samples."""

    def release(self, key: Key) -> None:
        """Removes a slice whose container has ended for good. Does nothing if the slice is unknown."""
