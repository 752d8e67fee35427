"""Node selectors and required node affinity, case by case."""

from __future__ import annotations

import pytest

from tests.unit.shared.scheduling.filters.verdict import Spec, labelled, pod, verdict


def line(operator: str, *values: str, key: str = "level") -> Spec:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("behaviour", "expression", "label", "matches"),
    [
        ("In takes one of its values", line("In", "1", "2"), "2", True),
        ("In refuses other values", line("In", "1", "2"), "3", False),
        ("In refuses nodes without the label", line("In", "1"), None, False),
        ("NotIn refuses its values", line("NotIn", "1"), "1", False),
        ("NotIn takes nodes without the label", line("NotIn", "1"), None, True),
        ("Exists wants the label", line("Exists"), None, False),
        ("Exists takes any value", line("Exists"), "", True),
        ("DoesNotExist refuses the label", line("DoesNotExist"), "", False),
        ("Gt is a comparison of integers, not of text", line("Gt", "9"), "10", True),
        ("Gt is strict", line("Gt", "10"), "10", False),
        ("Lt is a comparison of integers", line("Lt", "10"), "9", True),
        ("Lt reads leading zeros as decimal", line("Lt", "8"), "007", True),
        ("Gt takes no label that is no number", line("Gt", "1"), "new", False),
        ("Gt takes no underscore between digits", line("Gt", "1"), "1_0", False),
        ("Gt takes no number beyond 64 bits", line("Gt", "1"), "9223372036854775808", False),
        ("Gt of two values matches nothing", line("Gt", "1", "2"), "3", False),
        ("an unknown operator matches nothing", line("Near", "1"), "1", False),
    ],
)
def test_node_affinity_expressions(behaviour: str, expression: Spec, label: str | None, matches: bool) -> None:
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [expression]}]
            }
        }
    }
    node = labelled() if label is None else labelled(level=label)
    assert verdict(pod(affinity=affinity), node=node) == ("" if matches else "node-affinity"), behaviour


SSD, HDD = line("In", "ssd", key="disk"), line("In", "hdd", key="disk")
NAMED_N = {"matchFields": [line("In", "n", key="metadata.name")]}


@pytest.mark.parametrize(
    ("behaviour", "terms", "matches"),
    [
        ("terms are alternatives", [{"matchExpressions": [HDD]}, {"matchExpressions": [SSD]}], True),
        ("lines of a term hold together", [{"matchExpressions": [SSD, HDD]}], False),
        ("an empty term matches nothing", [{}], False),
        ("fields match the node's name", [NAMED_N], True),
        ("fields and expressions hold together", [NAMED_N | {"matchExpressions": [HDD]}], False),
        ("NotIn of the name excludes that node", [{"matchFields": [line("NotIn", "n", key="metadata.name")]}], False),
        ("there is no other field", [{"matchFields": [line("NotIn", "n", key="metadata.uid")]}], False),
    ],
)
def test_node_affinity_terms(behaviour: str, terms: list[Spec], matches: bool) -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    assert verdict(pod(affinity=affinity), node=labelled(disk="ssd")) == ("" if matches else "node-affinity"), behaviour


def test_a_node_selector_requires_all_of_its_labels() -> None:
    assert verdict(pod(nodeSelector={"disk": "ssd", "fast": "yes"}), node=labelled(disk="ssd")) == "node-selector"
    assert verdict(pod(nodeSelector={"disk": "ssd"}), node=labelled(disk="ssd")) == ""
