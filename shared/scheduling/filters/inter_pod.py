from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import ClassVar

from shared.book.book import Book
from shared.book.pods_alike import Group
from shared.book.states import NodeState, PodState
from shared.contracts.explain import Reason
from shared.model.affinity import LabelSelector, PodAffinityTerm, Requirement
from shared.model.kube_object import Labels
from shared.model.objects import Pod
from shared.model.selectors import labels_match
from shared.scheduling.filters.base import Check, Filter
from shared.scheduling.filters.remedies import Remedy, dropping


class InterPod(Filter):
    """Required pod affinity and anti-affinity, and the anti-affinity of pods already placed against this one.

    As kube-scheduler's InterPodAffinity: a term's domain is the set of nodes with the same value of its topology key.
    Of several affinity terms each needs a pod in its domain that matches all of them; where no placed pod does, a pod
    that matches its own terms may be the first of its kind. namespaceSelector selects among the known namespaces.
    """

    name = "inter-pod"
    scope = "cluster"
    remedies: ClassVar[Mapping[str, Remedy]] = {
        "pod-affinity": dropping("pod_affinity", "pod-affinity"),
        "pod-anti-affinity": dropping("pod_anti_affinity", "pod-anti-affinity"),
    }

    def concerns(self, pod: PodState, book: Book) -> bool:
        return pod.attracted or pod.repels or bool(_repelled(pod, book))

    def prepare(self, pod: PodState, book: Book) -> Check | None:
        affinity = pod.pod.spec.affinity
        near = _required(pod, "pod_affinity") if affinity else ()
        away = _required(pod, "pod_anti_affinity") if affinity else ()
        repelled = _repelled(pod, book)
        if not near and not away and not repelled:
            return None
        wanted = [(term, _domains(term, near, pod, book)) for term in near]
        unwanted = [(term, _domains(term, (term,), pod, book)) for term in away]
        first = (
            bool(near)
            and not any(domains for _, domains in wanted)
            and all(term_matches(t, pod.pod, pod.pod, book) for t in near)
        )

        def check(node: NodeState) -> Reason | None:
            if node.object is None:
                return None
            labels = node.object.metadata.labels
            for term, domains in wanted:
                value = labels.get(term.topology_key)
                if value is None or (value not in domains and not first):
                    return Reason(
                        code="pod-affinity",
                        sentence=f"no pod that the pod wants near is in the node's {term.topology_key}",
                        helps="place a pod that matches the affinity term, or drop the term",
                    )
            for term, domains in unwanted:
                if labels.get(term.topology_key) in domains:
                    return Reason(
                        code="pod-anti-affinity",
                        sentence=f"a pod that this pod keeps away from is in the node's {term.topology_key}",
                        helps="drop the anti-affinity term, or add a domain",
                    )
            for key, domains in repelled.items():
                if labels.get(key) in domains:
                    return Reason(
                        code="repelled",
                        sentence=f"a pod in the node's {key} keeps this pod away by its anti-affinity",
                        helps="change the labels that its anti-affinity selects",
                    )
            return None

        return check


def _required(pod: PodState, which: str) -> tuple[PodAffinityTerm, ...]:
    affinity = getattr(pod.pod.spec.affinity, which)
    return () if affinity is None else affinity.required_during_scheduling_ignored_during_execution


def _domains(term: PodAffinityTerm, matching: tuple[PodAffinityTerm, ...], owner: PodState, book: Book) -> set[str]:
    """Values of the term's topology key under which a pod is placed that matches all of `matching`."""
    selectors = [_selector(each, owner.pod) for each in matching]
    values: set[str] = set()
    for namespace in _namespaces(term, owner.pod, book):
        if not all(_is_about(each, namespace, owner.pod, book) for each in matching):
            continue
        for group in book.placed.within(namespace):
            labels = labels_of(group)
            if all(labels_match(selector, labels) for selector in selectors):
                values.update(pods_by_domain(group, term.topology_key, book))
    return values


def placed_matching(term: PodAffinityTerm, owner: Pod, book: Book) -> Iterator[Group]:
    """The placed pods that the term of `owner` selects."""
    selector = _selector(term, owner)
    for namespace in _namespaces(term, owner, book):
        yield from (group for group in book.placed.within(namespace) if labels_match(selector, labels_of(group)))


def _namespaces(term: PodAffinityTerm, owner: Pod, book: Book) -> list[str]:
    """The namespaces with placed pods that the term of `owner` is about."""
    if not term.names_namespaces:
        return [owner.metadata.namespace]
    return [namespace for namespace in book.placed.namespaces() if _is_about(term, namespace, owner, book)]


def _selector(term: PodAffinityTerm, owner: Pod) -> LabelSelector | None:
    return with_label_keys(term.label_selector, owner, term.match_label_keys, term.mismatch_label_keys)


def labels_of(group: Group) -> Labels:
    """Of placed pods that are alike."""
    return next(iter(group.values())).pod.metadata.labels


def pods_by_domain(group: Group, key: str, book: Book) -> Counter[str]:
    """How many of these placed pods are on nodes with each value of this label; those on other nodes are left out."""
    counts: Counter[str] = Counter()
    for name, count in Counter(state.charged for state in group.values()).items():
        node = book.nodes[name].object
        if node is not None and (value := node.metadata.labels.get(key)) is not None:
            counts[value] += count
    return counts


def _repelled(pod: PodState, book: Book) -> dict[str, set[str]]:
    """By topology key the domains that placed pods keep this one out of."""
    result: dict[str, set[str]] = {}
    for group in chain.from_iterable(book.exclusive.within(where) for where in ("", pod.pod.metadata.namespace)):
        one = next(iter(group.values()))
        for term in _required(one, "pod_anti_affinity"):
            if term_matches(term, one.pod, pod.pod, book):
                others = {uid: state for uid, state in group.items() if uid != pod.uid} if pod.uid in group else group
                if domains := pods_by_domain(others, term.topology_key, book):
                    result.setdefault(term.topology_key, set()).update(domains)
    return result


def term_matches(term: PodAffinityTerm, owner: Pod, candidate: Pod, book: Book) -> bool:
    """Whether the term of `owner` selects `candidate`."""
    return _is_about(term, candidate.metadata.namespace, owner, book) and labels_match(
        _selector(term, owner), candidate.metadata.labels
    )


def _is_about(term: PodAffinityTerm, namespace: str, owner: Pod, book: Book) -> bool:
    """Whether the term of `owner` is about pods of this namespace."""
    if not term.names_namespaces:
        return namespace == owner.metadata.namespace
    if namespace in term.namespaces:
        return True
    if term.namespace_selector is None:
        return False
    known = book.others.get("Namespace", {}).get(namespace)
    return labels_match(term.namespace_selector, known.metadata.labels if known is not None else {})


def with_label_keys(
    selector: LabelSelector | None, owner: Pod, match: tuple[str, ...], mismatch: tuple[str, ...] = ()
) -> LabelSelector | None:
    """matchLabelKeys and mismatchLabelKeys: the owner's own values of these labels, as further requirements.

    The API server merges them into affinity selectors itself at creation; merging twice changes nothing.
    """
    if selector is None or not (match or mismatch):
        return selector
    labels = owner.metadata.labels
    extra = [Requirement(key=k, operator="In", values=(labels[k],)) for k in match if k in labels]
    extra += [Requirement(key=k, operator="NotIn", values=(labels[k],)) for k in mismatch if k in labels]
    return LabelSelector(match_labels=selector.match_labels, match_expressions=(*selector.match_expressions, *extra))
