"""What denies a turn without a trial denies nothing that a trial finds, and the free memory of hosts is what it is."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from services.preemptor.planning.areas import Areas
from services.preemptor.turns.circles import Circles, TurnJob
from services.preemptor.turns.copies import Copies
from services.preemptor.turns.freed import Freed
from services.preemptor.turns.options import Options, Yielding, as_yielding, suspended_by_gpu
from services.preemptor.turns.watchdogs import Watchdogs
from shared.book.host_memory import lacking
from shared.book.states import GrantState, NodeState
from shared.model import names
from shared.model.suspension import SuspendAction
from shared.queues.queues import Queues
from shared.queues.turns import TurnPolicy
from shared.turns.rules import DUE_BACK, level
from tests.support.harness.preemptor import TOTAL_MIB
from tests.unit.services.preemptor.turns.test_planner import LONG_S, RULES, Site, gang

QUARTER = TOTAL_MIB // 4
PARTS = st.integers(1, 4)
NOTES = st.sampled_from(({}, {names.ANNOTATION_WATCHDOG: "10m"}))


class Tried(Options):
    """Without anything that denies in advance: each set is tried on a copy of the book."""

    parking: Sequence[GrantState] = ()

    def _may_fit(
        self, waiting: TurnJob, nodes: Sequence[NodeState], victims: Sequence[Yielding], action: SuspendAction
    ) -> bool:
        return True

    def _has_host_memory(self, victims: Sequence[Yielding]) -> bool:
        grants = [self._book.grants[member.grant_id] for one in victims for member in one.job.members]
        hosts = {held.node for held in grants}
        there = [held for held in self.parking if held.node in hosts]
        return not lacking(self._book, [*grants, *there], self._kept_free([one.job for one in victims]))


@st.composite
def sites(draw: st.DrawFn) -> Site:
    """Two nodes of two GPUs, with slices that run or are suspended, and pods and gangs that wait."""
    site = Site("a", "b", gpus=2, park_mib=draw(st.sampled_from((1, 2, 4, 20))) * QUARTER)
    for node in ("a", "b"):
        for gpu in (0, 1):
            left = 4
            while left and draw(st.integers(0, 4)):
                part, name = draw(st.integers(1, left)), f"{node}{gpu}-{left}"
                compute = draw(st.sampled_from((250 * part, 100)))
                ran_s, notes = draw(st.sampled_from((10, LONG_S, 9 * LONG_S))), draw(NOTES)
                site.runs(name, node, gpu, ran_s=ran_s, mib=part * QUARTER, compute_milli=compute, annotations=notes)
                left -= part
    for number in range(draw(st.integers(0, 4))):
        part, node = draw(PARTS), draw(st.sampled_from("ab"))
        share = {"mib": part * QUARTER, "compute_milli": 250 * part, "any_gpu": draw(st.booleans())}
        had_s = draw(st.sampled_from((10, 10, 5_000)))
        site.suspended(f"off-{number}", node, draw(st.integers(0, 1)), had_s=had_s, annotations=draw(NOTES), **share)
    for number in range(draw(st.integers(0, 3))):
        part = draw(PARTS)
        notes = gang("g", 2) if number and draw(st.booleans()) else {}
        site.waits(f"new-{number}", mib=part * QUARTER, compute=25 * part, annotations=notes)
    return site


def jobs_of(site: Site) -> tuple[list[TurnJob], list[Yielding]]:
    core, now = site.core, site.now + 3
    policy = TurnPolicy(Queues(core.book), core.gangs)
    circles = Circles(core.book, policy, core.pending)
    behind = suspended_by_gpu(core.book)
    running = [job for job in circles.running({("", 0)}, now).get(("", 0), []) if job.members[0].suspension is None]
    able = [as_yielding(job, level(job.known, RULES), core.book, behind) for job in running]
    return circles.waiting(None, (), now).get(("", 0), []), able


def options(kind: type[Options], site: Site, able: list[Yielding], parking: list[GrantState]) -> Options:
    book = site.core.book
    made = kind(
        book,
        Areas(book, site.core.gangs),
        Copies(book, mib_per_s=5_000, fixed_s=1.5, max_part=0.5),
        able,
        busy=(),
        parking=lambda: parking,
        watchdogs=Watchdogs(TurnPolicy(Queues(book), site.core.gangs), site.now),
        stays=lambda uid, action: False,
    )
    if isinstance(made, Tried):
        made.parking = parking
    return made


@settings(max_examples=1000)
@given(sites(), st.data())
def test_the_turns_are_those_that_are_found_by_trying_everything(site: Site, data: st.DataObject) -> None:
    waiting, able = jobs_of(site)
    grants = [site.core.book.grants[one.job.members[0].grant_id] for one in able]
    parking = data.draw(st.lists(st.sampled_from(grants), max_size=2, unique_by=id)) if grants else []
    quick, tried = (options(kind, site, able, parking) for kind in (Options, Tried))
    for job in waiting:
        at, overdue_at = data.draw(st.sampled_from(((DUE_BACK, None), (-1, site.now), (0, None), (1, None))))
        asked = {"at": at, "turn_s": data.draw(st.sampled_from((20.0, 500.0, float("inf"))))}
        assert quick.cheapest(job, **asked, overdue_at=overdue_at) == tried.cheapest(  # type: ignore[arg-type]
            job,
            **asked,  # type: ignore[arg-type]
            overdue_at=overdue_at,
        )


def test_what_is_not_enough_is_denied_without_a_trial() -> None:
    site = Site("a", gpus=2)
    site.runs("left", "a", 0, mib=2 * QUARTER, compute_milli=600)
    site.runs("right", "a", 1)
    site.waits("half", mib=2 * QUARTER, compute=50)
    site.waits("whole")
    site.suspended("back", "a", 0, mib=3 * QUARTER, compute_milli=500, any_gpu=True)
    waiting, able = jobs_of(site)
    jobs = {job.members[0].pod.metadata.name: job for job in waiting}
    victims = {one.job.members[0].pod.metadata.name: one.job for one in able}
    nodes, freed = [site.core.book.nodes["a"]], Freed(site.core.book, lambda _: True)
    enough = {
        (name, victim, action)
        for name, job in jobs.items()
        for victim, running in victims.items()
        for action in ("pause", "checkpoint")
        if freed.may_fit(job, nodes, [running], action)
    }
    assert enough == {
        ("half", "left", "pause"),
        ("half", "left", "checkpoint"),
        ("half", "right", "checkpoint"),
        ("whole", "left", "checkpoint"),
        ("whole", "right", "checkpoint"),
        ("back", "left", "checkpoint"),
        ("back", "right", "checkpoint"),
    }


def test_a_gang_is_denied_what_its_members_do_not_have_together() -> None:
    """Each of them would fit. A trial of a large gang takes as long as one of each member."""
    site = Site("a", gpus=2)
    for gpu in (0, 1):
        site.runs(f"long-{gpu}", "a", gpu)
    for number in range(2):
        site.waits(f"g-{number}", annotations=gang("g", 2))
    waiting, able = jobs_of(site)
    nodes, freed = [site.core.book.nodes["a"]], Freed(site.core.book, lambda _: True)
    jobs = [one.job for one in able]
    assert [freed.may_fit(waiting[0], nodes, jobs[:count], "checkpoint") for count in (0, 1, 2)] == [False, False, True]
