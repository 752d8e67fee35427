"""Required inter-pod affinity and anti-affinity, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from shared.model.objects import Namespace
from tests.support import build
from tests.unit.shared.scheduling.filters.verdict import ZONE, Spec, db, pod, verdict


def term(key: str = ZONE, labels: dict[str, str] | None = None, **rest: Any) -> Spec:
    return {
        "topologyKey": key,
        "labelSelector": {"matchLabels": labels if labels is not None else {"app": "db"}},
        **rest,
    }


def near(*terms: Spec) -> Spec:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def away(*terms: Spec) -> Spec:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


RED = Namespace(metadata=build.Meta(name="red", labels={"team": "red"}))


@pytest.mark.parametrize(
    ("behaviour", "affinity", "labels", "others", "code"),
    [
        ("wants a matching pod in the domain", near(term()), {}, [db("a", "n")], ""),
        ("one in another domain is no help", near(term()), {}, [db("a", "o")], "pod-affinity"),
        ("the first of its kind goes anywhere", near(term()), {"app": "db"}, [], ""),
        ("the second of its kind does not", near(term()), {"app": "db"}, [db("a", "o")], "pod-affinity"),
        ("no pod is first on a node without the key", near(term("rack")), {"app": "db"}, [], "pod-affinity"),
        (
            "one pod must match all terms",
            near(term(), term(labels={"tier": "x"})),
            {},
            [db("a", "n"), pod("b", on="n", labels={"tier": "x"})],
            "pod-affinity",
        ),
        (
            "and is enough for all",
            near(term(), term(labels={"tier": "x"})),
            {},
            [pod("a", on="n", labels={"app": "db", "tier": "x"})],
            "",
        ),
        ("pods of other namespaces do not count", near(term()), {}, [db("a", "n", namespace="red")], "pod-affinity"),
        ("unless they are named", near(term(namespaces=["red"])), {}, [db("a", "n", namespace="red")], ""),
        ("naming one leaves out one's own", near(term(namespaces=["red"])), {}, [db("a", "n")], "pod-affinity"),
        (
            "or selected by label",
            near(term(namespaceSelector={"matchLabels": {"team": "red"}})),
            {},
            [RED, db("a", "n", namespace="red")],
            "",
        ),
        (
            "an empty namespaceSelector is all namespaces",
            near(term(namespaceSelector={})),
            {},
            [db("a", "n", namespace="blue")],
            "",
        ),
        ("keeps away from a matching pod's domain", away(term()), {}, [db("a", "n")], "pod-anti-affinity"),
        ("not from other domains", away(term()), {}, [db("a", "o")], ""),
        ("a node without the key is in no domain", away(term("rack")), {}, [db("a", "n")], ""),
        (
            "a placed pod keeps others away",
            {},
            {"app": "web"},
            [db("a", "n", affinity=away(term(labels={"app": "web"})))],
            "repelled",
        ),
        (
            "from its own namespace alone",
            {},
            {"app": "web"},
            [db("a", "n", namespace="red", affinity=away(term(labels={"app": "web"})))],
            "",
        ),
        ("in its domain alone", {}, {"app": "web"}, [db("a", "o", affinity=away(term(labels={"app": "web"})))], ""),
        (
            "matchLabelKeys take the pod's own value",
            away(term(matchLabelKeys=["v"])),
            {"v": "2"},
            [pod("a", on="n", labels={"app": "db", "v": "1"})],
            "",
        ),
        (
            "mismatchLabelKeys the others",
            away(term(mismatchLabelKeys=["v"])),
            {"v": "2"},
            [pod("a", on="n", labels={"app": "db", "v": "1"})],
            "pod-anti-affinity",
        ),
        ("no selector selects no pod", away({"topologyKey": ZONE}), {}, [db("a", "n")], ""),
    ],
)
def test_inter_pod(behaviour: str, affinity: Spec, labels: dict[str, str], others: list[Any], code: str) -> None:
    assert verdict(pod(affinity=affinity, labels=labels), *others) == code, behaviour
