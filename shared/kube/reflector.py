"""Keeps up with one kind: a list, then watches that resume where the last one ended, for ever.

The initial state comes as a WatchList (one stream, which spares the server's memory), or as a paged list if the server
has none. A closed watch is resumed from its last version; 410 lists again and reports what is missing. Failures wait
with capped exponential backoff and jitter, or until the next `refresh`. Modelled on client-go's reflector.go.

A `refresh` lists few objects again. Of many, the server says at which version it is, and a watch is read until it has
passed that one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from shared.contracts.facts import Fact
from shared.kube.decoder import Absent, Decoder, Denied, Lines, Page, Undecodable, WatchError
from shared.kube.discovery import DiscoveryError, served
from shared.kube.reflect import Reflection
from shared.kube.refreshes import Refreshes
from shared.kube.resources import Resource
from shared.kube.timing import SHORT_WATCH_S, Timing
from shared.kube.transport import Response, Transport, TransportError

Emit = Callable[[list[Fact]], None]


class Reflector:
    """`run` emits facts in order. Counts: `lists`, `watches`, `unreadable`."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        emit: Emit,
        log: Any,
        *,
        timing: Timing | None = None,
        watch_list: bool = True,
        kind: type[Any] | None = None,
    ) -> None:
        self.resource = resource
        self.reflection = Reflection()
        self.lists = 0
        self.watches = 0
        self.unreadable = 0
        self.problem = "not listed yet"
        """The present problem; empty if there is none."""
        self._transport = transport
        self._version_known = not resource.discovered
        self._decoder = Decoder(resource, kind)
        self._emit = emit
        self._timing = timing or Timing()
        self._watch_list = watch_list
        self._log = log.bind(kind=resource.kind)
        self._whole = asyncio.Event()
        self._refreshes = Refreshes()
        self._following: asyncio.Task[bool] | None = None
        self._received = False

    @property
    def synced(self) -> bool:
        return self._whole.is_set()

    async def wait_synced(self) -> None:
        await self._whole.wait()

    async def refresh(self) -> None:
        """Returns when all that the server had at this call has been emitted."""
        met = self._refreshes.wish()
        if self._following is not None and not self._refreshes.under_way:
            self._following.cancel()  # `run` follows anew, and completes first
        await met

    async def run(self) -> None:
        """Runs until cancelled."""
        failures = 0
        while True:
            started = asyncio.get_running_loop().time()
            self._received = False
            retry_after_s = 0.0
            try:
                if await self._attempt():
                    continue
                lasted = asyncio.get_running_loop().time() - started
                if self._received or lasted > 1.0:
                    failures = 0
                    continue  # as it should be: the server closes every watch some time, and all of them under load
                self.problem = "the server ends watches at once"
            except Absent:
                self._none_there()
                await asyncio.sleep(self._timing.absent_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
                continue
            except WatchError as error:
                if error.code == 410:
                    self.reflection.expired()
                self.problem, retry_after_s = str(error), error.retry_after_s
                self._log.info("watch_ended", error=str(error))
            except (TransportError, Undecodable, DiscoveryError, Denied) as error:
                self.problem = str(error)
                self._log.warning("watch_failed", error=str(error), denied=isinstance(error, Denied))
            failures = 1 if self._received else failures + 1
            delay = min(self._timing.backoff_max_s, self._timing.backoff_s * 2 ** min(failures - 1, 16))
            delay *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
            await self._refreshes.pause(max(retry_after_s, delay))

    async def _attempt(self) -> bool:
        """One watch to its end; True if it ended because of `refresh`."""
        self._following = asyncio.create_task(self._follow(), name=f"watch:{self.resource.plural}")
        try:
            await asyncio.wait({self._following})
            return self._following.cancelled() or self._following.result()
        finally:
            self._following.cancel()
            self._following = None
            if self.reflection.listing:
                self.reflection.abandon_list()

    async def _follow(self) -> bool:
        """One watch, after a list if need be. True if it ended early because of another refresh."""
        listing, newest = not self.reflection.resource_version, 0
        wishes = self._refreshes.begin(incomplete=listing)
        if not self._version_known:
            await self._discover()
        if self._refreshes.completing and not listing:
            newest = await self._newest(wishes)
            if newest and self.reflection.version >= newest and self._complete(wishes):
                return True
            if not newest:
                listing, wishes = True, self._refreshes.give_up()
        if listing and not self._watch_list:
            await self._list()
            listing = False
            if self._complete(wishes):
                return True
        self.watches += 1
        watch_s = SHORT_WATCH_S if self._refreshes.goal else self._timing.next_watch_s(listing=listing)
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(watch_s)}
        if listing:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
            self.lists += 1
            self.reflection.begin_list()
        else:
            query["resourceVersion"] = self.reflection.resource_version
        path = self._path(query)
        async with self._transport.stream(path, read_timeout_s=self._timing.silence_s) as (response, chunks):
            if response.status != 200:
                self._refused(response, listing=listing)
                return False
            if not listing:
                self.problem = ""
            lines = Lines()
            async for chunk in chunks:
                self._take(lines.feed(chunk))
                passed = not self.reflection.listing and self.reflection.version >= newest
                again = self._refreshes.completing and passed and self._complete(wishes)
                if again or (listing and passed and self._timing.list_s > self._timing.watch_s):
                    return again
        self._refreshes.watch_ended()
        return False

    def _complete(self, wishes: int) -> bool:
        """All that there is has been emitted. True if another refresh was asked for meanwhile."""
        self.problem = ""
        self._whole.set()
        return self._refreshes.complete(wishes)

    async def _newest(self, wishes: int) -> int:
        """The server's version after these wishes, for a watch that is to pass it. 0 where there is to be a list: few
        objects are known, watches do not get there, or the server is behind us, as when its storage was restored."""
        if self.reflection.version >= self._refreshes.goal > 0:
            return self._refreshes.goal
        if len(self.reflection) <= self._timing.relist_most or not self._refreshes.may_watch():
            return 0
        newest = self._refreshes.goal or (await self._page({"limit": "1"})).version
        if not newest >= self.reflection.version > 0:
            return 0
        self._refreshes.aim(wishes, newest)
        return newest

    def _take(self, lines: list[bytes]) -> None:
        """The events of one chunk, emitted together; those before an error are emitted before it is raised."""
        self._refreshes.heard()
        facts: list[Fact] = []
        try:
            for line in lines:
                try:
                    kind, seen = self._decoder.event(line)
                except Undecodable as error:
                    self._skip(str(error))
                    continue
                self._received = True
                facts += self.reflection.event(kind, seen)
        finally:
            if facts:
                self._emit(facts)

    def _none_there(self) -> None:
        """A list of nothing; the next attempt lists anew."""
        self.reflection.begin_list()
        facts = self.reflection.end_list("")
        if facts:
            self._emit(facts)
        self._complete(self._refreshes.wishes)

    async def _list(self) -> None:
        """Pages of a consistent list. An expired page token (410) starts it again, after the caller's backoff."""
        self.lists += 1
        self.reflection.begin_list()
        more = ""
        while True:
            query = {"limit": str(self._timing.page_size), **({"continue": more} if more else {})}
            page = await self._page(query)
            for text in page.unreadable:
                self._skip(text)
            facts = self.reflection.listed(page.objects)
            if not (more := page.more):
                facts += self.reflection.end_list(page.resource_version)
            if facts:
                self._emit(facts)
            if not more:
                return

    async def _page(self, query: dict[str, str]) -> Page:
        response = await self._transport.request("GET", self._path(query), timeout_s=self._timing.page_timeout_s)
        if response.status != 200:
            self._refused(response, listing=False)
        self._refreshes.heard()
        return self._decoder.page(response.body)

    async def _discover(self) -> None:
        """Finds the version of the kind that this server has. Raises Absent."""
        found = await served(self._transport, self.resource, timeout_s=self._timing.page_timeout_s)
        if found is None:
            raise Absent
        self.resource, self._version_known = found, True

    def _path(self, query: dict[str, str]) -> str:
        namespace, name = self.resource.only
        fields = f"metadata.name={name}" if name else self.resource.fields
        selected = {"fieldSelector": fields} if fields else {}
        return f"{self.resource.collection(namespace)}?{urlencode(selected | query)}"

    def _refused(self, response: Response, *, listing: bool) -> None:
        """`listing`: a WatchList was requested. Raises, unless the next attempt asks differently."""
        status, text = response.status, response.body[:300].decode(errors="replace")
        if listing and status in (400, 422):
            self._log.info("watch_list_unavailable", status=status)  # a server without that feature
            self._watch_list = False
            return
        if status == 404 and self.resource.discovered and self._version_known:
            self._version_known = False  # the server has another version now, or none
            self.reflection.expired()
            raise WatchError(status, f"{self.resource.prefix} is not served any more")
        if status == 404 and self.resource.optional:
            raise Absent
        if status in (401, 403, 404):
            raise Denied(f"HTTP {status} on {self.resource.collection(self.resource.only[0])}: {text}")
        raise WatchError(status, text, retry_after_s=response.retry_after_s)

    def _skip(self, text: str) -> None:
        self.unreadable += 1
        self._log.error("object_unreadable", error=text)
