"""Clusters before and after preemption.

Which pods run where, which are pending, and what happens to them.

Each row runs through placement and the preemptor, wired as on the bus (`tests.support.harness.cluster`).

A running pod is "name@node:gpus", followed by its share of each GPU in brackets and by options. "(20,50)": 20 GiB and
half of the compute, as a slice that its node enforces. "(20)": only memory, not enforced. The options:

- p1: priority; r100: it has run for 100 s; m3600: its minimum run time; c5: its restart cost
- u9: it has been observed using 9 GiB of each of its GPUs (then slices may be shrunk)
- g2 or g3/2: in a gang of that size (and minimum); t: its whole gang in one rack
- o: opportunistic; b: under the disruption budget; q:a: in queue a; n:a: only on node a
- d45: its grace period is 45 s, and it uses all of it; ending: it has been deleted

A pending pod is "name" with the same options and its request: "2" GPUs, or "(20,50)". Without GPUs: "0", and as a
running pod "name@node:".
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    what: str
    nodes: dict[str, int]
    runs: str
    waits: str
    evicted: str = ""
    """Names of the pods that are evicted."""
    suspends: str = ""
    """Pods that are suspended, as name=action."""
    moves: str = ""
    """Evicted pods that are placed again in the end, as name=node."""
    placed: str = ""
    """Pending pods that run in the end; the others stay pending."""
    least: int = 0
    """The minimum of available pods by the disruption budget."""
    queues: str = ""
    racks: str = ""
    """As node=rack."""
    consolidates: bool = False
    """Whether pods of equal priority may be migrated, at once and whatever it disturbs."""


ONE, TWO, TWICE, FOUR = {"n": 1}, {"n": 2}, {"a": 1, "b": 1}, {"n": 4}
HALVES = "queues: [{name: a, guaranteed: {gpus: 2}}, {name: b, guaranteed: {gpus: 2}}]"
FOUR_NODES, RACKS = {"a": 1, "b": 1, "c": 1, "d": 1}, "a=x b=x c=y d=y"
LIMITED = "queues: [{name: a}, {name: b, limit: {gpus: 1}}]"
WEIGHTS = "queues: [{name: a, weight: 3}, {name: b}]"

TABLE = (
    # --- whole GPUs
    Case("free capacity is used before preemption", TWO, "a@n:0", "h 1 p9", placed="h"),
    Case("one pod preempts one", ONE, "a@n:0", "h 1 p9", evicted="a", placed="h"),
    Case("no preemption of an equal priority", ONE, "a@n:0 p9", "h 1 p9"),
    Case("no preemption of a higher priority", ONE, "a@n:0 p9", "h 1 p1"),
    Case(
        "the least important, however long it has run",
        TWO,
        "a@n:0 p1 r99999; b@n:1 p2 r1",
        "h 1 p9",
        evicted="a",
        placed="h",
    ),
    Case("of equals the shortest run", TWO, "a@n:0 r900; b@n:1 r10", "h 1 p9", evicted="b", placed="h"),
    Case("a cheap restart by its own word", TWO, "a@n:0 r900 c5; b@n:1 r10", "h 1 p9", evicted="a", placed="h"),
    Case("two for two", TWO, "a@n:0; b@n:1", "h 2 p9", evicted="a b", placed="h"),
    Case("one of two GPUs for one", TWO, "a@n:0,1", "h 1 p9", evicted="a", placed="h"),
    Case("a large one that ends leaves room for two", TWO, "a@n:0,1", "h 1 p9; i 1 p9", evicted="a", placed="h i"),
    Case("not more than it takes", FOUR, "a@n:0 r1; b@n:1 r2; c@n:2 r3; d@n:3 r4", "h 2 p9", evicted="a b", placed="h"),
    Case(
        "one dear large one stays where two cheap small ones will do",
        {"a": 2, "b": 2},
        "l@a:0,1 r9000; s@b:0 r1; t@b:1 r1",
        "h 2 p9",
        evicted="s t",
        placed="h",
    ),
    Case("the cheaper node", TWICE, "a@a:0 r500; b@b:0 r5", "h 1 p9", evicted="b", placed="h"),
    Case("never more than the node has", ONE, "a@n:0", "h 2 p9"),
    Case("a terminating pod is waited for", TWICE, "a@a:0 ending; b@b:0 r1", "h 1 p9", placed="h"),
    Case(
        "a sufficient terminating pod is waited for, however long it takes",
        TWICE,
        "a@a:0 d600 ending; b@b:0 r1",
        "h 1 p9",
        placed="h",
    ),
    Case(
        "one that has ten minutes to end is waited for",
        {"a": 1, "b": 1, "c": 1},
        "a@a:0 d600; b@b:0 d600; c@c:0 d600",
        "h 1 p9",
        evicted="c",
        placed="h",
    ),
    Case(
        "one that ends at once waits with its room for one that takes its time",
        TWO,
        "a@n:0; b@n:1 d200",
        "h 2 p9; l 1",
        evicted="a b",
        placed="h",
    ),
    Case(
        "one more is preempted after the terminating pod is gone, not two at once",
        {"n": 3},
        "a@n:0 d40 ending; b@n:1 r1; c@n:2 r2",
        "h 2 p9",
        evicted="b",
        placed="h",
    ),
    Case(
        "a gang whose victims use different grace periods",
        TWICE,
        "a@a:0 d300; b@b:0 d20",
        "h 1 p9 g2; i 1 p9 g2; l 1",
        evicted="a b",
        placed="h i",
    ),
    Case("the more important of two is served first", ONE, "a@n:0", "i 1 p9; h 1 p5", evicted="a", placed="i"),
    Case("a chain: each takes from the one below", TWICE, "a@a:0 p1; b@b:0 p5", "h 1 p9", evicted="a", placed="h"),
    # --- slices
    Case("a slice goes for a slice", ONE, "a@n:0(60)", "h (60) p9", evicted="a", placed="h"),
    Case(
        "the smaller set of slices",
        ONE,
        "a@n:0(20) r1; b@n:0(20) r1; c@n:0(40) r3",
        "h (40) p9",
        evicted="a b",
        placed="h",
    ),
    Case(
        "one slice, though two are cheaper each",
        ONE,
        "a@n:0(10) r10; b@n:0(30) r1; c@n:0(40) r2",
        "h (40) p9",
        evicted="c",
        placed="h",
    ),
    Case("all slices of a GPU for a whole one", ONE, "a@n:0(20); b@n:0(20)", "h 1 p9", evicted="a b", placed="h"),
    Case(
        "slices of the other GPU stay",
        TWO,
        "a@n:0(20) r1; b@n:1(20) r99; c@n:1(40) r99",
        "h 1 p9",
        evicted="a",
        placed="h",
    ),
    Case("beside a slice there is room", ONE, "a@n:0(20)", "h (40) p9", placed="h"),
    Case("memory that is left over counts", ONE, "a@n:0(20) r9; b@n:0(40) r99", "h (40) p9", evicted="a", placed="h"),
    Case("a greater slice in between stays", ONE, "a@n:0(20) p9; b@n:0(60) p1", "h (50) p5", evicted="b", placed="h"),
    # --- what can be given up
    Case("compute alone: throttled", ONE, "a@n:0(20,100)", "h (20,50) p9", suspends="a=throttle", placed="h"),
    Case("an opportunistic pod needs no free compute", ONE, "a@n:0(20,100) p9", "h (20,50) o", placed="h"),
    Case("all of the compute: paused", ONE, "a@n:0(20,100)", "h (20,100) p9", suspends="a=pause", placed="h"),
    Case(
        "the cheapest is throttled",
        ONE,
        "a@n:0(20,50) r90; b@n:0(20,50) r1",
        "h (20,40) p9",
        suspends="b=throttle",
        placed="h",
    ),
    Case("unused memory: shrunk", ONE, "a@n:0(60,50) u20", "h (50,20) p9", suspends="a=shrink", placed="h"),
    Case("what it uses it keeps", ONE, "a@n:0(60,50) u50", "h (50,20) p9", evicted="a", placed="h"),
    Case("with something to spare", ONE, "a@n:0(60,50) u30", "h (49,20) p9", evicted="a", placed="h"),
    Case(
        "as many are shrunk as it takes",
        ONE,
        "a@n:0(30,30) u5 r1; b@n:0(30,30) u5 r2; c@n:0(20,30) u19 r3",
        "h (40,10) p9",
        suspends="a=shrink b=shrink",
        placed="h",
    ),
    Case("no pod is shrunk for an equal priority", ONE, "a@n:0(60,50) u20 p9", "h (50,20) p9"),
    Case("memory that is not enforced is not shrunk", ONE, "a@n:0(60) u20", "h (50) p9", evicted="a", placed="h"),
    Case("both are", ONE, "a@n:0(20,50); b@n:0(20,50)", "h (20,90) p9", suspends="a=throttle b=throttle", placed="h"),
    Case("memory is lacking: an end", ONE, "a@n:0(60,50)", "h (60,20) p9", evicted="a", placed="h"),
    Case(
        "throttled here before ended there",
        TWICE,
        "a@a:0(20,100) r9999; b@b:0 r1",
        "h (20,50) p9",
        suspends="a=throttle",
        placed="h",
    ),
    Case("not enforced: eviction", ONE, "a@n:0(60); b@n:0(20,100) p9", "h (40,0) p5", evicted="a", placed="h"),
    Case("an equal gives up nothing", ONE, "a@n:0(20,100) p9", "h (20,50) p9"),
    Case(
        "one of a gang may be throttled",
        TWICE,
        "a@a:0(20,100) g2; b@b:0(20,100) g2",
        "h (20,50) p9",
        suspends="b=throttle",
        placed="h",
    ),
    Case("a budget is about ends", ONE, "a@n:0(20,100) b", "h (20,50) p9", suspends="a=throttle", placed="h", least=1),
    # --- a place elsewhere
    Case(
        "an evicted pod moves where capacity is free",
        {"a": 2, "b": 1},
        "x@a:0; y@a:1",
        "h 2 p9",
        evicted="x y",
        moves="y=b",
        placed="h",
    ),
    Case(
        "the pod that loses the most moves",
        {"a": 2, "b": 1},
        "x@a:0 r900; y@a:1 r1",
        "h 2 p9",
        evicted="x y",
        moves="x=b",
        placed="h",
    ),
    Case(
        "a slice moves to another GPU",
        {"a": 1, "b": 1},
        "x@a:0(20); z@b:0(50) p9",
        "h 1 p5",
        evicted="x",
        moves="x=b",
        placed="h",
    ),
    Case("a gang has no place kept", {"a": 2, "b": 1}, "x@a:0 g2; y@a:1 g2", "h 2 p9", evicted="x y", placed="h"),
    # --- gangs that come
    Case("all of a gang gets in", TWICE, "a@a:0; b@b:0", "h 1 p9 g2; i 1 p9 g2", evicted="a b", placed="h i"),
    Case("or no pod is evicted", TWICE, "a@a:0; b@b:0 p9", "h 1 p9 g2; i 1 p9 g2"),
    Case("an incomplete gang preempts no pod", TWICE, "a@a:0; b@b:0", "h 1 p9 g2"),
    Case(
        "a gang with a launcher, which needs no GPU",
        TWICE,
        "a@a:0; b@b:0",
        "h 1 p9 g3; i 1 p9 g3; l 0 p9 g3",
        evicted="a b",
        placed="h i l",
    ),
    Case(
        "a launcher on a node without GPUs",
        {"a": 1, "c": 0},
        "a@a:0",
        "h 1 p9 g2; l 0 p9 g2 n:c",
        evicted="a",
        placed="h l",
    ),
    Case(
        "a gang with a launcher in one rack",
        TWICE,
        "a@a:0 r9; b@b:0",
        "h 1 p9 g2 t; l 0 p9 g2 t",
        evicted="b",
        placed="h l",
        racks="a=x b=y",
    ),
    Case("without GPUs no pod preempts", ONE, "a@n:0", "l 0 p9; h 1 p0", placed="l"),
    Case("free room and one victim", TWICE, "a@a:0", "h 1 p9 g2; i 1 p9 g2", evicted="a", placed="h i"),
    Case(
        "two on one node",
        {"a": 2, "b": 1},
        "a@a:0 r1; b@a:1 r1; c@b:0 r99",
        "h 1 p9 g2; i 1 p9 g2",
        evicted="a b",
        placed="h i",
    ),
    Case(
        "an elastic one gets its minimum", TWICE, "a@a:0; b@b:0 p9", "h 1 p9 g2/1; i 1 p9 g2/1", evicted="a", placed="h"
    ),
    # --- gangs that must be in one rack
    Case(
        "the cheapest rack of all, not the cheapest nodes",
        FOUR_NODES,
        "a@a:0 r1; b@b:0 r99; c@c:0 r50; d@d:0 r60",
        "h 1 p9 g2 t; i 1 p9 g2 t",
        evicted="a b",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "the rack of the least important, however long they have run",
        FOUR_NODES,
        "a@a:0 p2; b@b:0 p3; c@c:0 p2 r999; d@d:0 p2 r999",
        "h 1 p9 g2 t; i 1 p9 g2 t",
        evicted="c d",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "free room in two racks is none for it",
        FOUR_NODES,
        "b@b:0 r9; d@d:0 r1",
        "h 1 p9 g2 t; i 1 p9 g2 t",
        evicted="d",
        moves="d=a",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "a rack that needs no preemption", FOUR_NODES, "b@b:0 r1", "h 1 p9 g2 t; i 1 p9 g2 t", placed="h i", racks=RACKS
    ),
    Case(
        "throttled in one rack before ended in the other",
        FOUR_NODES,
        "a@a:0; b@b:0; c@c:0(20,100) r999; d@d:0(20,100) r999",
        "h (20,50) p9 g2 t; i (20,50) p9 g2 t",
        suspends="c=throttle d=throttle",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "no rack is large enough",
        FOUR_NODES,
        "a@a:0; b@b:0; c@c:0; d@d:0",
        "h 1 p9 g3 t; i 1 p9 g3 t; j 1 p9 g3 t",
        racks=RACKS,
    ),
    Case(
        "a rack in which one may not go",
        FOUR_NODES,
        "a@a:0 p9; b@b:0 r1; c@c:0 r999; d@d:0 r999",
        "h 1 p5 g2 t; i 1 p5 g2 t",
        evicted="c d",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "a gang of which half is in each rack goes for either",
        FOUR_NODES,
        "a@a:0 g2; b@b:0 r999; c@c:0 g2; d@d:0 r1",
        "h 1 p9 g2 t; i 1 p9 g2 t",
        evicted="a c d",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "a placed member fixes the rack",
        FOUR_NODES,
        "hh@a:0 p9 g2 t; b@b:0 r999; c@c:0 r1; d@d:0 r1",
        "i 1 p9 g2 t",
        evicted="b",
        placed="i",
        racks=RACKS,
    ),
    Case(
        "two of an elastic one go to one rack, one plan after the other",
        FOUR_NODES,
        "a@a:0 r1; b@b:0 r99; c@c:0 r9; d@d:0 r9",
        "h 1 p9 g2/1 t; i 1 p9 g2/1 t",
        evicted="a b",
        placed="h i",
        racks=RACKS,
    ),
    Case(
        "where its rack has no more room the others wait",
        {"a": 1, "b": 1},
        "a@a:0; b@b:0",
        "h 1 p9 g2/1 t; i 1 p9 g2/1 t",
        evicted="b",
        placed="h",
        racks="a=x b=y",
    ),
    Case(
        "more of an elastic one go to its rack too",
        FOUR_NODES,
        "hh@a:0 p9 g3/1 t; b@b:0 r999; c@c:0 r1",
        "i 1 p9 g3/1 t",
        evicted="b",
        moves="b=d",
        placed="i",
        racks=RACKS,
    ),
    # --- gangs that go
    Case("a gang ends as a whole", TWICE, "a@a:0 g2; b@b:0 g2", "h 1 p9", evicted="a b", placed="h"),
    Case(
        "another goes before two of a gang",
        {"a": 1, "b": 1, "c": 1},
        "a@a:0 g2 r60; b@b:0 g2 r60; c@c:0 r100",
        "h 1 p9",
        evicted="c",
        placed="h",
    ),
    Case(
        "those that a gang can spare", {"n": 3}, "a@n:0 g3/2; b@n:1 g3/2; c@n:2 g3/2", "h 1 p9", evicted="c", placed="h"
    ),
    Case(
        "beyond that all of it", {"n": 3}, "a@n:0 g3/2; b@n:1 g3/2; c@n:2 g3/2", "h 2 p9", evicted="a b c", placed="h"
    ),
    Case("a gang of which one is important stays", TWICE, "a@a:0 g2; b@b:0 g2 p9", "h 1 p9"),
    Case(
        "a gang's launcher ends with it",
        {"a": 1, "b": 1, "c": 0},
        "a@a:0 g3; b@b:0 g3; d@c: g3",
        "h 1 p9",
        evicted="a b d",
        placed="h",
    ),
    Case("a gang of which the launcher is important stays", ONE, "a@n:0 g2; d@n: g2 p9", "h 1 p9"),
    Case("a gang for a gang", TWICE, "a@a:0 g2; b@b:0 g2", "h 1 p9 g2; i 1 p9 g2", evicted="a b", placed="h i"),
    # --- what keeps a pod
    Case(
        "a budget keeps its pods, others go", TWO, "a@n:0 b r1; c@n:1 r99", "h 1 p9", evicted="c", placed="h", least=1
    ),
    Case("a budget that keeps all", ONE, "a@n:0 b", "h 1 p9", least=1),
    Case("a budget lets one go", TWO, "a@n:0 b; c@n:1 b", "h 1 p9", evicted="c", placed="h", least=1),
    Case("and no two at once", TWO, "a@n:0 b; c@n:1 b", "h 2 p9", least=1),
    Case("a gang under a budget that keeps one stays", TWICE, "a@a:0 g2 b; b@b:0 g2", "h 1 p9", least=1),
    Case("within its least run time", ONE, "a@n:0 m3600 r60", "h 1 p9"),
    Case("after its least run time", ONE, "a@n:0 m3600 r4000", "h 1 p9", evicted="a", placed="h"),
    Case("preemptionPolicy Never", ONE, "a@n:0", "h 1 p9 never"),
    Case("a pod that can never fit blocks no other", TWO, "a@n:0; b@n:1", "x 8 p99; h 1 p9", evicted="b", placed="h"),
    # --- moves among equals
    Case("equals stay unless migration is enabled", {"a": 2, "b": 2}, "x@a:0 r500; y@b:0 r5", "h 2"),
    Case(
        "the cheaper of two equals moves",
        {"a": 2, "b": 2},
        "x@a:0 r500; y@b:0 r5",
        "h 2",
        evicted="y",
        moves="y=a",
        placed="h",
        consolidates=True,
    ),
    Case(
        "two halves come together on one node",
        TWO,
        "a@n:0(40) r9; b@n:1(40) r1",
        "h 1",
        evicted="b",
        moves="b=n",
        placed="h",
        consolidates=True,
    ),
    Case("two halves that are too large together stay", TWO, "a@n:0(45) r9; b@n:1(45) r1", "h 1", consolidates=True),
    Case(
        "two move for one",
        {"a": 2, "b": 1, "c": 1},
        "v@a:0 r1; w@a:1 r1",
        "h 2",
        evicted="v w",
        moves="v=b w=c",
        placed="h",
        consolidates=True,
    ),
    Case("no migration without a target", TWICE, "a@a:0; b@b:0", "h 1", consolidates=True),
    Case("no migration for a lower priority", {"a": 2, "b": 2}, "x@a:0 p9; y@b:0 p9", "h 2", consolidates=True),
    Case(
        "no migration for a pod that never preempts", {"a": 2, "b": 2}, "x@a:0; y@b:0", "h 2 never", consolidates=True
    ),
    Case("a gang is not moved", {"a": 2, "b": 2}, "x@a:0 g2; y@b:0 g2", "h 2", consolidates=True),
    Case(
        "a member that its gang can spare is",
        {"a": 2, "b": 2},
        "c@a:0 g2/1 r9; d@b:0 g2/1",
        "h 2",
        evicted="d",
        moves="d=a",
        placed="h",
        consolidates=True,
    ),
    Case(
        "no more members than it can spare are",
        {"a": 2, "b": 1, "c": 1},
        "d@a:0 g2/1; e@a:1 g2/1",
        "h 2",
        consolidates=True,
    ),
    Case(
        "a budget keeps its pods where they are",
        {"a": 2, "b": 2},
        "x@a:0 b; y@b:0 b",
        "h 2",
        least=2,
        consolidates=True,
    ),
    Case(
        "another moves than the one in its least run time",
        {"a": 2, "b": 2},
        "x@a:0 r500; y@b:0 r5 m3600",
        "h 2",
        evicted="x",
        moves="x=b",
        placed="h",
        consolidates=True,
    ),
    Case(
        "a gang comes, and one moves for it",
        {"a": 2, "b": 2, "c": 2},
        "x@a:0 r9; y@b:0 r1",
        "h 2 g2; i 2 g2",
        evicted="y",
        moves="y=a",
        placed="h i",
        consolidates=True,
    ),
    Case(
        "no migration for part of a gang", {"a": 2, "b": 2}, "x@a:0 r9; y@b:0 r1", "h 2 g2; i 2 g2", consolidates=True
    ),
    Case(
        "across queues, because no pod loses its place",
        {"a": 2, "b": 2},
        "x@a:0 q:a r9; y@b:0 q:a",
        "h 2 q:b",
        evicted="y",
        moves="y=a",
        placed="h",
        queues=HALVES,
        consolidates=True,
    ),
    Case(
        "not for more than its queue may have",
        {"a": 2, "b": 2},
        "x@a:0 q:a r9; y@b:0 q:a",
        "h 2 q:b",
        queues=LIMITED,
        consolidates=True,
    ),
    # --- queues
    Case(
        "what was borrowed comes back at equal priority",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:a; d@n:3 q:a",
        "h 1 q:b",
        evicted="d",
        placed="h",
        queues=HALVES,
    ),
    Case(
        "not more than what was borrowed",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:a; d@n:3 q:b",
        "h 1 q:b; i 1 q:b",
        evicted="c",
        placed="h",
        queues=HALVES,
    ),
    Case(
        "a guarantee stands against any priority",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:b p9; d@n:3 q:b p9",
        "h 1 q:b p9",
        queues=HALVES,
    ),
    Case(
        "within a queue priority decides",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:b; d@n:3 q:b",
        "h 1 q:b p9",
        evicted="d",
        placed="h",
        queues=HALVES,
    ),
    Case(
        "beyond guarantees by weight",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:a; d@n:3 q:a",
        "h 1 q:b; i 1 q:b",
        evicted="d",
        placed="h",
        queues=WEIGHTS,
    ),
    Case(
        "a queue within its fair share keeps its pods, the own queue's pod is preempted",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:a; d@n:3 q:b",
        "h 1 q:b p9",
        evicted="d",
        placed="h",
        queues=WEIGHTS,
    ),
    Case(
        "a gang takes back what all of it needs",
        FOUR,
        "a@n:0 q:a; b@n:1 q:a; c@n:2 q:a; d@n:3 q:a",
        "h 1 q:b g2; i 1 q:b g2",
        evicted="c d",
        placed="h i",
        queues=HALVES,
    ),
    Case("or nothing", FOUR, "a@n:0 q:a; b@n:1 q:a; c@n:2 q:a; d@n:3 q:b", "h 1 q:b g2; i 1 q:b g2", queues=HALVES),
    Case(
        "a borrowing gang goes as a whole",
        FOUR,
        "a@n:0 q:a g4; b@n:1 q:a g4; c@n:2 q:a g4; d@n:3 q:a g4",
        "h 1 q:b",
        evicted="a b c d",
        placed="h",
        queues=HALVES,
    ),
)
