"""JobSets: jobs that run together, or one after the other.

With an exclusive topology the first pod of each job gets a node, and only then the API server accepts the others, whose
node selector names that node's topology: the first pods are the gang then, and the others of each job one of their own.
Unless nodes are labelled beforehand, with the strategy of node selectors.
Sources: kubernetes-sigs/jobset `api/jobset/v1alpha2/jobset_types.go`, `pkg/webhooks/pod_webhook.go`.
"""

from __future__ import annotations

from typing import Any

from shared.kube.gangs.base import Spec
from shared.kube.gangs.job import JobSpec
from shared.model.gang import JOBSET_EXCLUSIVE, JOBSET_NODE_SELECTORS, jobset_followers
from shared.model.kube_object import Labels


class _TemplateMeta(Spec, frozen=True):
    annotations: Labels | None = None


class _JobTemplate(Spec, frozen=True):
    metadata: _TemplateMeta = _TemplateMeta()
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


def read(spec: JobSetSpec, annotations: Labels) -> dict[str, Any]:
    """If its jobs start one after the other, waiting for all of them at once would never end."""
    in_order = spec.startup_policy is not None and spec.startup_policy.startup_policy_order == "InOrder"
    first: dict[str, int] = {}
    followers: dict[str, int] = {}
    for job in spec.replicated_jobs:
        if _is_exclusive(annotations) or _is_exclusive(job.template.metadata.annotations or {}):
            first[job.name] = job.replicas
            followers[jobset_followers(job.name)] = job.template.spec.at_once - 1
        else:
            first[job.name] = job.pods
    if in_order or any(job.depends_on for job in spec.replicated_jobs):
        return {"parts": first | followers}
    return {"minimum": sum(first.values()), "parts": followers}


def _is_exclusive(annotations: Labels) -> bool:
    return JOBSET_EXCLUSIVE in annotations and JOBSET_NODE_SELECTORS not in annotations
