"""MIG: what fits, where it is placed, and what is booked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.book.mig import FITS, MASKS, MigRoom, best_start, names_of, possible, serving
from shared.model.mig import (
    GEOMETRIES,
    MEDIA,
    PROFILE_BIT,
    PROFILES,
    MigInstance,
    MigProfile,
    canonical_profile,
    geometry_of,
    mask_at,
    nominal,
    profile_in,
)
from shared.model.request import GpuAsk

A30, A100, A100_80, H100 = (
    next(i for i, g in enumerate(GEOMETRIES) if g.name == name)
    for name in ("A30", "A100-40GB", "A100-80GB", "H100-80GB")
)
PLACES = [(place, profile) for place, geometry in enumerate(GEOMETRIES) for profile in geometry.profiles]


def of(name: str, count: int = 1) -> GpuAsk:
    return GpuAsk(count=count, profile=name)


def slices(profile: MigProfile, start: int) -> set[int]:
    """What an instance takes, expressed differently than by a mask."""
    return set(range(start, start + profile.memory_slices)) | ({-1} if profile.media else set())


@given(st.sampled_from(PLACES), st.integers(0, MASKS - 1))
def test_possible_starts_and_the_table_of_fits_equal_enumeration(where: tuple[int, MigProfile], used: int) -> None:
    place, profile = where
    taken = {bit for bit in range(8) if used >> bit & 1} | ({-1} if used & MEDIA else set())
    free = tuple(start for start in profile.starts if not slices(profile, start) & taken)
    assert possible(profile, used) == free
    assert bool(FITS[place, used] & PROFILE_BIT[profile.name]) == bool(free)


@given(st.sampled_from(range(len(GEOMETRIES))), st.data())
def test_what_is_taken_on_demand_never_overlaps_and_all_of_it_fits_the_device(place: int, data: st.DataObject) -> None:
    geometry = GEOMETRIES[place]
    room = MigRoom(place, on_demand=True)
    taken: list[tuple[MigProfile, int]] = []
    for profile in data.draw(st.lists(st.sampled_from(geometry.profiles), max_size=12)):
        could = bool(room.bits & PROFILE_BIT[profile.name])
        got = room.take(of(profile.name), geometry.most_mib)
        assert (got is not None) == could
        if got is not None:
            assert got.start in profile.starts
            taken.append((profile, got.start))
    all_slices = [s for profile, start in taken for s in slices(profile, start)]
    assert len(all_slices) == len(set(all_slices))
    assert sum(profile.compute_slices for profile, _ in taken) <= geometry.compute_slices
    assert sum(geometry.memory_mib(profile, geometry.most_mib) for profile, _ in taken) <= geometry.most_mib


@given(st.sampled_from(PLACES), st.integers(0, MASKS - 1))
def test_the_best_start_leaves_the_most_placements(where: tuple[int, MigProfile], used: int) -> None:
    place, profile = where
    left = {
        s: sum(len(possible(p, used | mask_at(profile, s))) for p in GEOMETRIES[place].profiles)
        for s in possible(profile, used)
    }
    best = best_start(place, profile, used)
    assert (best is None) == (not left)
    assert best is None or left[best] == max(left.values())


def test_a_small_instance_goes_where_it_blocks_no_large_one() -> None:
    small = profile_in(A100, "1g.5gb")
    assert small is not None
    assert best_start(A100, small, 0) == 6


def test_seven_small_instances_fit_and_no_eighth() -> None:
    room = MigRoom(H100, on_demand=True)
    assert sorted(got.start for _ in range(7) if (got := room.take(of("1g.10gb"), 81559))) == [0, 1, 2, 3, 4, 5, 6]
    assert room.take(of("1g.10gb"), 81559) is None


def test_only_one_instance_has_the_media_extensions() -> None:
    room = MigRoom(A30, on_demand=True)
    assert room.take(of("1g.6gb+me"), 24576) is not None
    assert names_of(room.bits) == ("1g.6gb", "2g.12gb")


def test_a_fixed_layout_offers_exactly_its_instances() -> None:
    made = (MigInstance(profile="3g.20gb", start=4, uuid="MIG-b"), MigInstance(profile="1g.5gb", start=0, uuid="MIG-a"))
    room = MigRoom(A100, on_demand=False, instances=made)
    assert names_of(room.bits) == ("1g.5gb", "3g.20gb")
    assert room.take(of("1g.5gb"), 40960) == made[1]
    assert names_of(room.bits) == ("3g.20gb",)
    assert room.take(of("1g.5gb"), 40960) is None
    assert room.used == 0b111111111 ^ 0b11110000


def test_an_impossible_instance_is_not_offered() -> None:
    odd = (MigInstance(profile="3g.20gb", start=3, uuid="MIG-a"), MigInstance(profile="1g.6gb", start=0, uuid="MIG-b"))
    room = MigRoom(A100, on_demand=False, instances=odd)
    assert (room.bits, room.take(of("3g.20gb"), 40960)) == (0, None)


def test_no_instance_is_created_on_slices_of_foreign_instances() -> None:
    room = MigRoom(A100, on_demand=True, instances=(MigInstance(profile="4g.20gb", start=0, uuid="MIG-x"),))
    assert names_of(room.bits) == ("1g.10gb", "1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb")
    assert room.capacity(40960) == (40192 - 19968, 1000 - 571)


@pytest.mark.parametrize("on_demand", [False, True])
def test_a_node_that_names_an_instance_many_times_offers_no_more_than_the_gpu(on_demand: bool) -> None:
    """Of a GPU with more compute than it has, placement's tables have no entry: the leader stopped."""
    room = MigRoom(H100, on_demand, (MigInstance(profile="1g.10gb", start=0),) * 20)
    assert room.capacity(81559) == ((0, 0) if on_demand else (81152, 1000))


