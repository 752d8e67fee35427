"""What slices cost: periods, prices, capacity; and that the book equals a recomputation from the events."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.metrics.backup import copy_book
from services.metrics.core import Core
from services.metrics.cost import capacity, period, rows
from services.metrics.pricing import Prices
from services.metrics.usage import Began, Capacity, Ended, GpuSize, Labelled, Spent, Stranded, UsageBook
from shared.contracts.envelope import unwrap, wrap
from shared.contracts.events import Event, GrantEnded, NodeInventoried, PlacementDecided, SliceEnforced, SliceReleased
from shared.model.gpu import Gpu, Inventory
from shared.telemetry import Metrics

NOW_MS = 1_795_370_400_000  # 22 November 2026, 18:00 UTC
HOUR_S = 3600
SIZES = {"G": 1000, "H": 3000}
MODELS = {"G": "H200", "H": "L40S"}


# --- a property: the book equals a recomputation ------------------------------------------------------------------

grants = st.sampled_from([f"g{i}" for i in range(5)])
times = st.integers(0, 10_000)
began = st.tuples(
    st.just("began"), grants, times, st.sampled_from(["main", "side"]), st.sampled_from(["G", "H"]),
    st.integers(0, 1200), st.integers(0, 1000),
)  # fmt: skip
stories = st.lists(
    st.one_of(
        began,
        st.tuples(st.just("ended"), grants, times, st.sampled_from([SliceReleased, GrantEnded])),
        st.tuples(st.just("labels"), grants, times, st.sampled_from(["red", "blue"])),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


def namespace(grant: str) -> str:
    return "even" if int(grant[1:]) % 2 == 0 else "odd"


def event_of(step: tuple[Any, ...]) -> tuple[Event, float]:
    kind, grant, at, *rest = step
    pod = {"uid": f"u-{grant}", "namespace": namespace(grant), "name": f"p-{grant}", "node": "n"}
    if kind == "began":
        container, gpu, mib, milli = rest
        made: Event = SliceEnforced(
            container=container, grant_id=grant, strategy="advisory", promise="soft", gpus={gpu: (mib, milli)},
            model=MODELS[gpu], **pod,
        )  # fmt: skip
    elif kind == "ended":
        more = {"boot_id": "b"} if rest[0] is SliceReleased else {}
        made = rest[0](grant_id=grant, **pod, **more)
    else:
        made = PlacementDecided(term=1, sequence=1, labels={"team": rest[0]}, **pod)
    return made, at / 1000


def recomputed(story: list[tuple[Any, ...]], by: str, since: int, until: int) -> dict[str, Fraction]:
    """GPU milliseconds by key, from the list of events alone. What a slice has counts until it has something else."""
    slices: dict[tuple[str, str], list[tuple[Any, ...]]] = {}
    ends: dict[str, tuple[bool, int]] = {}
    labels: dict[str, tuple[int, str]] = {}
    for kind, *step in (step for step in story if step[0] != "restart"):
        if kind == "began":
            slices.setdefault((step[0], step[2]), []).append(tuple(step))
        elif kind == "ended":
            said = (step[2] is not SliceReleased, step[1])  # the node's own word comes first
            ends[step[0]] = min(said, ends.get(step[0], said))
        else:
            labels[step[0]] = max((step[1], step[2]), labels.get(step[0], (-1, "")))
    found: dict[str, Fraction] = {}
    for (grant, _), seen in slices.items():
        start, end = min(one[1] for one in seen), min(ends.get(grant, (False, until))[1], until)
        if start < until and end > since and end > start:
            key = {"namespace": namespace(grant), "model": MODELS[seen[0][3]], "pod": f"{namespace(grant)}/p-{grant}"}
            name = labels.get(grant, (0, ""))[1] if by == "label:team" else key[by]
            changes = sorted({one[1] for one in seen})
            for begin, following in zip(changes, [*changes[1:], end], strict=True):
                parts = {one[3]: (one[4], one[5]) for one in reversed(seen) if one[1] == begin}
                ppm = sum(
                    max(milli * 1000, min(1_000_000, mib * 1_000_000 // SIZES[gpu]))
                    for gpu, (mib, milli) in parts.items()
                )
                lasted = max(0, min(following, end) - max(begin, since))
                found[name] = found.get(name, Fraction(0)) + Fraction(ppm * lasted, 1_000_000)
    return found


@settings(max_examples=150)
@given(
    story=stories, since=times, length=st.integers(1, 10_000), by=st.sampled_from(["namespace", "pod", "label:team"])
)
def test_the_book_equals_a_recomputation_from_the_events(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[Any, ...]], since: int, length: int, by: str
) -> None:
    """In any order, with events that come twice, over restarts and a copy that is put in the book's place."""
    path = tmp_path_factory.mktemp("book") / "usage.db"
    book, core = UsageBook(str(path)), Core(Metrics())
    book.write([GpuSize("n", uuid, mib) for uuid, mib in SIZES.items()], 0)
    for number, step in enumerate([*story, *story[::-3]], 1):
        if step[0] == "restart":
            copy_book(path, path.with_name(f"copy-{number}"))
            book.close()
            path = path.with_name(f"copy-{number}")
            book, core = UsageBook(str(path)), Core(Metrics())
            core.restore(book.live())
            continue
        event, at_s = event_of(step)
        envelope, read = unwrap(wrap(event, source="/test", now_s=at_s)[1])
        book.write(core.event(envelope, read), number)
    got: dict[str, Fraction] = {}
    for spent in book.spent(by, since, since + length):
        got[spent.key] = got.get(spent.key, Fraction(0)) + Fraction(spent.gpu_ppm_ms, 1_000_000)
    assert got == recomputed(story, by, since, since + length)
    book.close()


