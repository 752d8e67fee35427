"""The leader lease: a key in KV kerf_leader with a TTL that its holder renews.

The lease is a hint only. The fence is the log's term (rule R1): two processes that both believe that they lead cannot
both append. So losing the key stops a leader early, and getting it only says that now is a good time to take a term.

Because it is only a hint, nothing waits for the TTL of a holder that has certainly ended: each candidate answers on
a subject of its own, and the NATS servers know at once that no process listens there any more. A holder whose machine
has vanished, or that is frozen, is succeeded after the TTL.

And because it is only a hint, a leader does not end its work while the servers elect a leader of the key's stream: an
election may take longer than the TTL, and no process can take the key meanwhile. When the key is there again and has
expired, the others leave it to a holder that says that it still leads.

A rolling upgrade ends one replica after the other. So that it costs one takeover, and not one for each replica, a
process that has run for long leaves a free key to a newer one for a moment; and each candidate knows whether the leader
serves yet, which is what a replica's readiness says.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from shared.bus.port import (
    Bus,
    BusError,
    Incoming,
    KvEntry,
    NoResponder,
    NotConnected,
    Refused,
    Subscription,
    Unknown,
    level_of,
)
from shared.contracts import subjects

TTL_S = 5.0
PROBE_S = 0.5
"""How often a candidate asks whether the holder's process is there."""
PROBES = 2
"""So often in a row must it be gone: a process that connects anew listens again within a moment."""
ELECTION_S = 15.0
"""So long a leader goes on while it is connected and the key cannot be written: longer than NATS elects (9 s)."""
EXPIRED_S = 3.0
"""So long an expired key is left to the holder of before, if it says that it leads."""
LONG_S, LEFT_S = 300.0, 1.0
"""A candidate that has run for so long leaves a free key to newer ones for so long."""
LEADING = b"leading"
"""A leader's answer to a probe."""
SERVES = b"serves?"
"""A probe whose answer is LEADING only from a leader that serves. A leader of an earlier version does not tell."""
PREPARING = b"preparing"
"""The answer to that of a leader that does not serve yet."""


