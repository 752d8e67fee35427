"""MIG: into which instances a GPU can be divided, and at which of its memory slices each may start.

Profiles and placements are those of NVIDIA's MIG User Guide ("Supported MIG Profiles") and of `nvidia-smi mig -lgip`
and `-lgipp`; memory in MiB is what `-lgip` lists. Without a listing it is nine tenths of the profile's part of the GPU,
less than any listing gives, so that no more is promised than there is.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

import msgspec

_PROFILE = re.compile(r"([1-7])g\.([0-9]{1,3})gb((?:\+me)?)")
_PLAIN_COMPUTE = 7

MEDIA = 1 << 8
"""In a mask of what is taken of a GPU: its set of media extensions. The bits below are its memory slices."""


class MigProfile(msgspec.Struct, frozen=True):
    """A kind of instance. `starts`: the memory slices at which it may begin. `media`: it has the GPU's only set of
    media extensions, so there is one of these at a time."""

    name: str
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    listed_mib: int = 0
    media: bool = False


class Geometry(msgspec.Struct, frozen=True):
    """The instances of one GPU product. `words`: any of them is in the product's name; the memory distinguishes
    products of one name."""

    name: str
    words: tuple[str, ...]
    least_mib: int
    most_mib: int
    memory_slices: int
    compute_slices: int
    profiles: tuple[MigProfile, ...]

    def memory_mib(self, profile: MigProfile, total_mib: int) -> int:
        return profile.listed_mib or total_mib * profile.memory_slices * 9 // (self.memory_slices * 10)

    def compute_milli(self, profile: MigProfile) -> int:
        """Of the whole GPU, rounded down."""
        return profile.compute_slices * 1000 // self.compute_slices


def _eighths(
    name: str,
    words: tuple[str, ...],
    memory: tuple[int, int],
    gb: tuple[int, int, int, int],
    listed: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Geometry:
    """GPUs of eight memory slices and seven compute slices, since the A100. `gb`: what the names say for one, two, four
    and eight memory slices."""
    one, two, four, eight = gb
    profiles = (
        MigProfile(f"1g.{one}gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), listed[0]),
        MigProfile(f"1g.{one}gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), listed[0], media=True),
        MigProfile(f"1g.{two}gb", 1, 2, (0, 2, 4, 6), listed[1]),
        MigProfile(f"2g.{two}gb", 2, 2, (0, 2, 4), listed[1]),
        MigProfile(f"3g.{four}gb", 3, 4, (0, 4), listed[2]),
        MigProfile(f"4g.{four}gb", 4, 4, (0,), listed[2]),
        MigProfile(f"7g.{eight}gb", 7, 8, (0,), listed[3]),
    )
    return Geometry(name, words, memory[0], memory[1], 8, 7, profiles)


def _quarters(
    name: str,
    words: tuple[str, ...],
    memory: tuple[int, int],
    gb: tuple[int, int, int],
    listed: tuple[int, int, int] = (0, 0, 0),
) -> Geometry:
    """GPUs of four slices."""
    profiles = (
        MigProfile(f"1g.{gb[0]}gb", 1, 1, (0, 1, 2, 3), listed[0]),
        MigProfile(f"1g.{gb[0]}gb+me", 1, 1, (0, 1, 2, 3), listed[0], media=True),
        MigProfile(f"2g.{gb[1]}gb", 2, 2, (0, 2), listed[1]),
        MigProfile(f"2g.{gb[1]}gb+me", 2, 2, (0, 2), listed[1], media=True),
        MigProfile(f"4g.{gb[2]}gb", 4, 4, (0,), listed[2]),
    )
    return Geometry(name, words, memory[0], memory[1], 4, 4, profiles)


GEOMETRIES: tuple[Geometry, ...] = (
    _quarters("A30", ("A30",), (20_000, 28_000), (6, 12, 24), (5836, 11672, 23344)),
    _eighths("A100-40GB", ("A100",), (36_000, 45_000), (5, 10, 20, 40), (4864, 9856, 19968, 40192)),
    _eighths("A100-80GB", ("A100", "A800"), (72_000, 90_000), (10, 20, 40, 80), (9728, 19968, 40192, 80640)),
    _eighths("H100-80GB", ("H100", "H800"), (72_000, 90_000), (10, 20, 40, 80), (9984, 20090, 40448, 81152)),
    _eighths("H100-94GB", ("H100",), (92_000, 96_900), (12, 24, 47, 94)),
    _eighths("H100-96GB", ("H100", "H20", "GH200"), (96_901, 100_000), (12, 24, 48, 96)),
    _eighths("H200", ("H200",), (135_000, 150_000), (18, 35, 71, 141)),
    _eighths("B200", ("B200",), (170_000, 186_000), (23, 45, 90, 180)),
    _eighths("GB200", ("GB200",), (180_000, 196_000), (24, 47, 95, 189)),
    _eighths("B300", ("B300", "GB300"), (260_000, 300_000), (34, 67, 135, 269)),
    _quarters("RTX-PRO-6000", ("RTX-PRO-6000",), (90_000, 100_000), (24, 48, 96)),
)

PROFILES: tuple[str, ...] = tuple(sorted({profile.name for geometry in GEOMETRIES for profile in geometry.profiles}))
"""All names of profiles. A profile's bit in a mask is its place here."""

PROFILE_BIT: dict[str, int] = {name: 1 << place for place, name in enumerate(PROFILES)}


class MigInstance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance on a GPU: its position, and its UUID for CUDA (empty until the instance is made)."""

    profile: str
    start: int
    """The first of its memory slices."""
    uuid: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.start < 8:
            raise ValueError(f"a MIG instance starts at slice {self.start}; it must be between 0 and 7")


@lru_cache(maxsize=1024)
def geometry_of(model: str, memory_mib: int) -> int | None:
    """The place in GEOMETRIES of how such a GPU is cut, by product name and memory; None where it is not known."""
    for place, geometry in enumerate(GEOMETRIES):
        if geometry.least_mib <= memory_mib <= geometry.most_mib and any(
            re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", model, re.IGNORECASE) for word in geometry.words
        ):
            return place
    return None


@cache
def profile_in(geometry: int, name: str) -> MigProfile | None:
    """The profile of that name, where such GPUs have it."""
    return next((p for p in GEOMETRIES[geometry].profiles if p.name == name), None)


@cache
def mask_at(profile: MigProfile, start: int) -> int:
    """What an instance takes."""
    return ((1 << profile.memory_slices) - 1) << start | (MEDIA if profile.media else 0)


def instance_mask(geometry: int, instance: MigInstance) -> int:
    """What an instance takes; nothing where GPUs of this make have no such profile, or not there."""
    profile = profile_in(geometry, instance.profile)
    return 0 if profile is None or instance.start not in profile.starts else mask_at(profile, instance.start)


def canonical_profile(text: str) -> str | None:
    """The profile in a resource name, where "+me" is written ".me"; None if there is no such profile."""
    name = f"{text.removesuffix('.me')}+me" if text.endswith(".me") else text
    return name if name in PROFILE_BIT else None


def nominal(profile: str) -> tuple[int, int]:
    """(memory_mib, compute_milli) that a profile's name promises, on whatever GPU."""
    found = _PROFILE.fullmatch(profile)
    if found is None:
        raise ValueError(f"{profile!r} is no MIG profile")
    return int(found[2]) * 10**9 // 2**20, int(found[1]) * 1000 // _PLAIN_COMPUTE
