"""Which pods may preempt which, between queues and in gangs.

The planner's tests cover priority within a queue.
"""

from __future__ import annotations

from shared.book.book import Book
from shared.book.gangs import Gangs
from shared.book.states import PodState
from shared.contracts.facts import Gone, Put
from shared.contracts.policy import read_queues
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.queues.fair_shares import fair_shares
from shared.queues.preemption_policy import PreemptionPolicy
from shared.queues.queues import Queues
from tests.support import build


class QueueFixture:
    """One node. Queues a and b are guaranteed 2 GPUs each, unless given otherwise."""

    def __init__(
        self,
        text: str = "queues: [{name: a, guaranteed: {gpus: 2}}, {name: b, guaranteed: {gpus: 2}}]",
        *,
        gpus: int = 4,
    ) -> None:
        self.book = Book()
        self.book.apply(Put(object=build.node("n")))
        self.book.put_inventory(build.inventory("n", gpus=gpus))
        self.book.set_agent_trouble("n", "")
        self.gangs = Gangs(self.book)
        self.queues = Queues(self.book)
        self.queues.enact(read_queues(text))
        self.preemption_policy = PreemptionPolicy(self.queues, self.gangs)
        self._next = 0

    def run(
        self, name: str, queue: str, gpus: int = 1, *, priority: int = 0, notes: dict[str, str] | None = None
    ) -> PodState:
        shares = tuple(
            GpuShare(node="n", uuid=f"n-gpu-{self._next + i}", memory_mib=81_920, compute_milli=1000)
            for i in range(gpus)
        )
        self._next += gpus
        grant = Grant(
            grant_id=f"grant-{name}", term=1, containers={"c": ContainerGrant(strategy="exclusive", gpus=shares)}
        )
        pod = build.gpu_pod(
            name, gpus=gpus, priority=priority, labels={"kerf.dev/queue": queue}, annotations=notes or {}
        )
        return self._see(build.bound(pod, "n", grant))

    def wait(self, name: str, queue: str, gpus: int = 1, *, priority: int = 0) -> PodState:
        return self._see(build.gpu_pod(name, gpus=gpus, priority=priority, labels={"kerf.dev/queue": queue}))

    def _see(self, pod: object) -> PodState:
        self.book.apply(Put(object=pod))  # type: ignore[arg-type]
        state = self.book.pods[pod.metadata.uid]  # type: ignore[attr-defined]
        self.gangs.see(state, 0.0)
        return state

    def refuses(self, beneficiaries: list[PodState], victims: list[PodState]) -> str:
        self.preemption_policy.begin()
        return self.preemption_policy.refuses(beneficiaries, victims)


def test_a_queue_within_its_guarantee_reclaims_from_one_above_its_own() -> None:
    fixture = QueueFixture()
    lent = [fixture.run(f"a-{i}", "a", priority=9) for i in range(4)]
    beneficiary = fixture.wait("b", "b")
    assert fixture.preemption_policy.may_preempt(beneficiary, lent[0])
    assert fixture.refuses([beneficiary], [lent[3]]) == ""


def test_no_more_than_the_excess_is_reclaimed() -> None:
    fixture = QueueFixture()
    lent = [fixture.run(f"a-{i}", "a") for i in range(3)]
    fixture.run("b-0", "b")
    assert fixture.refuses([fixture.wait("b-1", "b")], lent[2:]) == ""
    assert "within its share" in fixture.refuses([fixture.wait("b-2", "b")], lent[1:])


def test_a_queue_above_its_fair_share_reclaims_nothing() -> None:
    fixture = QueueFixture()
    lent = [fixture.run(f"a-{i}", "a") for i in range(3)]
    assert fixture.refuses([fixture.wait("b-1", "b", gpus=3)], [lent[2]]) != ""


def test_weights_decide_beyond_guarantees() -> None:
    """Four GPUs without guarantees: 3 for a, 1 for b."""
    fixture = QueueFixture("queues: [{name: a, weight: 3}, {name: b}]")
    a = [fixture.run(f"a-{i}", "a") for i in range(4)]
    beneficiary = fixture.wait("b-0", "b")
    assert fixture.refuses([beneficiary], [a[3]]) == ""
    two = [beneficiary, fixture.wait("b-1", "b")]
    assert fixture.refuses(two, a[2:]) != ""


