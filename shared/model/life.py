"""How long a pod runs, as far as it says, and whether it may be preempted: for predictions, and for its price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from math import inf
from typing import Literal

import msgspec

from shared.model import names
from shared.model.objects import Pod
from shared.model.request import OPPORTUNISTIC, RequestError
from shared.model.turn_terms import TurnTerms, read_turn_terms

_UNITS_S = (86_400, 3_600, 60, 1)
_AMOUNT = r"([0-9]{1,6}(?:\.[0-9]{1,6})?)"
_GO_DURATION = re.compile(rf"(?=.)(?:{_AMOUNT}h)?(?:{_AMOUNT}m)?(?:{_AMOUNT}s)?")
_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_DURATION = re.compile(r"(?=.)(?:([0-9]{1,4})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,7})m)?(?:([0-9]{1,9})s)?|([0-9]{1,9})")


Turns = Literal["allowed", "never"]


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's annotations say. None: they do not."""

    expected_s: int | None = None
    """kerf.dev/expected-duration: it is expected to end so long after its start."""
    min_runtime_s: int | None = None
    """kerf.dev/min-runtime: it should not be evicted or migrated before."""
    restart_cost_s: int | None = None
    """kerf.dev/restart-cost: how much run time is lost when it restarts; without it, all of it."""
    stays_s: float = 0.0
    """It should not be migrated for so long after its start, by what autoscalers read: karpenter.sh/do-not-disrupt,
    and cluster-autoscaler.kubernetes.io/safe-to-evict. Infinite: never."""
    preemptible: bool = True
    """kerf.dev/preemptible: False: it is never evicted, migrated, reclaimed or suspended for another pod."""
    turns: Turns | None = None
    """kerf.dev/turns: whether it may be suspended for another pod's turn; None: as its queue says."""
    watchdog_s: float | None = None
    """kerf.dev/watchdog: it is suspended for so long at most, because a watchdog of its program ends it then. Infinite:
    none does. None: it does not say."""
    terms: TurnTerms | None = None
    """What its node has to know of that; None: nothing is said."""


NOT_PREEMPTIBLE = f"marked {names.ANNOTATION_PREEMPTIBLE}: false"
"""Why such a pod is no victim, in a few words."""
UNTOLD = Life()
DEFAULT_GRACE_S = 30
"""Kubernetes' default grace period."""
STUCK_S = 30.0
"""A pod that still exists so long after its grace period is not waited for."""
START_MOST_S = 3600
"""How much more than its run time so far a restart may cost: what a program loads before it runs."""


def read_life(pod: Pod) -> Life:
    """Raises RequestError (bad-annotation) on durations that are none, on words for preemptible and turns that are
    none, and on hooks that cannot be called."""
    notes = pod.metadata.annotations
    expected_s, min_runtime_s, restart_cost_s = (
        _duration(notes, key)
        for key in (names.ANNOTATION_EXPECTED_DURATION, names.ANNOTATION_MIN_RUNTIME, names.ANNOTATION_RESTART_COST)
    )
    preemptible, stays_s, turns, watchdog_s = _preemptible(notes), _stays_s(notes), _turns(notes), _watchdog_s(notes)
    terms = read_turn_terms(notes, allowed=turns == "allowed")
    if (
        preemptible
        and not stays_s
        and turns is None
        and terms is None
        and expected_s is min_runtime_s is restart_cost_s is watchdog_s is None
    ):
        return UNTOLD
    return Life(
        expected_s=expected_s,
        min_runtime_s=min_runtime_s,
        restart_cost_s=restart_cost_s,
        stays_s=stays_s,
        preemptible=preemptible,
        turns=turns,
        watchdog_s=watchdog_s,
        terms=terms,
    )


def disruption_note(pod: Pod) -> dict[str, str]:
    """The annotation by which Karpenter leaves a pod where it is for its minimum run time, or for ever if it is not
    preemptible; nothing where the pod says so itself, or does not say. Raises RequestError as `read_life` does."""
    life = read_life(pod)
    if _DO_NOT_DISRUPT in pod.metadata.annotations or (life.preemptible and not life.min_runtime_s):
        return {}
    return {_DO_NOT_DISRUPT: f"{life.min_runtime_s}s" if life.preemptible else "true"}


