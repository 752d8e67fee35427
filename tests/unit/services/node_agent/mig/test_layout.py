"""NVML's profiles and instances against what placement plans with."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent.mig.layout import (
    Own,
    Place,
    SeenProfile,
    Standing,
    foreign,
    problem,
    profile_name,
    trial_place,
)
from shared.model.gpu import Gpu
from shared.model.mig import GEOMETRIES, MigInstance, geometry_of

GPU = Gpu(uuid="GPU-a", index=0, model="NVIDIA-A100-SXM4-40GB", memory_mib=40960, mig_enabled=True)


def seen() -> dict[str, SeenProfile]:
    found = geometry_of(GPU.model, GPU.memory_mib)
    assert found is not None
    make = GEOMETRIES[found]
    return {
        profile.name: SeenProfile(
            name=profile.name,
            id=number,
            compute_slices=profile.compute_slices,
            memory_mib=make.memory_mib(profile, GPU.memory_mib),
            starts=profile.starts,
            most=len(profile.starts),
        )
        for number, profile in enumerate(make.profiles)
    }


def test_a_gpu_whose_driver_offers_what_placement_plans_with_has_no_problem() -> None:
    assert problem(GPU, seen()) == ""
    more = seen() | {"1g.5gb+gfx": msgspec.structs.replace(seen()["1g.5gb"], name="1g.5gb+gfx")}
    assert problem(GPU, more) == "", "profiles that Kerf does not plan do no harm"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"starts": (0,)}, "places 3g.20gb at 0, and Kerf at 0, 4"),
        ({"memory_mib": 19_000}, "3g.20gb has 19000 MiB, and Kerf expects 19968"),
        ({"compute_slices": 2}, "3g.20gb has 2 compute slices, not 3"),
        (None, "offers no profile 3g.20gb"),
    ],
)
def test_a_driver_that_differs_from_the_plan_is_named(change: dict[str, object] | None, why: str) -> None:
    profiles = seen()
    if change is None:
        del profiles["3g.20gb"]
    else:
        profiles["3g.20gb"] = msgspec.structs.replace(profiles["3g.20gb"], **change)
    assert why in problem(GPU, profiles)


def test_a_gpu_of_an_unknown_geometry_is_named() -> None:
    assert "not known to Kerf" in problem(msgspec.structs.replace(GPU, model="NVIDIA-X1"), seen())


def test_instances_of_others_are_those_that_are_not_the_agents() -> None:
    standing = (Standing(id=1, profile="2g.10gb", start=2, size=2), Standing(id=2, profile="1g.5gb", start=0, size=1))
    mine = Place(gpu="GPU-a", profile="1g.5gb", start=0)
    own = (Own(place=mine, id=2), Own(place=Place(gpu="GPU-b", profile="2g.10gb", start=2), id=1))
    assert foreign("GPU-a", standing, own) == (MigInstance(profile="2g.10gb", start=2),)
    theirs = (MigInstance(profile="1g.5gb", start=0), MigInstance(profile="2g.10gb", start=2))
    assert foreign("GPU-a", standing, (Own(place=mine, id=3),)) == theirs, "another one in the same place"
    assert foreign("GPU-a", standing, (Own(place=mine),)) == theirs, "whole, and the agent has not got so far"
    half = (Standing(id=2, profile="1g.5gb", start=0, size=1, empty=True),)
    assert foreign("GPU-a", half, (Own(place=mine),)) == ()
    unknown = (*standing, Standing(id=3, profile="", start=4, size=4))
    assert foreign("GPU-a", unknown, own) is None, "nobody can say what it takes"


def test_the_trial_instance_is_the_smallest_in_the_first_free_place() -> None:
    assert trial_place(GPU, ()) == Place(gpu="GPU-a", profile="1g.5gb", start=0)
    half = (Standing(id=1, profile="3g.20gb", start=0, size=4),)
    assert trial_place(GPU, half) == Place(gpu="GPU-a", profile="1g.5gb", start=4)
    assert trial_place(GPU, (Standing(id=1, profile="7g.40gb", start=0, size=8),)) is None


@pytest.mark.parametrize(
    ("name", "profile"),
    [("MIG 1g.5gb+me", "1g.5gb+me"), ("NVIDIA A100 MIG 3g.20gb", "3g.20gb"), ("MIG 1g.5gb+gfx", "MIG 1g.5gb+gfx")],
)
def test_profiles_are_read_from_the_drivers_names(name: str, profile: str) -> None:
    assert profile_name(name) == profile
