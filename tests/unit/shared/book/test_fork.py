"""Changes to a fork never affect its origin, and the fork equals a book with the same changes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement.engine.shape import Row
from services.placement.scheduling.trial import Trial
from shared.book.book import Book
from shared.book.fork import Fork
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.whatif import run

ASKS = ({"gpus": 1}, {"gpus": 2}, {"memory": "40Gi"}, {"compute": 50})


def picture(book: Book) -> dict[str, Any]:
    rooms = {n.name: [(g.uuid, g.free_mib, g.free_milli, g.containers) for g in n.gpus] for n in book.nodes.values()}
    used = {n.name: (n.cpu_used, n.memory_used, sorted(n.pods), sorted(n.grants)) for n in book.nodes.values()}
    pods = {s.uid: (s.charged, s.grant_id) for s in book.pods.values()}
    columns = {
        n.name: (
            book.arrays.gpu_free_mib[n.row].tolist(),
            int(book.arrays.cpu_free[n.row]),
            int(book.arrays.pods_free[n.row]),
        )
        for n in book.nodes.values()
    }
    return {
        "rooms": rooms,
        "used": used,
        "pods": pods,
        "columns": columns,
        "digest": book.digest(),
        "rows": list(book.row_names),
        "cursor": book.arrays.cursor,
    }


def leader_of(asks: list[int]) -> Placement:
    placement = Placement().nodes("a", "b", gpus=2).nodes("c", gpus=4)
    for i, ask in enumerate(asks):
        pod = build.gpu_pod(f"p{i}", **ASKS[ask], requests={"cpu": "1"})
        placement.facts(pod)
        if pod.metadata.uid in placement.binds():
            placement.bind(pod)
    return placement


STEPS = st.lists(
    st.tuples(st.sampled_from(("lift", "remove", "place", "lose", "join")), st.integers(0, 9)), max_size=12
)


@settings(max_examples=80)
@given(st.lists(st.integers(0, 3), max_size=8), STEPS)
def test_the_origin_stays_as_it_was_and_rows_of_the_fork_are_as_from_scratch(asks: list[int], steps: Any) -> None:
    placement = leader_of(asks)
    engine = placement.core.engine
    before = picture(placement.core.book)
    trial = Trial(engine)
    for what, number in steps:
        uids, nodes = sorted(trial.book.pods), sorted(n for n, s in trial.book.nodes.items() if s.object is not None)
        if what == "lift" and uids:
            trial.book.lift(uids[number % len(uids)])
        elif what == "remove" and uids:
            trial.book.remove(uids[number % len(uids)])
        elif what == "place" and (idle := [u for u in uids if not trial.book.pods[u].charged]):
            trial.place(trial.book.pods[idle[number % len(idle)]])
        elif what == "lose" and nodes:
            trial.lose(nodes[number % len(nodes)])
        elif what == "join":
            trial.join(build.node(f"new{number}"), build.inventory(f"new{number}", gpus=2))
    for state in trial.book.pods.values():
        kept = trial.engine.row(state).refresh().tolist()
        assert kept == Row(state, trial.engine.policy_of(state), trial.book).refresh().tolist()
    assert trial.book.overbooked() == []
    assert picture(placement.core.book) == before


def test_later_changes_of_the_origin_are_not_visible_in_the_columns_of_the_fork() -> None:
    placement = Placement().nodes("a", gpus=1)
    fork = Fork(placement.core.book)
    run(placement, build.gpu_pod("p", gpus=1))
    assert fork.arrays.gpu_whole[fork.nodes["a"].row, 0]
    assert "uid-team-p" not in fork.pods


def test_a_lifted_pod_releases_all_it_had_and_can_be_held_again() -> None:
    placement = Placement().nodes("a", gpus=1)
    run(placement, build.gpu_pod("p", gpus=1, requests={"cpu": "2"}))
    empty, full = picture(Placement().nodes("a", gpus=1).core.book), picture(placement.core.book)
    trial = Trial(placement.core.engine)
    state = trial.book.lift("uid-team-p")
    assert picture(trial.book)["rooms"] == empty["rooms"]
    assert trial.place(state) is not None
    assert picture(trial.book)["rooms"] == full["rooms"]
