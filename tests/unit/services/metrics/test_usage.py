"""The usage book: exact slice-seconds, in whatever order and however often records come."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.metrics.usage import Began, Capacity, Ended, GpuSize, Labelled, Record, UsageBook, UsageError


def began(
    grant: str,
    *,
    at: int = 0,
    namespace: str = "team",
    memory: int = 500,
    compute: int = 0,
    container: str = "c",
    gpus: tuple[str, ...] = ("G",),
    source: str = "",
    sequence: str = "",
) -> Began:
    return Began(
        grant,
        container,
        f"u-{grant}",
        namespace,
        f"p-{grant}",
        "n1",
        "H200",
        at,
        tuple((g, memory, compute) for g in gpus),
        source,
        sequence,
    )


SIZE = GpuSize("n1", "G", 1000)


def make_book(*records: Record, path: str = "") -> UsageBook:
    book = UsageBook(path)
    book.write(records, 1)
    return book


@pytest.mark.parametrize(
    ("slice_", "seconds"),
    [
        (began("a", memory=500), 5.0),
        (began("a", memory=0, compute=250), 2.5),
        (began("a", memory=500, compute=700), 7.0),
        (began("a", memory=1000, compute=1000), 10.0),
        (began("a", memory=2000), 10.0),
        (began("a", memory=500, gpus=("G", "H")), 5.0),
    ],
    ids=["memory", "compute", "the larger", "whole", "never more than whole", "of unknown size"],
)
def test_a_slice_costs_the_larger_share_for_as_long_as_it_was_held(slice_: Began, seconds: float) -> None:
    """Ten seconds of it. A GPU of unknown size counts by compute alone."""
    (row,) = make_book(SIZE, slice_, Ended("a", 10_000)).usage("namespace", 99_000)
    assert (row.key, row.gpu_seconds, row.slices, row.live) == ("team", seconds, 1, 0)


def test_a_gang_size_that_arrives_later_counts_from_the_beginning() -> None:
    book = make_book(began("a"), Ended("a", 10_000))
    assert book.usage("namespace", 0)[0].gpu_seconds == 0
    book.write([SIZE], 2)
    assert book.usage("namespace", 0)[0].gpu_seconds == 5.0


def test_another_node_cannot_change_the_size_of_a_gpu() -> None:
    """A node of 100 MiB GPUs made a slice of 1 % of a GPU a whole one."""
    book = make_book(SIZE, GpuSize("evil", "G", 1), began("a", memory=10), began("a", at=5000), Ended("a", 10_000))
    assert [row.gpu_seconds for row in book.usage("pod", 0)] == [0.05 + 2.5]


def test_a_gpu_over_the_network_has_the_size_that_its_own_node_says() -> None:
    book = make_book(GpuSize("server", "G", 1000), began("a"), Ended("a", 10_000))
    assert [row.gpu_seconds for row in book.usage("pod", 0)] == [5.0]


def test_sizes_of_a_book_of_an_earlier_kerf_count_until_their_nodes_say_theirs(tmp_path: Path) -> None:
    path = str(tmp_path / "usage.db")
    book = make_book(began("a"), Ended("a", 10_000), path=path)
    book._db.execute("DROP TABLE gpu_size")
    book._db.execute("INSERT INTO gpu VALUES ('G', 2000)")
    book.close()
    for _ in range(2):
        book = UsageBook(path)
        assert [row.gpu_seconds for row in book.usage("pod", 0)] == [2.5]
        book.close()
    book = make_book(SIZE, path=path)
    assert [row.gpu_seconds for row in book.usage("pod", 0)] == [5.0]


def test_a_live_slice_counts_until_now() -> None:
    (row,) = make_book(SIZE, began("a", at=1000)).usage("pod", 4000)
    assert (row.key, row.gpu_seconds, row.memory_mib_seconds, row.live) == ("team/p-a", 1.5, 1500.0, 1)


def test_a_slice_counts_with_what_it_has_at_each_time() -> None:
    """Half a GPU for a second, nothing for three while its memory is on the host, a quarter for six."""
    on_host, resized = began("a", at=1000, gpus=()), began("a", at=4000, memory=250)
    book = make_book(SIZE, began("a"), on_host, resized, Ended("a", 10_000))
    (row,) = book.usage("namespace", 99_000)
    assert (row.gpu_seconds, row.memory_mib_seconds, row.slices) == (2.0, 2000.0, 1)
    (spent,) = book.spent("pod", 2000, 5000)
    assert (spent.gpu_ppm_ms, spent.slices) == (250_000 * 1000, 1)


def test_a_slice_that_is_told_again_as_it_was_counts_as_before() -> None:
    """An agent that starts tells of each slice, long after the stream has forgotten the event's id."""
    book = make_book(SIZE, began("a"), began("a", at=4000), Ended("a", 10_000))
    (row,) = book.usage("namespace", 99_000)
    assert (row.gpu_seconds, row.memory_mib_seconds, row.slices) == (5.0, 5000.0, 1)


