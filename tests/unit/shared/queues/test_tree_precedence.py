"""Which of two waiting pods comes first, each with what it would take counted in. Without any other pod."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.contracts.policy import Amounts, QueueDefaults, QueuePolicy, QueueRule, read_queues
from shared.queues.amounts import Amount
from shared.queues.tree import Offer, Tree

TREE = """
queues:
- {name: research}
- {name: vision, parent: research, guaranteed: {gpus: 2}}
- {name: language, parent: research, weight: 2}
- {name: serving, guaranteed: {gpus: 1}, priority: 1}
"""


def tree(**used: int) -> Tree:
    made = Tree(read_queues(TREE))
    made.set_capacity(Amount(16_000, 1, 1))
    for name, gpus in used.items():
        made.use(made.queues[name], Amount(gpu_milli=1000 * gpus), non_borrowing=False)
    return made


def offer(gpus: int = 1, *, priority: int = 0, age: int = 0) -> Offer:
    return Offer((-priority, str(age), age), f"{gpus} {priority} {age}", Amount(gpu_milli=1000 * gpus))


def precedes(made: Tree, queue: str, first: Offer, other: str, second: Offer) -> bool:
    return made.precedes(made.queues[queue], first, made.queues[other], second)


def test_within_a_queue_priority_decides_and_then_age() -> None:
    assert precedes(tree(), "vision", offer(priority=1, age=9), "vision", offer(age=1))
    assert precedes(tree(), "vision", offer(age=1), "vision", offer(age=9))


def test_a_queue_within_its_guarantee_comes_before_one_that_borrows_whatever_the_priorities() -> None:
    assert precedes(tree(), "vision", offer(2), "language", offer(1, priority=10))
    assert not precedes(tree(vision=1), "vision", offer(2), "serving", offer(1))


def test_what_the_pod_would_take_is_counted_in() -> None:
    assert precedes(tree(language=4), "language", offer(1), "vision", offer(8))
    assert not precedes(tree(language=4), "language", offer(16), "vision", offer(4))


def test_queues_are_compared_where_their_paths_part() -> None:
    """What the whole of research has counts against serving, and not between its own queues."""
    made = tree(vision=2, language=1)
    assert precedes(made, "serving", offer(2), "language", offer(1))


QUEUES = st.sampled_from(["vision", "language", "serving"])
OFFERS = st.builds(
    lambda gpus, priority, age: offer(gpus, priority=priority, age=age),
    st.integers(0, 4),
    st.integers(0, 1),
    st.integers(0, 99),
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(QUEUES, st.integers(0, 6)), st.tuples(QUEUES, OFFERS), st.tuples(QUEUES, OFFERS))
def test_the_one_that_precedes_is_the_one_that_the_tree_serves_first(
    used: dict[str, int], one: tuple[str, Offer], two: tuple[str, Offer]
) -> None:
    made = tree(**used)
    if one[0] == two[0] or one[1].order == two[1].order:
        return
    for name, wanted in (one, two):
        made.put_offer(made.queues[name], wanted)
    served = made.next()
    assert served is not None
    assert (served.uid == one[1].uid) == made.precedes(made.queues[one[0]], one[1], made.queues[two[0]], two[1])


def test_the_queue_of_a_namespace_without_one_is_that_namespaces_alone() -> None:
    """Else a tenant could use up the limit that another one gets by default."""
    made = Tree(QueuePolicy(queues=(QueueRule(name="research"),), default=QueueDefaults(limit=Amounts(gpus=1))))
    for seen in (False, True):
        assert made.find("c", "b") is made.unassigned, f"a pod of c was seen before: {seen}"
        assert made.find("", "c") is made.find("c", "c")
    assert made.named("c") is None
    assert made.find("research", "b") is made.queues["research"]
