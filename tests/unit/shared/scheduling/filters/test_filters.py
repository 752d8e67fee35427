"""What excludes a pod from a node, case by case. Each name is a behaviour; kube-scheduler gives the same answers
(tests/cluster/test_oracle.py).

The pod `p` of namespace `team` is checked against node `n`; `o` is another node in another zone. Pods named after a
node run there.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.book.book import Book
from shared.book.states import pod_state
from shared.contracts.facts import Put
from shared.model.objects import Namespace, Node, Pod, PodSpec, Taint
from shared.scheduling.filters import CLUSTER_FILTERS, NODE_FILTERS, ROOM_FILTERS
from tests.support import build

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
Spec = dict[str, Any]


def pod(
    name: str = "p", *, on: str = "", namespace: str = "team", labels: dict[str, str] | None = None, **spec: Any
) -> Pod:
    """`spec` as in a manifest."""
    made = build.pod(name, namespace=namespace, labels=labels)
    containers = [{"name": "c"}]
    return msgspec.structs.replace(
        made, spec=msgspec.convert({"containers": containers, "nodeName": on, "schedulerName": "kerf", **spec}, PodSpec)
    )


def requests(**amounts: str) -> Spec:
    return {"name": "c", "resources": {"requests": {k.replace("_", "-"): v for k, v in amounts.items()}}}


def verdict(asked: Pod, *others: Pod | Node | Namespace, node: Node | None = None, on: str = "n") -> str:
    """The first reason's code, empty if the node passes."""
    book = Book()
    default = node or build.node("n", cpu="4", memory="8Gi", labels={ZONE: "a"})
    for thing in (default, build.node("o", cpu="4", memory="8Gi", labels={ZONE: "b"}), *others):
        book.apply(Put(object=thing))
    state = pod_state(asked)
    assert not state.refusal
    for kind in (*NODE_FILTERS, *ROOM_FILTERS, *CLUSTER_FILTERS):
        check = kind.prepare(state, book)
        reason = None if check is None else check(book.nodes[on])
        if reason is not None:
            assert reason.sentence
            assert reason.helps
            return reason.code
    return ""


def labelled(**labels: str) -> Node:
    return build.node("n", labels={ZONE: "a", **labels})


def tainted(*taints: tuple[str, str, str]) -> Node:
    return build.node("n", taints=tuple(Taint(key=k, value=v, effect=e) for k, v, e in taints))


# --- taints ---------------------------------------------------------------------------------------------------------

GPU_TAINT = ("dedicated", "gpu", "NoSchedule")


@pytest.mark.parametrize(
    ("behaviour", "tolerations", "taints", "code"),
    [
        ("a NoSchedule taint excludes a pod that does not tolerate it", [], [GPU_TAINT], "taint"),
        ("a NoExecute taint too", [], [("leaving", "", "NoExecute")], "taint"),
        ("PreferNoSchedule is a preference", [], [("dedicated", "gpu", "PreferNoSchedule")], ""),
        (
            "Exists without a key tolerates everything",
            [{"operator": "Exists"}],
            [GPU_TAINT, ("leaving", "", "NoExecute")],
            "",
        ),
        ("Exists tolerates any value of its key", [{"key": "dedicated", "operator": "Exists"}], [GPU_TAINT], ""),
        ("Equal tolerates its value", [{"key": "dedicated", "operator": "Equal", "value": "gpu"}], [GPU_TAINT], ""),
        ("no operator is Equal", [{"key": "dedicated", "value": "gpu"}], [GPU_TAINT], ""),
        ("Equal does not tolerate another value", [{"key": "dedicated", "value": "cpu"}], [GPU_TAINT], "taint"),
        (
            "an effect limits the toleration",
            [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}],
            [GPU_TAINT],
            "taint",
        ),
        (
            "every taint needs its own toleration",
            [{"key": "dedicated", "operator": "Exists"}],
            [GPU_TAINT, ("x", "", "NoSchedule")],
            "taint",
        ),
        (
            "an unknown operator tolerates nothing",
            [{"key": "dedicated", "operator": "Like", "value": "gpu"}],
            [GPU_TAINT],
            "taint",
        ),
    ],
)
def test_taints(behaviour: str, tolerations: list[Spec], taints: list[tuple[str, str, str]], code: str) -> None:
    assert verdict(pod(tolerations=tolerations), node=tainted(*taints)) == code, behaviour


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    cordoned = build.node("n", unschedulable=True)
    assert verdict(pod(), node=cordoned) == "cordoned"
    assert (
        verdict(pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]), node=cordoned)
        == ""
    )


