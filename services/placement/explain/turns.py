"""How a job stands in its turns: what `kerf why`, `when` and `top` say of a pod that takes turns."""

from __future__ import annotations

from collections.abc import Iterable

from shared.book.book import Book
from shared.book.states import PodState
from shared.contracts.explain import TurnStanding, WhenExplanation
from shared.model.timestamps import seconds_text
from shared.queues.turns import TurnPolicy, is_waiting
from shared.turns.rules import OVERDUE, level


def standing(state: PodState, book: Book, turns: TurnPolicy, now: float) -> TurnStanding | None:
    """Returns how the pod's job stands; None if it takes no turns. `now`: seconds since 1970.

    The bound: the job is overdue `max_wait_s` after it began to wait. Then it goes before all that wait for less long,
    and each of those that have waited for longer may first have a turn of `min_turn_s`, as may the one that runs.
    """
    if not turns.takes_turns(state):
        return None
    job, rules = turns.job(state, now), turns.rules
    waits = any(map(is_waiting, turns.members(state)))
    before, longer = 0, 0
    if waits:
        others = {turns.job(other, now).key: other for other in _rivals(state, book, turns)}
        ranks = [turns.rank(other, now) for key, other in others.items() if key != job.key]
        own = turns.rank(state, now)
        before, longer = sum(rank < own for rank in ranks), sum(rank[1:] < own[1:] for rank in ranks)
    record = state.gpu_time
    waited_s = 0.0 if job.idle else now - job.since
    return TurnStanding(
        waits=waits,
        suspended=state.suspension is not None,
        since=seconds_text(job.since),
        for_s=max(0, round(now - job.since)),
        gpu_seconds=turns.attained_gpu_ms(state, now) // 1000,
        job_gpu_seconds=job.attained_gpu_ms // 1000,
        level=level(job, rules),
        overdue=waits and turns.rank(state, now)[0] == OVERDUE,
        turns=0 if record is None else record.turns,
        turn_of="" if record is None else record.turn_of,
        before=before,
        within_s=round(max(0.0, rules.max_wait_s - waited_s)) + (longer + 1) * rules.min_turn_s if waits else 0,
        idle=job.idle,
    )


def _rivals(state: PodState, book: Book, turns: TurnPolicy) -> Iterable[PodState]:
    """The waiting pods of its circle."""
    circle = turns.circle(state)
    for other in book.pods.values():
        waits = other.wants_place or (other.seen_bound and not other.ended and other.suspension is not None)
        if waits and is_waiting(other) and turns.circle(other) == circle and turns.takes_turns(other):
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
        at=seconds_text(now + told.within_s),
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
