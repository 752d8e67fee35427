"""A thousand worlds with faults, and proof that a world without a rule would show it."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pytest

from services.node_agent.core import Agent
from services.node_agent.grant_store import GrantStore
from services.node_agent.messages import Command as AgentCommand
from services.node_agent.state import KnownGrant
from services.node_agent.syncs import Syncs
from services.placement.core import Core
from services.placement.explain.pending_reasons import PendingReasons
from services.placement.leader.log_protocol import LogProtocol, ReadNewestTerm, Steps
from services.placement.messages import Command, GrantAcknowledged, ReleaseSeen
from services.placement.protocol import resizing
from services.placement.protocol.gpu_times import GpuTimes
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import Recovery
from services.placement.protocol.releases import Releases
from services.placement.protocol.resizing import Resizer
from services.placement.protocol.suspension import Suspender
from services.placement.protocol.write_batcher import WriteBatcher
from services.placement.scheduling.backfill.reservations import Backfill
from services.preemptor.turns.host_room import HostRoom
from services.preemptor.turns.options import Options
from shared.book import host_memory, subgroups
from shared.book.gangs import GangState
from shared.book.ledger import Ledger
from shared.book.states import GrantState, PodState
from shared.contracts.log import DecisionBatch, LogMark
from shared.contracts.node_commands import LiveSlice, NodeRelease, NodeSyncAnswer
from shared.model.grant import Grant
from shared.model.subgroup import Subgroup
from shared.queues.turns import TurnPolicy
from shared.turns.gpu_time import GpuTime, encode_gpu_time
from tests.sim.nats import Violation
from tests.sim.simulation import Simulation
from tests.sim.turns import Turns
from tests.sim.weakened import free_at_once
from tests.sim.worlds import violated

SEEDS, PARTS = 1000, 8


class Ran(NamedTuple):
    """What is asked of a world afterwards."""

    violation: str
    bound: int
    reserved: int
    remote: bool
    remote_bound: int
    pure: bool
    happened: Counter[tuple[str, str | None]]


@functools.cache
def _ran(seed: int) -> Ran:
    """Several tests ask the same worlds. They are in one group, so one of pytest's workers runs them."""
    simulation = Simulation(seed)
    violation = ""
    try:
        simulation.run()
    except Violation as found:
        violation = f"seed {seed}: {found}\n" + "\n".join(simulation.clock.story[-60:])
    return Ran(
        violation,
        simulation.bound,
        simulation.reserved,
        simulation.remote,
        len(simulation.remote_bound),
        simulation.turns.pure,
        simulation.turns.happened,
    )


ASKED = pytest.mark.xdist_group("worlds-that-are-asked")
_PARTS = [pytest.param(part, marks=ASKED) if part < 2 else pytest.param(part) for part in range(PARTS)]


@pytest.mark.parametrize("part", _PARTS)
def test_the_properties_hold_under_faults_drawn_from_a_seed(part: int) -> None:
    """P1 to P4, T1 to T4, C1 to C4 after every step, the others when all is calm.

    Replay: python -m tests.sim --seed N --story
    """
    size = SEEDS // PARTS
    bound = 0
    for seed in range(part * size, (part + 1) * size):
        ran = _ran(seed)
        if ran.violation:
            pytest.fail(ran.violation)
        bound += ran.bound
    assert bound > size, "hardly a pod was bound: this world proves nothing"


@ASKED
def test_capacity_is_reserved_in_enough_worlds_to_show_something() -> None:
    assert sum(_ran(seed).reserved for seed in range(60)) >= 5


def test_a_reservation_that_outlives_what_it_is_for_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = Backfill.tick

    def keeps(self: Backfill, *args: Any) -> None:
        if not self.kept:
            tick(self, *args)

    monkeypatch.setattr(Backfill, "tick", keeps)
    monkeypatch.setattr(Backfill, "_drop_placed", lambda self: None)
    assert _violated(range(100)).startswith("P5")


def test_reserved_places_that_stay_booked_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backfill, "show_all", lambda self: None)
    assert "is booked between two inputs" in _violated(range(100))