# --- node selector and affinity -------------------------------------------------------------------------------------


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


# --- resources ------------------------------------------------------------------------------------------------------

WIDGET = "example.com/widget"


def asking(*containers: Spec, inits: tuple[Spec, ...] = (), **rest: Any) -> Pod:
    return pod(containers=list(containers) or [{"name": "c"}], initContainers=list(inits), **rest)


ALWAYS = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("behaviour", "asked", "code"),
    [
        (
            "what is there to the last thousandth is enough",
            asking(requests(cpu="4", memory="8Gi", ephemeral_storage="100Gi")),
            "",
        ),
        ("a thousandth of a core too much does not fit", asking(requests(cpu="4001m")), "cpu"),
        ("a byte too much does not fit", asking(requests(memory="8589934593")), "memory"),
        ("ephemeral storage is counted", asking(requests(ephemeral_storage="101Gi")), "ephemeral-storage"),
        ("containers add up", asking(requests(cpu="2"), requests(cpu="2001m")), "cpu"),
        ("an init container counts where it is larger", asking(requests(cpu="1"), inits=(requests(cpu="5"),)), "cpu"),
        ("an init container does not add to the containers", asking(requests(cpu="3"), inits=(requests(cpu="3"),)), ""),
        ("a sidecar adds to the containers", asking(requests(cpu="3"), inits=(requests(cpu="1001m") | ALWAYS,)), "cpu"),
        (
            "a sidecar runs beside later init containers",
            asking(inits=(requests(cpu="2") | ALWAYS, requests(cpu="2001m"))),
            "cpu",
        ),
        (
            "a sidecar does not run beside earlier init containers",
            asking(inits=(requests(cpu="2001m"), requests(cpu="2") | ALWAYS)),
            "",
        ),
        ("overhead is added", asking(requests(cpu="4"), overhead={"cpu": "1m"}), "cpu"),
        ("pod-level resources replace the sum", asking(requests(cpu="1"), resources={"requests": {"cpu": "5"}}), "cpu"),
        ("a limit without a request is a request", asking({"name": "c", "resources": {"limits": {"cpu": "5"}}}), "cpu"),
        (
            "an extended resource that the node lacks",
            asking({"name": "c", "resources": {"limits": {WIDGET: "1"}}}),
            "extended-resource",
        ),
    ],
)
def test_resources_on_an_empty_node(behaviour: str, asked: Pod, code: str) -> None:
    assert verdict(asked) == code, behaviour


def test_running_pods_take_capacity_and_ended_pods_take_none() -> None:
    large = asking(requests(cpu="3"))
    running = pod("a", on="n", containers=[requests(cpu="2")])
    assert verdict(large, running) == "cpu"
    assert verdict(large, build.newer(running, phase="Succeeded")) == ""


def test_resources_that_are_not_requested_are_not_checked() -> None:
    """A node with overcommitted memory still takes a pod that requests only CPU."""
    assert verdict(asking(requests(cpu="1")), pod("a", on="n", containers=[requests(memory="16Gi")])) == ""


def test_the_number_of_pods_is_bounded() -> None:
    node = build.node("n", pods=1)
    assert verdict(pod(), node=node) == ""
    assert verdict(pod(), pod("a", on="n"), node=node) == "too-many-pods"


def test_extended_resources_are_taken_one_by_one() -> None:
    node = build.node("n", **{WIDGET: "2"})
    widgets = [{"name": "c", "resources": {"limits": {WIDGET: "2"}}}]
    assert verdict(pod(containers=widgets), node=node) == ""
    assert (
        verdict(
            pod(containers=widgets),
            pod("a", on="n", containers=[{"name": "c", "resources": {"limits": {WIDGET: "1"}}}]),
            node=node,
        )
        == "extended-resource"
    )


# --- host ports -----------------------------------------------------------------------------------------------------


def port(number: int, ip: str = "", protocol: str = "TCP") -> list[Spec]:
    return [{"name": "c", "ports": [{"containerPort": number, "hostPort": number, "hostIP": ip, "protocol": protocol}]}]


