"""What waits for a complete state of one kind, and what one serves. Pure but for the loop's clock and futures.

A complete state serves the wishes that came before the way to it began: before a list's first request, or before the
server was asked at which version it is.
"""

from __future__ import annotations

import asyncio
import contextlib

QUIET_S = 15.0
"""A refresh that has heard nothing for so long is started again by the next wish."""
SHORT_WATCHES = 2
"""So many watches may end before they have passed the server's version. Then there is a list, and lists alone for
LISTS_S: the server does not say often enough where its watches are."""
LISTS_S = 600.0


class Refreshes:
    def __init__(self) -> None:
        self.wishes = 0
        self._wished = asyncio.Event()
        self.completing = False
        """Whether what is followed now is on its way to a complete state."""
        self.goal = 0
        """The version of the server that a watch has yet to pass; 0: none. It stays until it is passed."""
        self._goal_wishes = 0
        self._watched = 0
        """How many watches have ended before they had passed it."""
        self._lists_until = float("-inf")
        self._met = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._heard_at = 0.0

    def wish(self) -> asyncio.Future[None]:
        """Done when all that the server has now is known."""
        self.wishes += 1
        self._wished.set()
        met = asyncio.get_running_loop().create_future()
        self._waiting.append((self.wishes, met))
        return met

    async def pause(self, seconds: float) -> None:
        """Ends early by a wish that comes meanwhile."""
        self._wished.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wished.wait()

    @property
    def under_way(self) -> bool:
        """What makes progress is not begun anew for another wish, which comes next: else wishes that come faster than
        they can be met are never met."""
        return self.completing and asyncio.get_running_loop().time() - self._heard_at < QUIET_S

    def begin(self, *, incomplete: bool) -> int:
        """The kind is followed from now on. `incomplete`: there is no state to resume from. Returns the wishes that a
        complete state serves."""
        self.completing = incomplete or self.wishes > self._met
        self.heard()
        if incomplete:
            self.goal = 0
        return self._goal_wishes if self.goal else self.wishes

    def may_watch(self) -> bool:
        """Whether a watch may try to pass the server's version; if not, there has to be a list."""
        now = asyncio.get_running_loop().time()
        if self._watched >= SHORT_WATCHES:
            self._lists_until = now + LISTS_S
        return now >= self._lists_until

    def give_up(self) -> int:
        """There is to be a list. Returns the wishes that it serves."""
        self.goal = self._watched = 0
        return self.wishes

    def aim(self, wishes: int, version: int) -> None:
        """A watch that has passed this version of the server has met so many wishes."""
        self.goal, self._goal_wishes = version, wishes

    def watch_ended(self) -> None:
        """By the server, in order: a connection that broke says nothing of the next one."""
        self._watched += self.goal > 0

    def heard(self) -> None:
        """Something came from the server."""
        self._heard_at = asyncio.get_running_loop().time()

    def complete(self, wishes: int) -> bool:
        """So many wishes are met. True if there are others by now."""
        self.completing, self.goal, self._watched = False, 0, 0
        self._met = max(self._met, wishes)
        for number, met in self._waiting:
            if number <= self._met and not met.done():
                met.set_result(None)
        self._waiting = [entry for entry in self._waiting if entry[0] > self._met]
        return self.wishes > self._met
