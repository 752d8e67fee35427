"""JobSets: jobs that run together, or one after the other."""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec
from shared.kube.gangs.job import JobSpec


class _JobTemplate(Spec, frozen=True):
    spec: JobSpec = JobSpec()


class _ReplicatedJob(Spec, frozen=True):
    name: str = ""
    replicas: int = 1
    template: _JobTemplate = _JobTemplate()
    depends_on: tuple[dict[str, Any], ...] | None = None

    @property
    def pods(self) -> int:
        return self.replicas * self.template.spec.at_once


class _StartupPolicy(Spec, frozen=True):
    startup_policy_order: str = ""


class JobSetSpec(Spec, frozen=True):
    replicated_jobs: tuple[_ReplicatedJob, ...] = ()
    startup_policy: _StartupPolicy | None = None


def read(spec: JobSetSpec) -> dict[str, Any]:
    """If its jobs start one after the other, waiting for all of them at once would never end."""
    in_order = spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"
    if in_order or any(job.depends_on for job in spec.replicated_jobs):
        return {"parts": {job.name: job.pods for job in spec.replicated_jobs}}
    return {"minimum": sum(job.pods for job in spec.replicated_jobs)}