def test_a_seed_replays_exactly() -> None:
    first, second = Simulation(3), Simulation(3)
    first.run()
    second.run()
    assert first.clock.story == second.clock.story
    assert first.clock.steps == second.clock.steps


def _violated(seeds: range, where: Callable[[Simulation], bool] = lambda _: True) -> str:
    """The first violation. Only worlds that can show it are run."""
    return violated(filter(where, map(Simulation, seeds)))


def _remote(simulation: Simulation) -> bool:
    return simulation.remote


def _resizing(simulation: Simulation) -> bool:
    """Without turns: there a mistake may first show as a resize that never ends."""
    return simulation.resizing and not simulation.turns.drawn


def _without_mig(simulation: Simulation) -> bool:
    """There a GPU that is given twice may first show as instances that overlap."""
    return not simulation.mig.drawn


def test_freeing_on_deletion_alone_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6 left out of the real book: capacity is free when the pod is deleted."""
    free_at_once(monkeypatch)
    assert _violated(range(300)).startswith(("P1", "P6", "P4"))


def test_a_hold_that_ends_by_time_out_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4 left out of the real core."""
    tick = Core._tick

    def forgets(self: Core, now: float) -> None:
        for uid, hold in list(self.holds.items()):
            if now - hold.decided_at > 1.0 and hold.sequence:
                del self.holds[uid]
                self.book.unhold(uid)
                self._pending(self.book.pods[uid], now)
        tick(self, now)

    monkeypatch.setattr(Core, "_tick", forgets)
    assert _violated(range(300)).startswith("two decisions")


def test_using_a_node_before_it_has_synced_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6's sync left out of the real core."""
    inventory = Nodes.inventory

    def trusts(self: Nodes, seen: object, now: float) -> object:
        out = inventory(self, seen, now)  # type: ignore[arg-type]
        self.book.set_agent_trouble(seen.node, "")  # type: ignore[attr-defined]
        return out

    monkeypatch.setattr(Nodes, "inventory", trusts)
    monkeypatch.setattr(Nodes, "_sync", lambda self, node, now: [])
    assert _violated(range(300)).startswith(("P1", "P4", "P5", "P6", "T5"))


def test_a_renewal_over_a_successor_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that renews on top of whatever term is the newest."""

    def renews(self: LogProtocol) -> Steps[int]:
        newest = yield ReadNewestTerm()
        self.term = self._last = yield from self._append_term(
            "renewed", fence=newest.sequence if newest else 0, after=None
        )
        return self.term

    monkeypatch.setattr(LogProtocol, "renew_term", renews)
    assert "renews over" in _violated(range(1000))


def test_trusting_a_log_without_its_mark_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's tail is lost, and its sequences come a second time."""

    def only_what_watchers_met(self: Recovery, term: int, seen: int) -> str:
        self.mark = self.mark or LogMark(term=0, sequence=1)
        return "seen" if seen >= term else ""

    monkeypatch.setattr(Recovery, "lost", only_what_watchers_met)
    assert _violated(range(10, 300)).startswith(("P1", "P2"))


def test_taking_decisions_over_without_touching_after_a_loss_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "must_move", lambda self, pods, now: None)
    assert _violated(range(300)).startswith(("P1", "P5", "two decisions"))


def test_handing_over_a_hold_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync names a grant whose pod is not bound yet; the pod is edited, and bound with another."""
    monkeypatch.setattr(KnownGrant, "unbound", property(lambda self: False))
    assert _violated(range(1000)).startswith(("P4", "C2"))


def test_a_late_sync_that_voids_a_fresh_grant_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync buries all that it does not name, whenever the agent learned of it."""
    syncs = Syncs.apply
    monkeypatch.setattr(Syncs, "apply", lambda self, sync: syncs(self, msgspec.structs.replace(sync, number=10**9)))
    assert "never hand over" in _violated(range(1000))


def test_believing_a_node_about_the_grants_of_others_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Nodes.synced

    def believes(self: Nodes, answer: NodeSyncAnswer, now: float) -> list[str] | None:
        return None if synced(self, answer, now) is None else [g for g in answer.tombstones if g in self.book.grants]

    monkeypatch.setattr(Nodes, "synced", believes)
    assert _violated(range(300), _without_mig).startswith(("P1", "P5"))


