"""A Kubernetes API server in memory: its semantics of names, uids, versions, preconditions, Bindings and deletion.

Pure: no clock, no chance, no waiting. Time comes in with each call as Unix seconds. What it answers was compared with
1.36.4 by tests/contract/cluster_source, which runs against both. A simulated kubelet (`tick`) lets bound pods run and
end. It keeps no quotas and validates little: it is for scheduling, not for testing manifests.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from services.simulator.patch import merge
from services.simulator.rules import (
    ANNOTATION_SECONDS,
    Json,
    Reply,
    decode,
    default_pod,
    exhausted_budget,
    failure,
    precondition,
    too_long,
)
from shared.contracts.facts import Fact, Gone, Put
from shared.kube import resources
from shared.model.kinds import KINDS
from shared.model.timestamps import seconds_text

Key = tuple[str, str, str]
"""kind, namespace, name"""

TERMINAL = ("Succeeded", "Failed")


class SimulatedCluster:
    """The objects and their history. Stored documents are never changed in place, so answers may be kept.

    `uid_prefix` must differ between clusters whose pods appear in one log; `first_version` is the first
    resourceVersion.
    """

    def __init__(self, *, uid_prefix: str = "00000000", first_version: int = 1, stop_s: float = 0.1) -> None:
        self._prefix = uid_prefix
        self._version = first_version
        self._uids = 0
        self._objects: dict[str, dict[tuple[str, str], Json]] = {kind: {} for kind in resources.BY_KIND}
        self._facts: list[Fact] = []
        self._due: list[tuple[float, int, str, Key, str]] = []
        self._stop_s = stop_s
        self._order = 0
        for name in ("default", "kube-system", "kerf-system"):
            self.create("Namespace", {"metadata": {"name": name}}, 0.0)

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        return self._version

    def get(self, kind: str, name: str, namespace: str = "") -> Json | None:
        return self._find((kind, namespace, name))

    def all(self, kind: str) -> Iterator[Json]:
        return iter(self._objects[kind].values())

    def take(self) -> list[Fact]:
        """What happened since the last call, in order."""
        taken, self._facts = self._facts, []
        return taken

    def snapshot(self) -> list[Fact]:
        """Every object of the kinds that scheduling reads, as it is now."""
        return [Put(object=decode(kind, found)) for kind in KINDS if kind in self._objects for found in self.all(kind)]

    # --- writing ----------------------------------------------------------------------------------------------------

    def create(self, kind: str, document: Json, now: float) -> Reply:
        resource = resources.BY_KIND.get(kind)
        if resource is None:
            return failure(404, "NotFound", f"the server could not find the requested resource ({kind})")
        meta = dict(document.get("metadata") or {})
        namespace = (meta.get("namespace") or "default") if resource.namespaced else ""
        if namespace and self.get("Namespace", namespace) is None:
            return failure(404, "NotFound", f'namespaces "{namespace}" not found')
        self._uids += 1
        name = meta.get("name") or (f"{meta['generateName']}{self._uids:05x}" if meta.get("generateName") else "")
        if not name:
            return failure(
                422, "Invalid", f'{kind} "" is invalid: metadata.name: Required value: name or generateName is required'
            )
        key = (kind, namespace, name)
        if self._find(key) is not None:
            return failure(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        meta |= {
            "name": name,
            "uid": f"{self._prefix}-0000-4000-8000-{self._uids:012x}",
            "creationTimestamp": seconds_text(now),
        }
        if namespace:
            meta["namespace"] = namespace
        api_version = resource.prefix.removeprefix("apis/").removeprefix("api/")
        made = {"apiVersion": api_version, "kind": kind, **document, "metadata": meta}
        if kind == "Pod":
            refused = default_pod(made, self.all("PriorityClass"))
            if refused:
                return refused
        refused = too_long(kind, name, made)
        if refused:
            return refused
        try:
            return 201, self._store(key, made)
        except msgspec.ValidationError as error:
            return failure(400, "BadRequest", f'{kind} "{name}" cannot be read: {error}')

    def replace(self, kind: str, document: Json) -> Reply:
        """As `kubectl apply` on an object that exists: labels, annotations, spec; status only where the document has
        one.

        The spec of a pod stays, but for gates that go: everything else in it is immutable.
        """
        meta = document.get("metadata") or {}
        namespace = (meta.get("namespace") or "default") if resources.BY_KIND[kind].namespaced else ""
        key = (kind, namespace, meta.get("name", ""))
        old = self._find(key)
        if old is None:
            return self._not_found(key)
        kept = {k: meta[k] for k in ("labels", "annotations") if k in meta}
        new = {
            **old,
            **{k: v for k, v in document.items() if k not in ("metadata", "kind", "apiVersion")},
            "metadata": {**old["metadata"], **kept},
        }
        if kind == "Pod":
            gates = (document.get("spec") or {}).get("schedulingGates") or []
            new["spec"] = {
                **old["spec"],
                "schedulingGates": [g for g in old["spec"].get("schedulingGates") or [] if g in gates],
            }
            new["status"] = old["status"]
        return self._update(key, old, new)

    def bind(self, namespace: str, name: str, binding: Json, now: float) -> Reply:
        """POST pods/<name>/binding. As the real one, it does not ask whether the node exists."""
        key = ("Pod", namespace, name)
        old = self._find(key)
        if old is None:
            return self._not_found(key)
        wanted, have, spec = binding.get("metadata") or {}, old["metadata"], old["spec"]
        why = precondition(wanted, have)
        if not why and have.get("deletionTimestamp"):
            why = f"pod {name} is being deleted, cannot be assigned to a host"
        if not why and spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        if not why and spec.get("schedulingGates"):
            why = f"pod {name} has non-empty .spec.schedulingGates"
        if why:
            return failure(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}": {why}')
        meta = {**have, **{k: {**(have.get(k) or {}), **wanted[k]} for k in ("annotations", "labels") if wanted.get(k)}}
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": seconds_text(now)}
        status = merge(old["status"], {"conditions": [scheduled]}, strategic=True)
        status["conditions"] = [scheduled if c["type"] == "PodScheduled" else c for c in status["conditions"]]
        node = binding["target"]["name"]
        bound = self._store(key, {**old, "metadata": meta, "spec": {**spec, "nodeName": node}, "status": status})
        self._later(now, "start", key, bound)
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def patch(self, kind: str, namespace: str, name: str, patch: Json, *, strategic: bool = False) -> Reply:
        """Merge patch or strategic merge patch; a resourceVersion in it is a precondition, another uid is invalid."""
        key = (kind, namespace, name)
        old = self._find(key)
        if old is None:
            return self._not_found(key)
        meta = patch.get("metadata") or {}
        if meta.get("uid") and meta["uid"] != old["metadata"]["uid"]:
            text = f'Invalid value: "{meta["uid"]}": field is immutable'
            cause = {"reason": "FieldValueInvalid", "message": text, "field": "metadata.uid"}
            return failure(422, "Invalid", f'{kind} "{name}" is invalid: metadata.uid: {text}', causes=[cause])
        if meta.get("resourceVersion") and meta["resourceVersion"] != old["metadata"]["resourceVersion"]:
            return failure(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {resources.BY_KIND[kind].plural} "{name}": the object has '
                "been modified",
            )
        return self._update(key, old, merge(old, patch, strategic=strategic))

    def delete(self, kind: str, namespace: str, name: str, options: Json, now: float) -> Reply:
        """A pod on a node lives on for its grace period, unless it has ended or the grace is 0; everything else goes at
        once."""
        key = (kind, namespace, name)
        old = self._find(key)
        if old is None:
            return self._not_found(key)
        why = precondition(options.get("preconditions") or {}, old["metadata"])
        if why:
            return failure(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}": {why}')
        if kind == "Pod":
            spec, phase = old["spec"], old["status"].get("phase")
            grace = options.get("gracePeriodSeconds")
            grace = int(spec.get("terminationGracePeriodSeconds", 30) if grace is None else grace)
            if spec.get("nodeName") and phase not in TERMINAL and grace > 0:
                ends = seconds_text(now + grace)
                if old["metadata"].get("deletionTimestamp"):
                    return 200, old
                meta = {**old["metadata"], "deletionTimestamp": ends, "deletionGracePeriodSeconds": grace}
                dying = self._store(key, {**old, "metadata": meta})
                if self.get("Node", spec["nodeName"]) is not None:
                    self._later(now + min(grace, self._stop_s), "stop", key, dying)
                return 200, dying
            # A deletion without grace is still reported twice: as terminating, then as gone.
            old = self._store(
                key,
                {
                    **old,
                    "metadata": {
                        **old["metadata"],
                        "deletionTimestamp": seconds_text(now),
                        "deletionGracePeriodSeconds": 0,
                    },
                },
            )
        self._remove(key, old)
        if kind == "Node":
            for (ns, n), pod in self._objects["Pod"].items():
                if pod["spec"].get("nodeName") == name:
                    self._later(now, "stop", ("Pod", ns, n), pod)  # the pod garbage collector's part
        return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    def evict(self, namespace: str, name: str, eviction: Json, now: float) -> Reply:
        """The Eviction API: a delete that disruption budgets may refuse with 429. Pending and ended pods have no
        budget."""
        pod = self.get("Pod", name, namespace)
        options = eviction.get("deleteOptions") or {}
        if pod is not None and pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
            why = precondition(options.get("preconditions") or {}, pod["metadata"])
            budget = None if why else exhausted_budget(pod, self.all("PodDisruptionBudget"), self.all("Pod"))
            if budget:
                cause = {
                    "reason": "DisruptionBudget",
                    "message": f"The disruption budget {budget} does not allow it now",
                }
                return failure(
                    429,
                    "TooManyRequests",
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    causes=[cause],
                )
        status, answer = self.delete("Pod", namespace, name, options, now)
        return (201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}) if status == 200 else (status, answer)

    # --- the simulated kubelet ----------------------------------------------------------------------------------------

    @property
    def next_due(self) -> float | None:
        """When `tick` next has something to do."""
        return self._due[0][0] if self._due else None

    def tick(self, now: float) -> None:
        """Everything on the nodes that is due."""
        while self._due and self._due[0][0] <= now:
            at, _, action, key, uid = heapq.heappop(self._due)
            pod = self._find(key)
            if pod is None or pod["metadata"]["uid"] != uid:
                continue
            if action == "stop":
                self._remove(key, pod)
            elif action == "start":
                self._start(key, pod, at)
            elif pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp"):
                self._store(key, {**pod, "status": {**pod["status"], "phase": "Succeeded"}})

    def _start(self, key: Key, pod: Json, now: float) -> None:
        node = pod["spec"]["nodeName"]
        if (
            self.get("Node", node) is None
            or pod["metadata"].get("deletionTimestamp")
            or pod["status"].get("phase") != "Pending"
        ):
            return
        ready = [
            {"type": t, "status": "True", "lastTransitionTime": seconds_text(now)}
            for t in ("Initialized", "ContainersReady", "Ready")
        ]
        running = {"phase": "Running", "startTime": seconds_text(now), "conditions": ready}
        started = self._store(key, {**pod, "status": merge(pod["status"], running, strategic=True)})
        seconds = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_SECONDS)
        if seconds:
            self._later(now + float(seconds), "finish", key, started)

    def _later(self, at: float, action: str, key: Key, pod: Json) -> None:
        self._order += 1
        heapq.heappush(self._due, (at, self._order, action, key, pod["metadata"]["uid"]))

    # --- inside -----------------------------------------------------------------------------------------------------

    def _find(self, key: Key) -> Json | None:
        return self._objects[key[0]].get(key[1:])

    def _store(self, key: Key, document: Json) -> Json:
        stored = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self._version + 1)}}
        if key[0] in KINDS:
            self._facts.append(
                Put(object=decode(key[0], stored))
            )  # raises where the document is malformed: nothing is stored then
        self._version += 1
        self._objects[key[0]][key[1:]] = stored
        return stored

    def _update(self, key: Key, old: Json, new: Json) -> Reply:
        if new == old:
            return 200, old  # a write that changes nothing has no version of its own
        refused = too_long(key[0], key[2], new)
        if refused:
            return refused
        try:
            return 200, self._store(key, new)
        except msgspec.ValidationError as error:
            return failure(422, "Invalid", f'{key[0]} "{key[2]}" is invalid: {error}')

    def _remove(self, key: Key, old: Json) -> None:
        del self._objects[key[0]][key[1:]]
        self._version += 1
        if key[0] in KINDS:
            last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self._version)}}
            self._facts.append(Gone(object=decode(key[0], last)))

    @staticmethod
    def _not_found(key: Key) -> Reply:
        resource = resources.BY_KIND.get(key[0])
        return failure(404, "NotFound", f'{resource.plural if resource else key[0]} "{key[2]}" not found')
