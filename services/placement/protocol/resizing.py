"""Resizes the slices of running pods, up and down, exactly at every moment.

The annotation `kerf.dev/resize` is what a pod wants, its annotation `kerf.dev/grant` what it has. At every moment the
node's limit is at most the annotated grant, and that is at most what the book counts:

- *Growing.* The book counts the larger amounts, if they fit on the same GPUs and within quotas; then the growth is
  logged; then the grant is amended, only at the version of the pod for which that was decided; then the node is told,
  which waits until the memory is there. What was booked ends by evidence alone: the pod is seen at another version.
- *Shrinking.* The node promises to use no more than the smaller amounts, unless the program has more already; then the
  grant is amended; then the book counts less. A promise ends only with the next amendment, also when it is not wanted
  any more. So an order of an earlier leader that comes late is still true. A node that has lost its checkpoint has
  forgotten its promises: each sync asks for them again, before a container starts there.

A new leader takes over the growths in the log. Without a complete log it counts, as a growth that is under way, every
growth that the pods' annotations lead to, writes those into the log before it is ready, and touches the pods whose
growth does not fit. `tests/model/resize.py` shows that all of this is needed.
"""

from __future__ import annotations

import msgspec

from services.placement import messages as m
from services.placement.protocol.capacity_changes import CapacityChanges
from services.placement.protocol.lost_amendments import LostAmendments
from services.placement.protocol.nodes import Nodes
from services.placement.protocol.recovery import Recovery, touch
from services.placement.protocol.resize_limits import ResizeLimits
from services.placement.protocol.resize_status import ResizeStatus, text_of, words
from services.placement.protocol.write_batcher import WriteBatcher
from services.placement.scheduling.fair.fair import Fair
from shared.book.book import Book
from shared.book.states import GrantState, PodState
from shared.contracts.commands import AmendGrant
from shared.contracts.log import Amendment, DecisionBatch
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model.gpu import Inventory
from shared.model.grant import Grant, encode_grant
from shared.model.resize import (
    ResizeError,
    amended,
    exceeds,
    higher,
    lower,
    next_amendment,
    same_slices,
    wanted_grant,
)

REPEAT_S = 5.0
"""How often an order to the API server is repeated, and a node that has refused is asked again."""
LONGEST_REPEAT_S = 60.0
"""A node that refuses again and again is asked less and less often, at least every so often."""
TOUCH_AFTER_S = 30.0
"""A growth that has not been written for so long is ended by a touch: the API server may refuse it for ever."""


class Growth(msgspec.Struct):
    """A growth that is booked. `fits` False: it may be under way from an earlier leader, and is not wanted now."""

    amendment: Amendment
    since: float
    logged: bool = False
    fits: bool = True
    sent_at: float = float("-inf")


