"""What an installation decides about queues: ConfigMap `kerf-policy` in `kerf-system`, key `queues.yaml`."""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from shared.formats import decode_yaml
from shared.model.life import Turns
from shared.model.units import QuantityError, milli, whole
from shared.turns.rules import TurnRules

CONFIG_MAP = "kerf-policy"
CONFIG_NAMESPACE = "kerf-system"
QUEUES_KEY = "queues.yaml"

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MOST_GPUS = 1_000_000
_MOST_WEIGHT = 1_000_000


class PolicyError(ValueError):
    """A policy that is invalid as written; the sentence says where and what to change."""


class _Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown fields are refused: a misspelt limit would be none."""


class Amounts(_Rule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parts of the cluster. What is left out is not spoken of: no guarantee, or no limit."""

    gpus: int | float | None = None
    """GPUs, of any model; 0.5 is half of one. A slice counts by the larger of its memory part and its compute part."""
    cpu: str | int | float | None = None
    """As in Kubernetes: 64, 500m."""
    memory: str | int | None = None
    """As in Kubernetes: 512Gi."""

    def vector(self) -> tuple[int | None, int | None, int | None]:
        """(milli-GPUs, milli-cores, bytes). Raises PolicyError."""
        gpus = None
        if self.gpus is not None:
            if not 0 <= self.gpus <= _MOST_GPUS:
                raise PolicyError(f"gpus is {self.gpus}; write a number from 0 to {_MOST_GPUS}")
            gpus = round(self.gpus * 1000)
        try:
            cpu = None if self.cpu is None else milli(str(self.cpu))
            memory = None if self.memory is None else whole(self.memory)
        except QuantityError as error:
            raise PolicyError(str(error)) from error
        if (cpu or 0) < 0 or (memory or 0) < 0:
            raise PolicyError("cpu and memory cannot be negative")
        return gpus, cpu, memory


class QueueDefaults(_Rule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults of a queue, and of each namespace that no queue is named after."""

    weight: int | float = 1
    """Its weight in what is left after all guarantees, against its siblings. 0: it gets only what no other queue
    wants."""
    priority: int = 0
    """Among siblings the higher one is served first: of guarantees first, then of what is left."""
    guaranteed: Amounts = Amounts()
    limit: Amounts = Amounts()
    """Never more than this, its children included."""
    turns: Turns = "never"
    """Whether its pods take turns with each other; a pod's annotation kerf.dev/turns says otherwise."""
    reserve_after_s: int | None = None
    """How long its first pod or gang waits before capacity is reserved for it, in seconds; 0: none ever is. Left out:
    as placement's setting of that name."""


class QueueRule(QueueDefaults, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    parent: str = ""
    """Empty: at the top. Pods belong to queues without children only."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose pods may name it in kerf.dev/queue; empty: all."""


class QueuePolicy(_Rule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of queues.yaml."""

    queues: tuple[QueueRule, ...] = ()
    default: QueueDefaults = QueueDefaults()
    within_guarantee_from: int | None = None
    """Pods of this priority and above use no more than the guarantees of their queue and its parents: what is borrowed
    must be able to be given back. Pods of kerf.dev/tier opportunistic may borrow all the same. Left out: all may
    borrow."""
    turns: TurnRules = TurnRules()
    """How pods that allow it take turns."""


def read_queues(text: str) -> QueuePolicy:
    """Raises PolicyError: the text is no YAML, a field is unknown or of another type, or the queues contradict each
    other."""
    try:
        policy = decode_yaml(text, QueuePolicy) if text.strip() else QueuePolicy()
    except msgspec.DecodeError as error:
        later = "; after a rollback it may be one of the later version: take it out"
        raise PolicyError(f"{QUEUES_KEY}: {error}{later if 'unknown field' in str(error) else ''}") from error
    _check(policy)
    return policy


def _check(policy: QueuePolicy) -> None:
    by_name = {rule.name: rule for rule in policy.queues}
    twice = [name for name, times in Counter(rule.name for rule in policy.queues).items() if times > 1]
    if twice:
        raise PolicyError(f"two queues are named {twice[0]!r}")
    for rule in policy.queues:
        if not _NAME.fullmatch(rule.name):
            raise PolicyError(
                f"queue {rule.name!r}: a name is as the value of a label: up to 63 letters, digits, dashes, "
                "dots and underscores"
            )
        if rule.parent and rule.parent not in by_name:
            raise PolicyError(f"queue {rule.name}: there is no queue {rule.parent!r} that could be its parent")
        _check_amounts(f"queue {rule.name}", rule)
    _check_amounts("default", policy.default)
    for rule in policy.queues:
        seen, at = {rule.name}, rule
        while at.parent:
            at = by_name[at.parent]
            if at.name in seen:
                raise PolicyError(f"queue {rule.name}: {at.name} is its own ancestor")
            seen.add(at.name)


def _check_amounts(where: str, rule: QueueDefaults) -> None:
    if not 0 <= rule.weight <= _MOST_WEIGHT:
        raise PolicyError(f"{where}: weight is {rule.weight}; write a number from 0 to {_MOST_WEIGHT}")
    if rule.reserve_after_s is not None and rule.reserve_after_s < 0:
        raise PolicyError(
            f"{where}: reserve_after_s is {rule.reserve_after_s}; write a number of seconds, or 0 for never"
        )
    try:
        pairs = zip(("gpus", "cpu", "memory"), rule.guaranteed.vector(), rule.limit.vector(), strict=True)
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from error
    for what, guaranteed, limit in pairs:
        if guaranteed is not None and limit is not None and guaranteed > limit:
            raise PolicyError(f"{where}: more {what} are guaranteed than its limit allows")
