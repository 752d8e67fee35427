"""What a pod says of its gang: in Kerf's annotations, or in those of the controller that created it.

A gang is placed all or none. Its size is given on the pod itself (`kerf.dev/gang-size`, Kueue's pod groups), or in an
object that the pod names by a label, an annotation or a field; then `GangRef.source` names that object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from shared.model import names
from shared.model.objects import Gang, Pod
from shared.model.request import RequestError
from shared.model.subgroup import Subgroup

NONE = "none"
"""As kerf.dev/gang: this pod is placed by itself, whatever else it carries."""
KEEP = "keep"
"""As kerf.dev/gang-incomplete: its pods run on without the gang's minimum."""
OWNER = "owner"
"""As kerf.dev/gang-size: as many as the pods' Job runs at once."""
MOST_MEMBERS = 10_000
MOST_SUBGROUPS = 1_000
MOST_DEPTH = 8
"""How many subgroups may be inside of each other."""
MOST_TIMEOUT_S = 86_400

POD_GROUP = "podgroup.scheduling.k8s.io"
"""Kubernetes' own PodGroups, in GangRef.source before the name."""

LEVELS = {
    "node": "kubernetes.io/hostname",
    "nvlink": "nvidia.com/gpu.clique",
    "rack": "topology.kubernetes.io/rack",
    "zone": "topology.kubernetes.io/zone",
}
"""Short words for node labels. GPU feature discovery writes the clique: nodes of one NVLink domain."""

KUBEFLOW_KINDS = ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")

_WITH_THE_NAME = (
    names.ANNOTATION_GANG_SIZE,
    names.ANNOTATION_GANG_MIN,
    names.ANNOTATION_GANG_SUBGROUP,
    names.ANNOTATION_GANG_SUBGROUPS,
)
"""Annotations that mean nothing without kerf.dev/gang."""

_SHOWN = 200
"""Characters of a text of a user's that an error repeats."""
_INNERMOST = "; give each pod's subgroup by its name, and pods to the innermost ones alone"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_TASK = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")
_COUNT = re.compile(r"[0-9]{1,5}")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,250}[A-Za-z0-9])?")

_KUBEFLOW_JOB = "training.kubeflow.org/job-name"
_KUBEFLOW_OPERATOR = "training.kubeflow.org/operator-name"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"
_JOBSET_JOB = "jobset.sigs.k8s.io/job-key"
JOBSET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOBSET_NODE_SELECTORS = "alpha.jobset.sigs.k8s.io/node-selector"
"""Annotations of a JobSet, of its jobs and their pods: each job has a topology domain of its own, and the nodes were
labelled for it beforehand."""
_JOB_INDEX = "batch.kubernetes.io/job-completion-index"
_COSCHEDULING = "scheduling.x-k8s.io/pod-group"
_VOLCANO = ("scheduling.volcano.sh/group-name", "scheduling.k8s.io/group-name")
_VOLCANO_TASK = "volcano.sh/task-spec"
_KAI = "pod-group-name"
_KAI_SUBGROUP = "kai.scheduler/subgroup-name"
_RAY_CLUSTER, _RAY_GROUP, _RAY_TYPE = "ray.io/cluster", "ray.io/group", "ray.io/node-type"
_RAY_CLEANUP = "redis-cleanup"
"""The type of the pod that removes a deleted cluster's data from Redis. It has the head's labels otherwise, and runs
when all other pods are gone."""
_GROVE_GANG, _GROVE_CLIQUE = "grove.io/podgang", "grove.io/podclique"
_LWS = "leaderworkerset.sigs.k8s.io/"
LWS_LEADER, LWS_WORKERS = "leader", "workers"
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
    """The part of the gang to which the pod belongs: a gang of its own, or a subgroup."""
    instance: str = ""
    """Tells several gangs of one part from each other."""
    minimum: int = 0
    group_size: int = 0
    """How many pods its group has, where the object has the size of groups that are made from now on."""
    timeout_s: int = 0
    incomplete_s: int | None = None
    """How long its pods may run without its minimum before they are evicted; 0: for ever. None: the pod does not
    say."""
    required: str = ""
    preferred: str = ""
    subgroups: tuple[Subgroup, ...] = ()