# --- the book -----------------------------------------------------------------------------------------------------


def book_of(*records: Any) -> UsageBook:
    book = UsageBook("")
    book.write(records, 1)
    return book


def began_at(grant: str, started_ms: int, gpus: tuple[tuple[str, int, int], ...], model: str = "H200") -> Began:
    return Began(grant, "c", f"u-{grant}", "team", f"p-{grant}", "n", model, started_ms, gpus)


def test_a_month_of_a_large_cluster_is_exact() -> None:
    """64 bits do not hold its sum in millionths of a GPU times milliseconds."""
    month_ms = 31 * 86_400_000
    book = book_of(*(began_at(f"g{i}", 0, tuple((f"G{i}-{k}", 0, 1000) for k in range(8))) for i in range(1000)))
    (spent,) = book.spent("namespace", 0, month_ms)
    assert spent == Spent("team", "H200", 8000 * 1_000_000 * month_ms, 0, 1000, 1000)


def test_only_the_part_of_a_slice_within_the_period_counts() -> None:
    book = book_of(GpuSize("n1", "G", 1000), began_at("a", 1000, (("G", 500, 0),)), Ended("a", 9000))
    for since, until, expected_ms in ((0, 10_000, 8000), (2000, 4000, 2000), (8000, 20_000, 1000)):
        assert [s.gpu_ppm_ms for s in book.spent("pod", since, until)] == [500_000 * expected_ms]
    assert book.spent("pod", 9000, 10_000) == []


def test_pods_without_the_label_have_a_row_of_their_own() -> None:
    book = book_of(
        began_at("a", 0, (("G", 0, 1000),)), began_at("b", 0, (("G", 0, 500),)), Labelled("u-a", (("team", "x"),), 5)
    )
    assert {s.key: s.gpu_ppm_ms for s in book.spent("label:team", 0, 10)} == {"x": 10_000_000, "": 5_000_000}


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 0, 1)])
def test_a_pod_that_was_decided_twice_has_the_later_label_in_whatever_order_that_is_heard(
    order: tuple[int, ...],
) -> None:
    said = (Labelled("u-a", (("team", "x"),), 5), Labelled("u-a", (("team", "b"),), 7))
    book = book_of(began_at("a", 0, (("G", 0, 1000),)), *(said[i] for i in order))
    assert [s.key for s in book.spent("label:team", 0, 10)] == ["b"]


