"""What a run reads: rates and gaps of Bindings, counters of processes and of NATS, series of metrics."""

from __future__ import annotations

import http.client
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")


def fetch(port: int, path: str) -> bytes:
    """The body of a page that a process on loopback serves. Raises OSError, and RuntimeError where it is not 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path} on port {port}: {answer.status} {body[:300]!r}")
    return body


def series(text: bytes) -> dict[str, int]:
    """How many series each metric has in Prometheus' text format; a histogram counts its buckets, sum and count."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if name := _NAME.match(line):
            found[name[0].decode()] = found.get(name[0].decode(), 0) + 1
    return found


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a NATS server since its start (varz): `in` is what clients sent, `out` what they were sent."""

    in_msgs: int
    in_bytes: int
    out_msgs: int
    out_bytes: int

    def since(self, before: Traffic, per: float) -> dict[str, float]:
        """The difference to an earlier reading, divided by a number of pods or seconds."""
        then = msgspec.structs.asdict(before)
        return {name: round((now - then[name]) / per, 1) for name, now in msgspec.structs.asdict(self).items()}


def traffic(port: int) -> Traffic:
    return msgspec.json.decode(fetch(port, "/varz"), type=Traffic)


def streams(port: int) -> dict[str, dict[str, int]]:
    """Messages and bytes of each stream and bucket (jsz)."""
    accounts = msgspec.json.decode(fetch(port, "/jsz?streams=true&accounts=true"))["account_details"]
    return {
        one["name"]: {"messages": one["state"]["messages"], "bytes": one["state"]["bytes"]}
        for account in accounts
        for one in account.get("stream_detail") or ()
    }


def longest_gap_s(times: Sequence[float], since: float, until: float) -> float:
    """The longest time within [since, until] in which nothing was bound; `times` are sorted."""
    marks = [since, *(at for at in times if since <= at <= until), until]
    return max(b - a for a, b in itertools.pairwise(marks))


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """p50 and p99, the lower of two neighbours; 0 where there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {"p50": 0.0, "p99": 0.0}
    return {f"p{part}": round(ordered[(len(ordered) - 1) * part // 100], 1) for part in (50, 99)}


def added(parts: Mapping[str, float]) -> dict[str, float]:
    """Figures of processes, such as watcher-0 and watcher-1, added up by service."""
    total: dict[str, float] = {}
    for name, value in parts.items():
        service = re.sub(r"-\d+$", "", name)
        total[service] = round(total.get(service, 0.0) + value, 3)
    return total