def test_a_clock_that_is_set_back_changes_no_order() -> None:
    """Suspended, resumed and, a minute after that by its clock set back, suspended for ever: it counted for ever."""
    told = [
        began("a", source="x", sequence="1"),
        began("a", at=5000, gpus=(), source="x", sequence="2"),
        began("a", at=11_000, source="x", sequence="3"),
        began("a", at=10_500, gpus=(), source="x", sequence="4"),
        began("a", at=9000, memory=250, source="after a restart", sequence="1"),
    ]
    book = make_book(SIZE, *told[:4], told[2])
    assert [row.gpu_seconds for row in book.usage("pod", 99_000)] == [pytest.approx(2.5, abs=0.001)]
    assert [one.gpus for one in book.live()] == [()]
    book.write([told[4], *told], 2)
    assert [row.gpu_seconds for row in book.usage("pod", 11_002 + 4000)] == [pytest.approx(3.5, abs=0.001)]
    book.write([Ended("a", 20_000)], 3)
    book.forget(30_000)
    assert book._db.execute("SELECT COUNT(*) FROM told").fetchone() == (0,)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_an_event_that_comes_late_has_its_place_before_the_next_of_its_source(order: tuple[int, ...]) -> None:
    told = [
        began("a", source="x", sequence="1"),
        began("a", at=4000, gpus=(), source="x", sequence="2"),
        began("a", at=6000, source="x", sequence="3"),
        began("a", at=8000, memory=250, source="x", sequence="4"),
    ]
    book = make_book(SIZE, *(told[i] for i in order), *told)
    assert [row.gpu_seconds for row in book.usage("pod", 10_000)] == [2.0 + 1.0 + 0.5]


def test_a_slice_that_was_moved_counts_on_its_new_gpu_alone() -> None:
    book = make_book(SIZE, GpuSize("n1", "H", 1000), began("a"), began("a", at=4000, gpus=("H",)), Ended("a", 10_000))
    assert book.usage("namespace", 99_000)[0].gpu_seconds == 5.0


def test_what_is_live_has_what_it_has_now(tmp_path: Path) -> None:
    records = (began("a"), began("a", at=5, gpus=("H",)), began("b"), began("b", at=7, gpus=()), began("c"))
    book = make_book(SIZE, *records, path=str(tmp_path / "usage.db"))
    assert {one.grant_id: one.gpus for one in book.live()} == {
        "a": (("H", 500, 0),), "b": (), "c": (("G", 500, 0),)
    }  # fmt: skip


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_nodes_own_word_of_an_end_counts_before_any_other(order: tuple[int, ...]) -> None:
    """Placement's clock was behind: a slice cost nothing for as long as it is."""
    ends = [Ended("a", 1000), Ended("a", 10_000, by_node=True), Ended("a", 12_000, by_node=True), Ended("a", 90_000)]
    book = make_book(SIZE, began("a"), *(ends[i] for i in order), Ended("b", 5000), Ended("b", 4000), began("b"))
    assert {row.key: row.gpu_seconds for row in book.usage("pod", 0)} == {"team/p-a": 5.0, "team/p-b": 2.0}
    book.forget(20_000)
    assert book._db.execute("SELECT COUNT(*) FROM released").fetchone() == (0,)


