"""Which pods belong to which gang, and whether a gang may be tried.

A gang holds nothing while it waits. It is tried only when enough members want a place to reach its minimum, and then
gets places for all of these together, or for none. So no two gangs can each hold what the other one waits for.
- A gang *has begun* once a member of it has a place. From then on it does not wait for members that do not exist (a
  restarted pod, members above the minimum): the members that are there are placed, as many together as the minimum
  lacks.
- A member that another scheduler places counts as present. A gated, refused or ending one does not, nor does a victim
  of a preemption plan: a gang that is evicted comes again as a whole.
- Its minimum may be one of each of its subgroups, not of pods in all: `subgroups` counts what is lacking.
- A member that ended well counts for others of the same run, which are restarts, and for no later run under the same
  name. A run has the object that gives the gang's size, else the controller of the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from shared.book import subgroups
from shared.book.book import Book
from shared.book.states import PodState
from shared.book.subgroups import Counts
from shared.contracts.explain import GangExplanation, NodeExplanation, Reason
from shared.model.gang import GangRef, with_group_size
from shared.model.objects import Gang
from shared.model.subgroup import Subgroup

T = TypeVar("T")

_OUTLASTS_RUNS = "podgroup.scheduling.x-k8s.io/"
"""Objects that users write themselves, in GangRef.source: each run of a CronJob may name the same one."""
_LISTS = ("known", "waiting", "placed", "bound", "elsewhere", "done")

DEFAULT_TIMEOUT_S = 60
"""As coscheduling's: how long a gang that has begun may lack members before its unbound places are given up."""


class Verdict(msgspec.Struct, frozen=True):
    """Why a gang waits, for all of its members."""

    sentence: str
    gang: GangExplanation
    summary: tuple[Reason, ...] = ()
    helps: tuple[str, ...] = ()
    nodes: tuple[NodeExplanation, ...] = ()