def lost_s(restart_cost_s: int | None, run_s: int) -> int:
    """The seconds that a restart costs a pod that has run for `run_s`. A pod can change its annotation at any time, so
    it is bounded by what can be lost."""
    return run_s if restart_cost_s is None else min(restart_cost_s, run_s + START_MOST_S)


def started_at(pod: Pod) -> float | None:
    """Seconds since 1970, by the clock of its node; None if it has not started, or that is unknown."""
    return _seconds(pod.status.start_time)


def created_at(pod: Pod) -> float | None:
    """Seconds since 1970, by the API server's clock."""
    return _seconds(pod.metadata.creation_timestamp)


def ends_by(pod: Pod) -> float | None:
    """When its grace period is over, in seconds since 1970; None if it has not been deleted."""
    return _seconds(pod.metadata.deletion_timestamp)


def grace_s(pod: Pod) -> int:
    """How long it has to end after its deletion: by its spec, or once it is deleted by the deletion's own grace
    period."""
    own, given = pod.spec.termination_grace_period_seconds, pod.metadata.deletion_grace_period_seconds
    if given is not None:
        return given
    return DEFAULT_GRACE_S if own is None else max(0, own)


def _seconds(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None  # Kubernetes writes RFC 3339; of a cluster that does not, we know no times


def _stays_s(notes: Mapping[str, str]) -> float:
    """Words that these annotations do not have mean nothing, as to the autoscalers: they are not Kerf's to refuse."""
    word = notes.get(_DO_NOT_DISRUPT, "")
    if word == "true" or notes.get(_SAFE_TO_EVICT) == "false":
        return inf
    found = _GO_DURATION.fullmatch(word)
    if found is None:
        return 0.0
    return sum(float(part or 0) * unit_s for part, unit_s in zip(found.groups(), _UNITS_S[1:], strict=True))


def _preemptible(notes: Mapping[str, str]) -> bool:
    text = notes.get(names.ANNOTATION_PREEMPTIBLE, "true")
    if text not in ("true", "false"):
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_PREEMPTIBLE} is {text!r}; it must be one of true, false",
        )
    if text == "false" and notes.get(names.ANNOTATION_TIER) == OPPORTUNISTIC:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_PREEMPTIBLE} is false beside {names.ANNOTATION_TIER}: {OPPORTUNISTIC}, "
            "whose pods may always borrow, which can be taken back only from a preemptible pod; keep one of the two",
        )
    return text == "true"


def _turns(notes: Mapping[str, str]) -> Turns | None:
    text = notes.get(names.ANNOTATION_TURNS)
    match text:
        case None | "allowed" | "never":
            return text
    raise RequestError(
        "bad-annotation", f"annotation {names.ANNOTATION_TURNS} is {text!r}; it must be one of allowed, never"
    )


def _watchdog_s(notes: Mapping[str, str]) -> float | None:
    if notes.get(names.ANNOTATION_WATCHDOG) == "none":
        return inf
    found_s = _duration(notes, names.ANNOTATION_WATCHDOG, "; or none, if no watchdog ends the program")
    if found_s == 0:
        raise RequestError(
            "bad-annotation",
            f"annotation {names.ANNOTATION_WATCHDOG} is 0; a program that bears no suspension says "
            f"{names.ANNOTATION_TURNS}: never",
        )
    return found_s


def _duration(notes: Mapping[str, str], key: str, also: str = "") -> int | None:
    text = notes.get(key)
    if text is None:
        return None
    found = _DURATION.fullmatch(text)
    if found is None:
        raise RequestError(
            "bad-annotation",
            f"annotation {key} is {text!r}; write a duration such as 90m, 1h30m, 2d, or a number of seconds{also}",
        )
    *parts, plain_s = (int(part or 0) for part in found.groups())
    return plain_s + sum(part * unit_s for part, unit_s in zip(parts, _UNITS_S, strict=True))
