"""Label selectors, node selectors and tolerations, as Kubernetes matches them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shared.model.affinity import LabelSelector, NodeSelector, NodeSelectorTerm, Requirement, Toleration
from shared.model.names import TAINT_NO_ROOM
from shared.model.objects import Node, Taint

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}")


def requirement_matches(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """One item of matchExpressions. An operator that Kubernetes does not know matches nothing."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return value is not None and _compare(value, requirement)
    return False


def _compare(value: str, requirement: Requirement) -> bool:
    if len(requirement.values) != 1:
        return False
    have, wanted = _int64(value), _int64(requirement.values[0])
    if have is None or wanted is None:
        return False
    return have > wanted if requirement.operator == "Gt" else have < wanted


def _int64(text: str) -> int | None:
    """As Go's ParseInt reads it: Python's int() would also take "1_0", which a label may be."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


def labels_match(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """An empty selector matches everything, none at all matches nothing."""
    if selector is None:
        return False
    return all(labels.get(k) == v for k, v in selector.match_labels.items()) and all(
        requirement_matches(r, labels) for r in selector.match_expressions
    )


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """An empty term matches no node. The only field is metadata.name."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(requirement_matches(r, node.metadata.labels) for r in term.match_expressions) and all(
        r.key in fields and requirement_matches(r, fields) for r in term.match_fields
    )


def node_selector_matches(selector: NodeSelector | None, node: Node) -> bool:
    """Terms are alternatives; no selector matches every node."""
    return selector is None or any(term_matches(term, node) for term in selector.node_selector_terms)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value


def untolerated(
    taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...], effects: tuple[str, ...]
) -> Taint | None:
    """The first taint with one of these effects that no toleration covers. What Kerf tells autoscalers by a taint
    (`TAINT_NO_ROOM`) is not meant for Kerf's own pods."""
    for taint in taints:
        if taint.key != TAINT_NO_ROOM and taint.effect in effects and not any(tolerates(t, taint) for t in tolerations):
            return taint
    return None
