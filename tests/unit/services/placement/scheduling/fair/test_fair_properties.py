"""Properties of fair share: of the tree alone, and of the core over any sequence of events."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.placement import messages as m
from shared.contracts.policy import Amounts, QueuePolicy, QueueRule
from shared.model.objects import Pod
from shared.queues.amounts import Amount
from shared.queues.tree import Branch, Offer, Tree, first_over
from shared.queues.usage import Usage
from tests.support import build
from tests.support.harness.placement import Placement

GPU = 1000


def gpus(milli: int) -> Amount:
    return Amount(gpu_milli=milli)


class Market:
    """Queues with unlimited demand, and this many GPUs. Each pod of a queue has the same size."""

    def __init__(
        self, rules: tuple[QueueRule, ...], sizes: dict[str, int], capacity: int, *, ages: dict[str, int] | None = None
    ) -> None:
        self.tree = Tree(QueuePolicy(queues=rules))
        self.tree.set_capacity(gpus(capacity))
        self.sizes, self.free, self.served = sizes, capacity, 0
        self.ages = ages or {name: index for index, name in enumerate(sizes)}
        for name in sizes:
            self._offer(name)

    def _offer(self, name: str) -> None:
        self.served += 1
        self.tree.put_offer(self.tree.queues[name], Offer((self.ages[name], self.served), name, gpus(self.sizes[name])))

    def run(self) -> dict[str, int]:
        """Runs until no pod fits or may have more. Returns what each queue has."""
        while (offer := self.tree.next()) is not None:
            queue = self.tree.queues[offer.uid]
            blocked = any(first_over(at.used, offer.amount, at.limit, offer.amount) is not None for at in queue.path())
            if blocked or offer.amount.gpu_milli > self.free:
                self.tree.put_offer(queue, None)
                continue
            self.free -= offer.amount.gpu_milli
            self.tree.use(queue, offer.amount, non_borrowing=False)
            self._offer(offer.uid)
        return {name: self.tree.queues[name].used.gpu_milli for name in self.sizes}


@st.composite
def trees(draw: st.DrawFn) -> tuple[tuple[QueueRule, ...], dict[str, int]]:
    """Up to four queues at the top with up to three below each; every leaf has its size of pods."""
    rules: list[QueueRule] = []
    sizes: dict[str, int] = {}
    for top in range(draw(st.integers(1, 4))):
        names = [f"q{top}", *(f"q{top}.{child}" for child in range(draw(st.integers(0, 3))))]
        for name in names:
            told = draw(st.integers(0, 6)), draw(st.one_of(st.none(), st.integers(0, 6)))
            limit = None if told[1] is None else told[0] + told[1]
            rules.append(
                QueueRule(
                    name=name,
                    parent="" if name == names[0] else names[0],
                    weight=draw(st.sampled_from((0, 1, 2, 3))),
                    priority=draw(st.integers(0, 1)),
                    guaranteed=Amounts(gpus=told[0] / 2),
                    limit=Amounts(gpus=None if limit is None else limit / 2),
                )
            )
        for name in names[1:] or names:
            sizes[name] = draw(st.sampled_from((100, 250, 500, 1000, 2000)))
    return tuple(rules), sizes


@settings(max_examples=200)
@given(trees(), st.integers(0, 30))
def test_no_queue_is_ever_above_its_limit_and_a_parent_has_what_its_children_have(
    made: tuple[tuple[QueueRule, ...], dict[str, int]], capacity: int
) -> None:
    market = Market(*made, capacity * GPU)
    market.run()
    for queue in market.tree.queues.values():
        assert queue.limit[0] is None or queue.used.gpu_milli <= queue.limit[0]
        if queue.children:
            assert queue.used.gpu_milli == sum(child.used.gpu_milli for child in queue.children)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=8), st.integers(0, 20), st.data())
def test_with_enough_demand_every_queue_gets_its_guarantee(
    guaranteed: list[int], spare: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.integers(0, 5)) for _ in guaranteed]
    rules = tuple(
        QueueRule(name=f"q{i}", guaranteed=Amounts(gpus=g), weight=w)
        for i, (g, w) in enumerate(zip(guaranteed, weights, strict=True))
    )
    size = data.draw(st.sampled_from((100, 250, 500, GPU)))
    has = Market(rules, {rule.name: size for rule in rules}, (sum(guaranteed) + spare) * GPU).run()
    assert all(has[f"q{i}"] >= g * GPU for i, g in enumerate(guaranteed))


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 5), st.sampled_from((100, 250, 500, 1000, 3000))),
        min_size=2,
        max_size=8,
    ),
    st.integers(1, 200),
)
def test_the_remainder_is_divided_by_weight_within_one_pod(drawn: list[tuple[int, int, int]], capacity: int) -> None:
    rules = tuple(
        QueueRule(name=f"q{i}", weight=weight, guaranteed=Amounts(gpus=g)) for i, (weight, g, _) in enumerate(drawn)
    )
    market = Market(rules, {f"q{i}": size for i, (_, _, size) in enumerate(drawn)}, capacity * GPU)
    has = market.run()
    for i, (weight, guarantee, _) in enumerate(drawn):
        surplus = has[f"q{i}"] - guarantee * GPU
        for j, (other_weight, other_guarantee, size) in enumerate(drawn):
            if surplus > 0 and size <= market.free + drawn[i][2]:  # the other one's next pod would still have fitted
                assert surplus / weight <= (has[f"q{j}"] + size - other_guarantee * GPU) / other_weight + 1e-6


@settings(max_examples=200)
@given(trees(), st.integers(0, 20), st.randoms(use_true_random=False))
def test_names_and_their_order_in_the_file_have_no_effect(
    made: tuple[tuple[QueueRule, ...], dict[str, int]], capacity: int, chance: Any
) -> None:
    rules, sizes = made
    ages = {name: index for index, name in enumerate(sizes)}
    plain = Market(rules, sizes, capacity * GPU, ages=ages).run()
    others = [f"n{i}" for i in range(len(rules))]
    chance.shuffle(others)
    renamed = {rule.name: other for rule, other in zip(rules, others, strict=True)} | {"": ""}
    mixed = [msgspec.structs.replace(rule, name=renamed[rule.name], parent=renamed[rule.parent]) for rule in rules]
    chance.shuffle(mixed)
    again = Market(
        tuple(mixed),
        {renamed[n]: s for n, s in sizes.items()},
        capacity * GPU,
        ages={renamed[n]: a for n, a in ages.items()},
    ).run()
    assert again == {renamed[name]: milli for name, milli in plain.items()}


def best(tree: Tree, at: Branch) -> Offer | None:
    """The queue that is next, found by a scan of every queue."""
    for child in at.children:
        if child.children:
            child.offer = best(tree, child)
    waiting = [child for child in at.children if child.offer is not None]
    return min(waiting, key=lambda child: child.key(tree.capacity)).offer if waiting else None


@settings(max_examples=150)
@given(trees(), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3), st.integers(1, 4)), max_size=40))
def test_the_heaps_find_the_same_queue_as_a_full_scan(
    made: tuple[tuple[QueueRule, ...], dict[str, int]], steps: list[tuple[int, int, int]]
) -> None:
    rules, sizes = made
    tree = Tree(QueuePolicy(queues=rules))
    leaves = list(sizes)
    for number, (which, what, much) in enumerate(steps):
        queue = tree.queues[leaves[which % len(leaves)]]
        match what:
            case 0:
                tree.use(queue, gpus(much * 500), non_borrowing=False)
            case 1:
                tree.use(queue, gpus(-min(much * 500, queue.used.gpu_milli)), non_borrowing=False)
            case 2:
                tree.put_offer(queue, None if much == 4 else Offer((number,), queue.name, gpus(much * 250)))
            case 3:
                tree.set_capacity(gpus(much * 7 * GPU))
        found = tree.next()
        assert found == best(tree, tree.root)


# --- the core -------------------------------------------------------------------------------------------------------

POLICY = """
queues:
- {name: p, limit: {gpus: 5}}
- {name: x, parent: p, guaranteed: {gpus: 2}}
- {name: y, parent: p, limit: {gpus: 2.5, cpu: "6"}}
- {name: z, guaranteed: {gpus: 1.5}, limit: {gpus: 3}, weight: 2}
default: {limit: {gpus: 1}}
within_guarantee_from: 10
"""
ASKS: tuple[dict[str, Any], ...] = (
    {"gpus": 1},
    {"gpus": 2},
    {"memory": "20Gi"},
    {"compute": 30},
    {"memory": "60Gi", "compute": 10},
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "gang", "bind", "end", "void", "gpus")),
        st.integers(0, 30),
        st.sampled_from(ASKS),
        st.sampled_from(("x", "y", "z", "", "?")),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(STEPS)
def test_limits_hold_and_what_is_counted_is_what_the_book_has(
    steps: list[tuple[str, int, dict[str, Any], str]],
) -> None:
    placement = Placement().nodes("n0", gpus=4).nodes("n1", gpus=3, memory_mib=40_000)
    placement.facts(build.queues(POLICY))
    pods: dict[str, Pod] = {}
    for number, (what, which, ask, queue) in enumerate(steps):
        labels = {"kerf.dev/queue": queue} if queue else {}
        some = sorted(pods)[which % len(pods)] if pods else ""
        if what in ("add", "gang"):
            notes = {"kerf.dev/gang": f"g{number}", "kerf.dev/gang-size": "2"} if what == "gang" else {}
            pod = [
                build.gpu_pod(f"p{number}-{i}", **ask, labels=labels, annotations=notes, priority=which % 12)
                for i in range(2)
            ]
            pods |= {p.metadata.uid: p for p in pod}
            placement.facts(*pod)
        elif what == "gpus":
            placement.send(
                m.InventorySeen(build.inventory("n1", gpus=which % 4, memory_mib=40_000, generation=number + 2))
            )
        elif some and what == "bind" and not pods[some].spec.node_name and some in placement.core.holds:
            pods[some] = placement.bind(pods[some])
        elif some and what == "void" and not pods[some].spec.node_name:
            pods[some] = build.newer(pods[some])
            placement.facts(pods[some])
        elif some and what == "end":
            grant = placement.core.book.pods[some].grant_id
            placement.gone(pods.pop(some))
            if which % 2:
                placement.send(m.ReleaseSeen("n0", grant))
        placement.tick()
        check(placement)


def check(placement: Placement) -> None:
    fair = placement.core.fair
    assert fair.tree is not None
    for queue in fair.tree.queues.values():
        assert all(limit is None or used <= limit for used, limit in zip(queue.used, queue.limit, strict=True)), (
            queue.name
        )
        assert queue.non_borrowing.gpu_milli <= (queue.guaranteed[0] or 0), queue.name
    assert fair.tree.unassigned.used.gpu_milli == 0
    recounted = Tree(fair.tree.policy)
    for name in fair.tree.queues:
        recounted.find("", name)
    counts = Usage(recounted, placement.core.book)
    assert fair.usage is not None
    book = placement.core.book
    # What a removed GPU was worth, and the label of a deleted pod, are known only to those that saw them.
    if not counts.guessed and not fair.usage.guessed and all(held.uid in book.pods for held in book.grants.values()):
        assert picture(fair.tree) == picture(recounted)


def picture(tree: Tree) -> dict[str, tuple[Amount, Amount]]:
    return {name: (queue.used, queue.non_borrowing) for name, queue in tree.queues.items()}