class GangState(msgspec.Struct, kw_only=True):
    """One gang. Its figures are those of the members that have not ended, as they are annotated now. If these disagree,
    the largest counts; what cannot be compared is as most of them have it."""

    namespace: str
    name: str
    minimum: int = 0
    timeout_s: int = 0
    required: str = ""
    preferred: str = ""
    subgroups: tuple[Subgroup, ...] = ()
    min_subgroups: int = 0
    said: Counter[GangRef] = msgspec.field(default_factory=Counter)
    """By what members that have not ended have annotated now, apart from their part of the gang, how many they are."""
    said_of: dict[str, GangRef] = {}
    """The same by pod."""
    source: Gang | None = None
    """The object that gives its size."""
    figures_by: Gang | None = None
    """The same when its figures were set last."""
    part: str | None = None
    """The part of that object that it is; None: it is all of it."""
    part_of: dict[str, str] = {}
    """By pod, its part as annotated."""
    leaf_of: dict[str, str] = {}
    """By pod, the subgroup that has it; "" for one that none of them has."""
    leaves: dict[str, Counter[str]] = {}
    """By list (waiting, placed and so on), how many of its pods there are by leaf."""
    run_of: dict[str, str] = {}
    """The run of each pod; "" for bare pods."""
    runs: dict[str, Counter[str]] = {}
    """By list, how many of its pods there are by run."""
    done_leaves: dict[str, Counter[str]] = {}
    """By run, how many members have ended well by leaf."""
    known: set[str] = set()
    """Every pod that names it, whether it counts now or not."""
    waiting: dict[str, None] = {}
    """Members that want a place, in the order in which they were seen."""
    placed: set[str] = set()
    """Members with a hold or a Binding that have not ended."""
    bound: set[str] = set()
    """Those of them that have been seen bound."""
    kept: dict[str, str] = {}
    """Members for which a plan reserves a place, and on which node. The place may still be in use; the gang begins
    there all the same."""
    elsewhere: set[str] = set()
    """Members that another scheduler places."""
    done: set[str] = set()
    """Members that have ended well."""
    whole_runs: set[str] = set()
    """Runs with which its minimum has been bound at once: from then on members that are gone may have finished their
    work."""
    incomplete_s: int | None = None
    """How long its pods may run without its minimum; 0: for ever; None: its pods do not say."""
    ran_with: Subgroup | None = None
    """What it needed when it last had it. Who raises the minimum of a gang that runs does not make it incomplete."""
    incomplete_since: float | None = None
    """Since when pods of it have places, and are too few to work; None while they are enough."""
    lacking_since: float | None = None
    """Since when it has begun and lacks members; None while it does not."""
    told: bool = False
    """Its pods got the Event that it lacks members."""
    standing: tuple[int, int, Subgroup] | None = None
    """(need, members waiting, its tree) when it was last let into its turn; None while not all that it needs are
    there."""
    spare: bool = False
    """Its minimum is placed: the members that still wait are above it."""
    problem: Reason | None = None
    """Why the last try came to nothing where that was not for want of room."""
    quota_reason: Reason | None = None
    """The queue's reason against the places that the last attempt found."""
    verdict: Verdict | None = None
    """The reason last reported to its members; None if it may have changed."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def members(self) -> int:
        """How many pods there are that count."""
        return len(self.waiting) + self.has

    @property
    def has(self) -> int:
        """How many members need no place any more."""
        return len(self.placed) + len(self.elsewhere) + self._restarted_beside().total()

    def _restarted_beside(self) -> Counter[str]:
        """By leaf, how many members of the runs that wait have ended well. Bare pods are no restarts of each other."""
        return self.done_in(self.runs.get("waiting", Counter()).keys() - {""})

    def done_in(self, runs: Iterable[str]) -> Counter[str]:
        """By leaf, how many members of these runs have ended well."""
        return sum((self.done_leaves[run] for run in runs if run in self.done_leaves), Counter())

    @property
    def present_runs(self) -> set[str]:
        """Those of members that wait, have a place or are elsewhere."""
        return {run for name in ("waiting", "placed", "elsewhere") for run in self.runs.get(name, ())}

    @property
    def tree(self) -> Subgroup:
        """The gang as a whole, with its subgroups."""
        return Subgroup(
            minimum=self.minimum,
            required=self.required,
            preferred=self.preferred,
            subgroups=self.subgroups,
            min_subgroups=self.min_subgroups,
        )

    def leaf(self, uid: str) -> str:
        return self.leaf_of.get(uid, "")

    def by_leaf(self, uids: Iterable[str]) -> Counter[str]:
        """How many of these pods belong to each leaf."""
        return Counter(map(self.leaf, uids))

    def counted(self, *lists: str) -> Counter[str]:
        """By leaf, how many pods are in these of its lists together."""
        return sum((self.leaves.get(name, Counter()) for name in lists), Counter())

    def has_by_leaf(self) -> Counter[str]:
        """By leaf, how many members need no place any more."""
        return self.counted("placed", "elsewhere") + self._restarted_beside()

    def steps(self, waiting: Counts | None = None) -> list[dict[str, int]]:
        """The sets of members that are placed together, all or none, as numbers by leaf, in the order of trying.

        `waiting`: how many members of each leaf can be placed now; None: all that want a place.
        """
        waits = self.counted("waiting") if waiting is None else waiting
        return subgroups.steps(self.tree, self.has_by_leaf(), waits, self.counted("placed"))

    def together(self, uids: Sequence[str]) -> list[str]:
        """The first of these members that may be placed together; none if they are too few."""
        there = self.by_leaf(uids)
        left = next((dict(step) for step in self.steps(there) if subgroups.covers(there, step)), {})
        found = []
        for uid in uids:
            if left.get(self.leaf(uid)):
                left[self.leaf(uid)] -= 1
                found.append(uid)
        return found

    @property
    def begun(self) -> bool:
        return bool(self.placed)

    @property
    def need(self) -> int:
        """How many members must get a place together, if any is to get one."""
        waits = self.counted("waiting")
        steps = self.steps(waits)
        ready = [sum(step.values()) for step in steps if subgroups.covers(waits, step)]
        return min(ready or [sum(step.values()) for step in steps[:1]], default=0)

    @property
    def satisfied(self) -> bool:
        return self.begun and subgroups.is_satisfied(self.tree, self.has_by_leaf())

    @property
    def patience_s(self) -> int:
        return self.timeout_s or DEFAULT_TIMEOUT_S

    @property
    def gathered(self) -> bool:
        waits = self.counted("waiting")
        return any(subgroups.covers(waits, step) for step in self.steps(waits))

    def short(self) -> list[tuple[str, int, int]]:
        """The subgroups that have too few members, each with how many it has and needs."""
        has = self.has_by_leaf() + self.counted("waiting")
        return [
            (one.name, has[one.name], one.minimum)
            for one in self.tree.leaves()
            if one.name and has[one.name] < one.minimum
        ]


class Gangs:
    """All gangs, and the gang of each member."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.by_key: dict[str, GangState] = {}
        self._of: dict[str, GangState] = {}
        self._lacking: dict[str, GangState] = {}
        self._incomplete: dict[str, GangState] = {}
        self._by_source: dict[str, set[str]] = {}
        """uids of the pods that name an object, by its namespace/name: whether or not it exists."""
        self._source_of: dict[str, str] = {}
        self._run_of: dict[str, str] = {}
        """Of pods of which an object gives the gang's size: its uid, by theirs. Pods that have ended keep it when
        another object takes its name."""
        self.going: set[str] = set()
        """Victims of preemption plans: they count as gone."""

    def of(self, uid: str) -> GangState | None:
        return self._of.get(uid)

    def needs_gpus(self, state: PodState) -> bool:
        """Whether the pod, or a waiting one of its gang, needs a GPU: it may be a launcher."""
        gang = self.of(state.uid)
        waiting = () if gang is None else gang.waiting
        return state.request is not None or any(self.book.pods[uid].request is not None for uid in waiting)

    def among(self, uids: Iterable[str]) -> list[GangState]:
        """The gangs that these pods belong to, each once."""
        found = {gang.key: gang for uid in uids if (gang := self._of.get(uid)) is not None}
        return list(found.values())

    def unknown_source(self, state: PodState) -> str:
        """The object that has the size of the pod's gang, where there is no such object (yet), or it alone does not
        tell."""
        ref = state.gang
        return ref.source if ref is not None and ref.source and self._source(state, ref) is None else ""

    def composite(self, state: PodState) -> str:
        """The CompositePodGroup of which the pod's PodGroup is a part; empty: none."""
        ref = state.gang
        found = None if ref is None else self._object(state, ref)
        return "" if found is None else found.parent

    def sources(self) -> Iterable[str]:
        """The namespace/name of each object that pods name, whether or not it exists."""
        return self._by_source.keys()

    def naming(self, path: str) -> list[str]:
        """uids of the pods that name the object with this namespace/name."""
        return sorted(self._by_source.get(path, ()))

    def start_over(self, now: float) -> None:
        """Takes over all of the book's pods, and no others."""
        for uid in [uid for uid in {**self._of, **self._run_of} if uid not in self.book.pods]:
            self.forget(uid, now)
        for state in self.book.pods.values():
            self.see(state, now, able=not state.refusal)

    def see(self, state: PodState, now: float, *, able: bool = True) -> GangState | None:
        """Notes a pod's present state; returns its gang. `able`: it is not refused by name. None: it is placed by
        itself, or waits for the object that sets the gang's size."""
        ref = state.gang
        if ref is None and state.uid not in self._of:
            return None
        self._note_source(
            state.uid, f"{state.pod.metadata.namespace}/{ref.source}" if ref is not None and ref.source else ""
        )
        gang = None if ref is None else self._find(state, ref)
        old = self._of.get(state.uid)
        if old is not None:
            if old is gang:
                self._take_out(state.uid, old)
            else:
                self._leave(state.uid, old, now)
        if gang is None or ref is None:
            return None
        self._of[state.uid] = gang
        self.by_key[gang.key] = gang
        gang.known.add(state.uid)
        gang.run_of[state.uid] = self._run(state)
        gang.part_of[state.uid] = ref.part
        changed = _note_said(gang, state.uid, None if state.ended else ref)
        if changed or not gang.minimum or gang.source is not gang.figures_by:
            _set_figures(gang, gang.said or ({} if gang.minimum else {ref: 1}))
        if any(leaf.name == ref.part for leaf in gang.tree.leaves()):
            gang.leaf_of[state.uid] = ref.part
        self._enter(state, gang, able=able)
        _tally(gang, state.uid, 1)
        self._look(gang, now)
        return gang

    def forget(self, uid: str, now: float) -> GangState | None:
        """The pod is gone for good; returns the gang that it belonged to."""
        self._note_source(uid, "")
        self._run_of.pop(uid, None)
        gang = self._of.get(uid)
        if gang is not None:
            self._leave(uid, gang, now)
        return gang

    def named_by(self, source: Gang) -> list[str]:
        """uids of the pods that name this object."""
        return self.naming(f"{source.metadata.namespace}/{source.metadata.name}")

    # --- ends that break it -----------------------------------------------------------------------------------

    def must_end_with(self, uid: str, gone: Collection[str] = ()) -> list[str]:
        """The pods that must end if this one does, including itself: no other if enough members of its gang run on,
        else all of the gang, or of the subgroup that it can do without. A pod that ends anyway takes no other along.
        `gone`: pods that end anyway; they are not returned."""
        gang = self._of.get(uid)
        if gang is None or uid not in gang.placed or uid in gone:
            return [uid]
        running = [member for member in self._running(gang) if member not in gone]
        before = gang.by_leaf(running) + gang.counted("elsewhere")
        after = before - gang.by_leaf([uid])
        for subgroup in gang.tree.path(gang.leaf(uid)):
            ends = not subgroups.is_satisfied(subgroup, after)
            if ends and (not subgroup.name or subgroups.is_satisfied(subgroup, before)):
                inside = {leaf.name for leaf in subgroup.leaves()}
                return [member for member in running if not subgroup.name or gang.leaf(member) in inside]
        return [uid]

    def together_among(self, uids: Collection[str]) -> list[set[str]]:
        """Of these pods, those of each gang and of each of its subgroups, where they are several: they end together,
        or stay together."""
        found = []
        for gang in self.among(uids):
            members = {uid for uid in uids if self._of.get(uid) is gang}
            found.append(members)
            for subgroup in gang.tree.all():
                leaves = {leaf.name for leaf in subgroup.leaves()}
                if subgroup.name:
                    found.append({uid for uid in members if gang.leaf(uid) in leaves})
        return [members for members in found if len(members) > 1]

    def broken_by(self, gone: Collection[str]) -> GangState | None:
        """A gang of which some end and some run on, and these are fewer than it, or one of its subgroups, needs."""
        for gang in self.among(gone):
            before = gang.counted("placed", "elsewhere")
            left = before - gang.by_leaf(uid for uid in gang.placed if uid in gone)
            ours = gang.by_leaf(uid for uid in gang.placed if uid not in gone)  # others' pods are not ours to end
            if ours and not subgroups.is_satisfied(gang.tree, left):
                return gang
            if any(subgroups.broken(below, before, left, ours) for below in gang.subgroups):
                return gang
        return None

    def lives_without(self, gang: GangState, gone: Collection[str]) -> bool:
        """Whether the gang has what it needs where these of its pods are gone."""
        left = gang.counted("placed", "elsewhere") - gang.by_leaf(uid for uid in gang.placed if uid in gone)
        return subgroups.is_satisfied(gang.tree, left)

    def can_spare(self, uid: str, going: Collection[str]) -> bool:
        """Whether its gang needs this member no more where these go too, nor anywhere in particular."""
        gang = self._of.get(uid)
        if gang is None:
            return False
        before = gang.counted("placed", "elsewhere")
        left = before - gang.by_leaf(one for one in gang.placed if one == uid or one in going)
        return not any(
            one.required
            or ((subgroups.is_satisfied(one, before) or not one.name) and not subgroups.is_satisfied(one, left))
            for one in gang.tree.path(gang.leaf(uid))
        )

    def _running(self, gang: GangState) -> list[str]:
        """In the order of their uids."""
        return sorted(gang.placed)

    def overdue(self, now: float) -> list[GangState]:
        """Gangs that have begun and have lacked members for as long as their time-out, which restarts for them."""
        found = [
            g for g in self._lacking.values() if g.lacking_since is not None and now - g.lacking_since >= g.patience_s
        ]
        for gang in found:
            gang.lacking_since = now
        return found

    def broken_down(self, now: float, default_s: float) -> list[GangState]:
        """Gangs that have run without their minimum for longer than they may, and whose pods are to be evicted.
        `default_s`: for gangs that do not say; 0: for ever."""
        found = []
        for gang in self._incomplete.values():
            allowed_s = default_s if gang.incomplete_s is None else gang.incomplete_s
            if allowed_s and gang.incomplete_since is not None and now - gang.incomplete_since >= allowed_s:
                found.append(gang)
        return found

    # --- inside -----------------------------------------------------------------------------------------------

    def _find(self, state: PodState, ref: GangRef) -> GangState | None:
        """The pod's gang, perhaps a new one; None while its size is not known."""
        name, source, part = ref.name, None, None
        if ref.source:
            source = self._source(state, ref)
            if source is None:
                return None
            part = ref.part if ref.part in source.parts else None
            name = "/".join((ref.name, *(() if part is None else (part,)), *((ref.instance,) if ref.instance else ())))
        if _minimum(ref, _given(source, part, ref.group_size)) < 1:
            return None
        namespace = state.pod.metadata.namespace
        gang = self.by_key.get(f"{namespace}/{name}") or GangState(namespace=namespace, name=name)
        gang.source, gang.part = source, part
        return gang

    def _run(self, state: PodState) -> str:
        """The run that the pod belongs to; "" for a bare pod whose gang no object describes."""
        source = None if state.gang is None or not state.gang.source else self._source(state, state.gang)
        if source is None or not source.metadata.uid:
            return state.controller_uid
        run = source.metadata.uid
        if state.gang is not None and state.gang.source.startswith(_OUTLASTS_RUNS):
            run = f"{run}/{state.controller_uid}"
        if not state.ended:
            self._run_of[state.uid] = run
        return self._run_of.setdefault(state.uid, run)

    def _note_source(self, uid: str, path: str) -> None:
        old = self._source_of.pop(uid, "")
        if old:
            self._by_source[old].discard(uid)
            if not self._by_source[old]:
                del self._by_source[old]
        if path:
            self._source_of[uid] = path
            self._by_source.setdefault(path, set()).add(uid)

    def _source(self, state: PodState, ref: GangRef) -> Gang | None:
        """None also for a part of a CompositePodGroup: that says how many of its groups must be placed together, and
        it is not read."""
        found = self._object(state, ref)
        return None if found is None or found.parent else found

    def _object(self, state: PodState, ref: GangRef) -> Gang | None:
        found: Gang | None = self.book.others.get("Gang", {}).get(f"{state.pod.metadata.namespace}/{ref.source}")
        return found

    def _enter(self, state: PodState, gang: GangState, *, able: bool) -> None:
        """Puts the pod into the lists of what it is now."""
        if state.ended:
            if state.pod.status.phase == "Succeeded":
                gang.done.add(state.uid)
        elif not state.ours:
            gang.elsewhere.add(state.uid)
        elif state.pod.metadata.deletion_timestamp is not None or state.uid in self.going:
            # a replacement belongs to the next run with the other new pods, not to the last members of the old one
            pass
        elif state.charged or state.pod.spec.node_name:
            gang.placed.add(state.uid)
            if state.pod.spec.node_name:
                gang.bound.add(state.uid)
        elif state.wants_place and able:
            gang.waiting[state.uid] = None

    def _leave(self, uid: str, gang: GangState, now: float) -> None:
        """The pod belongs to this gang no more."""
        gang.kept.pop(uid, None)
        self._take_out(uid, gang)
        gang.part_of.pop(uid, None)
        if _note_said(gang, uid, None):
            _set_figures(gang, gang.said)
        self._look(gang, now)

    def _take_out(self, uid: str, gang: GangState) -> None:
        self._of.pop(uid, None)
        _tally(gang, uid, -1)
        gang.leaf_of.pop(uid, None)
        gang.run_of.pop(uid, None)
        gang.waiting.pop(uid, None)
        for members in (gang.known, gang.placed, gang.bound, gang.elsewhere, gang.done):
            members.discard(uid)
        if not gang.known:
            del self.by_key[gang.key]
            self._incomplete.pop(gang.key, None)

    def _look(self, gang: GangState, now: float) -> None:
        gang.verdict = None
        present = gang.present_runs
        done = gang.done_in(present)
        gang.whole_runs &= gang.runs.get("known", Counter()).keys()
        if subgroups.is_satisfied(gang.tree, gang.counted("bound", "elsewhere") + done):
            gang.whole_runs |= present
        has = gang.counted("placed", "elsewhere") + done
        stands = subgroups.is_satisfied(gang.tree, has)
        if not gang.begun or stands:
            gang.ran_with = gang.tree if gang.begun else None
        if not gang.begun or (gang.ran_with is not None and subgroups.is_satisfied(gang.ran_with, has)):
            gang.incomplete_since = None
            self._incomplete.pop(gang.key, None)
        else:
            gang.incomplete_since = now if gang.incomplete_since is None else gang.incomplete_since
            self._incomplete[gang.key] = gang
        if gang.begun and not stands and (gang.waiting or present.isdisjoint(gang.whole_runs)):
            if gang.lacking_since is None:
                gang.lacking_since = now
                self._lacking[gang.key] = gang
        else:
            gang.lacking_since, gang.told = None, False
            self._lacking.pop(gang.key, None)


