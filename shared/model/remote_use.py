"""What a pod says that agrees to a GPU of another node: how much it talks to the GPU, and how slow it may become."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from shared.model import names
from shared.model.request_error import RequestError

_NUMBER = re.compile(r"[0-9]{1,8}(?:\.[0-9]{1,3})?")


class RemoteUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    calls_per_s: float | None = None
    """Calls to the GPU that wait for an answer, per second on a local GPU; None: not said."""
    mib_per_s: float | None = None
    """MiB copied between host and GPU per second on a local GPU; None: not said."""
    max_slowdown_milli: int = 0
    """How many thousandths as long as with a local GPU it may take; 0: as placement's setting says."""


def read_remote(annotations: Mapping[str, str]) -> RemoteUse | None:
    """None where the pod does not agree to a GPU of another node. Raises RequestError on an invalid annotation."""
    text = annotations.get(names.ANNOTATION_REMOTE)
    if text is None:
        return None
    if text != "allowed":
        raise RequestError(
            "bad-annotation", f"annotation {names.ANNOTATION_REMOTE} is {text!r}; it must be allowed, or left out"
        )
    slowdown = _number(annotations, names.ANNOTATION_MAX_SLOWDOWN, "how many times as long it may take, such as 1.25")
    if slowdown is not None and slowdown < 1:
        raise RequestError(
            "bad-annotation", f"annotation {names.ANNOTATION_MAX_SLOWDOWN} is {slowdown:g}; it must be at least 1"
        )
    return RemoteUse(
        calls_per_s=_number(annotations, names.ANNOTATION_GPU_CALLS, "calls to the GPU per second, such as 400"),
        mib_per_s=_number(annotations, names.ANNOTATION_GPU_TRANSFER, "MiB copied per second, such as 120"),
        max_slowdown_milli=0 if slowdown is None else round(1000 * slowdown),
    )


def _number(annotations: Mapping[str, str], key: str, what: str) -> float | None:
    text = annotations.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise RequestError("bad-annotation", f"annotation {key} is {text!r}; write {what}")
    return float(text)
