"""What an answer to a write means (docs: the protocol's table of failures)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shared.contracts.commands import Outcome
from shared.formats import UNREADABLE
from shared.kube.transport import Response

WRITE_TIMEOUT_S = 10.0
SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
"""The API server evicts no such pod, and says so as a failure of its own (500)."""


class Result(NamedTuple):
    """The outcome of a write. `message` is the server's own sentence if it refused."""

    outcome: Outcome
    message: str = ""


def refused_for_certain(result: Result) -> bool:
    """Whether nothing was applied, and would not be the next time either: also if an admission webhook does not answer,
    which the server reports as its own failure (500)."""
    return result.outcome == "refused" or (result.outcome == "unknown" and "failed calling webhook" in result.message)


class _Cause(msgspec.Struct, frozen=True):
    field: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    details: _Details = _Details()


_STATUS = msgspec.json.Decoder(_Status)


def outcome_of(response: Response) -> Result:
    """The protocol's reading of an HTTP status: 409 conflict, 404 gone, 403 and 422 refused, 429 throttled, 5xx
    unknown. 401 is throttled as well: of us and of now, and not of what was asked; nothing was executed.

    A 422 that names metadata.uid means that this name belongs to another object now: the intended one is gone.
    """
    if response.status < 300:
        return Result("done")
    try:
        status = _STATUS.decode(response.body)
    except UNREADABLE:
        status = _Status(message=response.body[:200].decode(errors="replace"))
    message = status.message or f"HTTP {response.status}"
    if response.status == 422 and any(cause.field == "metadata.uid" for cause in status.details.causes):
        return Result("gone", message)
    if response.status in (400, 403, 405, 413, 415, 422) or SEVERAL_BUDGETS in message:
        return Result("refused", message)
    known: dict[int, Outcome] = {404: "gone", 409: "conflict", 410: "gone", 401: "throttled", 429: "throttled"}
    return Result(known.get(response.status, "unknown"), message)
