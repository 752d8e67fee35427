"""Kubernetes quantities as integers. Requests are rounded up and offers down, so that no more is promised than
exists."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

MIB = 1024 * 1024
WHOLE_GPU_MILLI = 1000

_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9),
    "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30),
    "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
"""Of bounded exponent: "1e999999999" would otherwise be computed, digit by digit."""
_LONGEST = 40


class QuantityError(ValueError):
    """A string that is no Kubernetes quantity."""


@lru_cache(maxsize=4096)
def quantity(text: str) -> Fraction:
    """The exact value of a Kubernetes quantity such as "1500m", "16Gi" or "1e3".

    Raises QuantityError with what is accepted when the text is none.
    """
    number, suffix = _split(text)
    if len(text) > _LONGEST or not _NUMBER.fullmatch(number) or (suffix and "e" in number.lower()):
        raise QuantityError(f"{text[:_LONGEST]!r} is not a Kubernetes quantity; write a number such as 2, 500m or 16Gi")
    return Fraction(number) * _SUFFIX[suffix]


def _split(text: str) -> tuple[str, str]:
    for length in (2, 1):
        suffix = text[-length:]
        if len(text) > length and suffix in _SUFFIX:
            return text[:-length], suffix
    return text, ""


def milli(text: str | int) -> int:
    """A quantity in thousandths, rounded up: "1500m" is 1500, "2" is 2000."""
    return text * 1000 if isinstance(text, int) else math.ceil(quantity(text) * 1000)


def whole(text: str | int) -> int:
    """A quantity in its own unit, rounded up: "16Gi" is 17179869184."""
    return text if isinstance(text, int) else math.ceil(quantity(text))


def mib(text: str | int) -> int:
    """A quantity of bytes in MiB, rounded up: "16Gi" is 16384."""
    return -(-whole(text) // MIB)


def mib_down(text: str | int) -> int:
    """A quantity of bytes in MiB, rounded down: for what a node offers."""
    return whole(text) // MIB


def format_mib(amount_mib: int, *, up: bool = False) -> str:
    """MiB for people: 16384 is "16 GiB", 1500 is "1500 MiB", 20069 is "19.5 GiB". From 10 GiB on in tenths of a GiB:
    rounded down, as suits what is free, or with `up` up, as suits what is needed or must be given up."""
    if amount_mib and amount_mib % 1024 == 0:
        return f"{amount_mib // 1024} GiB"
    if amount_mib < 10 * 1024:
        return f"{amount_mib} MiB"
    tenths = -(-amount_mib * 10 // 1024) if up else amount_mib * 10 // 1024
    return f"{tenths / 10:g} GiB"


def format_cpu(cpu_milli: int) -> str:
    """CPU as people write it: 400000 is "400", 1500 is "1.5", 100 is "100m"."""
    return f"{cpu_milli}m" if 0 < cpu_milli < 1000 else f"{cpu_milli / 1000:.10g}"
