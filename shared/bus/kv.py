"""Key-value buckets by plain publishes to $KV: a TTL survives every swap (fault 6), and empty means absent (fault
7)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from shared.bus.jetstream import JetStream, headers_of
from shared.bus.port import KvEntry, Subscription
from shared.bus.watch import KvWatch, absent

WRITE_TIMEOUT_S = 3.0


class NatsKv:
    """See port.KvBucket."""

    def __init__(self, js: JetStream, bucket: str, *, resync_s: float, keep: Callable[[KvWatch], None]) -> None:
        self._js = js
        self._bucket = bucket
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._resync_s = resync_s
        self._keep = keep

    async def get(self, key: str) -> KvEntry:
        """Read from the bucket's leader, so a swap may follow."""
        message = await self._js.get_message(self._stream, {"last_by_subj": self._prefix + key})
        if message is None:
            return KvEntry(key=key, value=None, revision=0)
        value = None if absent(message.data, headers_of(message.hdrs)) else message.data
        return KvEntry(key=key, value=value, revision=message.seq)

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        return await self._js.store(self._stream, self._prefix + key, value, _ttl(ttl_s), timeout_s=WRITE_TIMEOUT_S)

    async def swap(self, key: str, value: bytes, expected_revision: int, *, ttl_s: float | None = None) -> int:
        headers = _ttl(ttl_s) | {"Nats-Expected-Last-Subject-Sequence": str(expected_revision)}
        return await self._js.store(self._stream, self._prefix + key, value, headers, timeout_s=WRITE_TIMEOUT_S)

    async def delete(self, key: str) -> None:
        await self._js.store(self._stream, self._prefix + key, b"", {"KV-Operation": "DEL"}, timeout_s=WRITE_TIMEOUT_S)

    async def watch(self, handler: Callable[[KvEntry], Awaitable[None]], *, key: str = ">") -> Subscription:
        watch = KvWatch(self._js, self._stream, self._prefix, key, handler, resync_s=self._resync_s)
        await watch.start()
        self._keep(watch)
        return watch


def _ttl(ttl_s: float | None) -> dict[str, str]:
    """The server counts TTLs in whole seconds, at least one."""
    return {} if ttl_s is None else {"Nats-TTL": f"{max(1, math.ceil(ttl_s))}s"}