def _tally(gang: GangState, uid: str, change: int) -> None:
    """Counts a pod in the lists that have it, or no longer."""
    leaf, run = gang.leaf(uid), gang.run_of.get(uid, "")
    for name in _LISTS:
        if uid in getattr(gang, name):
            _add(gang.leaves, name, leaf, change)
            _add(gang.runs, name, run, change)
    if uid in gang.done:
        _add(gang.done_leaves, run, leaf, change)


def _add(counters: dict[str, Counter[str]], of: str, what: str, change: int) -> None:
    counter = counters.setdefault(of, Counter())
    counter[what] += change
    if not counter[what]:
        del counter[what]
    if not counter:
        del counters[of]


def _note_said(gang: GangState, uid: str, ref: GangRef | None) -> bool:
    """What this pod has annotated now; None: it does not count. Returns whether that may change a figure."""
    now = None if ref is None else msgspec.structs.replace(ref, part="", instance="")
    old = gang.said_of.get(uid)
    if now == old:
        return False
    before = len(gang.said)
    if old is not None:
        del gang.said_of[uid]
        gang.said[old] -= 1
        if not gang.said[old]:
            del gang.said[old]
    if now is not None:
        gang.said_of[uid] = now
        gang.said[now] += 1
    return before != 1 or len(gang.said) != 1 or old is not None