def read_gang(pod: Pod) -> GangRef | None:
    """The gang that the pod belongs to; None where it is placed by itself. Raises RequestError (bad-gang) on
    annotations of Kerf's that make no sense, and on others' that name no object."""
    notes = pod.metadata.annotations
    required, preferred = _topology(notes)
    incomplete_s = _incomplete(notes)
    timeout_s = _number(notes, names.ANNOTATION_GANG_TIMEOUT, 0, MOST_TIMEOUT_S, "seconds")
    named = notes.get(names.ANNOTATION_GANG)
    if named is None and (stray := next((key for key in _WITH_THE_NAME if key in notes), "")):
        raise _bad(f"annotation {names.ANNOTATION_GANG} is None, and {stray} stands without it; name the gang")
    if named == NONE:
        return None
    ref = _declared(pod, named) if named is not None else _inferred(pod)
    return (
        None
        if ref is None
        else msgspec.structs.replace(
            ref, timeout_s=timeout_s, incomplete_s=incomplete_s, required=required, preferred=preferred
        )
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
    subgroups = read_subgroups(notes)
    size = _number(notes, names.ANNOTATION_GANG_SIZE, MOST_MEMBERS if subgroups else None, MOST_MEMBERS,
                   f"pods in gang {name!r}")  # fmt: skip
    if subgroups:
        return GangRef(
            name=name,
            part=notes[names.ANNOTATION_GANG_SUBGROUP],
            minimum=_number(notes, names.ANNOTATION_GANG_MIN, 0, size, "pods that the gang needs in all"),
            subgroups=subgroups,
        )
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
        return _by(f"{POD_GROUP}/{spec.scheduling_group.pod_group_name}")
    if spec.workload_ref is not None and spec.workload_ref.name:
        ref = spec.workload_ref
        return _by(f"workload.scheduling.k8s.io/{ref.name}", part=ref.pod_group, instance=ref.pod_group_replica_key)
    if group := meta.labels.get(_COSCHEDULING):
        return _by(f"podgroup.scheduling.x-k8s.io/{group}")
    if group := next(filter(None, (_object(meta.annotations, key) for key in _VOLCANO)), ""):
        return _by(f"podgroup.scheduling.volcano.sh/{group}", part=_task(meta.annotations))
    if group := _object(meta.annotations, _KAI):
        return _by(f"podgroup.scheduling.run.ai/{group}", part=meta.labels.get(_KAI_SUBGROUP, ""))
    if group := meta.labels.get(_GROVE_GANG):
        return _by(f"podgang.scheduler.grove.io/{group}", part=meta.labels.get(_GROVE_CLIQUE, ""))
    if (group := meta.labels.get(_KUEUE_NAME)) and _COUNT.fullmatch(count := meta.annotations.get(_KUEUE_COUNT, "")):
        return GangRef(name=f"kueue/{group}", minimum=int(count))
    if group := meta.labels.get(_JOBSET):
        return _jobset(pod, f"jobset.jobset.x-k8s.io/{group}")
    if (group := meta.labels.get(_RAY_CLUSTER)) and meta.labels.get(_RAY_TYPE) != _RAY_CLEANUP:
        return _by(f"raycluster.ray.io/{group}", part=meta.labels.get(_RAY_GROUP, ""))
    if (group := meta.labels.get(f"{_LWS}name")) and (key := meta.labels.get(f"{_LWS}group-key")):
        leads = meta.labels.get(f"{_LWS}worker-index") == "0"
        part = LWS_LEADER if leads else LWS_WORKERS
        size = meta.annotations.get(f"{_LWS}size", "")
        return msgspec.structs.replace(
            _by(f"leaderworkerset.leaderworkerset.x-k8s.io/{group}", part=part, instance=key),
            group_size=min(int(size), MOST_MEMBERS) if _COUNT.fullmatch(size) else 0,
        )
    if (group := meta.labels.get(_KUBEFLOW_JOB)) and (kind := _kubeflow_kind(pod)):
        return _by(f"{kind}.kubeflow.org/{group}")
    return None


def _object(notes: Mapping[str, str], key: str) -> str:
    """The name of an object in an annotation of others'."""
    return _bounded(
        notes, key, _OBJECT, "the name of an object: at most 253 lower-case letters, digits, dots and dashes"
    )


def _task(notes: Mapping[str, str]) -> str:
    """The task of Volcano's job. KubeRay writes the name of its group of workers there, which is the value of a label
    as well."""
    return _bounded(notes, _VOLCANO_TASK, _TASK, "at most 253 letters, digits, dots, dashes and underscores")


def _bounded(notes: Mapping[str, str], key: str, form: re.Pattern[str], must: str) -> str:
    """Unlike labels, annotations have no bound, and the name is in each explanation of the pod and of its gang."""
    name = notes.get(key, "")
    if name and not form.fullmatch(name):
        raise _bad(f"annotation {key} is {name[:_SHOWN]!r}; it must be {must}. Or set {names.ANNOTATION_GANG}: {NONE}")
    return name


def with_group_size(given: Gang, size: int) -> Gang:
    """A LeaderWorkerSet as it was when it made a group of so many pods: its size may have been changed since, and its
    groups are made anew one after the other."""
    workers = max(0, size - 1)
    return msgspec.structs.replace(
        given,
        parts={name: workers if name == LWS_WORKERS else minimum for name, minimum in given.parts.items()},
        subgroups=tuple(
            msgspec.structs.replace(one, minimum=workers) if one.name == LWS_WORKERS else one for one in given.subgroups
        ),
    )


def jobset_followers(job: str) -> str:
    """The part of those pods of a replicated job that are created when its first one has a node."""
    return f"{job}/followers"


def _jobset(pod: Pod, source: str) -> GangRef:
    labels, notes = pod.metadata.labels, pod.metadata.annotations
    job = labels.get(_JOBSET_PART, "")
    exclusive = JOBSET_EXCLUSIVE in notes and JOBSET_NODE_SELECTORS not in notes
    if exclusive and notes.get(_JOB_INDEX) != "0":
        return _by(source, part=jobset_followers(job), instance=labels.get(_JOBSET_JOB, ""))
    return _by(source, part=job)


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
        for key in (_KUEUE_REQUIRED, _KUEUE_PREFERRED):
            if (label := notes.get(key)) and not _LABEL.fullmatch(label):
                raise _bad(f"annotation {key} is {label[:_SHOWN]!r}; it must be a node label")
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


def read_subgroups(notes: Mapping[str, str]) -> tuple[Subgroup, ...]:
    """The subgroups that kerf.dev/gang-subgroups lists: NAME=MINIMUM with commas between them, each with @LEVEL where
    its pods must agree in a topology level. A name with slashes is inside of others, and NAME@LEVEL alone is for one of
    these. Empty without the annotation. Raises RequestError (bad-gang)."""
    text = notes.get(names.ANNOTATION_GANG_SUBGROUPS)
    if text is None and names.ANNOTATION_GANG_SUBGROUP in notes:
        raise _bad(
            f"annotation {names.ANNOTATION_GANG_SUBGROUPS} is None, and {names.ANNOTATION_GANG_SUBGROUP} stands "
            "without it; list the subgroups of the gang"
        )
    if text is None:
        return ()
    found, leaves = _subgroups(text)
    own = notes.get(names.ANNOTATION_GANG_SUBGROUP, "")
    if own not in leaves:
        raise _bad(
            f"annotation {names.ANNOTATION_GANG_SUBGROUP} is {own!r}, which is none of {', '.join(sorted(leaves)[:20])}"
            f"{_INNERMOST}"
        )
    return found


@lru_cache(maxsize=256)
def _subgroups(text: str) -> tuple[tuple[Subgroup, ...], frozenset[str]]:
    """The tree, and the names of its leaves. All pods of a gang have the same text."""
    entries = text.split(",", MOST_SUBGROUPS)
    if len(entries) > MOST_SUBGROUPS:
        raise _bad(f"annotation {names.ANNOTATION_GANG_SUBGROUPS} lists more than {MOST_SUBGROUPS} subgroups")
    minima: dict[str, int] = {}
    levels: dict[str, str] = {}
    for entry in entries:
        named, _, level = entry.strip().partition("@")
        name, equals, minimum = named.partition("=")
        label = LEVELS.get(level, level)
        parts = name.split("/")
        fine = (
            all(_NAME.fullmatch(part) for part in parts)
            and (bool(_COUNT.fullmatch(minimum)) if equals else bool(level))
            and (not level or _LABEL.fullmatch(label))
            and name not in minima
        )
        if not fine:
            raise _bad(
                f"annotation {names.ANNOTATION_GANG_SUBGROUPS} is {text[:_SHOWN]!r}; write NAME=PODS or "
                f"NAME=PODS@LEVEL with commas between them, such as head=1,workers=4@rack"
            )
        if len(parts) > MOST_DEPTH:
            raise _bad(
                f"annotation {names.ANNOTATION_GANG_SUBGROUPS}: {name[:_SHOWN]!r} is {len(parts)} subgroups deep; "
                f"write at most {MOST_DEPTH}"
            )
        if equals:
            minima[name] = int(minimum)
        if level:
            levels[name] = label
    inner = {above for name in minima for above in _above(name)}
    both = sorted(inner & set(minima))
    empty = [name for name in levels if name not in minima and name not in inner]
    if both or empty:
        raise _bad(
            f"in annotation {names.ANNOTATION_GANG_SUBGROUPS}, {both[0] if both else empty[0]} has "
            + ("both pods and subgroups" if both else "no pods")
            + _INNERMOST
        )
    return _tree("", list(minima), minima, levels), frozenset(minima)


def _above(name: str) -> Iterator[str]:
    """a/b/c: a, a/b"""
    parts = name.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _tree(
    above: str, inside: Sequence[str], minima: Mapping[str, int], levels: Mapping[str, str]
) -> tuple[Subgroup, ...]:
    """`inside`: the leaves below, all of whose names begin with `above`."""
    below: dict[str, list[str]] = {}
    for leaf in inside:
        below.setdefault(above + leaf.removeprefix(above).partition("/")[0], []).append(leaf)
    return tuple(
        Subgroup(
            name=name,
            minimum=minima.get(name, 0),
            required=levels.get(name, ""),
            subgroups=() if name in minima else _tree(f"{name}/", leaves, minima, levels),
        )
        for name, leaves in below.items()
    )


def _incomplete(notes: Mapping[str, str]) -> int | None:
    """Seconds; 0 for `keep`."""
    text = notes.get(names.ANNOTATION_GANG_INCOMPLETE)
    if text is None:
        return None
    seconds = text.removeprefix("evict-after=")
    if text == KEEP:
        return 0
    if seconds == text or not _COUNT.fullmatch(seconds) or not 1 <= int(seconds) <= MOST_TIMEOUT_S:
        raise _bad(
            f"annotation {names.ANNOTATION_GANG_INCOMPLETE} is {text!r}; write {KEEP}, or evict-after= and the number "
            f"of seconds, from 1 to {MOST_TIMEOUT_S}"
        )
    return int(seconds)


def _number(notes: Mapping[str, str], key: str, default: int | None, most: int, of_what: str) -> int:
    text = notes.get(key)
    if text is None and default is not None:
        return default
    if text is None or not _COUNT.fullmatch(text) or not 1 <= int(text) <= most:
        raise _bad(f"annotation {key} is {text!r}; it must be the number of {of_what}, from 1 to {most}")
    return int(text)


def _bad(message: str) -> RequestError:
    return RequestError("bad-gang", message)
