"""What the slices of a period cost: usage and prices in, rows out. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

import msgspec

from services.metrics.pricing import Prices
from services.metrics.usage import Spent
from shared.contracts.metrics_queries import CostCapacity, CostRow
from shared.model.timestamps import seconds_text

_HOUR_S = 3600
_PPM_MS = 1_000_000_000
"""A whole GPU for a second, in millionths of a GPU times milliseconds."""


class Period(msgspec.Struct, frozen=True):
    since_ms: int
    until_ms: int

    def texts(self) -> tuple[str, str]:
        return _text(self.since_ms), _text(self.until_ms)


def period(since: str, until: str, now_ms: int) -> Period:
    """The period that a query names. Raises ValueError where it is none."""
    begin = _instant("since", since) if since else _month_of(now_ms)
    end = min(now_ms, _instant("until", until)) if until else now_ms
    if begin >= end:
        raise ValueError(
            f"the period from {_text(begin)} to {_text(end)} is empty; --since must lie before --until and before now"
        )
    return Period(begin, end)


def rows(spent: Iterable[Spent], prices: Prices) -> list[CostRow]:
    """A row by key, the most expensive first; then the largest."""
    by_key: dict[str, list[Spent]] = {}
    for one in spent:
        by_key.setdefault(one.key, []).append(one)
    made = [_row(key, parts, prices) for key, parts in by_key.items()]
    return sorted(made, key=lambda row: (-(row.cost or 0.0), -row.gpu_seconds, row.key))


def _row(key: str, parts: list[Spent], prices: Prices) -> CostRow:
    amounts = {part.model: part.gpu_ppm_ms for part in parts}
    return CostRow(
        key=key,
        gpu_seconds=sum(amounts.values()) / _PPM_MS,
        memory_mib_seconds=sum(part.memory_mib_ms for part in parts) / 1000,
        slices=sum(part.slices for part in parts),
        live=sum(part.live for part in parts),
        cost=cost_of({model: amount / _PPM_MS for model, amount in amounts.items()}, prices),
        unpriced_gpu_seconds=sum(amount for model, amount in amounts.items() if prices.of(model) is None) / _PPM_MS,
    )


def cost_of(gpu_seconds: Mapping[str, float], prices: Prices) -> float | None:
    """Of GPU-seconds by model; None where no model of them has a price."""
    priced = [
        seconds / _HOUR_S * price for model, seconds in gpu_seconds.items() if (price := prices.of(model)) is not None
    ]
    return round(sum(priced), 6) if priced else None


def capacity(
    there_ms: Mapping[str, int], spent: Iterable[Spent], stranded_milli_ms: int, prices: Prices
) -> CostCapacity:
    """Allocated, idle and stranded. Slices of GPUs that were not known as capacity make nothing idle."""
    allocated: dict[str, int] = {}
    for one in spent:
        allocated[one.model] = allocated.get(one.model, 0) + one.gpu_ppm_ms
    used = {model: amount / _PPM_MS for model, amount in allocated.items()}
    there = {model: amount / 1000 for model, amount in there_ms.items()}
    idle = {model: max(0.0, seconds - used.get(model, 0.0)) for model, seconds in there.items()}
    return CostCapacity(
        gpu_seconds=sum(there.values()),
        allocated_gpu_seconds=sum(used.values()),
        idle_gpu_seconds=sum(idle.values()),
        stranded_gpu_seconds=min(sum(idle.values()), stranded_milli_ms / 1_000_000),
        allocated_cost=cost_of(used, prices),
        idle_cost=cost_of(idle, prices),
    )


def _instant(field: str, text: str) -> int:
    try:
        read = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{field} is {text!r}; write a date such as 2026-11-01 or a time such as 2026-11-01T12:00:00Z"
        ) from None
    if read.tzinfo is None:
        read = read.replace(tzinfo=datetime.UTC)
    return round(read.timestamp() * 1000)


def _month_of(now_ms: int) -> int:
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    return round(now.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)


def _text(at_ms: int) -> str:
    return seconds_text(at_ms // 1000)