def _given(source: Gang | None, part: str | None, group_size: int) -> Gang | None:
    """What the object gives, as far as it concerns the gang of this part of it."""
    if source is not None and group_size:
        source = with_group_size(source, group_size)
    if source is None or part is None:
        return source
    return msgspec.structs.replace(source, minimum=source.parts[part], subgroups=(), min_subgroups=0)


def _minimum(ref: GangRef, given: Gang | None) -> int:
    """How many pods the gang needs by this pod's annotations, and else by the object's fields."""
    if given is None:
        return Subgroup(minimum=ref.minimum, subgroups=ref.subgroups).least
    return Subgroup(
        minimum=ref.minimum or given.minimum, subgroups=given.subgroups, min_subgroups=given.min_subgroups
    ).least


def _set_figures(gang: GangState, said: Mapping[GangRef, int]) -> None:
    """The gang's figures by the annotations of so many pods each. Where all have ended, they stay as they were."""
    if not said:
        return
    gang.figures_by = gang.source
    found = _given(gang.source, gang.part, max(ref.group_size for ref in said))
    given = found or Gang()
    gang.minimum = max(_minimum(ref, found) for ref in said)
    gang.timeout_s = max(ref.timeout_s or given.timeout_s for ref in said)
    stated = [ref.incomplete_s for ref in said if ref.incomplete_s is not None]
    gang.incomplete_s = None if not stated else 0 if 0 in stated else max(stated)
    gang.required = _most({ref: ref.required for ref in said}, said) or given.required
    gang.preferred = _most({ref: ref.preferred for ref in said}, said) or given.preferred
    tree = given.subgroups if found is not None else _most({ref: ref.subgroups for ref in said}, said) or ()
    few = given.min_subgroups
    if (tree, few) != (gang.subgroups, gang.min_subgroups):
        gang.subgroups, gang.min_subgroups = tree, few
        leaves = {leaf.name for leaf in gang.tree.leaves()}
        for uid in gang.known:
            _tally(gang, uid, -1)
            gang.leaf_of.pop(uid, None)
            if (part := gang.part_of.get(uid, "")) in leaves:
                gang.leaf_of[uid] = part
            _tally(gang, uid, 1)


def _most(values: Mapping[GangRef, T], said: Mapping[GangRef, int]) -> T | None:
    """The value of most pods, of those that state one; of several such the same in every process."""
    counts: Counter[T] = Counter()
    for ref, value in values.items():
        if value:
            counts[value] += said[ref]
    if len(counts) < 2:
        return next(iter(counts), None)
    return max(counts, key=lambda value: (counts[value], repr(value)))


def gang_trace(namespace: str, name: str) -> str:
    """Takes the place of a pod's uid in the trace of a gang, to which its members' traces link."""
    return f"gang {namespace}/{name}"
