"""Reads what a pod declares of its use of a GPU, and the slowdown that it accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shared.model import names
from shared.model.request_error import RequestError
from shared.model.use import UseProfile

_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9])?)%")
_TIME = re.compile(r"([0-9]{1,7})(us|ms|s)")
_FACTOR = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3})?")
_US = {"us": 1, "ms": 1000, "s": 1_000_000}
_FORM = "busy=60%,sm=40%,bandwidth=30%,request=6ms"
_FIELDS = {
    "busy": "busy_milli",
    "sm": "sm_milli",
    "bandwidth": "bandwidth_milli",
    "request": "request_us",
}


def read_use(annotations: Mapping[str, str]) -> UseProfile | None:
    """The profile that a pod declares by `kerf.dev/gpu-use`; None without it. Raises RequestError."""
    text = annotations.get(names.ANNOTATION_GPU_USE)
    if text is None:
        return None
    found: dict[str, int] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        field = _FIELDS.get(key)
        if field is None or field in found:
            raise _wrong(text, f"{key!r} is {'named twice' if field else 'none of ' + ', '.join(_FIELDS)}")
        found[field] = _read(text, key, value)
    return UseProfile(**found)


def read_max_slowdown(annotations: Mapping[str, str]) -> int:
    """The slowdown that a pod accepts, in thousandths, by `kerf.dev/max-slowdown`; 0: any. Raises RequestError."""
    text = annotations.get(names.ANNOTATION_MAX_SLOWDOWN)
    if text is None:
        return 0
    if not _FACTOR.fullmatch(text) or float(text) < 1:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_MAX_SLOWDOWN} is {text!r}; write how many times as long as on a GPU of its "
            "own it may take, such as 1.2, and at least 1",
        )
    return round(1000 * float(text))


def _read(text: str, key: str, value: str) -> int:
    if key == "request":
        time = _TIME.fullmatch(value)
        if time is None:
            raise _wrong(text, f"{key} is {value!r}, and must be a time such as 600us or 6ms")
        return int(time[1]) * _US[time[2]]
    percent = _PERCENT.fullmatch(value)
    if percent is None or float(percent[1]) > 100:
        raise _wrong(text, f"{key} is {value!r}, and must be a percentage from 0% to 100%")
    if key == "busy" and not float(percent[1]):
        raise _wrong(text, "busy is 0, and a pod that never uses its GPU needs none")
    return round(10 * float(percent[1]))


def _wrong(text: str, why: str) -> RequestError:
    return RequestError(
        "bad-annotation", f"annotation {names.ANNOTATION_GPU_USE} is {text!r}: {why}; write it like {_FORM}"
    )