def test_what_is_reserved_counts_once_in_fair_shares() -> None:
    """For a pending pod, or for one that is to move: the preemptor, which has no reservations on its book, computes the
    same."""
    fixture = QueueFixture("queues: [{name: a}, {name: p}, {name: b, parent: p}]", gpus=6)
    moves, _ = (fixture.run(f"a-{i}", "a", gpus=2) for i in range(2))
    waits = fixture.wait("b", "b", gpus=1)

    def found() -> dict[str, float]:
        assert fixture.queues.tree is not None
        return fair_shares(fixture.queues.tree, fixture.queues.wanted())

    before = found()
    assert (before["a"], before["p"], before["b"]) == (4000, 1000, 1000)
    for number, state in enumerate((waits, moves)):
        share = GpuShare(node="n", uuid=f"n-gpu-{4 + number}", memory_mib=81_920, compute_milli=1000)
        part = ContainerGrant(strategy="exclusive", gpus=(share,))
        grant = Grant(grant_id=f"reserved-{number}", term=1, containers={"c": part})
        fixture.book.reserve(state.placeholder(f"reserved/{number}"), "n", grant)
    assert found() == before


def test_parent_queues_are_compared_with_each_other() -> None:
    """p has its fair share; within it p1 has more, and p2 less, than its own."""
    text = (
        "queues: [{name: p, guaranteed: {gpus: 2}}, {name: q, guaranteed: {gpus: 2}}, "
        "{name: p1, parent: p}, {name: p2, parent: p}]"
    )
    fixture = QueueFixture(text)
    one, other = fixture.run("p1-0", "p1"), fixture.run("p1-1", "p1")
    fixture.run("q-0", "q")
    fixture.run("q-1", "q")
    assert fixture.refuses([fixture.wait("q-2", "q")], [one]) != "", "p has no more than its guarantee"
    assert fixture.refuses([fixture.wait("p2-0", "p2")], [other]) == ""


def test_non_borrowing_pods_cannot_be_reclaimed() -> None:
    fixture = QueueFixture(
        "{within_guarantee_from: 100, queues: [{name: a, guaranteed: {gpus: 2}}, {name: b, guaranteed: {gpus: 2}}]}"
    )
    firm = fixture.run("firm", "a", gpus=2, priority=100)
    lent = fixture.run("lent", "a", gpus=2)
    beneficiary = fixture.wait("b", "b", gpus=2)
    assert not fixture.preemption_policy.may_preempt(beneficiary, firm)
    assert "cannot be reclaimed" in fixture.refuses([beneficiary], [firm])
    assert fixture.refuses([beneficiary], [lent]) == ""


def test_a_pod_that_is_never_preempted_is_no_victim_and_borrows_nothing() -> None:
    """Whatever the priorities and the shares: what it borrowed could not be taken back."""
    fixture = QueueFixture()
    never = {"kerf.dev/preemptible": "false"}
    fixed = fixture.run("fixed", "a", priority=-5, notes=never)
    assert fixture.refuses([fixture.wait("high", "a", priority=100)], [fixed]) == (
        "team/fixed is marked kerf.dev/preemptible: false"
    )
    beneficiary = fixture.wait("b", "b", gpus=2)
    lent = fixture.run("lent", "a", gpus=2)
    assert not fixture.preemption_policy.may_preempt(beneficiary, fixed)
    assert fixture.refuses([beneficiary], [lent]) == ""
    assert fixture.preemption_policy.is_non_borrowing(fixed)
    assert not fixture.preemption_policy.is_non_borrowing(lent)


def test_a_gang_is_preempted_as_a_whole_or_down_to_its_minimum() -> None:
    fixture = QueueFixture("queues: [{name: a}, {name: b, guaranteed: {gpus: 4}}]")
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3", "kerf.dev/gang-min": "2"}
    gang = [fixture.run(f"g-{i}", "a", notes=notes) for i in range(3)]
    beneficiary = fixture.wait("b", "b")
    assert fixture.refuses([beneficiary], gang[2:]) == ""
    assert fixture.refuses([beneficiary], gang[1:]).startswith("gang g would keep fewer than its minimum of 2")
    assert fixture.refuses([beneficiary], gang) == ""


def test_a_gang_keeps_the_members_that_are_not_borrowed() -> None:
    fixture = QueueFixture(gpus=4)
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3", "kerf.dev/gang-min": "2"}
    gang = [fixture.run(f"g-{i}", "a", notes=notes) for i in range(3)]
    two = fixture.wait("b", "b", gpus=2)
    assert fixture.refuses([two], gang) != "", "two of the three are within the guarantee"


