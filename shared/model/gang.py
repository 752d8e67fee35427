"""What a pod says of its gang: in Kerf's annotations, or in those of the controller that created it.

A gang is placed all or none. Its size is given on the pod itself (`kerf.dev/gang-size`, Kueue's pod groups), or in an
object that the pod names by a label, an annotation or a field; then `GangRef.source` names that object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from shared.model import names
from shared.model.objects import Pod
from shared.model.request import RequestError

NONE = "none"
"""As kerf.dev/gang: this pod is placed by itself, whatever else it carries."""
OWNER = "owner"
"""As kerf.dev/gang-size: as many as the pods' Job runs at once."""
MOST_MEMBERS = 10_000
MOST_TIMEOUT_S = 86_400

LEVELS = {
    "node": "kubernetes.io/hostname",
    "nvlink": "nvidia.com/gpu.clique",
    "rack": "topology.kubernetes.io/rack",
    "zone": "topology.kubernetes.io/zone",
}
"""Short words for node labels. GPU feature discovery writes the clique: nodes of one NVLink domain."""

KUBEFLOW_KINDS = ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_COUNT = re.compile(r"[0-9]{1,5}")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,250}[A-Za-z0-9])?")

_KUBEFLOW_JOB = "training.kubeflow.org/job-name"
_KUBEFLOW_OPERATOR = "training.kubeflow.org/operator-name"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"
_COSCHEDULING = "scheduling.x-k8s.io/pod-group"
_VOLCANO = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")
_KAI = "pod-group-name"
_KUEUE_NAME = "kueue.x-k8s.io/pod-group-name"
_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
_KUEUE_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
_KUEUE_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"


