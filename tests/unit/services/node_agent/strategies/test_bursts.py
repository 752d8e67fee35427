"""How much more than it is guaranteed each slice may use: examples, and properties over drawn GPUs."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.strategies.bursts import Burst, Room, Want, divide, lowered, overdraft, raised, targets

NORMAL, HIGH = (1, 0), (1, 100)
ROOM = Room(total_mib=1000, guaranteed_mib=400, reserve_mib=100)


def burst(limit: int, allowed: int = 0, held: int = 0, needs: int = 0, rank: tuple[int, int] = NORMAL) -> Burst:
    return Burst(rank=rank, limit_mib=limit, allowed_mib=allowed, held_mib=held, needs_mib=needs)


def test_equal_slices_get_equal_parts_and_what_one_does_not_want_goes_to_the_others() -> None:
    wants = {name: Want(rank=NORMAL, amount=amount) for name, amount in (("a", 50), ("b", 500), ("c", 500))}
    assert divide(500, wants) == {"a": 50, "b": 225, "c": 225}


def test_a_higher_rank_is_served_first() -> None:
    assert divide(500, {"low": Want(rank=NORMAL, amount=400), "high": Want(rank=HIGH, amount=300)}) == {
        "low": 200,
        "high": 300,
    }


def test_a_limit_is_lowered_at_once_and_raised_only_by_what_no_other_slice_has() -> None:
    """`old` has all 500 that may be lent; then `new` may have half of it."""
    both = {"old": burst(500, allowed=500, held=500), "new": burst(500)}
    assert lowered(ROOM, both) == {"old": 250, "new": 0}
    both["old"] = burst(500, allowed=250, held=500)
    assert raised(ROOM, both) == {"old": 250, "new": 0}
    both["old"] = burst(500, allowed=250, held=300)
    assert raised(ROOM, both) == {"old": 250, "new": 200}
    both["old"] = burst(500, allowed=250, held=250)
    assert raised(ROOM, both) == {"old": 250, "new": 250}


def test_a_slice_on_the_host_comes_back_only_with_all_that_it_had_and_before_others_get_more() -> None:
    both = {"gone": burst(500, needs=400), "other": burst(500, allowed=500, held=300)}
    assert targets(ROOM, both) == {"gone": 400, "other": 100}
    assert raised(ROOM, {"gone": both["gone"], "other": burst(500, allowed=100, held=300)})["gone"] == 0
    assert raised(ROOM, {"gone": both["gone"], "other": burst(500, allowed=100, held=100)})["gone"] == 400


def test_a_need_beyond_all_that_may_be_lent_keeps_nothing_from_others() -> None:
    assert targets(ROOM, {"gone": burst(900, needs=501), "other": burst(500)}) == {"gone": 0, "other": 500}


def test_a_guarantee_waits_for_what_slices_have_and_not_for_what_they_may_have() -> None:
    room = msgspec.structs.replace(ROOM, guaranteed_mib=700)
    assert overdraft(room, [burst(500, allowed=500, held=150)]) == -50
    assert overdraft(room, [burst(500, held=250)]) == 50


def test_a_gpu_on_which_nothing_is_lent_keeps_no_guarantee_waiting() -> None:
    """Foreign memory and the reserve are no reason: placement has counted the one, and the other is for no slice."""
    assert overdraft(Room(total_mib=1000, guaranteed_mib=1000, foreign_mib=50, reserve_mib=100), []) == 0
    held = [burst(500, allowed=500, held=150)]
    for foreign_mib, missing_mib in ((0, -50), (100, -50), (150, 0), (160, 10)):
        room = Room(total_mib=1000, guaranteed_mib=700, foreign_mib=foreign_mib, reserve_mib=100)
        assert overdraft(room, held) == missing_mib, "foreign memory has the reserve first"


rooms = st.builds(
    Room,
    total_mib=st.just(1000),
    guaranteed_mib=st.integers(0, 1000),
    foreign_mib=st.integers(0, 200),
    reserve_mib=st.integers(0, 200),
    unseen_mib=st.integers(0, 100),
)
slices = st.dictionaries(
    st.integers(0, 9),
    st.builds(
        Burst,
        rank=st.sampled_from([NORMAL, HIGH, (0, 0)]),
        limit_mib=st.integers(0, 1200),
        allowed_mib=st.integers(0, 400),
        held_mib=st.integers(0, 400),
        needs_mib=st.sampled_from([0, 0, 0, 50, 300]),
    ),
    max_size=8,
)


def placed(drawn: dict[int, Burst]) -> dict[int, Burst]:
    """Those on the host have nothing on the GPU."""
    return {
        key: msgspec.structs.replace(one, allowed_mib=0, held_mib=0) if one.needs_mib else one
        for key, one in drawn.items()
    }


@given(rooms, slices)
def test_together_slices_never_have_more_than_may_be_lent(room: Room, drawn: dict[int, Burst]) -> None:
    """Whatever they have and were allowed before: a step raises nothing that does not fit, and it lowers at once."""
    before = placed(drawn)
    lower = lowered(room, before)
    assert all(lower[key] <= before[key].allowed_mib for key in before)
    assert sum(lower.values()) <= room.spare_mib
    now = {key: msgspec.structs.replace(one, allowed_mib=lower[key]) for key, one in before.items()}
    after = raised(room, now)
    reach = sum(max(after[key], one.held_mib) for key, one in now.items())
    had = sum(one.reach_mib for one in now.values())
    assert reach <= max(had, room.spare_mib - room.unseen_mib)
    for key, one in now.items():
        assert after[key] <= (one.needs_mib or one.limit_mib)
        assert not one.needs_mib or after[key] in (0, one.needs_mib)


@given(rooms, slices, st.integers(0, 1000))
def test_a_guarantee_has_its_memory_when_slices_have_come_down_to_their_limits(
    room: Room, drawn: dict[int, Burst], more_mib: int
) -> None:
    """The bound: after the limits were lowered for a new guarantee, keeping to them is all that slices have to do."""
    room = msgspec.structs.replace(room, guaranteed_mib=room.guaranteed_mib + more_mib, unseen_mib=0)
    before = placed(drawn)
    limits = lowered(room, before)
    kept = [msgspec.structs.replace(one, held_mib=min(one.held_mib, limits[key])) for key, one in before.items()]
    assert overdraft(room, kept) <= 0


@given(rooms, slices)
def test_repeated_steps_reach_what_each_slice_may_use(room: Room, drawn: dict[int, Burst]) -> None:
    """Where all keep to their limits and none is on the host, nothing that may be lent stays unused."""
    room = msgspec.structs.replace(room, unseen_mib=0)
    now = {key: msgspec.structs.replace(one, needs_mib=0) for key, one in drawn.items()}
    aims = targets(room, now)
    for _ in range(2):
        lower = lowered(room, now)
        now = {
            key: msgspec.structs.replace(one, allowed_mib=lower[key], held_mib=min(one.held_mib, lower[key]))
            for key, one in now.items()
        }
        now = {key: msgspec.structs.replace(now[key], allowed_mib=mib) for key, mib in raised(room, now).items()}
    assert {key: one.allowed_mib for key, one in now.items()} == aims
    assert sum(aims.values()) == min(room.spare_mib, sum(one.limit_mib for one in now.values()))
