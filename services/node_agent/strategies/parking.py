"""Slices give up for others and take back, all containers of a pod or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from services.node_agent.messages import Ask
from services.node_agent.strategies.base import Driver, Unadjustable
from services.node_agent.strategies.board import Board
from services.node_agent.strategies.rules import Wish
from services.node_agent.strategies.slices import Key
from shared.contracts.commands import LiveSlice
from shared.model.gpu import Strategy
from shared.model.parked import Parked
from shared.model.units import WHOLE_GPU_MILLI


def wished(parked: Parked | None, before: Wish) -> Wish:
    """What a slice is told that is parked so; the rest is as before."""
    throttled = parked is not None and parked.action == "throttle" and parked.compute_milli > 0
    keeps = parked.compute_milli if parked is not None and throttled else WHOLE_GPU_MILLI
    return msgspec.structs.replace(before, paused=parked is not None and not throttled, compute_milli=keeps)


class Parker:
    """One pod at a time, in the order in which they were asked."""

    def __init__(self, board: Board, drivers: Mapping[Strategy, Driver], live: Callable[[], tuple[LiveSlice, ...]]) -> None:
        self._board, self._drivers, self._live = board, drivers, live
        self._serial = asyncio.Lock()

    async def park(self, ask: Ask) -> str:
        """Empty: the slices have given up what it says, or taken it back. Else why not, and all is as it was before."""
        async with self._serial:
            return self._adjust(ask)

    def _adjust(self, ask: Ask) -> str:
        strategies = {(live.uid, live.container): live.strategy for live in self._live()}
        keys = [key for key in ((ask.uid, container) for container in ask.containers) if key in strategies]
        done: list[tuple[Key, Wish]] = []
        try:
            for key in keys:
                before = self._board.wished(key)
                self._drivers[strategies[key]].adjust(key, wished(ask.parked, before))
                done.append((key, before))
        except KeyError:
            why = "the page of one of its slices could not be taken up; delete the pod to have it placed anew"
        except (Unadjustable, OSError, ValueError) as error:
            why = str(error)
        else:
            return ""
        for key, before in reversed(done):
            self._drivers[strategies[key]].adjust(key, before)
        return why