@pytest.mark.parametrize("by", ["colour", "label:", "label", ""])
def test_an_unknown_key_is_refused(by: str) -> None:
    with pytest.raises(ValueError, match="cost is told by namespace, pod, model or label:KEY"):
        book_of().spent(by, 0, 1)


def test_capacity_changes_with_inventories_and_ends_with_the_node() -> None:
    book = book_of(Capacity("n", 100, 8, "H200"), Capacity("n", 300, 7, "H200"), Capacity("n", 400, 0, ""),
                   Capacity("m", 0, 4, "L40S"))  # fmt: skip
    assert book.capacity_ms(0, 1000) == {"H200": 8 * 200 + 7 * 100, "L40S": 4000}
    assert book.capacity_ms(350, 500) == {"H200": 7 * 50, "L40S": 4 * 150}


def test_a_node_that_went_while_no_metrics_ran_is_capacity_no_more_and_may_come_back_without_an_event() -> None:
    book = book_of(Capacity("n", 100, 8, "H200"), Capacity("m", 100, 4, "L40S"), Capacity("gone", 100, 2, "T4"),
                   Capacity("gone", 200, 0, ""))  # fmt: skip
    core = Core(Metrics())
    book.write(core.inventory("n", found("n", 8), 1.0), 2)
    book.write(core.all_listed(book.nodes(), 1.0), 3)
    assert book.nodes() == ["n"]
    assert book.capacity_ms(1000, 2000) == {"H200": 8000}
    book.write(core.inventory("m", found("m", 4), 1.5), 4)
    assert book.capacity_ms(1000, 2000) == {"H200": 8000, "X": 4 * 500}
    book.write(core.inventory("m", found("m", 4), 1.7), 5)
    assert book.capacity_ms(1000, 2000) == {"H200": 8000, "X": 4 * 500}, "once"


def test_a_node_that_came_and_went_while_no_metrics_ran_is_no_capacity_once_its_events_are_read() -> None:
    core, book = Core(Metrics()), book_of()
    book.write(core.all_listed(book.nodes(), 1.0), 2)
    for number, at_s in enumerate((2.0, 3.0)):
        event = NodeInventoried(node="x", gpus=8, memory_mib=1, models=("X",), generation=number)
        book.write(core.event(*unwrap(wrap(event, source="/test", now_s=at_s)[1])), 3 + number)
    book.write(core.all_listed(book.nodes(), 4.0), 5)
    assert book.capacity_ms(0, 10_000) == {"X": 8 * 2000}
    assert book.nodes() == []


def test_a_node_with_two_models_is_idle_by_each() -> None:
    core, book = Core(Metrics()), book_of()

    def said(at_s: float, **models: int) -> None:
        event = NodeInventoried(
            node="n", gpus=sum(models.values()), memory_mib=1, models=tuple(models), gpus_by_model=models
        )
        book.write(core.event(*unwrap(wrap(event, source="/test", now_s=at_s)[1])), 1)

    said(0.0, A=6, B=2)
    said(1.0, A=5, B=2)
    assert book.capacity_ms(0, 3000) == {"A": 6 * 1000 + 5 * 2000, "B": 2 * 3000}
    book.forget(1500)
    assert book.capacity_ms(1500, 3000) == {"A": 5 * 1500, "B": 2 * 1500}
    said(3.0, B=2)
    assert book.capacity_ms(3000, 4000) == {"B": 2000}


def found(node: str, gpus: int) -> Inventory:
    made = tuple(Gpu(uuid=f"{node}-{i}", index=i, model="X", memory_mib=1000) for i in range(gpus))
    return Inventory(node=node, boot_id="b", gpus=made)


def test_stranded_capacity_is_the_sum_of_its_samples() -> None:
    book = book_of(Stranded(1_000, 500, 1000), Stranded(2_000, 500, 1000), Stranded(3_700_000, 100, 1000))
    assert book.stranded_ms(0, 3_600_000) == 1_000_000
    assert book.stranded_ms(0, 10_000_000) == 1_100_000