@pytest.mark.parametrize(
    ("behaviour", "wanted", "taken", "clash"),
    [
        ("the same port clashes", port(80), port(80), True),
        ("another port does not", port(80), port(81), False),
        ("another protocol does not", port(80), port(80, protocol="UDP"), False),
        ("another address does not", port(80, "10.0.0.1"), port(80, "10.0.0.2"), False),
        ("every address clashes with one", port(80), port(80, "10.0.0.2"), True),
        ("0.0.0.0 is every address", port(80, "10.0.0.1"), port(80, "0.0.0.0"), True),
        (
            "a container's port that is none of the host's is free",
            port(80),
            [{"name": "c", "ports": [{"containerPort": 80}]}],
            False,
        ),
    ],
)
def test_host_ports(behaviour: str, wanted: list[Spec], taken: list[Spec], clash: bool) -> None:
    assert verdict(pod(containers=wanted), pod("a", on="n", containers=taken)) == ("host-port" if clash else ""), (
        behaviour
    )
    assert verdict(pod(containers=wanted), pod("a", on="o", containers=taken)) == "", "on another node"


def test_a_sidecars_host_port_counts_and_an_init_containers_does_not() -> None:
    web = port(80)[0]
    assert verdict(pod(containers=[web]), pod("a", on="n", initContainers=[web | ALWAYS])) == "host-port"
    assert verdict(pod(containers=[web]), pod("a", on="n", initContainers=[web])) == ""


# --- inter-pod affinity ---------------------------------------------------------------------------------------------


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


def db(name: str, on: str, **rest: Any) -> Pod:
    return pod(name, on=on, labels={"app": "db"}, **rest)


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


# --- topology spread ------------------------------------------------------------------------------------------------


def spread(**rest: Any) -> Spec:
    return {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}},
        **rest,
    }


ONE_HERE = [db("a", "n")]
TO_N = {"nodeSelector": {HOST: "n"}}


@pytest.mark.parametrize(
    ("behaviour", "constraint", "spec", "others", "code"),
    [
        ("the fuller domain is closed", spread(), {}, ONE_HERE, "spread"),
        ("maxSkew widens it", spread(maxSkew=2), {}, ONE_HERE, ""),
        ("ScheduleAnyway is a preference", spread(whenUnsatisfiable="ScheduleAnyway"), {}, ONE_HERE, ""),
        ("even domains are open", spread(), {}, [db("a", "n"), db("b", "o")], ""),
        ("other pods do not count", spread(), {}, [pod("a", on="n", labels={"app": "web"})], ""),
        ("pods of other namespaces do not count", spread(), {}, [db("a", "n", namespace="red")], ""),
        (
            "a pod that is going does not count",
            spread(),
            {},
            [build.newer(db("a", "n"), deletion_timestamp="2026-11-21T00:00:00Z")],
            "",
        ),
        ("the node needs the key", spread(topologyKey="rack"), {}, [], "spread-no-key"),
        ("too few domains make the least 0", spread(minDomains=3), {}, [db("a", "n"), db("b", "o")], "spread"),
        ("domains that the pod cannot reach do not count", spread(), TO_N, ONE_HERE, ""),
        ("unless it says so", spread(nodeAffinityPolicy="Ignore"), TO_N, ONE_HERE, "spread"),
        (
            "tainted nodes count",
            spread(),
            {},
            [
                *ONE_HERE,
                build.node("t", labels={ZONE: "c"}, taints=(Taint(key="x", effect="NoSchedule"),)),
                db("b", "o"),
            ],
            "spread",
        ),
        (
            "unless it says so",
            spread(nodeTaintsPolicy="Honor"),
            {},
            [
                *ONE_HERE,
                build.node("t", labels={ZONE: "c"}, taints=(Taint(key="x", effect="NoSchedule"),)),
                db("b", "o"),
            ],
            "",
        ),
        (
            "matchLabelKeys count the pod's own revision",
            spread(matchLabelKeys=["rev"]),
            {},
            [pod("a", on="n", labels={"app": "db", "rev": "1"})],
            "",
        ),
        ("an empty selector counts no pod", spread(labelSelector={}), {}, ONE_HERE, ""),
    ],
)
def test_topology_spread(behaviour: str, constraint: Spec, spec: Spec, others: list[Any], code: str) -> None:
    asked = pod(labels={"app": "db", "rev": "2"}, topologySpreadConstraints=[constraint], **spec)
    assert verdict(asked, *others) == code, behaviour


def test_all_constraints_hold_and_domains_are_those_of_nodes_with_all_keys() -> None:
    both = [spread(), spread(topologyKey="rack")]
    assert verdict(pod(labels={"app": "db"}, topologySpreadConstraints=both)) == "spread-no-key"
    assert (
        verdict(pod(labels={"app": "db"}, topologySpreadConstraints=both), db("a", "n"), node=labelled(rack="r1")) == ""
    )