class Leadership:
    """Run it with ctx.spawn(leadership.run(), …) and release it in drain.

    `on_elected` and `on_lost` are awaited one after the other, never both at once. While `on_elected` runs, the key is
    not renewed: it should return within the TTL, or start longer work in the background.

    `serves` tells of this process, while it leads, whether what a leader does is done. `on_served` hears of the leader,
    whichever it is, when that changes.
    """

    def __init__(
        self,
        bus: Bus,
        key: str,
        holder: str,
        *,
        on_elected: Callable[[], Awaitable[None]],
        on_lost: Callable[[], Awaitable[None]],
        serves: Callable[[], bool] = lambda: True,
        on_served: Callable[[bool], None] = lambda _: None,
        ttl_s: float = TTL_S,
        long_s: float = LONG_S,
    ) -> None:
        self._bus = bus
        self._kv = bus.kv(subjects.KV_LEADER)
        self._key = key
        self._me = holder.encode()
        self._listening: Subscription | None = None
        self._missed = 0
        """Probes in a row that nothing listened to."""
        self._before = ""
        """The last holder that is known, also of a key that has expired."""
        self._free_since_s = math.inf
        self._on_elected = on_elected
        self._on_lost = on_lost
        self._serves, self._on_served = serves, on_served
        self._ttl_s = ttl_s
        self._old_at = asyncio.get_running_loop().time() + long_s
        self._leader_serves = False
        """By its last answer to a probe."""
        self._served = False
        self._revision = 0
        self._renewed_at = 0.0
        self._changed = asyncio.Event()
        self._watch: Any = None
        self.leading = False
        self.holder = ""
        """The holder of the key, as far as known; empty: none."""
        self._log = structlog.get_logger("leadership").bind(key=key, holder=holder)

    async def run(self) -> None:
        """Runs until cancelled: tries to get the key when it is free, renews it while this process holds it."""
        while True:
            try:
                if self._listening is None:
                    self._listening = await self._bus.subscribe(
                        subjects.candidate(self._key, self._me.decode()), self._probed
                    )
                if self._watch is None:
                    self._watch = await self._kv.watch(self._heard, key=self._key)
                await self._step()
            except BusError as error:
                getattr(self._log, level_of(error))("leadership_unsure", error=str(error))
                await self._lose_if_overdue(error)
                unsure = True
            else:
                unsure = False
                self._note_served()
            self._changed.clear()
            try:
                # The watch wakes us when the key changes or expires; a third of the TTL is the rhythm of renewal.
                often = min(PROBE_S, self._ttl_s / 3)
                async with asyncio.timeout(self._ttl_s / 3 if self.leading and not unsure else often):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _step(self) -> None:
        if self.leading:
            await self._renew()
            return
        entry = await self._kv.get(self._key)
        self._note(entry)
        if entry.value is None:
            free = not self._left_to_newer and not await self._still_leads(self._before)
        else:
            free = entry.value == self._me or await self._gone(self.holder)
        if free:
            await self._try(entry.revision)

    def _note(self, entry: KvEntry) -> None:
        holder = (entry.value or b"").decode()
        if holder != self.holder:
            self.holder, self._leader_serves = holder, False
        self._before = self.holder or self._before
        if self.holder:
            self._free_since_s = math.inf
        else:
            self._free_since_s = min(self._free_since_s, asyncio.get_running_loop().time())

    async def _probed(self, incoming: Incoming) -> None:
        prepares = incoming.payload == SERVES and not self._serves()
        await self._bus.respond(incoming, b"" if not self.leading else PREPARING if prepares else LEADING)

    def _note_served(self) -> None:
        served = self._serves() if self.leading else self._leader_serves
        if served != self._served:
            self._served = served
            self._on_served(served)

    @property
    def _left_to_newer(self) -> bool:
        now = asyncio.get_running_loop().time()
        return now >= self._old_at and now - self._free_since_s < LEFT_S

    async def _still_leads(self, holder: str) -> bool:
        """Whether the holder of an expired key says that it leads, and may yet renew it."""
        if not holder or asyncio.get_running_loop().time() - self._free_since_s > EXPIRED_S:
            return False
        try:
            return await self._bus.request(subjects.candidate(self._key, holder), b"", timeout_s=PROBE_S) == LEADING
        except NotConnected:
            raise
        except BusError:
            return False

    async def _gone(self, holder: str) -> bool:
        """Whether the holder's process has certainly ended, or lost its connection, for some time."""
        try:
            answer = await self._bus.request(subjects.candidate(self._key, holder), SERVES, timeout_s=PROBE_S)
            self._leader_serves = answer == LEADING
        except NotConnected:
            raise
        except NoResponder:
            self._missed += 1
            if self._missed >= PROBES:
                self._log.info("leader_gone", leader=holder)
                return True
            return False
        except Unknown:
            pass  # it is there and slow, or frozen: that is for the TTL
        self._missed = 0
        return False

    async def _try(self, revision: int) -> None:
        try:
            self._revision = await self._kv.swap(self._key, self._me, revision, ttl_s=self._ttl_s)
        except Refused:
            return  # another one was quicker
        self._renewed_at = asyncio.get_running_loop().time()
        self._missed = 0
        self.leading, self.holder = True, self._me.decode()
        self._before, self._free_since_s = self.holder, math.inf
        self._log.info("leadership_won")
        await self._on_elected()

    async def taken_by(self) -> str:
        """Returns which other process has the key by the servers; empty: none. `leading` of a process that was frozen
        is not of now. Raises BusError."""
        value = (await self._kv.get(self._key)).value
        return "" if value in (None, self._me) else value.decode()

    async def _renew(self) -> None:
        started = asyncio.get_running_loop().time()
        try:
            self._revision = await self._kv.swap(self._key, self._me, self._revision, ttl_s=self._ttl_s)
        except Refused:
            # Expired, taken, or an earlier renewal whose answer was lost: only reading back can tell.
            entry = await self._kv.get(self._key)
            if entry.value is None:
                await self._renew_expired(entry.revision, started)
                return
            if entry.value != self._me:
                self._note(entry)
                await self._lose("the key is no longer ours")
                return
            self._revision = entry.revision
        self._renewed_at = started

    async def _renew_expired(self, revision: int, started: float) -> None:
        try:
            self._revision = await self._kv.swap(self._key, self._me, revision, ttl_s=self._ttl_s)
        except Refused:
            entry = await self._kv.get(self._key)
            if entry.value != self._me:
                self._note(entry)
                await self._lose("the key had expired, and another has taken it")
                return
            self._revision = entry.revision
        self._renewed_at = started

    async def _lose_if_overdue(self, error: BusError) -> None:
        """Without a connection another may be elected after the TTL. With one, the servers have no leader for the key:
        so it is for all."""
        within_s = self._ttl_s if isinstance(error, NotConnected) else max(self._ttl_s, ELECTION_S)
        if self.leading and asyncio.get_running_loop().time() - self._renewed_at > within_s:
            await self._lose("it could not be renewed in time")

    async def _lose(self, why: str) -> None:
        self.leading = self._leader_serves = False
        self._log.warning("leadership_lost", why=why)
        await self._on_lost()
        self._note_served()  # without a connection no leader is known to serve

    async def _heard(self, entry: KvEntry) -> None:
        self._note(entry)
        if self.leading == (entry.value == self._me):
            if not self.leading and entry.value is None:
                self._changed.set()
            return
        self._changed.set()

    async def resign(self) -> None:
        """Gives the key up and stays a candidate; for a leader whose append was refused."""
        if self.leading:
            self.leading = False
            await self._delete()

    async def release(self) -> None:
        """Stops watching and gives the key up, so that a successor need not wait for the TTL."""
        if self._watch is not None:
            await self._watch.stop()
            self._watch = None
        if self._listening is not None:
            await self._listening.stop()
            self._listening = None
        if self.leading:
            self.leading = False
            await self._delete()

    async def _delete(self) -> None:
        try:
            entry = await self._kv.get(self._key)
            if entry.value == self._me:
                await self._kv.delete(self._key)
        except BusError as error:
            self._log.info("leadership_left_to_expire", error=str(error))
