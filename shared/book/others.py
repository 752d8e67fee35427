"""Objects of other kinds than pods and nodes, as the cluster has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shared.model.objects import PodDisruptionBudget


class Others(dict[str, dict[str, Any]]):
    """By kind and then by namespace/name."""

    def __init__(self) -> None:
        super().__init__()
        self._budgets: dict[str, dict[str, PodDisruptionBudget]] = {}
        """By namespace and then by namespace/name. The inner ones are never changed: twins share them."""

    def put(self, kind: str, path: str, obj: Any) -> Any:
        """Returns what was there before; None: nothing."""
        known = self.setdefault(kind, {}).get(path)
        self[kind][path] = obj
        if isinstance(obj, PodDisruptionBudget):
            namespace = obj.metadata.namespace
            self._budgets[namespace] = {**self._budgets.get(namespace, {}), path: obj}
        return known

    def drop(self, kind: str, path: str) -> None:
        dropped = self.get(kind, {}).pop(path, None)
        if isinstance(dropped, PodDisruptionBudget):
            budgets = self._budgets.pop(dropped.metadata.namespace)
            if left := {name: budget for name, budget in budgets.items() if name != path}:
                self._budgets[dropped.metadata.namespace] = left

    def budgets(self, namespace: str) -> Iterable[PodDisruptionBudget]:
        """The disruption budgets of a namespace. It is asked for each pod that could be evicted, and a large cluster
        has thousands of them."""
        return self._budgets.get(namespace, {}).values()

    def twin(self) -> Others:
        """Returns a copy that changes by itself."""
        twin = Others()
        twin.update({kind: dict(objects) for kind, objects in self.items()})
        twin._budgets = dict(self._budgets)
        return twin