def test_a_slice_from_tomorrow_costs_nothing_yet() -> None:
    """Clocks differ; a start in the future counts no use."""
    assert make_book(SIZE, began("a", at=9000)).usage("namespace", 4000)[0].gpu_seconds == 0


def test_the_time_from_which_usage_is_counted_is_the_first_begin_that_is_left() -> None:
    assert UsageBook("").since_ms() is None
    book = make_book(began("b", at=2000), began("a", at=500), Ended("a", 1000))
    assert book.since_ms() == 500
    book.forget(1500)
    assert book.since_ms() == 2000


def test_usage_is_exported_by_namespace_pod_and_model() -> None:
    book = make_book(
        SIZE,
        began("a"),
        began("b", namespace="other"),
        began("c", memory=1000),
        Ended("a", 1000),
        Ended("b", 1000),
        Ended("c", 1000),
    )
    assert [(r.key, r.gpu_seconds) for r in book.usage("namespace", 0)] == [("team", 1.5), ("other", 0.5)]
    assert [(r.key, r.slices) for r in book.usage("model", 0)] == [("H200", 3)]
    assert len(book.usage("pod", 0)) == 3
    with pytest.raises(ValueError, match="not by 'colour'"):
        book.usage("colour", 0)


records = st.permutations(
    [
        SIZE,
        began("a"),
        began("b", at=500),
        began("b", container="d", at=700),
        began("b", at=3000, memory=100),
        began("b", at=5000, gpus=()),
        Ended("a", 4000),
        Ended("b", 9000),
        Ended("b", 9500),
    ]
)


@given(records, st.lists(st.integers(0, 8), max_size=6))
def test_neither_order_nor_repetition_matters(order: list[Record], again: list[int]) -> None:
    """Events are delivered at least once, and in any order across nodes."""
    book = UsageBook("")
    for record in [*order, *(order[i] for i in again)]:
        book.write([record], 1)
    # a: half a GPU for 4 s. b: half for 2.5 s, a tenth for 2 s, none for the rest; and half for 8.3 s.
    assert [(row.key, row.gpu_seconds) for row in book.usage("pod", 0)] == [("team/p-b", 5.6), ("team/p-a", 2.0)]
    book.close()


def test_what_was_written_outlives_the_process(tmp_path: Path) -> None:
    """With the position in the event stream: what came after it will come again."""
    path = str(tmp_path / "usage.db")
    make_book(SIZE, began("a"), began("b"), Ended("b", 5), path=path).close()
    again = UsageBook(path)
    assert (again.sequence(), [s.grant_id for s in again.live()], again.live()[0].gpus) == (1, ["a"], (("G", 500, 0),))


def test_the_stream_of_the_position_is_kept_with_it(tmp_path: Path) -> None:
    """A book of an earlier version names none."""
    path = str(tmp_path / "usage.db")
    book = UsageBook(path)
    assert (book.sequence(), book.stream()) == (0, "")
    book.write([began("a")], 7, "first")
    book.write([began("b")], 3, "second")
    book.close()
    again = UsageBook(path)
    assert (again.sequence(), again.stream()) == (3, "second")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Half a batch with the whole batch's position in the stream would lose the other half."""
    path = str(tmp_path / "usage.db")
    book = make_book(SIZE, path=path)
    with pytest.raises((sqlite3.Error, TypeError)):
        book.write([began("a"), Ended("a", None)], 9)  # type: ignore[arg-type]
    assert (book.sequence(), book.live()) == (1, [])


@pytest.mark.parametrize(
    "record",
    [Capacity("n", 0, 2**63, "X"), Capacity("n", 0, 2, "X", (("X", 2**63), ("Y", 1))), Ended("\ud800", 1)],
    ids=["number", "number in a part", "text"],
)
def test_a_record_that_cannot_be_written_is_left_out_and_holds_up_no_other(record: Record) -> None:
    """The book read it again after each restart, and wrote nothing any more."""
    book = UsageBook("")
    (why,) = book.write([SIZE, record, began("a")], 9)
    assert type(record).__name__ in why
    assert (book.sequence(), [one.grant_id for one in book.live()]) == (9, ["a"])
    assert book.capacity_ms(0, 1000) == {}


