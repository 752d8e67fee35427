"""The rules of containers that share GPUs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.node_agent.strategies.control_block import Rules
from services.node_agent.strategies.layout import MAX_PEERS
from services.node_agent.strategies.rules import Override, Policy, plan
from services.node_agent.strategies.slices import Key, Part, Slice
from shared.model.units import MIB

POLICY = Policy(period_us=50_000, in_flight_us=4000, idle_for_us=200, least_milli=50)


def part(compute: int = 0, uuid: str = "G0", memory: int = 100) -> Part:
    return Part(uuid=uuid, memory_mib=memory, compute_milli=compute)


def make(
    name: str, compute: int = 0, *, priority: int = 0, opportunistic: bool = False, parts: tuple[Part, ...] = ()
) -> Slice:
    return Slice(
        uid=name,
        container="c",
        strategy="interposer",
        parts=parts or (part(compute),),
        priority=priority,
        opportunistic=opportunistic,
    )


def told(*slices: Slice, overrides: dict[Key, Override] | None = None) -> dict[str, Rules]:
    return {key[0]: rules for key, rules in plan(slices, POLICY, overrides or {}).items()}


def peers(rules: Rules) -> list[str]:
    return [key[0] for key in rules.peers]


def test_a_slice_alone_on_a_gpu_has_only_its_limits() -> None:
    rules = told(make("a", 300))["a"]
    assert (
        rules.gpus[0].compute_milli,
        rules.gpus[0].memory_limit_bytes,
        rules.gpus[0].period_ns,
        rules.gpus[0].in_flight_us,
    ) == (
        300,
        100 * MIB,
        0,
        0,
    )
    assert (rules.low, rules.peers) == (False, ())


def test_concurrent_slices_have_memory_limits_and_wait_for_nobody() -> None:
    """The GPU runs their work at the same time; a gate would take away what MPS is for."""
    high = Slice(uid="high", container="c", strategy="mps", parts=(part(300),), priority=9)
    low = Slice(uid="low", container="c", strategy="mps", parts=(part(600),), opportunistic=True)
    for rules in told(high, low).values():
        assert (rules.low, rules.peers, rules.paused) == (False, (), False)
        (gpu,) = rules.gpus
        assert (gpu.memory_limit_bytes, gpu.compute_milli, gpu.period_ns, gpu.in_flight_us) == (100 * MIB, 0, 0, 0)
    shrunk = told(high, low, overrides={low.key: Override(memory_mib={"G0": 40})})["low"]
    assert shrunk.gpus[0].memory_limit_bytes == 40 * MIB


def test_the_windows_of_two_reserved_slices_do_not_overlap() -> None:
    a, b = told(make("a", 300), make("b", 600)).values()
    assert [(r.gpus[0].window_start_ns, r.gpus[0].window_ns, r.gpus[0].period_ns) for r in (a, b)] == [
        (0, 15_000_000, 50_000_000),
        (15_000_000, 30_000_000, 50_000_000),
    ]
    assert not a.low
    assert not b.low


def test_a_slice_that_yields_has_a_minimum_share_if_the_operator_sets_one() -> None:
    """Without one, a slice that always claims to be at work starves it."""
    slices = (make("high", priority=9), make("low"))
    assert [plan(slices, policy, {})[slices[1].key].floor_milli for policy in (Policy(least_milli=50), Policy())] == [
        50,
        0,
    ]


def test_minimum_shares_are_at_most_half_of_the_time_and_never_reserved_time() -> None:
    many = told(make("high", priority=9), *(make(f"low{i}") for i in range(20)))
    assert {rules.floor_milli for name, rules in many.items() if name != "high"} == {500 // 20}
    full = told(make("a", 600), make("b", 380), make("low"), make("lower", opportunistic=True))
    assert (full["low"].floor_milli, full["lower"].floor_milli) == (10, 10)


def test_a_slice_without_reserved_compute_yields_to_reserved_slices_and_has_no_watchers() -> None:
    both = told(make("reserved", 300), make("free"))
    assert (both["free"].low, peers(both["free"]), both["free"].floor_milli, both["free"].idle_for_ns) == (
        True,
        ["reserved"],
        50,
        200_000,
    )
    assert (both["free"].gpus[0].period_ns, both["free"].gpus[0].in_flight_us) == (0, 4000)
    assert (both["reserved"].low, peers(both["reserved"])) == (False, ["free"])


def test_the_higher_priority_has_precedence_and_equal_ones_share_as_the_driver_does() -> None:
    rules = told(
        make("high", priority=10), make("low"), make("low-too"), make("chance", 200, priority=99, opportunistic=True)
    )
    assert {name: (r.low, peers(r)) for name, r in rules.items()} == {
        "high": (False, ["chance", "low", "low-too"]),
        "low": (True, ["high"]),
        "low-too": (True, ["high"]),
        "chance": (True, ["high", "low", "low-too"]),
    }


def test_slices_on_another_gpu_are_no_peers() -> None:
    rules = told(
        make("a", priority=10), make("b", parts=(part(uuid="G1"),)), make("c", parts=(part(), part(uuid="G1")))
    )
    assert (rules["b"].low, peers(rules["b"]), rules["c"].low, peers(rules["c"])) == (False, [], True, ["a"])


def test_an_override_only_lowers_what_the_grant_allows() -> None:
    a = make("a", 300)
    less = told(
        a, overrides={a.key: Override(compute_milli=100, memory_mib={"G0": 40}, paused=True, closed=frozenset({"G0"}))}
    )["a"]
    assert (less.gpus[0].compute_milli, less.gpus[0].memory_limit_bytes, less.paused, less.gpus[0].gate_closed) == (
        100,
        40 * MIB,
        True,
        True,
    )
    more = told(a, overrides={a.key: Override(compute_milli=900, memory_mib={"G0": 400})})["a"]
    assert more == told(a)["a"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(-5, 5),
            st.booleans(),
            st.sets(st.sampled_from(["G0", "G1", "G2"]), min_size=1),
        ),
        max_size=8,
    )
)
def test_windows_of_a_gpu_never_overlap_and_precedence_has_no_cycle(
    drawn: list[tuple[int, int, bool, set[str]]],
) -> None:
    slices, used = [], dict.fromkeys(("G0", "G1", "G2"), 0)
    for number, (compute, priority, opportunistic, uuids) in enumerate(drawn):
        fits = min(compute, *(1000 - used[uuid] for uuid in uuids))
        for uuid in uuids:
            used[uuid] += fits
        parts = tuple(part(fits, uuid) for uuid in sorted(uuids))
        slices.append(make(f"s{number}", priority=priority, opportunistic=opportunistic, parts=parts))
    rules = told(*slices)
    for uuid in used:
        windows = sorted(
            (g.window_start_ns, g.window_ns) for r in rules.values() for g in r.gpus if g.uuid == uuid and g.period_ns
        )
        for (start, length), (after, _) in pairwise(windows):
            assert start + length <= after
        assert not windows or sum(windows[-1]) <= POLICY.period_us * 1000
    settled: set[str] = set()
    while left := [name for name in rules if name not in settled]:
        free = [name for name in left if not rules[name].low or set(peers(rules[name])) <= settled]
        assert free, "the precedence has a cycle"
        settled.update(free)


def test_a_throttled_slice_keeps_a_smaller_window_and_the_others_get_the_rest() -> None:
    """Another slice gets the share that it gave up: both windows must fit into the period."""
    a, b = make("a", 600), make("b", 900)
    said = told(a, b, overrides={a.key: Override(compute_milli=100)})
    assert [(said[name].gpus[0].window_start_ns, said[name].gpus[0].window_ns) for name in "ab"] == [
        (0, 5_000_000),
        (5_000_000, 45_000_000),
    ]
    assert (said["a"].gpus[0].compute_milli, said["a"].low) == (100, False)


def test_a_paused_slice_yields_to_all_if_its_pause_ends_with_the_agents_heartbeat() -> None:
    a, b, c = make("a", 600, priority=9), make("b", 1000), make("c", opportunistic=True)
    said = told(a, b, c, overrides={a.key: Override(paused=True)})
    assert (said["a"].paused, said["a"].low, peers(said["a"]), said["a"].gpus[0].period_ns) == (
        True,
        True,
        ["b", "c"],
        0,
    )
    assert (said["b"].low, said["b"].gpus[0].window_ns, peers(said["c"])) == (False, 0, ["b"])


def test_a_slice_has_its_gpus_for_itself_while_all_others_on_them_are_paused() -> None:
    a, b, c = make("a", 1000), make("b", 1000), make("c", parts=(part(uuid="G0"), part(uuid="G1")))
    paused = Override(paused=True)
    both = told(a, b, c, overrides={b.key: paused, c.key: paused})
    assert (both["a"].peers_held, sorted(peers(both["a"]))) == (True, ["b", "c"])
    assert not both["b"].peers_held, "one of its peers runs"
    assert not told(a, b, c, overrides={b.key: paused})["a"].peers_held, "c runs"
    assert not told(a, overrides={b.key: paused})["a"].peers_held, "it has none"
    assert told(c, make("d", parts=(part(uuid="G2"),)), a, overrides={a.key: paused})["c"].peers_held


def test_a_throttled_time_sliced_slice_yields_to_all_and_its_floor_is_what_it_keeps() -> None:
    a, b = make("a", priority=9), make("b")
    said = told(a, b, overrides={a.key: Override(compute_milli=20)})
    assert (said["a"].low, peers(said["a"]), said["a"].floor_milli, said["b"].low) == (True, ["b"], 20, False)


def test_a_slice_that_is_throttled_to_nothing_yields_to_all() -> None:
    a, b = make("a", 600), make("b")
    said = told(a, b, overrides={a.key: Override(compute_milli=0)})
    assert (said["a"].low, said["a"].floor_milli, said["b"].low) == (True, 0, False)


def bursting(name: str, compute: int, limit: int, *, priority: int = 0) -> Slice:
    mine = Part(uuid="G0", memory_mib=100, compute_milli=compute, memory_limit_mib=400, compute_limit_milli=limit)
    return make(name, parts=(mine,), priority=priority)


def test_gpu_time_that_no_slice_is_guaranteed_makes_windows_longer_up_to_the_limit() -> None:
    found = told(bursting("a", 300, 600), make("b", 300))
    assert [(found[name].gpus[0].compute_milli, found[name].gpus[0].window_ns) for name in "ab"] == [
        (600, 30_000_000),
        (300, 15_000_000),
    ]
    assert told(bursting("a", 300, 600))["a"].gpus[0].compute_milli == 600


def test_a_new_guarantee_ends_the_loan_of_gpu_time_at_once() -> None:
    found = told(bursting("a", 300, 1000), make("b", 300), make("c", 400))
    assert [rules.gpus[0].compute_milli for rules in found.values()] == [300, 300, 400]


def test_time_that_others_leave_idle_is_lent_up_to_the_limit_and_is_no_part_of_a_window() -> None:
    rules = told(bursting("a", 300, 800), make("b", 600))["a"]
    assert (rules.gpus[0].compute_milli, rules.gpus[0].lent_milli, rules.idle_for_ns) == (400, 400, 200_000)
    assert rules.gpus[0].window_ns == 20_000_000
    assert told(make("a", 300), make("b", 600))["a"].gpus[0].lent_milli == 0


def test_no_idle_time_is_lent_to_a_slice_that_does_not_see_all_its_peers() -> None:
    def of(borrower: Slice, count: int) -> Rules:
        return told(borrower, *(make(f"p{number}", 10) for number in range(count)))[borrower.uid]

    seen, cut = of(bursting("a", 300, 1000), MAX_PEERS), of(bursting("a", 300, 1000), MAX_PEERS + 1)
    assert (len(seen.peers), seen.gpus[0].lent_milli > 0, seen.idle_for_ns) == (MAX_PEERS, True, 200_000)
    assert (len(cut.peers), cut.gpus[0].lent_milli, cut.idle_for_ns) == (MAX_PEERS, 0, 0)


def test_a_slice_yields_on_each_of_its_gpus_to_those_that_come_first_if_there_are_too_many() -> None:
    """On each GPU the reserved slice with the smallest share is left out: it has the least to lose."""
    uuids = [f"G{number}" for number in range(8)]
    reserved = [
        make(f"{uuid}-{milli}", parts=(part(milli, uuid),)) for uuid in uuids for milli in (300, 100, 200, 50, 150)
    ]
    low = make("low", opportunistic=True, parts=tuple(part(0, uuid) for uuid in uuids))
    rules = told(low, *reserved)["low"]
    seen = [f"{uuid}-{milli}" for uuid in uuids for milli in (100, 150, 200, 300)]
    assert (rules.low, peers(rules), len(seen)) == (True, seen, MAX_PEERS)


def test_a_slice_yields_to_reserved_ones_and_then_by_rank_if_there_are_too_many() -> None:
    slices = [make(f"free-{priority:02}", priority=priority) for priority in range(1, MAX_PEERS + 1)]
    paused = make("paused", 100, priority=99)
    rules = told(*slices, make("low"), make("reserved", 10), paused, overrides={paused.key: Override(paused=True)})
    assert peers(rules["low"]) == [*(f"free-{priority:02}" for priority in range(2, MAX_PEERS + 1)), "reserved"]
    assert peers(rules["paused"]) == peers(rules["low"]), "those that it may meet when the agent is gone"


def test_gpu_time_is_lent_by_priority_and_else_equally() -> None:
    found = told(bursting("a", 100, 500), bursting("b", 100, 500), bursting("c", 100, 400, priority=1))
    assert [rules.gpus[0].compute_milli for rules in found.values()] == [300, 300, 400]


def test_slices_that_take_turns_keep_their_minimum_share_of_the_time_that_is_lent() -> None:
    found = told(bursting("a", 300, 1000), make("low"))
    assert found["a"].gpus[0].compute_milli == 950
    assert found["low"].floor_milli == 50


def test_a_suspended_slice_borrows_nothing_and_lends_what_it_gave_up() -> None:
    slices = (bursting("a", 300, 1000), bursting("b", 300, 1000))
    found = told(*slices, overrides={("a", "c"): Override(compute_milli=100)})
    assert [rules.gpus[0].compute_milli for rules in found.values()] == [100, 900]


def test_lent_memory_raises_the_limit_and_the_size_that_is_shown_stays() -> None:
    burst = bursting("a", 0, 0)
    for lent_mib, override, expected in ((0, {}, (100, 400)), (150, {}, (250, 400)), (150, {"G0": 40}, (40, 0))):
        rules = plan([burst], POLICY, {burst.key: Override(memory_mib=override)}, {burst.key: {"G0": lent_mib}})
        gpu = rules[burst.key].gpus[0]
        assert (gpu.memory_limit_bytes // MIB, gpu.shown_bytes // MIB) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 1000), st.integers(0, 2), st.booleans()), min_size=1, max_size=6
    )
)
def test_windows_with_loans_never_overlap_and_none_is_shorter_than_its_guarantee(
    drawn: list[tuple[int, int, int, bool]],
) -> None:
    slices, total = [], 0
    for number, (compute, limit, priority, _) in enumerate(drawn):
        if total + compute <= 1000:
            total += compute
            slices.append(bursting(str(number), compute, max(compute, limit) if compute else 0, priority=priority))
    found = told(*slices)
    guaranteed = {s.uid: s.parts[0] for s in slices if s.reserved}
    windows = sorted(
        (found[uid].gpus[0].window_start_ns, found[uid].gpus[0].window_ns)
        for uid in guaranteed
        if found[uid].gpus[0].window_ns
    )
    assert all(start + length <= next_start for (start, length), (next_start, _) in pairwise(windows))
    assert all(start + length <= 50_000_000 for start, length in windows)
    for uid, part in guaranteed.items():
        allowed = found[uid].gpus[0].compute_milli or 1000
        assert part.compute_milli <= allowed <= max(part.compute_limit_milli, part.compute_milli)