def test_a_limit_counts_victims_of_its_own_queue() -> None:
    fixture = QueueFixture("queues: [{name: a, limit: {gpus: 1}}, {name: b}]")
    own, others = fixture.run("a-0", "a"), [fixture.run(f"b-{i}", "b") for i in range(3)]
    beneficiary = fixture.wait("a-1", "a", priority=1)
    assert fixture.preemption_policy.may_preempt(beneficiary, own)
    assert not fixture.preemption_policy.may_preempt(beneficiary, others[0])
    assert fixture.preemption_policy.quota_exceeded([beneficiary], [own.uid]) == ""
    assert "queue a" in fixture.preemption_policy.quota_exceeded([beneficiary], [others[0].uid])
    assert fixture.queues.usage is not None
    assert fixture.queues.usage.gpu_milli(own.uid) == 1000, "asked, and nothing changed"
    assert fixture.queues.tree is not None
    assert fixture.queues.tree.queues["a"].used.gpu_milli == 1000


def test_beneficiaries_in_several_queues_each_count_in_their_own() -> None:
    fixture = QueueFixture(
        "queues: [{name: p, limit: {gpus: 4}}, {name: a, parent: p, limit: {gpus: 1}}, {name: b, parent: p}]"
    )
    fixture.run("b-0", "b")
    both = [fixture.wait("b-1", "b"), fixture.wait("a-1", "a")]
    exceeded = fixture.preemption_policy.quota_exceeded
    assert exceeded(both, []) == ""
    assert "queue p" in exceeded([*both, fixture.wait("b-2", "b", gpus=2)], []), (
        "together they are beyond their parent's limit"
    )
    own = fixture.run("a-0", "a")
    assert "team/a-1 would exceed the quota of queue a" in exceeded(both, [])
    assert exceeded(both, [own.uid]) == ""
    assert fixture.queues.tree is not None
    assert fixture.queues.tree.queues["p"].used.gpu_milli == 2000, "asked, and nothing changed"


def test_a_label_change_on_a_running_pod_does_not_change_its_queue() -> None:
    """Otherwise a user who may label a pod could make it ineligible."""
    fixture = QueueFixture()
    lent = [fixture.run(f"a-{i}", "a") for i in range(4)]
    for named in ("nowhere", "b"):
        fled = fixture._see(build.newer(lent[3].pod, labels={"kerf.dev/queue": named}))
        assert fixture.preemption_policy.may_preempt(fixture.wait("b", "b"), fled)
        assert fixture.refuses([fixture.wait("b", "b")], [fled]) == ""


def test_the_queue_rank_orders_by_guarantee_and_fair_share() -> None:
    """First a queue within its guarantee, then one within its fair share, then the others.

    Without queues all are equal.
    """
    fixture = QueueFixture("queues: [{name: a, guaranteed: {gpus: 1}}, {name: b, weight: 3}, {name: c, weight: 1}]")
    for number in range(2):
        fixture.run(f"c-{number}", "c")
    waiting = [fixture.wait("c-more", "c"), fixture.wait("b", "b", 2), fixture.wait("a", "a")]
    fixture.preemption_policy.begin()
    assert [fixture.preemption_policy.queue_rank([one]) for one in waiting] == [2, 1, 0]
    no_queues = QueueFixture("queues: []")
    no_queues.queues.enact(None)
    assert no_queues.preemption_policy.queue_rank([no_queues.wait("x", "")]) == 0


def test_gpus_of_a_deleted_node_are_in_no_fair_share() -> None:
    """The agent's last inventory outlives the node.

    The queue's fair share would contain GPUs that do not exist.
    """
    fixture = QueueFixture("queues: [{name: a, weight: 1}, {name: b, weight: 1}]", gpus=2)
    fixture.book.apply(Put(object=build.node("gone")))
    fixture.book.put_inventory(build.inventory("gone", gpus=8))
    mine = fixture.run("mine", "a", 2)
    beneficiary = fixture.wait("taker", "b")
    fixture.queues.look_around()
    assert "within its share" in fixture.refuses([beneficiary], [mine])
    fixture.book.apply(Gone(object=build.node("gone")))
    fixture.queues.look_around()
    assert fixture.queues.tree is not None
    assert fixture.queues.tree.capacity.gpu_milli == 2000
    assert fixture.refuses([beneficiary], [mine]) == ""
