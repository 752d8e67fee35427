"""How a job stands in its turns: what `kerf why`, `when` and `top` say of a pod that takes turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.explain import TurnStanding, WhenExplanation
from shared.model.timestamps import seconds_text
from shared.queues.turns import TurnPolicy, is_waiting
from shared.turns.rules import Job, TurnRules, due_back_at, is_overdue, level, overdue_at, rank


def standing(state: PodState, book: Book, turns: TurnPolicy, now: float) -> TurnStanding | None:
    """Returns how the pod's job stands; None if it takes no turns. `now`: seconds since 1970.

    The bound: the job is overdue `max_wait_s` after it began to wait. Then it goes before all that wait for less long,
    and each of those that have waited for longer may first have a turn of `min_turn_s`, as may the one that runs. One
    that is suspended and has a watchdog goes before all of these, shortly before its bound; the earliest bound first.
    """
    if not turns.takes_turns(state):
        return None
    job, rules = turns.job(state, now), turns.rules
    waits = any(map(is_waiting, turns.members(state)))
    before, within_s = 0, 0.0
    if waits:
        found = [turns.job(rival, now) for rival in _rivals(state, book, turns)]
        # A gang of which some are suspended and others pending is there twice.
        others = list({other.key: other for other in found if other.key != job.key}.values())
        before = sum(rank(other, rules, now) < rank(job, rules, now) for other in others)
        within_s = min(_within(job, others, bound, rules, now) for bound in (overdue_at, due_back_at))
    record, watchdog_s = state.gpu_time, turns.watchdog_s(state)
    return TurnStanding(
        waits=waits,
        suspended=state.suspension is not None and is_waiting(state),
        since=seconds_text(job.since),
        for_s=max(0, round(now - job.since)),
        gpu_seconds=turns.attained_gpu_ms(state, now) // 1000,
        job_gpu_seconds=job.attained_gpu_ms // 1000,
        level=level(job, rules),
        overdue=waits and is_overdue(job, rules, now),
        turns=0 if record is None else record.turns,
        turn_of="" if record is None else record.turn_of,
        before=before,
        within_s=round(within_s),
        idle=job.idle,
        watchdog_s=0 if watchdog_s == inf else round(watchdog_s),
    )


def _within(
    job: Job, others: Iterable[Job], bound: Callable[[Job, TurnRules], float], rules: TurnRules, now: float
) -> float:
    """Seconds until its next turn, if it goes first from the bound on, after those whose bounds are earlier."""
    at = bound(job, rules)
    if at == inf:
        return inf
    earlier = sum(
        (bound(other, rules), other.key) < (at, job.key) or (bound is overdue_at and other.bound_s < inf)
        for other in others
    )
    left_s = at - job.since if job.idle else at - now
    return max(0.0, left_s) + (earlier + 1) * rules.min_turn_s


def _rivals(state: PodState, book: Book, turns: TurnPolicy) -> Iterable[PodState]:
    """A waiting pod of each job of its circle; of a job that is suspended in part two."""
    circle, seen = turns.circle(state), set[str]()
    for other in book.pods.values():
        if other.uid in seen:
            continue
        waits = other.wants_place or (other.seen_bound and not other.ended and other.suspension is not None)
        if waits and is_waiting(other) and turns.circle(other) == circle and turns.takes_turns(other):
            seen.update(member.uid for member in turns.members(other))
            yield other  # idle ones too: they may want the GPU at any moment


def sentence(told: TurnStanding) -> str:
    """Says it in a sentence without a subject, as part of what `kerf why` says."""
    had = f"it has had {duration(told.gpu_seconds)} of GPU time (level {told.level}, {_times(told.turns)} suspended)"
    if not told.waits:
        idle = ", and is idle: its turn ends for any other job" if told.idle else ""
        return f"it takes turns: it has run for {duration(told.for_s)}{idle}; {had}"
    if told.idle:
        return (
            f"it takes turns: idle, and suspended since {told.since}; {had}; when one of its programs wants the GPU, "
            f"its next turn comes within {duration(told.within_s)} if ended turns make room for it"
        )
    does = f"suspended for the turn of {told.turn_of}" if told.suspended and told.turn_of else "waiting for its turn"
    late = " It has waited too long, and goes first" if told.overdue else ""
    if told.watchdog_s and told.suspended:
        late = f" It is suspended for {duration(told.watchdog_s)} at most, for its watchdog.{late}"
    jobs = "no job is" if not told.before else "1 job is" if told.before == 1 else f"{told.before} jobs are"
    return (
        f"it takes turns: {does} since {told.since}; {had}; {jobs} before it, and its next turn comes within "
        f"{duration(told.within_s)} if ended turns make room for it.{late}"
    ).rstrip(".")


def when_suspended(state: PodState, told: TurnStanding, now: float) -> WhenExplanation:
    """Answers when a suspended pod runs again."""
    when = "when it wants the GPU, in its turn" if told.idle else f"in its next turn, within {duration(told.within_s)}"
    return WhenExplanation(
        namespace=state.pod.metadata.namespace,
        name=state.pod.metadata.name,
        state="turn",
        sentence=f"{when}; {sentence(told)}",
        in_s=told.within_s,
        at="" if told.idle else seconds_text(now + told.within_s),  # it runs from a moment that nothing tells
        node=state.charged,
        assumptions=(
            "ending turns of its queue and priority makes room for it, and hosts have room for what is suspended",
            "copies to and from the host take no time",
            "no pod of higher priority, and no other queue, takes the room",
        ),
        turn=told,
    )


def _times(count: int) -> str:
    return "never" if not count else "once" if count == 1 else f"{count} times"


def duration(seconds: int) -> str:
    """Seconds, minutes, hours or days, the largest two that matter."""
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"