def test_believing_a_node_that_reports_the_grants_of_others_dead_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered = Core._grant_answered

    def believes(self: Core, event: GrantAcknowledged, now: float) -> None:
        held = self.book.grants.get(event.grant_id)
        answered(self, event if held is None else msgspec.structs.replace(event, node=held.node), now)

    monkeypatch.setattr(Core, "_grant_answered", believes)
    assert _violated(range(300)).startswith("P1")


def test_waiting_for_an_untouchable_pod_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "refused", lambda self, uid: False)
    monkeypatch.setattr(Recovery, "overdue", lambda self, now, after_s: [])
    assert "no leader" in _violated(range(300))


def test_forgetting_which_pods_could_not_be_touched_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "is_excluded", lambda self, state, now: False)
    assert _violated(range(300)).startswith(("P1", "P6"))


def test_leaving_earlier_terms_open_at_the_nodes_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten Binding succeeds for a pod that could not be touched, when its GPU belongs to another pod."""
    monkeypatch.setattr(Syncs, "is_void", lambda self, grant: grant.grant_id in self._released)
    assert _violated(range(100)).startswith("P1")


def test_pending_reasons_do_not_affect_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending reasons may fail to be written, and nothing else changes."""
    monkeypatch.setattr(PendingReasons, "explain_one", lambda *args: [])
    assert _violated(range(20)) == ""


def test_a_gang_that_is_decided_member_by_member_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The all-or-none rule left out of the real core: a gang accepts one member at a time."""

    def one_each(self: GangState, waiting: Mapping[str, int] | None = None) -> list[dict[str, int]]:
        return [{leaf: 1} for leaf, count in (waiting or self.counted("waiting")).items() if count]

    monkeypatch.setattr(GangState, "steps", one_each)
    assert "members that it needs" in _violated(range(20))


def test_a_subgroup_that_is_decided_without_another_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subgroups' minima left out of the real core: as many members as the gang needs, of whichever subgroup."""
    monkeypatch.setattr(subgroups, "lacking", _any_leaf)
    assert "'s head was decided with 0 of the 1" in _violated(range(60))


def _any_leaf(subgroup: Subgroup, has: Mapping[str, int], waiting: Mapping[str, int]) -> dict[str, int]:
    need = subgroup.least - subgroups.count(subgroup, has)
    chosen: dict[str, int] = {}
    for leaf in sorted(waiting, reverse=True):  # workers before the head
        chosen[leaf] = min(waiting[leaf], need - sum(chosen.values()))
    return {leaf: number for leaf, number in chosen.items() if number} if sum(chosen.values()) == need else {"": need}


def test_a_gang_in_several_records_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one-record rule left out of the real write batcher: each decision is appended separately."""
    monkeypatch.setattr(WriteBatcher, "due", _one_at_a_time(WriteBatcher.due))
    assert "members that it needs" in _violated(range(20))


def _one_at_a_time(
    due: Callable[[WriteBatcher, int, float], list[Command]],
) -> Callable[[WriteBatcher, int, float], list[Command]]:
    def alone(self: WriteBatcher, term: int, now: float) -> list[Command]:
        if self.in_flight is not None or self.owed or len(self._gathering) < 2:
            return due(self, term, now)
        first = self._gathering.pop(0)
        return [self.append(DecisionBatch(term=term, decisions=(first,)))]

    return alone


def test_a_growth_that_is_not_booked_before_it_is_written_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "grow", lambda self, grant_id, grant: None)
    assert _violated(range(300), _resizing).startswith("P1")


def test_a_new_leader_that_forgets_growths_under_way_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The growths of an earlier leader are neither taken over from the log nor feared without it."""
    monkeypatch.setattr(Resizer, "adopt", lambda self, recovery, *, complete, now: None)
    assert _violated(range(100, 2000), _resizing).startswith(("P1", "P7"))