@given(st.sampled_from(range(len(GEOMETRIES))), st.integers(1, 200_000), st.integers(0, 1000))
def test_a_part_is_served_by_the_smallest_profile_that_covers_it(
    place: int, memory_mib: int, compute_milli: int
) -> None:
    geometry = GEOMETRIES[place]
    total = geometry.most_mib
    found = serving(place, GpuAsk(count=1, memory_mib=memory_mib, compute_milli=compute_milli), total)
    covering = {
        p
        for p in geometry.profiles
        if not p.media
        and geometry.memory_mib(p, total) >= memory_mib
        and p.compute_slices * 1000 // geometry.compute_slices >= compute_milli
    }
    assert set(found) == covering
    assert not found or found[0].memory_slices == min(p.memory_slices for p in covering)


def test_whole_gpus_and_parts_of_several_are_never_instances() -> None:
    assert serving(H100, GpuAsk(count=1, compute_milli=1000, whole=True), 81559) == ()
    assert serving(H100, GpuAsk(count=2, memory_mib=1024), 81559) == ()


@pytest.mark.parametrize(
    ("model", "memory_mib", "name"),
    [
        ("NVIDIA-A100-SXM4-40GB", 40960, "A100-40GB"),
        ("NVIDIA-A100-SXM4-80GB", 81920, "A100-80GB"),
        ("NVIDIA-H100-80GB-HBM3", 81559, "H100-80GB"),
        ("NVIDIA-H100-NVL", 95830, "H100-94GB"),
        ("NVIDIA-H200", 143771, "H200"),
        ("NVIDIA-B200", 183359, "B200"),
        ("NVIDIA-A30", 24576, "A30"),
    ],
)
def test_a_gpu_is_known_by_its_name_and_memory(model: str, memory_mib: int, name: str) -> None:
    place = geometry_of(model, memory_mib)
    assert place is not None
    assert GEOMETRIES[place].name == name


def test_other_gpus_have_no_geometry() -> None:
    assert geometry_of("NVIDIA-L40S", 46068) is None
    assert geometry_of("Tesla-V100", 32768) is None
    assert geometry_of("NVIDIA-A100-SXM4-40GB", 20000) is None


def test_profiles_fit_in_one_mask_and_are_read_from_resource_names() -> None:
    assert len(PROFILES) < 63
    assert canonical_profile("1g.10gb.me") == "1g.10gb+me"
    assert canonical_profile("1g.11gb") is None
    assert nominal("3g.40gb") == (38146, 428)
