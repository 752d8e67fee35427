"""What a pod says that agrees to a GPU of another node: how much it talks to the GPU, and how slow it may become."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from shared.model import names
from shared.model.request_error import RequestError
from shared.model.use_reader import read_max_slowdown

_NUMBER = re.compile(r"[0-9]{1,8}(?:\.[0-9]{1,3})?")


class RemoteUse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    calls_per_s: float | None = None
    """Calls to the GPU that wait for an answer, per second on a local GPU; None: not said."""
    mib_per_s: float | None = None
    """MiB copied between host and GPU per second on a local GPU; None: not said."""
    max_slowdown_milli: int = 0
    """How many thousandths as long as with a local GPU it may take; 0: as placement's setting says."""


def read_remote(annotations: Mapping[str, str]) -> RemoteUse | None:
    """None where the pod does not agree to a GPU of another node. Raises RequestError on an invalid annotation, also
    where the pod does not agree."""
    calls = _number(annotations, names.ANNOTATION_GPU_CALLS, "calls to the GPU per second, such as 400")
    copied = _number(annotations, names.ANNOTATION_GPU_TRANSFER, "MiB copied per second, such as 120")
    text = annotations.get(names.ANNOTATION_REMOTE)
    if text is None:
        return None
    if text != "allowed":
        raise RequestError(
            "bad-annotation", f"annotation {names.ANNOTATION_REMOTE} is {text!r}; it must be allowed, or left out"
        )
    return RemoteUse(
        calls_per_s=calls,
        mib_per_s=copied,
        max_slowdown_milli=read_max_slowdown(annotations),
    )


def _number(annotations: Mapping[str, str], key: str, what: str) -> float | None:
    text = annotations.get(key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise RequestError("bad-annotation", f"annotation {key} is {text!r}; write {what}")
    return float(text)