def test_what_is_forgotten_takes_its_labels_and_keeps_the_capacity_of_today() -> None:
    book = book_of(
        began_at("a", 0, (("G", 0, 1000),)), Ended("a", 10), Labelled("u-a", (("team", "x"),), 0),
        began_at("b", 0, (("G", 0, 1000),)), Labelled("u-b", (("team", "y"),), 0),
        Capacity("n", 0, 8, "H200"), Capacity("n", 5, 7, "H200"),
    )  # fmt: skip
    book.forget(1000)
    assert {s.key for s in book.spent("label:team", 0, 2000)} == {"y"}
    assert book.capacity_ms(1000, 2000) == {"H200": 7000}


def test_inventories_and_labels_come_from_events() -> None:
    core = Core(Metrics())

    def records(event: Event) -> list[Any]:
        envelope, read = unwrap(wrap(event, source="/test", now_s=2.0)[1])
        return core.event(envelope, read)

    assert records(NodeInventoried(node="n", gpus=8, memory_mib=1, models=("H200",))) == [
        Capacity("n", 2000, 8, "H200")
    ]
    decided = PlacementDecided(
        uid="u", namespace="a", name="p", node="n", term=1, sequence=1, labels={"team": "x", "app": "y"}
    )
    assert records(decided) == [Labelled("u", (("app", "y"), ("team", "x")), 2000)]


# --- periods and money --------------------------------------------------------------------------------------------


def test_without_dates_it_is_this_month_until_now() -> None:
    assert period("", "", NOW_MS).texts() == ("2026-11-01T00:00:00Z", "2026-11-22T18:00:00Z")
    assert period("2026-10-01", "2026-11-01", NOW_MS).texts() == ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z")
    assert period("2026-11-22T12:00:00+01:00", "2027-01-01", NOW_MS).texts()[0] == "2026-11-22T11:00:00Z"


@pytest.mark.parametrize(
    ("since", "until", "problem"),
    [
        ("yesterday", "", "since is 'yesterday'; write a date such as 2026-11-01"),
        ("", "11/30", "until is '11/30'"),
        ("2026-12-01", "", "is empty; --since must lie before --until and before now"),
    ],
)
def test_a_period_that_is_none_is_refused(since: str, until: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        period(since, until, NOW_MS)


def hours(key: str, model: str, gpu_hours: float) -> Spent:
    return Spent(key, model, round(gpu_hours * HOUR_S * 1_000_000_000), 0, 1, 0)


def test_a_row_costs_what_its_models_cost_and_says_what_has_no_price() -> None:
    prices = Prices(currency="EUR", models={"H200": 3.0, "L40S": 1.0})
    made = rows([hours("a", "H200", 2), hours("a", "L40S", 1), hours("b", "T4", 5), hours("c", "H200", 9)], prices)
    assert [(row.key, row.cost, row.unpriced_gpu_seconds) for row in made] == [
        ("c", 27.0, 0.0), ("a", 7.0, 0.0), ("b", None, 5 * HOUR_S)
    ]  # fmt: skip


def test_what_no_slice_had_is_idle_and_part_of_it_stranded() -> None:
    prices = Prices(currency="EUR", default=2.0)
    found = capacity({"H200": 10 * HOUR_S * 1000}, [hours("a", "H200", 4)], 1000 * HOUR_S * 1000, prices)
    assert (found.allocated_gpu_seconds, found.idle_gpu_seconds) == (4 * HOUR_S, 6 * HOUR_S)
    assert found.stranded_gpu_seconds == HOUR_S
    assert (found.allocated_cost, found.idle_cost) == (8.0, 12.0)


def test_a_copy_is_made_while_the_book_is_written(tmp_path: Path) -> None:
    book = UsageBook(str(tmp_path / "book.db"))
    book.write([began_at("a", 0, (("G", 0, 1000),))], 7)
    copy_book(tmp_path / "book.db", tmp_path / "copy.db")
    book.write([began_at("b", 0, (("G", 0, 1000),))], 8)
    copy = UsageBook(str(tmp_path / "copy.db"))
    assert (copy.sequence(), len(copy.live()), len(book.live())) == (7, 1, 2)
