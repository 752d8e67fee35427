"""Sentences about queues. The codes are stable."""

from __future__ import annotations

import msgspec

from shared.book.states import PodState
from shared.contracts.explain import QueueExplanation, Reason
from shared.contracts.policy import CONFIG_MAP, CONFIG_NAMESPACE
from shared.model import names
from shared.model.life import NOT_PREEMPTIBLE
from shared.model.units import format_mib
from shared.queues.amounts import Amount
from shared.queues.tree import Branch, Tree

_MIB = 1024 * 1024


def over(
    queue: Branch, index: int, used: Amount, most: int, extra: Amount, *, priority: int | None, preemptible: bool = True
) -> Reason:
    """`priority`: of a pod that may use guarantees alone, if the bound is a guarantee; None: it is a limit. If a pod
    alone requests more than the bound, the sentence says that it waits for ever. `preemptible`: whether the pod is."""
    show = (_gpus, _cores, _bytes)[index]
    what = "limit" if priority is None else "guarantee"
    # Without an amount that is asked for, `used` has that of pods that were tried.
    uses = "would use" if used[index] > most and not extra[index] else "uses"
    sentence = f"queue {queue.name} {uses} {show(used[index])} of its {what} of {show(most)}"
    if extra[index]:
        sentence += f", and the pod asks for {show(extra[index])}"
    if priority is not None:
        sentence += f"; pods {f'of priority {priority}' if preemptible else NOT_PREEMPTIBLE} may not borrow"
    if extra[index] > most:
        helps = f"ask for less, or raise the {what} of {queue.name}: the pod alone is more than that"
    elif priority is None:
        helps = f"wait until pods of {queue.name} end, or raise its limit"
    elif not preemptible:
        helps = (
            f"leave {names.ANNOTATION_PREEMPTIBLE} out, and the pod may borrow; or raise the guarantee of {queue.name}"
        )
    else:
        helps = (
            f"set {names.ANNOTATION_TIER} to opportunistic or give the pod a lower priority, and it may borrow; "
            f"or raise the guarantee of {queue.name}"
        )
    lacking = max(0, used[index] + extra[index] - most)
    if priority is None:
        return Reason(code="queue-limit", sentence=sentence, helps=helps, lacking=lacking)
    return Reason(code="queue-guarantee", sentence=sentence, helps=helps, lacking=lacking)


def on_larger_gpus(why: Reason) -> Reason:
    """The same where the quota allows the pod the largest GPUs of the cluster, and none of these has room."""
    helps = "wait for a larger GPU, of which the pod takes a smaller part, or raise the limit"
    return msgspec.structs.replace(why, sentence=f"{why.sentence} on the GPUs that have room", helps=helps)


def policy_invalid(problem: str) -> Reason:
    return Reason(
        code="queue-policy",
        sentence=f"the queues cannot be read, and there may be limits among them: {problem}",
        helps=f"mend ConfigMap {CONFIG_MAP} in namespace {CONFIG_NAMESPACE}",
    )


def unassigned(state: PodState, tree: Tree) -> Reason:
    """The pod belongs to no queue."""
    meta = state.pod.metadata
    named = meta.labels.get(names.LABEL_QUEUE, "")
    queue = tree.named(named or meta.namespace)
    where = f"label {names.LABEL_QUEUE}" if named else f"its namespace, for it has no label {names.LABEL_QUEUE}"
    if queue is None:
        return Reason(
            code="queue-unknown",
            sentence=f"there is no queue {named} (by {where})",
            helps=f"name a queue that exists, or add {named} to ConfigMap {CONFIG_MAP}",
        )
    if queue.children:
        of = ", ".join(child.name for child in queue.children[:5])
        return Reason(
            code="queue-unknown",
            sentence=f"queue {queue.name} (by {where}) has queues below it, and pods belong to those",
            helps=f"set label {names.LABEL_QUEUE} to one of {of}",
        )
    return Reason(
        code="queue-not-yours",
        sentence=f"queue {queue.name} is not for namespace {meta.namespace}",
        helps=f"name another queue, or add {meta.namespace} to its namespaces",
    )


def owed_first(queue: QueueExplanation | None) -> str:
    """Which queues come before this pod's when capacity becomes free; empty if none is below its guarantee."""
    if queue is None or not queue.owed:
        return ""
    others = "1 queue that waits has" if queue.owed == 1 else f"{queue.owed} queues that wait have"
    has = f"queue {queue.name} has {_gpus(queue.gpu_milli_used)} and is guaranteed {_gpus(queue.gpu_milli_guaranteed)}"
    return f"{has}, {others} less than guaranteed and {'goes' if queue.owed == 1 else 'go'} first"


def _gpus(milli: int) -> str:
    return f"{milli / 1000:g} GPU{'' if milli == 1000 else 's'}"


def _cores(milli: int) -> str:
    return f"{milli / 1000:g} CPU{'' if milli == 1000 else 's'}"


def _bytes(amount: int) -> str:
    return f"{format_mib(-(-amount // _MIB))} of memory"
