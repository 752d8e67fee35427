"""Jobs, for pods that say `kerf.dev/gang-size: owner`."""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec


class JobSpec(Spec, frozen=True):
    parallelism: int | None = None
    completions: int | None = None

    @property
    def at_once(self) -> int:
        wide = 1 if self.parallelism is None else self.parallelism
        return wide if self.completions is None else min(wide, self.completions)


def read(spec: JobSpec) -> dict[str, Any]:
    return {"minimum": spec.at_once}