def test_what_ended_long_ago_is_forgotten() -> None:
    changed = began("old", at=500, memory=1)
    book = make_book(SIZE, began("old"), changed, Ended("old", 1000), began("new"), Ended("new", 9000), began("live"))
    assert book.forget(5000) == 1
    assert book._db.execute("SELECT COUNT(*) FROM held").fetchone() == (0,)
    assert sorted(r.key for r in book.usage("pod", 0)) == ["team/p-live", "team/p-new"]


def test_a_failure_to_forget_does_not_keep_out_the_writes_after_it() -> None:
    """The transaction stayed open, and none could begin."""
    book = make_book(SIZE, began("old"), Ended("old", 1000))
    book._db.execute("CREATE TRIGGER broken BEFORE DELETE ON ended BEGIN SELECT RAISE(FAIL, 'broken'); END")
    with pytest.raises(sqlite3.Error, match="broken"):
        book.forget(5000)
    book.write([began("new")], 9)
    assert sorted(row.key for row in book.usage("pod", 2000)) == ["team/p-new", "team/p-old"]


def test_of_a_slice_that_lives_on_what_it_had_before_its_last_old_change_is_forgotten() -> None:
    changes = (began("a", at=1000, gpus=()), began("a", at=2000, memory=250), began("a", at=6000, memory=1000))
    book = make_book(SIZE, began("a"), *changes)
    book.forget(5000)
    (row,) = book.usage("pod", 8000)
    assert (row.gpu_seconds, row.slices, row.live) == (0.25 * 4 + 2.0, 1, 1)
    assert [one.gpus for one in book.live()] == [(("G", 1000, 0),)]
    assert book._db.execute("SELECT COUNT(*) FROM held").fetchone() == (1,)


def test_nodes_that_were_gone_before_are_forgotten_with_the_gpus_that_no_slice_names() -> None:
    """A cluster in which nodes come and go kept a row of each node and of each GPU for ever."""
    sizes = (SIZE, GpuSize("gone", "old", 1), GpuSize("gone", "used", 1), GpuSize("there", "idle", 1))
    capacity = [Capacity(node, 0, 8, "X", (("X", 4), ("Y", 4))) for node in ("gone", "there", "left late")]
    ends = (Capacity("gone", 1000, 0, ""), Capacity("left late", 7000, 0, ""))
    slices = (began("live"), began("ended", gpus=("used",)), Ended("ended", 6000), began("was", gpus=("old",)))
    book = make_book(*sizes, *capacity, *ends, *slices, Ended("was", 1000))
    book._db.execute("INSERT INTO gpu VALUES ('old', 1), ('used', 1)")
    book.forget(5000, ["there"])

    def rows(column: str, table: str) -> list[str]:
        return [row[0] for row in book._db.execute(f"SELECT DISTINCT {column} FROM {table} ORDER BY 1")]

    assert rows("node", "capacity") == rows("node", "capacity_part") == ["left late", "there"]
    assert (rows("uuid", "gpu_size"), rows("uuid", "gpu")) == (["G", "idle", "used"], ["used"])
    assert book.capacity_ms(5000, 8000) == {"X": 4 * 5000, "Y": 4 * 5000}


def test_labels_are_forgotten_with_the_last_slice_of_their_pod_and_of_pods_that_never_ran() -> None:
    labels = [Labelled(uid, (("team", "x"),), 0) for uid in ("u-old", "u-live", "u-never")]
    book = make_book(SIZE, began("old"), Ended("old", 1000), began("live"), *labels)
    book.forget(5000)
    rows = book._db.execute("SELECT DISTINCT uid FROM label").fetchall()
    assert [uid for (uid,) in rows] == ["u-live"]


def test_a_book_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "usage.db"
    damaged.write_bytes(b"this is no database, not at all" * 100)
    with pytest.raises(UsageError, match="cannot be opened"):
        UsageBook(str(damaged))
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version=7")
    with pytest.raises(UsageError, match="version 7"):
        UsageBook(str(newer))
