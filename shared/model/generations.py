"""Generations of NVIDIA GPUs by compute capability (CUDA C++ Programming Guide, "Compute Capabilities")."""

from __future__ import annotations

import re

_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9])")

_FROM = ((60, "Pascal"), (70, "Volta"), (75, "Turing"), (80, "Ampere"), (89, "Ada"), (90, "Hopper"), (100, "Blackwell"))
"""The first capability of each, oldest first. Capabilities of 13.0 and more are of none that is known here."""
_UNKNOWN_FROM = 130

GENERATIONS: tuple[str, ...] = tuple(name for _, name in _FROM)


def capability_tenths(text: str) -> int | None:
    """A compute capability in tenths: "8.9" is 89, "12.0" is 120. None where the text is none."""
    found = _CAPABILITY.fullmatch(text)
    return None if found is None else int(found[1]) * 10 + int(found[2])


def generation_of(capability: str) -> str:
    """The generation of a capability such as "9.0" (Hopper). Empty where it is not known."""
    tenths = capability_tenths(capability)
    if tenths is None or tenths >= _UNKNOWN_FROM:
        return ""
    return next((name for first, name in reversed(_FROM) if tenths >= first), "")
