"""Why a gang waits: how many of its members are there, how many of them would fit together, and what keeps out the
next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.placement.engine.engine import Engine
from services.placement.scheduling.gangs.domains import members_by_leaf, nearest, shapes_of
from services.placement.scheduling.gangs.placing import Misfit, by_size, place_gang
from services.placement.scheduling.grants import TrialGrants
from shared.book.gangs import GangState, Verdict
from shared.book.states import PodState
from shared.book.subgroups import covers
from shared.contracts.explain import GangExplanation, PodExplanation, Reason, SubgroupExplanation
from shared.scheduling.transaction import Transaction

Alone = Callable[[PodState], PodExplanation]
"""Why a pod finds no place by itself on the book as it stands."""


def gang_unknown(source: str) -> Reason:
    kind, _, name = source.partition("/")
    return Reason(
        code="gang-unknown",
        sentence=f"the pod belongs to {kind} {name}, which is not known in its namespace, so it is unknown how many "
        "pods must be placed together",
        helps=f"create {source}, or annotate the pod kerf.dev/gang: none to have it placed by itself",
    )


def gang_composite(source: str, composite: str) -> Reason:
    return Reason(
        code="gang-composite",
        sentence=f"{source} is a part of CompositePodGroup {composite}, and Kerf does not read these: it is unknown "
        "which groups must be placed together",
        helps=f"create {source} without parentCompositePodGroupName, or annotate the pod kerf.dev/gang: none to have "
        "it placed by itself",
    )


def gang_too_large(pods: int, size_bytes: int, most_bytes: int) -> Reason:
    return Reason(
        code="gang-too-large",
        sentence=f"the decisions for {pods} of its pods come to {size_bytes} bytes, and the log takes {most_bytes} in "
        "one record",
        helps="make several smaller gangs of it",
    )


def shared_claim(members: Sequence[PodState]) -> Reason | None:
    """Of members that want a place together, two that name one ResourceClaim: its GPUs go to one pod."""
    first: dict[str, str] = {}
    for state in members:
        name = state.pod.metadata.name
        for path in state.claims.values():
            if path and first.setdefault(path, name) != name:
                return Reason(
                    code="gang-shares-claim",
                    sentence=f"its pods {first[path]} and {name} name one ResourceClaim, {path}, and the GPUs of a "
                    "claim go to one pod",
                    helps="give each pod its own claim by a resourceClaimTemplateName",
                )
    return None


def verdict(gang: GangState, members: Sequence[PodState], engine: Engine, alone: Alone) -> Verdict:
    """As of now. `members`: those that wait, in the order of the queue. The book is as before when this returns."""
    about = GangExplanation(
        name=gang.name,
        minimum=gang.minimum,
        members=gang.members,
        placed=len(gang.placed),
        need=gang.need,
        subgroups=_subgroups(gang),
    )
    if gang.problem:
        return Verdict(f"gang {gang.name}: {gang.problem.sentence}", about, (gang.problem,), (gang.problem.helps,))
    if not gang.gathered:
        return _gathering(gang, about)
    seen: list[tuple[Misfit, PodExplanation]] = []
    transaction = Transaction(engine.book)
    tried = place_gang(
        gang,
        by_size(members),
        engine,
        TrialGrants(),
        transaction=transaction,
        on_misfit=lambda m: seen.append((m, alone(engine.book.pods[m.uid]))),
    )
    if tried.misfit is None:
        transaction.roll_back()
        soon = (
            f"they gave back their places and are tried again within {gang.patience_s} s"
            if gang.told
            else "they are about to be placed"
        )
        return Verdict(
            f"gang {gang.name}: the {_pods(gang.need)} that it needs fit together, {soon}", _fits(about, gang.need)
        )
    if not seen:
        return _no_room(gang, about, members, engine, alone)
    nearest_try, why_not = seen[-1]
    pod = engine.book.pods[nearest_try.uid].pod.metadata.name
    beside = f" beside {'it' if nearest_try.fitted == 1 else 'them'}" if nearest_try.fitted else ""
    because = "" if why_not.candidates else f": {why_not.sentence}"
    sentence = (
        f"gang {gang.name}: {nearest_try.fitted} of the {_pods(gang.need)} that must be placed together "
        f"fit{_in(nearest_try.area)}; {pod} does not{beside}{because}"
    )
    return Verdict(
        sentence, _fits(about, nearest_try.fitted, nearest_try.area, pod), why_not.summary, why_not.helps, why_not.nodes
    )


def _gathering(gang: GangState, about: GangExplanation) -> Verdict:
    lacking = gang.minimum - gang.has - len(gang.waiting)
    short = gang.short()
    others = len(gang.known) - gang.members
    are = f"{'is' if others == 1 else 'are'} gated, refused or ending, or {'has' if others == 1 else 'have'} ended"
    besides = f" ({_pods(others)} more {are})" if others > 0 else ""
    if short:
        listed = ", ".join(f"{has} of the {_pods(minimum)} of subgroup {name}" for name, has, minimum in short)
        why = Reason(
            code="gang-gathering",
            sentence=f"gang {gang.name} has {listed}{besides}, and none is placed before the others",
            helps="create " + " and ".join(f"{minimum - has} more of {name}" for name, has, minimum in short),
            lacking=sum(minimum - has for _, has, minimum in short),
        )
        return Verdict(why.sentence, about, (why,), (why.helps,))
    why = Reason(
        code="gang-gathering",
        sentence=f"{gang.members} of the {_pods(gang.minimum)} of gang {gang.name} are there{besides}, and none is "
        "placed before the others",
        helps=f"create the other {_pods(lacking)}, or {_lower(gang, lacking)}",
        lacking=lacking,
    )
    return Verdict(why.sentence, about, (why,), (why.helps,))


def _no_room(
    gang: GangState, about: GangExplanation, members: Sequence[PodState], engine: Engine, alone: Alone
) -> Verdict:
    """Counting alone rules it out."""
    ordered = by_size(members)
    if gang.subgroups:
        return _no_room_for_subgroup(gang, about, ordered, engine, alone)
    area, room = nearest(gang, shapes_of(ordered, engine), engine.book)
    if gang.required and not area:
        why = Reason(
            code="gang-room",
            sentence=f"no node has the label {gang.required}, in which all pods of gang {gang.name} must agree",
            helps=f"label the nodes with {gang.required}",
        )
        return Verdict(why.sentence, about, (why,), (why.helps,))
    why_not = alone(ordered[0])
    lacking = max(1, gang.need - room)
    where = f", at most in {area}" if area else ""
    why = Reason(
        code="gang-room",
        sentence=f"there is room for {room} of the {_pods(gang.need)} of gang {gang.name} that must be placed "
        f"together{where}",
        helps=f"free room for {lacking} more {'pod' if lacking == 1 else 'pods'}{_in(area)}"
        + ("" if gang.need == 1 else f", or {_lower(gang, lacking)}"),
        lacking=lacking,
    )
    return Verdict(
        f"{why.sentence}. What would help: {why.helps}",
        _fits(about, room, area),
        (why, *why_not.summary),
        (why.helps, *why_not.helps),
        why_not.nodes,
    )


def _no_room_for_subgroup(
    gang: GangState, about: GangExplanation, ordered: Sequence[PodState], engine: Engine, alone: Alone
) -> Verdict:
    """Of the subgroups that must be placed together, the one with room for the smallest part of what it needs, each
    by itself; or none of them, where only all together, or their topology, leave no room."""
    by_leaf = members_by_leaf(gang, ordered)
    step = next((one for one in gang.steps() if covers(gang.counted("waiting"), one)), {})
    rooms = {
        leaf: sum(min(s.count, int(s.room.sum())) for s in shapes_of(by_leaf[leaf], engine))
        for leaf in step
        if leaf in by_leaf
    }
    short = sorted((leaf for leaf in rooms if rooms[leaf] < step[leaf]), key=lambda leaf: rooms[leaf] / step[leaf])
    if short:
        name, room, need = short[0] or "the others", rooms[short[0]], step[short[0]]
        sentence = f"there is room for {room} of the {_pods(need)} of subgroup {name} of gang {gang.name}"
        helps, lacking, first = f"free room for {need - room} more of {name}", need - room, by_leaf[short[0]][0]
    else:
        levels = sorted({one.required for one in gang.tree.all()} - {""})
        where = f" of one {' and '.join(levels)}" if levels else ""
        sentence = f"each subgroup of gang {gang.name} finds room by itself, and no nodes{where} have room for all"
        helps, lacking, first = f"free room on nodes{where}", 1, ordered[0]
    why = Reason(code="gang-room", sentence=sentence, helps=helps, lacking=lacking)
    why_not = alone(first)
    return Verdict(
        f"{why.sentence}. What would help: {why.helps}",
        _fits(about, sum(min(rooms[leaf], step[leaf]) for leaf in rooms)),
        (why, *why_not.summary),
        (why.helps, *why_not.helps),
        why_not.nodes,
    )


def _fits(about: GangExplanation, fits: int, area: str = "", misfit: str = "") -> GangExplanation:
    return GangExplanation(
        name=about.name,
        minimum=about.minimum,
        members=about.members,
        placed=about.placed,
        need=about.need,
        fits=fits,
        area=area,
        misfit=misfit,
        subgroups=about.subgroups,
    )


def _subgroups(gang: GangState) -> tuple[SubgroupExplanation, ...]:
    has, placed = gang.has_by_leaf() + gang.counted("waiting"), gang.counted("placed")
    return tuple(
        SubgroupExplanation(name=leaf.name, minimum=leaf.minimum, members=has[leaf.name], placed=placed[leaf.name])
        for leaf in gang.tree.leaves()
        if leaf.name
    )


def _lower(gang: GangState, by: int) -> str:
    """Where its minimum is set: on its pods, or in the object that names it."""
    what = f"the minimum of {gang.name}" if "/" in gang.name else "kerf.dev/gang-min"
    return f"lower {what} to {max(1, gang.minimum - by)}"


def _in(area: str) -> str:
    return f" in {area}" if area else ""


def _pods(count: int) -> str:
    return f"{count} {'pod' if count == 1 else 'pods'}"