class GangRef(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's data on its gang. `name` is unique in the namespace. Zeros and empty texts: the pod does not say."""

    name: str
    source: str = ""
    """The object that has the size, as `shared.model.objects.Gang` is named: podgroup.scheduling.x-k8s.io/train."""
    part: str = ""
    """The part of that object to which the pod belongs, where it has parts."""
    instance: str = ""
    """Tells several gangs of one part from each other."""
    minimum: int = 0
    timeout_s: int = 0
    required: str = ""
    preferred: str = ""


def read_gang(pod: Pod) -> GangRef | None:
    """The gang that the pod belongs to; None where it is placed by itself. Raises RequestError (bad-gang) on
    annotations of Kerf's that make no sense."""
    notes = pod.metadata.annotations
    required, preferred = _topology(notes)
    timeout_s = _number(notes, names.ANNOTATION_GANG_TIMEOUT, 0, MOST_TIMEOUT_S, "seconds")
    named = notes.get(names.ANNOTATION_GANG)
    if named is None and (
        stray := next((k for k in (names.ANNOTATION_GANG_SIZE, names.ANNOTATION_GANG_MIN) if k in notes), "")
    ):
        raise _bad(f"annotation {names.ANNOTATION_GANG} is None, and {stray} stands without it; name the gang")
    if named == NONE:
        return None
    ref = _declared(pod, named) if named is not None else _inferred(pod)
    return (
        None
        if ref is None
        else msgspec.structs.replace(ref, timeout_s=timeout_s, required=required, preferred=preferred)
    )


def _declared(pod: Pod, name: str) -> GangRef:
    notes = pod.metadata.annotations
    if not _NAME.fullmatch(name):
        raise _bad(
            f"annotation {names.ANNOTATION_GANG} is {name!r}; it must be a name of lower-case letters, digits, "
            f"dots and dashes, beside {names.ANNOTATION_GANG_SIZE}"
        )
    if notes.get(names.ANNOTATION_GANG_SIZE) == OWNER:
        job = next((o.name for o in pod.metadata.owner_references if o.controller and o.kind == "Job"), "")
        if not job:
            raise _bad(
                f"annotation {names.ANNOTATION_GANG_SIZE} is {OWNER!r}, and no Job made this pod; write the "
                f"number of pods in gang {name!r}"
            )
        return GangRef(
            name=f"job.batch/{job}",
            source=f"job.batch/{job}",
            minimum=_number(notes, names.ANNOTATION_GANG_MIN, 0, MOST_MEMBERS, "pods"),
        )
    size = _number(notes, names.ANNOTATION_GANG_SIZE, None, MOST_MEMBERS, f"pods in gang {name!r}")
    return GangRef(
        name=name,
        minimum=_number(
            notes, names.ANNOTATION_GANG_MIN, size, size, f"pods without which gang {name!r} does not start"
        ),
    )


def _inferred(pod: Pod) -> GangRef | None:
    """By what others write on their pods, the most definite first."""
    meta, spec = pod.metadata, pod.spec
    if spec.scheduling_group is not None and spec.scheduling_group.pod_group_name:
        return _by(f"podgroup.scheduling.k8s.io/{spec.scheduling_group.pod_group_name}")
    if spec.workload_ref is not None and spec.workload_ref.name:
        ref = spec.workload_ref
        return _by(f"workload.scheduling.k8s.io/{ref.name}", part=ref.pod_group, instance=ref.pod_group_replica_key)
    if group := meta.labels.get(_COSCHEDULING):
        return _by(f"podgroup.scheduling.x-k8s.io/{group}")
    if group := next((meta.annotations[key] for key in _VOLCANO if meta.annotations.get(key)), ""):
        return _by(f"podgroup.scheduling.volcano.sh/{group}")
    if group := meta.annotations.get(_KAI):
        return _by(f"podgroup.scheduling.run.ai/{group}")
    if (group := meta.labels.get(_KUEUE_NAME)) and _COUNT.fullmatch(count := meta.annotations.get(_KUEUE_COUNT, "")):
        return GangRef(name=f"kueue/{group}", minimum=int(count))
    if group := meta.labels.get(_JOBSET):
        return _by(f"jobset.jobset.x-k8s.io/{group}", part=meta.labels.get(_JOBSET_PART, ""))
    if (group := meta.labels.get(_KUBEFLOW_JOB)) and (kind := _kubeflow_kind(pod)):
        return _by(f"{kind}.kubeflow.org/{group}")
    return None


def _by(source: str, *, part: str = "", instance: str = "") -> GangRef:
    return GangRef(name=source, source=source, part=part, instance=instance)


def _kubeflow_kind(pod: Pod) -> str:
    """By the owner; the launcher of an MPIJob is made by a Job, and has the operator's name on a label."""
    owner = next((o.kind for o in pod.metadata.owner_references if o.kind in KUBEFLOW_KINDS), "")
    if owner:
        return owner.lower()
    operator = pod.metadata.labels.get(_KUBEFLOW_OPERATOR, "").removesuffix("-controller")
    kind = "mpijob" if operator == "mpi-operator" else operator
    return kind if kind in {k.lower() for k in KUBEFLOW_KINDS} else ""


def _topology(notes: Mapping[str, str]) -> tuple[str, str]:
    """(required, preferred) node labels."""
    text = notes.get(names.ANNOTATION_GANG_TOPOLOGY)
    if text is None:
        return notes.get(_KUEUE_REQUIRED, ""), notes.get(_KUEUE_PREFERRED, "")
    levels = {"required": "", "preferred": ""}
    for entry in text.split(","):
        how, _, level = (part.strip() for part in entry.partition("="))
        label = LEVELS.get(level, level)
        if how not in levels or levels[how] or not _LABEL.fullmatch(label):
            raise _bad(
                f"annotation {names.ANNOTATION_GANG_TOPOLOGY} is {text!r}; write required=LEVEL, preferred=LEVEL or "
                f"both with a comma, each LEVEL being {', '.join(sorted(LEVELS))} or a node label"
            )
        levels[how] = label
    return levels["required"], levels["preferred"]


def _number(notes: Mapping[str, str], key: str, default: int | None, most: int, of_what: str) -> int:
    text = notes.get(key)
    if text is None and default is not None:
        return default
    if text is None or not _COUNT.fullmatch(text) or not 1 <= int(text) <= most:
        raise _bad(f"annotation {key} is {text!r}; it must be the number of {of_what}, from 1 to {most}")
    return int(text)


def _bad(message: str) -> RequestError:
    return RequestError("bad-gang", message)