def test_amending_a_grant_before_its_node_promises_less_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(
        self: Resizer, state: PodState, held: GrantState, smaller: Grant, refused: str, now: float
    ) -> list[Command]:
        return self._amend_once(state, smaller, now)

    monkeypatch.setattr(Resizer, "_shrink", at_once)
    assert _violated(range(300), _resizing).startswith("P7")


def test_an_amendment_for_whatever_version_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resizing, "_amend", lambda amendment: msgspec.structs.replace(_AMEND(amendment), resource_version="")
    )
    assert _violated(range(300), _resizing).startswith(("P1", "P3", "P7"))


_AMEND = resizing._amend


def test_ending_a_growth_by_time_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = Resizer.tick

    def gives_up(self: Resizer, term: int, now: float) -> list[Command]:
        for uid, growth in list(self._open.items()):
            held = self._held(self._book.pods[uid])
            if held is not None and growth.logged and now - growth.since > 0.3:
                del self._open[uid]
                self._book._amend(held, held.given)
        return ticks(self, term, now)

    monkeypatch.setattr(Resizer, "tick", gives_up)
    assert _violated(range(100, 2000), _resizing).startswith(("P1", "P7"))


def test_telling_a_node_before_the_grant_is_amended_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GrantState, "given", property(lambda self: self.whole or self.grant))
    assert _violated(range(300), _resizing).startswith(("P1", "P7", "P5", "C3"))


# --- GPUs of other nodes --------------------------------------------------------------------------------------------


@ASKED
def test_pods_get_gpus_of_other_nodes_in_these_worlds() -> None:
    """Else the tests below, and the properties, say nothing of them."""
    worlds = [ran for ran in map(_ran, range(150)) if ran.remote]
    assert len(worlds) > 30
    assert sum(ran.remote_bound for ran in worlds) > 20


def test_believing_a_client_that_it_has_given_back_the_gpu_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6 for two nodes left out: the container has ended, its server has not."""
    released = Releases.released

    def believes(self: Releases, event: ReleaseSeen, now: float) -> list[Command]:
        held = self._book.grants.get(event.grant_id)
        is_client = held is not None and event.node == held.client
        return released(self, msgspec.structs.replace(event, node=held.node) if held and is_client else event, now)

    monkeypatch.setattr(Releases, "released", believes)
    assert _violated(range(600), _remote).startswith(("P1", "P6"))


def test_a_node_that_does_not_report_its_servers_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    live = GrantStore.live

    def without_servers(self: GrantStore, node: str) -> tuple[LiveSlice, ...]:
        return tuple(slice_ for slice_ in live(self, node) if slice_.remote is None)

    monkeypatch.setattr(GrantStore, "live", without_servers)
    assert _violated(range(1000), _remote).startswith(("P1", "P6"))


def test_freeing_a_gpu_because_its_clients_node_is_gone_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def frees(self: Nodes, held: GrantState, now: float) -> list[Command]:
        self.book.release(held.grant_id)
        return []

    monkeypatch.setattr(Nodes, "void_by_client", frees)
    assert _violated(range(1000), _remote).startswith(("P1", "P6"))


def test_a_server_that_ends_with_its_release_still_ordered_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent gives the GPU back when it is asked to, instead of when the server has ended."""
    release = Agent._release

    def at_once(self: Agent, received: NodeRelease, now: float) -> list[AgentCommand]:
        known = self.store.get(received.grant_id)
        if known is not None and known.is_serving:
            for lease in self.store.leases_of(received.grant_id):
                self.store.end_lease(lease.uid, lease.container)
        return release(self, received, now)

    monkeypatch.setattr(Agent, "_release", at_once)
    assert _violated(range(300), _remote).startswith(("P1", "P4"))


# --- turns ----------------------------------------------------------------------------------------------------------


def _with_turns(count: int, start: int = 0) -> Iterator[Simulation]:
    """Worlds in which jobs take turns; only these are made."""
    seeds = (seed for seed in itertools.count(start) if Turns.draws(seed))
    return map(Simulation, itertools.islice(seeds, count))


