"""Clusters and pods drawn from a seed, as manifests, with every constraint that scheduling honours."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Manifest = dict[str, Any]

ZONE, RACK, HOST = "topology.kubernetes.io/zone", "example.com/rack", "kubernetes.io/hostname"
APPS, TIERS = ("web", "db", "batch"), ("front", "back")
EXTENDED = "example.com/widget"


def pin(node: str) -> str:
    """An extended resource that this node alone offers: a copy that requests it can be placed nowhere else, and neither
    its affinity nor the domains over which it is spread change."""
    return f"pin.example.com/{node}"


class Drawn:
    """One cluster: its objects in the order of creation, and pods to be placed in it."""

    def __init__(self, seed: int, *, pods: int) -> None:
        self.random = random.Random(seed)
        self.prefix = f"s{seed}"
        self.namespaces = [f"{self.prefix}-{name}" for name in ("one", "two", "three")]
        count = self.random.randint(4, 8)
        self.nodes = [self._node(f"{self.prefix}-n{i}") for i in range(count)]
        self.existing = [self._existing(f"e{i}") for i in range(self.random.randint(count, 3 * count))]
        self.pods = [self._pod(f"p{i}") for i in range(pods)]

    def namespace_objects(self) -> list[Manifest]:
        teams = ("red", "blue", "red")
        return [
            {"metadata": {"name": name, "labels": {"team": team}}}
            for name, team in zip(self.namespaces, teams, strict=True)
        ]

    # --- the cluster --------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Manifest:
        r = self.random
        labels = {
            HOST: name,
            "disk": r.choice(("ssd", "hdd")),
            "generation": r.choice(("1", "5", "007", "10", "1_0", "new")),
        }
        if r.random() < 0.85:
            labels[ZONE] = r.choice("abc")
        if r.random() < 0.8:
            labels[RACK] = r.choice(("r1", "r2"))
        offered = {
            "cpu": r.choice(("1", "2", "3500m")),
            "memory": r.choice(("1Gi", "2Gi", "4000M")),
            "pods": str(r.choice((3, 5, 20))),
            "ephemeral-storage": r.choice(("1Gi", "10Gi")),
            pin(name): "1000",
        }
        if r.random() < 0.6:
            offered[EXTENDED] = str(r.randint(0, 2))
        taints = [
            t
            for t in (
                {"key": "dedicated", "value": r.choice(("x", "y")), "effect": "NoSchedule"},
                {"key": "leaving", "effect": "NoExecute"},
                {"key": "flag", "effect": "NoSchedule"},
                {"key": "rather-not", "value": "v", "effect": "PreferNoSchedule"},
            )
            if r.random() < 0.1
        ]
        spec: Manifest = {"taints": taints} | ({"unschedulable": True} if r.random() < 0.12 else {})
        return {
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"capacity": offered, "allocatable": offered},
        }

    def _existing(self, name: str) -> Manifest:
        r = self.random
        pod = self._base(name)
        pod["spec"]["nodeName"] = r.choice(self.nodes)["metadata"]["name"]
        if r.random() < 0.25:
            self._anti_affinity(pod)
        if r.random() < 0.2:
            self._ports(pod)
        if r.random() < 0.15:
            self._spread(pod)
        if r.random() < 0.15:
            self._init(pod)
        # Its state after its creation: most run, some are ending, some have ended.
        pod["fate"] = r.choices(("runs", "leaving", "Succeeded"), (8, 1, 1))[0]
        return pod

    # --- pods ---------------------------------------------------------------------------------------------------

    def _base(self, name: str) -> Manifest:
        r = self.random
        resources = {
            "requests": {"cpu": r.choice(("0", "100m", "250m", "0.5")), "memory": r.choice(("0", "64Mi", "200M"))}
        }
        return {
            "metadata": {
                "name": name,
                "namespace": r.choice(self.namespaces[:2]),
                "labels": {"app": r.choice(APPS), "tier": r.choice(TIERS)},
            },
            "spec": {
                "containers": [{"name": "main", "image": "example", "resources": resources}],
                "terminationGracePeriodSeconds": 3600,
            },
        }

    def _pod(self, name: str) -> Manifest:
        r = self.random
        pod = self._base(name)
        features: list[Callable[[Manifest], None]] = [
            self._large,
            self._selector,
            self._node_affinity,
            self._tolerate,
            self._affinity,
            self._anti_affinity,
            self._spread,
            self._ports,
            self._init,
            self._overhead,
            self._extended,
        ]
        if r.random() < 0.6:
            self._tolerate(pod)
        for feature in r.sample(features, r.choices((0, 1, 2, 3), (1, 5, 4, 2))[0]):
            feature(pod)
        if r.random() < 0.1:
            self._pod_level(pod)
        if r.random() < 0.02:
            pod["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
        return pod

    def _large(self, pod: Manifest) -> None:
        r = self.random
        pod["spec"]["containers"][0]["resources"] = {"requests": {
            "cpu": r.choice(("500m", "1", "1001m", "2")), "memory": r.choice(("512Mi", "1Gi", "1500M")),
            "ephemeral-storage": r.choice(("100Mi", "2Gi")),
        }}  # fmt: skip

    def _extended(self, pod: Manifest) -> None:
        resources = pod["spec"]["containers"][0]["resources"]
        amount = str(self.random.randint(1, 2))
        resources["limits"] = {**resources.get("limits", {}), EXTENDED: amount}
        resources["requests"] = {**resources.get("requests", {}), EXTENDED: amount}

    def _selector(self, pod: Manifest) -> None:
        pod["spec"]["nodeSelector"] = self.random.choice(({"disk": "ssd"}, {ZONE: "a"}, {RACK: "r1", "disk": "hdd"}))

    def _node_affinity(self, pod: Manifest) -> None:
        r = self.random
        lines = (
            {"key": ZONE, "operator": "In", "values": ["a", "b"]},
            {"key": ZONE, "operator": "NotIn", "values": ["a"]},
            {"key": RACK, "operator": "Exists"},
            {"key": RACK, "operator": "DoesNotExist"},
            {"key": "generation", "operator": "Gt", "values": ["4"]},
            {"key": "generation", "operator": "Lt", "values": ["8"]},
            {"key": "disk", "operator": "In", "values": ["ssd"]},
        )
        field = {
            "key": "metadata.name",
            "operator": r.choice(("In", "NotIn")),
            "values": [r.choice(self.nodes)["metadata"]["name"]],
        }
        terms: list[Manifest] = []
        for _ in range(r.randint(1, 2)):
            term: Manifest = {"matchExpressions": r.sample(lines, r.randint(1, 2))}
            terms.append(term | ({"matchFields": [field]} if r.random() < 0.3 else {}))
        if r.random() < 0.1:
            terms.append({})  # an empty term matches nothing
        self._affinities(pod)["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }

    def _tolerate(self, pod: Manifest) -> None:
        r = self.random
        choices = (
            {"operator": "Exists"},
            {"key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
            {"key": "dedicated", "operator": "Exists"},
            {"key": "leaving", "operator": "Exists", "effect": "NoExecute"},
            {"key": "flag"},
            {"key": "flag", "value": "other", "effect": "NoSchedule"},
            {"operator": "Exists", "effect": "NoExecute"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
        )
        pod["spec"]["tolerations"] = r.sample(choices, r.randint(1, 3))

    def _pod_selector(self) -> Manifest:
        r = self.random
        return r.choice(
            (
                {"matchLabels": {"app": r.choice(APPS)}},
                {"matchExpressions": [{"key": "app", "operator": "In", "values": r.sample(APPS, 2)}]},
                {"matchLabels": {"app": r.choice(APPS), "tier": r.choice(TIERS)}},
                {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                {},
            )
        )

    def _term(self) -> Manifest:
        r = self.random
        term: Manifest = {"topologyKey": r.choice((ZONE, RACK, HOST)), "labelSelector": self._pod_selector()}
        match r.randint(0, 5):
            case 0:
                term["namespaces"] = [r.choice(self.namespaces)]
            case 1:
                term["namespaceSelector"] = r.choice(
                    ({"matchLabels": {"team": "red"}}, {}, {"matchLabels": {"team": "green"}})
                )
            case 2:
                term["namespaces"] = [self.namespaces[1]]
                term["namespaceSelector"] = {"matchLabels": {"team": "red"}}
            case 3 if "tier" not in str(term["labelSelector"]):
                term["matchLabelKeys"] = ["tier"]
            case 4 if "app" not in str(term["labelSelector"]):
                term["mismatchLabelKeys"] = ["app"]
        return term

    def _affinities(self, pod: Manifest) -> Manifest:
        affinity: Manifest = pod["spec"].setdefault("affinity", {})
        return affinity

    def _affinity(self, pod: Manifest) -> None:
        terms = [self._term() for _ in range(self.random.randint(1, 2))]
        self._affinities(pod)["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}

    def _anti_affinity(self, pod: Manifest) -> None:
        terms = [self._term() for _ in range(self.random.randint(1, 2))]
        self._affinities(pod)["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}

    def _spread(self, pod: Manifest) -> None:
        r = self.random
        constraints: list[Manifest] = []
        for key in r.sample((ZONE, RACK, HOST), r.randint(1, 2)):
            one: Manifest = {
                "maxSkew": r.randint(1, 2),
                "topologyKey": key,
                "whenUnsatisfiable": r.choices(("DoNotSchedule", "ScheduleAnyway"), (5, 1))[0],
                "labelSelector": self._pod_selector(),
            }
            if one["whenUnsatisfiable"] == "DoNotSchedule" and r.random() < 0.3:
                one["minDomains"] = r.randint(1, 4)
            if r.random() < 0.4:
                one["nodeAffinityPolicy"] = r.choice(("Honor", "Ignore"))
            if r.random() < 0.4:
                one["nodeTaintsPolicy"] = r.choice(("Honor", "Ignore"))
            if r.random() < 0.2 and "tier" not in str(one["labelSelector"]):
                one["matchLabelKeys"] = ["tier"]
            constraints.append(one)
        pod["spec"]["topologySpreadConstraints"] = constraints

    def _ports(self, pod: Manifest) -> None:
        r = self.random
        port: Manifest = {"containerPort": r.choice((80, 443)), "protocol": r.choice(("TCP", "TCP", "UDP"))}
        if r.random() < 0.3:
            pod["spec"]["hostNetwork"] = True
        else:
            port |= {"hostPort": port["containerPort"]} | (
                {"hostIP": r.choice(("10.0.0.1", "10.0.0.2"))} if r.random() < 0.5 else {}
            )
        pod["spec"]["containers"][0]["ports"] = [port]

    def _init(self, pod: Manifest) -> None:
        r = self.random
        made = [
            {
                "name": "first",
                "image": "example",
                "resources": {"requests": {"cpu": r.choice(("100m", "900m")), "memory": "300Mi"}},
            }
        ]
        if r.random() < 0.6:
            sidecar: Manifest = {
                "name": "beside",
                "image": "example",
                "restartPolicy": "Always",
                "resources": {"requests": {"cpu": r.choice(("200m", "700m"))}},
            }
            if r.random() < 0.3 and not pod["spec"].get("hostNetwork"):
                sidecar["ports"] = [{"containerPort": 9000, "hostPort": 443}]
            made.insert(r.randint(0, 1), sidecar)
        pod["spec"]["initContainers"] = made

    def _overhead(self, pod: Manifest) -> None:
        """By the RuntimeClass `heavy`, whose admission writes the overhead."""
        pod["spec"]["runtimeClassName"] = "heavy"

    def _pod_level(self, pod: Manifest) -> None:
        """It must not be less than its containers' sum, so those become small; and it is the last feature drawn."""
        pod["spec"].pop("initContainers", None)
        pod["spec"]["containers"][0]["resources"].setdefault("requests", {}).update({"cpu": "100m", "memory": "64Mi"})
        pod["spec"]["resources"] = {"requests": {"cpu": self.random.choice(("900m", "1500m")), "memory": "800Mi"}}


RUNTIME_CLASS = {
    "metadata": {"name": "heavy"},
    "handler": "heavy",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
}
