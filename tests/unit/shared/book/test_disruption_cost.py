"""Which disruption budgets select a pod, and what a pod that cannot be read is left out of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.book import disruption_cost
from shared.book.book import Book
from shared.book.disruption_cost import budgets_of, why_not_disruptable
from shared.book.fork import Fork
from shared.contracts.facts import Gone, Put
from shared.model.affinity import LabelSelector
from shared.model.grant import Grant
from shared.model.kube_object import Meta
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, PodDisruptionBudget
from shared.model.selectors import labels_match
from tests.support import build

NAMESPACES = ("one", "two")
APPS = ("x", "y")


def budget(namespace: str, name: str, app: str | None, allowed: int) -> PodDisruptionBudget:
    """`app`: of the pods that it selects; None: all of its namespace."""
    selector = LabelSelector() if app is None else LabelSelector(match_labels={"app": app})
    return PodDisruptionBudget(
        metadata=Meta(name=name, namespace=namespace, uid=f"{namespace}-{name}", resource_version=build.next_version()),
        spec=DisruptionBudgetSpec(selector=selector),
        status=DisruptionBudgetStatus(disruptions_allowed=allowed),
    )


BUDGETS = st.builds(
    budget,
    st.sampled_from(NAMESPACES),
    st.sampled_from(("a", "b", "c")),
    st.sampled_from((*APPS, None)),
    st.integers(0, 2),
)
STEPS = st.lists(st.tuples(st.sampled_from(("put", "gone", "snapshot", "fork")), BUDGETS), max_size=30)


def scanned(book: Book, namespace: str, app: str) -> dict[str, int]:
    """What all budgets of the book say."""
    return {
        f"{namespace}/{one.metadata.name}": one.status.disruptions_allowed
        for one in book.others.get("PodDisruptionBudget", {}).values()
        if one.metadata.namespace == namespace and labels_match(one.spec.selector, {"app": app})
    }


def book_of_pods() -> Book:
    book = Book()
    for namespace in NAMESPACES:
        for app in APPS:
            book.apply(Put(object=build.gpu_pod(app, namespace=namespace, labels={"app": app})))
    return book


def agree(book: Book) -> bool:
    return all(
        list(budgets_of(state, book).items())
        == list(scanned(book, state.pod.metadata.namespace, state.pod.metadata.name).items())
        for state in book.pods.values()
    )


@given(STEPS)
def test_a_pods_budgets_are_those_of_its_namespace_that_select_it(steps: list[tuple[str, PodDisruptionBudget]]) -> None:
    """However they come and go; a fork keeps its own."""
    book, forks = book_of_pods(), list[tuple[Fork, list[dict[str, int]]]]()
    for step, one in steps:
        match step:
            case "put":
                book.apply(Put(object=one))
            case "gone":
                book.apply(Gone(object=one))
            case "snapshot":
                book.apply_snapshot([*(Put(object=state.pod) for state in book.pods.values()), Put(object=one)])
            case "fork":
                fork = Fork(book)
                forks.append((fork, [budgets_of(state, fork) for state in fork.pods.values()]))
                fork.apply(Put(object=one))
                assert agree(fork)
                fork.apply(Gone(object=one))
        assert agree(book)


class _Unread(dict[str, Any]):
    """The budgets of all namespaces."""

    def values(self) -> Any:
        raise AssertionError("all budgets of the cluster are looked at")


def test_budgets_of_other_namespaces_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large cluster has thousands of them, and each candidate asks."""
    book, looked = book_of_pods(), list[LabelSelector | None]()
    for number in range(100):
        book.apply(Put(object=budget(f"team-{number}", "a", "x", 1)))
    book.apply(Put(object=budget("one", "a", "x", 1)))

    def counted(selector: LabelSelector | None, labels: dict[str, str]) -> bool:
        looked.append(selector)
        return labels_match(selector, labels)

    monkeypatch.setattr(disruption_cost, "labels_match", counted)
    book.others["PodDisruptionBudget"] = _Unread(book.others["PodDisruptionBudget"])
    state = book.pods[book.uid_by_key["one/x"]]
    assert budgets_of(state, book) == {"one/a": 1}
    assert len(looked) == 1


def test_a_pod_that_cannot_be_read_can_be_evicted_and_not_migrated() -> None:
    book = Book()
    book.apply(Put(object=build.node("n")))
    pod = build.gpu_pod("p", gpus=1, annotations={"kerf.dev/min-runtime": "bogus"})
    book.apply(Put(object=build.bound(pod, "n", Grant(grant_id="g", term=1, containers={}))))
    state = book.pods[pod.metadata.uid]
    assert state.refusal
    assert why_not_disruptable(state, book, 0.0, leaves=True) == ""
    assert why_not_disruptable(state, book, 0.0) == "refused as it is written"