def _turns_violated(count: int, start: int = 0) -> str:
    for simulation in _with_turns(count, start):
        try:
            simulation.run()
        except Violation as violation:
            return str(violation)
    return ""


@ASKED
def test_jobs_take_turns_in_these_worlds() -> None:
    """Else the tests below, and the properties, say nothing of them."""
    happened: Counter[tuple[str, str | None]] = Counter()
    pure = 0
    for ran in map(_ran, itertools.islice(filter(Turns.draws, itertools.count()), 140)):
        happened += ran.happened
        pure += ran.pure
    assert pure > 10
    least = {
        ("executed", "turn of a new job"): 40,
        ("executed", "turn of a suspended job"): 25,
        ("abandoned", "turn of a new job"): 4,
        ("executed", "preemption"): 5,
        ("written", "checkpoint"): 90,
        ("written", "pause"): 2,
        ("written", ""): 90,
        ("done", "checkpoint"): 150,
        ("done", None): 80,
        ("failed", "checkpoint"): 3,
        ("failed", None): 1,
        ("held", "quiet"): 3,
    }
    few = {kind: happened[kind] for kind, count in least.items() if happened[kind] < count}
    assert not few, f"too seldom: {few}"


def test_reserving_a_checkpoint_whatever_is_on_the_host_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "lacking", lambda book, checkpointed, kept=None: "")
    monkeypatch.setattr(HostRoom, "has", lambda self, jobs, kept: True)
    assert _turns_violated(100).startswith("T1")


def test_booking_what_a_pod_gives_up_before_its_node_confirms_would_be_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Suspender.annotation_seen

    def at_once(self: Suspender, state: PodState, now: float) -> list[Command]:
        out = seen(self, state, now)
        held = self._book.grants.get(state.grant_id)
        if held is not None and state.suspension is not None and held.suspension is None:
            self._book.suspend(held.grant_id, state.suspension)
        return out

    monkeypatch.setattr(Suspender, "annotation_seen", at_once)
    assert _turns_violated(60).startswith("P1")


def test_a_turn_that_begins_the_record_anew_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GpuTimes,
        "at_resumption",
        lambda self, state, now: encode_gpu_time(GpuTime(since=self._clock.at(now))),
    )
    assert _turns_violated(60).startswith("T3")


def test_a_job_that_waits_for_ever_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspended jobs get no turn while pending ones, or any that run, are there."""
    monkeypatch.setattr(Options, "could_resume", lambda self, waiting, at: False)
    assert _turns_violated(200).startswith("T4")


def test_a_suspended_pod_that_is_forgotten_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader does not take the suspended pods over."""
    monkeypatch.setattr(Suspender, "adopt", lambda self, *how, **more: [])
    assert _turns_violated(100).startswith(("T5", "P1", "P6"))


def test_answers_that_name_an_earlier_order_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since a sync tells the numbers too, only one world in about sixty shows it."""
    monkeypatch.setattr(GrantStore, "note_order", lambda self, known, number: None)
    assert _turns_violated(200, start=2450).startswith("T5")


def test_a_job_that_stays_idle_though_it_wants_its_gpu_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once idle, always idle: what a node says of a suspended pod that wants its GPU is not heard."""
    found = TurnPolicy.is_idle
    idle: set[str] = set()

    def stays_idle(self: TurnPolicy, state: PodState, now: float) -> bool:
        if found(self, state, now):
            idle.add(state.uid)
        return state.uid in idle

    monkeypatch.setattr(TurnPolicy, "is_idle", stays_idle)
    assert _turns_violated(30).endswith("has not resumed")


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_nothing_is_violated_where_takeovers_are_in_small_parts(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Worlds are small, so with the usual parts each takeover is in one."""
    for module in ("listing", "core"):
        monkeypatch.setattr(f"services.placement.{module}.CHANGES_AT_ONCE", 3)
    monkeypatch.setattr("services.placement.listing.LATER_AT_ONCE", 1)
    monkeypatch.setattr("services.placement.engine.memory.REMEMBERED_AT_ONCE", 2)
    for seed in range(first, first + 20):
        Simulation(seed).run()