class Resizer:
    def __init__(
        self,
        book: Book,
        nodes: Nodes,
        fair: Fair,
        batcher: WriteBatcher,
        capacity_changes: CapacityChanges,
        *,
        beyond_request: bool,
    ) -> None:
        """`beyond_request`: whether slices may have more than their pods request, where no ResourceQuota forbids it."""
        self._book, self._nodes, self._batcher = book, nodes, batcher
        self._capacity_changes = capacity_changes
        self._limits = ResizeLimits(book, nodes, fair, capacity_changes, beyond_request=beyond_request)
        self._open: dict[str, Growth] = {}
        """By uid: what is booked and not seen in the annotation yet."""
        self._lost = LostAmendments()
        self._promised: dict[str, Grant] = {}
        """By uid: the least that a node has promised to use at most until the grant is amended."""
        self._confirmed: dict[str, int] = {}
        """By uid: the newest amendment that the slices are known to have."""
        self._waiting: set[str] = set()
        """Pods that want to grow, by uid."""
        self._unsettled: dict[str, float] = {}
        """Pods whose slices are not as they want, by uid; when they were looked at last."""
        self._sent: dict[str, tuple[str, float]] = {}
        """By uid: the version for which the grant is being amended without a growth, and when that was ordered last."""
        self._unanswered: set[str] = set()
        """Pods whose node was told that it need not use less any more, and has not said that their limits are right."""
        self._refused: dict[str, tuple[float, float]] = {}
        """By uid of a pod whose node has refused to use less: when it is asked again, and how long that is."""
        self._tried: set[str] = set()
        """Of the pods that want to grow, those for which nothing has changed since they were tried."""
        self._wants: dict[str, tuple[str, Grant, Grant]] = {}
        """By uid: what a text and a grant have led to. Pods that wait are looked at again and again."""
        self._changes = -1
        """How many changes of capacity there were by then."""
        self.status = ResizeStatus()
        nodes.before_sync = self._ask_for_less

    # --- a new leader -----------------------------------------------------------------------------------------

    def adopt(self, recovery: Recovery, *, complete: bool, now: float) -> None:
        """Takes over what earlier leaders may have ordered. `complete`: the log has all of their growths."""
        for state in list(self._book.pods.values()):
            held = self._held(state)
            if held is None:
                continue
            if text_of(state):
                self._unsettled[state.uid] = float("-inf")
            found = recovery.amended(state) if complete else self._possible(state, held)
            if found is None or found.grant.amendment <= held.given.amendment:
                continue
            if not same_slices(found.grant, held.given):
                continue
            booked = msgspec.structs.replace(found.grant, containers=higher(found.grant, held.given))
            fits = not (self._limits.lacks_room(held, booked) or self._limits.forbidden(state, held, booked))
            self._book.grow(held.grant_id, booked)
            self._open[state.uid] = Growth(found, now, logged=True, fits=fits)

    def records(self) -> list[Amendment]:
        """What a new term has to write again."""
        return [growth.amendment for growth in self._open.values() if growth.logged]

    def _possible(self, state: PodState, held: GrantState) -> Amendment | None:
        """The growth that an earlier leader may have ordered at this version of the pod."""
        try:
            wanted = wanted_grant(held.given, text_of(state))
        except ResizeError:
            return None
        if wanted is held.given or state.suspension is not None or lower(wanted, held.given) != held.given.containers:
            return None
        return _amendment(state, wanted)

    # --- what is seen -----------------------------------------------------------------------------------------

    def seen(self, state: PodState, now: float) -> list[m.Command]:
        """Handles a pod that is new or has changed."""
        out = self.status.bad_autoscale(state)
        if not text_of(state) and state.uid not in self._unsettled:
            return out
        if self._held(state) is None:
            self._leave(state)
            return out
        self._unsettled[state.uid] = now
        return out + self._settle(state, now)

    def _leave(self, state: PodState) -> None:
        """Nothing is done for a pod that does not run (yet). It is seen again when it does."""
        for uids in (self._waiting, self._tried):
            uids.discard(state.uid)
        self._unsettled.pop(state.uid, None)
        self.status.forget(state.uid)
        if state.wants_place and text_of(state):
            self.status.note(state, "waiting", "the pod does not run yet; its slices are resized when it does")

    def _wake(self) -> None:
        """Tries again what waits, if capacity or quotas may have changed."""
        if self._changes != self._capacity_changes.count:
            self._changes = self._capacity_changes.count
            self._tried.clear()

    def amended(self, uid: str, now: float) -> list[m.Command]:
        """Handles a grant that was seen amended, or a growth that can never be written any more."""
        state = self._book.pods[uid]
        held = self._held(state)
        self._open.pop(uid, None)
        self._capacity_changes.note()
        self._unsettled[uid] = now
        if held is None:
            return []
        self._promised.pop(uid, None)
        self._refused.pop(uid, None)
        self._recover(state, held, now)
        return self._nodes.granted(held, now)

    def ended(self, uid: str) -> None:
        self._open.pop(uid, None)
        for uids in (self._waiting, self._tried, self._unanswered):
            uids.discard(uid)
        for known in (
            *(self._lost, self._promised, self._confirmed, self._unsettled, self._sent),
            *(self._refused, self._wants),
        ):
            known.pop(uid, None)
        self.status.ended(uid)

    def node_answered(self, event: m.GrantAcknowledged, now: float) -> list[m.Command]:
        """Handles what an agent says of a grant's amounts."""
        held = self._book.grants.get(event.grant_id)
        state = None if held is None else self._book.pods.get(held.uid)
        if held is None or state is None or held.node != event.node or self._held(state) is not held:
            return []
        if not event.not_resized and self.is_current(event):
            self._unanswered.discard(state.uid)
        if event.not_resized and held.shrink is not None:
            _, before = self._refused.get(state.uid, (now, 0.0))
            delay = min(LONGEST_REPEAT_S, max(REPEAT_S, 2 * before))
            self._refused[state.uid] = now + delay, delay
        if event.amendment > 0:
            self._confirmed[state.uid] = event.amendment
        # An answer from before the node had to be synced may be that of an agent which has lost its checkpoint since.
        first = self._nodes.first_number.get(event.node)
        if event.shrunk is not None and first is not None and (not event.number or event.number >= first):
            self._promise(held, event.shrunk)
        if state.uid not in self._unsettled and event.shrunk is None:
            return []
        self._unsettled[state.uid] = now
        return self._settle(state, now, refused=event.not_resized)

    def is_current(self, event: m.GrantAcknowledged) -> bool:
        """Whether the agent's answer is to the newest order about the amounts; otherwise that is repeated."""
        held = self._book.grants.get(event.grant_id)
        if held is None or event.amendment < 0:
            return True
        if 0 < event.number < self._nodes.open_number(event.grant_id, event.node):
            return False  # to an order before
        state = self._book.pods.get(held.uid)
        asked = held.shrink is not None and state is not None and not self._limits.obstacle(state, held)
        if event.not_resized:
            return asked  # it is asked again by `tick`; a growth at once
        return event.amendment >= held.given.amendment and (not asked or event.shrunk is not None)

    def inventory_coming(self, inventory: Inventory) -> None:
        """Called before the book takes an inventory in. An agent that has lost its checkpoint has forgotten what it
        promised, and is asked again by the sync that follows."""
        node = self._book.nodes.get(inventory.node)
        if node is None or node.inventory is None or node.inventory.checkpoint_id == inventory.checkpoint_id:
            return
        for held in node.grants.values():
            if self._promised.pop(held.uid, None) is not None:
                self._unsettled[held.uid] = float("-inf")

    def _ask_for_less(self, node: str) -> None:
        """Has a sync ask for the smaller amounts that the pods of its node want. An amendment to them may be on its way
        by a promise that the node has lost with its checkpoint: no container may start there with more."""
        for held in self._book.nodes[node].grants.values():
            held.shrink = self._smaller(held)

    def _smaller(self, held: GrantState) -> Grant | None:
        """To what an amendment at this version of its pod may be on its way; None if to nothing smaller."""
        state = self._book.pods.get(held.uid)
        if state is None or not text_of(state) or self._held(state) is not held or held.client or held.parked:
            return None
        if state.suspension is not None or held.suspension is not None:
            return None
        try:
            smaller = amended(held.given, lower(self._wanted(held.uid, held.given, text_of(state)), held.given))
        except ResizeError:
            return None
        return None if smaller is held.given else smaller

    def synced(self, answer: NodeSyncAnswer, now: float) -> None:
        """Handles what a node has done, and promised, under earlier leaders."""
        for grant_id, newer in answer.amended.items():
            held = self._held_on(grant_id, answer.node)
            state = None if held is None else self._book.pods.get(held.uid)
            if held is not None and state is not None and self._held(state) is held:
                self._lost[held.uid] = newer
                self._unsettled[held.uid] = now
                self._recover(state, held, now)
        for grant_id, amendment in answer.amendments.items():
            held = self._held_on(grant_id, answer.node)
            if held is not None:
                self._confirmed[held.uid] = amendment
        for grant_id, promised in answer.shrunk.items():
            held = self._held_on(grant_id, answer.node)
            if held is not None:
                self._promise(held, promised)
        for held in self._book.nodes[answer.node].grants.values():
            if held.parked:
                held.shrink = None  # it comes back first, perhaps to other GPUs
            if held.shrink is not None or held.uid in self._promised:
                self._unsettled[held.uid] = float("-inf")

    def _recover(self, state: PodState, held: GrantState, now: float) -> None:
        """Books what the slices of a pod have by an amendment that was lost, and amends its grant to that."""
        if state.suspension is not None or held.suspension is not None:
            return
        growth = self._open.get(state.uid)
        found = self._lost.recover(state.uid, held.given, None if growth is None else growth.amendment.grant)
        if found is not None:
            self._begin(state, found.amended, found.booked, now)
            self.status.note(state, "applying", "etcd was restored: its grant is amended to what its slices have")

    def _promise(self, held: GrantState, promised: Grant) -> None:
        if (
            promised.amendment == held.given.amendment + 1
            and same_slices(promised, held.given)
            and not exceeds(promised, held.given)
        ):
            self._promised[held.uid] = promised

    # --- what follows -----------------------------------------------------------------------------------------

    def tick(self, term: int, now: float) -> list[m.Command]:
        """Repeats what has not been answered, and looks at all pods again whose slices are not as they want."""
        out: list[m.Command] = []
        for uid, growth in self._open.items():
            if growth.logged and now - growth.sent_at >= REPEAT_S:
                growth.sent_at = now
                if growth.fits and now - growth.since < TOUCH_AFTER_S:
                    out.append(m.SendPatches((_amend(growth.amendment),)))
                else:
                    out.append(m.SendPatches((touch(self._book.pods[uid], term),)))
        for uid in [uid for uid, at in self._unsettled.items() if now - at >= REPEAT_S]:
            state = self._book.pods.get(uid)
            if state is None:
                self.ended(uid)
                continue
            held = self._held(state)
            if held is None:
                self._leave(state)
                continue
            self._unsettled[uid] = now
            is_due = now >= self._refused.get(uid, (now, 0.0))[0]
            if held.shrink is not None and is_due and not self._limits.obstacle(state, held):
                out += self._nodes.granted(held, now)
            out += self._settle(state, now)
        return out

    def logged(self, record: DecisionBatch, now: float) -> list[m.Command]:
        """These growths are durable: the grants may be amended (R2)."""
        out: list[m.Command] = []
        for amendment in record.amendments:
            growth = self._open.get(amendment.uid)
            # A new term writes all of them again, also those that must not be written to their pods.
            if growth is not None and growth.amendment is amendment and not growth.logged:
                growth.logged, growth.sent_at = True, now
                out.append(m.SendPatches((_amend(amendment),)))
        return out

    @property
    def has_growing(self) -> bool:
        """Whether some slice waits to grow."""
        return bool(self._waiting)

    def grow_before(self, waiter: PodState | None, now: float) -> list[m.Command]:
        """Books what fits, the most important pods first; with `waiter` only of pods that are as important as that
        pending pod, which is about to be tried."""
        self._wake()
        untried = self._waiting - self._tried
        if not untried:
            return []
        out: list[m.Command] = []
        states = (self._book.pods[uid] for uid in untried if uid in self._book.pods)
        first = None if waiter is None else waiter.pod.spec.priority
        for state in sorted(states, key=lambda s: (-s.pod.spec.priority, s.pod.metadata.creation_timestamp, s.uid)):
            if first is not None and state.pod.spec.priority < first:
                break
            self._tried.add(state.uid)
            out += self._grow(state, now)
        return out

    def _settle(self, state: PodState, now: float, refused: str = "") -> list[m.Command]:
        """The next step towards what the pod wants. A growth waits for its turn."""
        held, text = self._held(state), text_of(state)
        for uids in (self._waiting, self._tried):
            uids.discard(state.uid)
        if held is None:
            return []
        self._recover(state, held, now)
        if state.uid in self._open:
            return []
        open_ = any(state.uid in known for known in (self._unanswered, self._promised, self._lost))
        if not text and not open_ and held.shrink is None:
            self._unsettled.pop(state.uid, None)
            self.status.forget(state.uid)
            return []
        given = held.given
        try:
            wanted = self._wanted(state.uid, given, text)
        except ResizeError as error:
            return self.status.say(state, "refused", f"{error}", code=error.code) + self._withdraw(state, held, now)
        if obstacle := self._limits.obstacle(state, held):
            return self.status.say(state, "waiting", obstacle)
        smaller = amended(given, lower(wanted, given))
        if smaller is not given:
            return self._shrink(state, held, smaller, refused, now)
        if wanted is not given:
            self._waiting.add(state.uid)
            return []
        return self._rest(state, held, refused, now)

    def _shrink(self, state: PodState, held: GrantState, smaller: Grant, refused: str, now: float) -> list[m.Command]:
        promised = self._promised.get(state.uid)
        if promised is not None and not exceeds(promised, smaller):
            return self._amend_once(state, smaller, now)
        said = self.status.say(state, "waiting", f"its node cannot take back what it has: {refused}") if refused else []
        if not said and state.uid not in self._refused:
            self.status.note(state, "applying", "its node was asked to use less")
        if held.shrink == smaller:
            return said  # asked already; `Nodes` repeats it until there is an answer, and `tick` after a refusal
        held.shrink = smaller
        self._refused.pop(state.uid, None)
        return [*said, *self._nodes.granted(held, now)]

    def _rest(self, state: PodState, held: GrantState, refused: str, now: float) -> list[m.Command]:
        """The grant is as it is wanted."""
        if state.uid in self._promised:
            return self._withdraw(state, held, now)
        out = self._withdraw(state, held, now)
        if self._confirmed.get(state.uid, 0) < held.given.amendment or state.uid in self._unanswered:
            why = refused or "its node has not confirmed it yet"
            self.status.note(state, "applying", f"the grant is amended: {why}")
            return out
        self._unsettled.pop(state.uid, None)
        self.status.done(state, f"its slices have what it wants: {words(held.given)}")
        return out

    def _withdraw(self, state: PodState, held: GrantState, now: float) -> list[m.Command]:
        """The slices are to have no less than their grant: a promise of less ends with an amendment to the same."""
        if state.uid in self._promised:
            return self._amend_once(state, next_amendment(held.given, held.given.containers), now)
        if held.shrink is None:
            return []
        held.shrink = None
        self._unanswered.add(state.uid)
        return self._nodes.granted(held, now)

    def _grow(self, state: PodState, now: float) -> list[m.Command]:
        held = self._held(state)
        if held is None or state.uid in self._open:
            self._waiting.discard(state.uid)
            return []
        try:
            wanted = self._wanted(state.uid, held.given, text_of(state))
        except ResizeError as error:
            self._waiting.discard(state.uid)
            return self.status.say(state, "refused", f"{error}", code=error.code)
        lacks = self._limits.obstacle(state, held) or self._limits.lacks(state, held, wanted)
        if lacks:
            return self.status.say(state, "waiting", lacks) + self._withdraw(state, held, now)
        self._waiting.discard(state.uid)
        self._begin(state, wanted, wanted, now)
        self.status.note(state, "applying", "the larger amounts are booked, and the grant is amended")
        return []

    def _begin(self, state: PodState, grant: Grant, booked: Grant, now: float) -> None:
        """Books `booked` for a pod, and has its grant amended to this one as soon as the log has that."""
        amendment = _amendment(state, grant)
        self._book.grow(state.grant_id, booked)
        self._batcher.amendments.append(amendment)
        self._open[state.uid] = Growth(amendment, now)

    def _wanted(self, uid: str, given: Grant, text: str) -> Grant:
        """The grant that the annotation leads to. Raises ResizeError."""
        if not text:
            return given
        known = self._wants.get(uid)
        if known is None or known[0] != text or known[1] is not given:
            known = self._wants[uid] = (text, given, wanted_grant(given, text))
        return known[2]

    def _amend_once(self, state: PodState, grant: Grant, now: float) -> list[m.Command]:
        """Has the grant amended without a growth; again after a while, as long as the pod is seen at this version."""
        version = state.pod.metadata.resource_version
        before, at = self._sent.get(state.uid, ("", now))
        if before == version and now - at < REPEAT_S:
            return []
        self._sent[state.uid] = version, now
        return [m.SendPatches((_amend(_amendment(state, grant)),))]

    def _held(self, state: PodState) -> GrantState | None:
        """The grant of a pod that runs, or may."""
        held = self._book.grants.get(state.grant_id) if state.grant_id else None
        going = state.ended or state.pod.metadata.deletion_timestamp is not None
        return None if held is None or held.phase != "bound" or not state.ours or going else held

    def _held_on(self, grant_id: str, node: str) -> GrantState | None:
        """The grant with this id, if its GPUs are on that node."""
        held = self._book.grants.get(grant_id)
        return None if held is None or held.node != node else held


def _amendment(state: PodState, grant: Grant) -> Amendment:
    meta = state.pod.metadata
    return Amendment(
        uid=state.uid,
        namespace=meta.namespace,
        name=meta.name,
        resource_version=meta.resource_version,
        grant=grant,
    )


def _amend(amendment: Amendment) -> AmendGrant:
    return AmendGrant(
        uid=amendment.uid,
        namespace=amendment.namespace,
        name=amendment.name,
        grant=encode_grant(amendment.grant),
        reason=f"its slices have {words(amendment.grant)} now",
        resource_version=amendment.resource_version,
    )
