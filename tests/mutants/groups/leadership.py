"""Who takes the lease, and when a replica is ready."""

from tests.mutants.mutant import Mutant

_LEADERSHIP = "shared/service/leadership.py"
_TESTS = "tests/unit/shared/service/test_leadership.py::"

MUTANTS = [
    Mutant(
        name="ready-without-a-leader",
        what="a replica of placement is ready although nobody places pods",
        file="services/placement/service.py",
        old='"service", ok=served, detail=',
        new='"service", ok=True, detail=',
        tests=("tests/contract/test_placement_readiness.py",),
    ),
    Mutant(
        name="serves-as-soon-as-it-leads",
        what="a leader that still takes over says that it serves",
        file="services/placement/service.py",
        old='self._session_now is not None and self._session_now.core.phase == "leading"',
        new="True",
        tests=("tests/contract/test_placement_readiness.py",),
    ),
    Mutant(
        name="the-next-leader-serves-like-the-last",
        what="a leader that nobody has asked yet counts as one that serves, because the one before did",
        file=_LEADERSHIP,
        old="self.holder, self._leader_serves = holder, False",
        new="self.holder = holder",
        tests=(_TESTS + "test_another_leader_serves_when_it_says_so",),
    ),
    Mutant(
        name="serves-without-a-lease",
        what="a leader that has lost its lease counts as one that serves for as long as there is no connection",
        file=_LEADERSHIP,
        old="        self._note_served()  # without",
        new="        # without",
        tests=(_TESTS + "test_a_leader_that_cannot_renew_stops_leading_within_its_ttl",),
    ),
    Mutant(
        name="preparing-to-everybody",
        what="a leader that takes over tells candidates of an earlier version something that they do not know",
        file=_LEADERSHIP,
        old="prepares = incoming.payload == SERVES and not self._serves()",
        new="prepares = not self._serves()",
        tests=(_TESTS + "test_a_candidate_of_an_earlier_version_hears_that_a_leader_leads_before_it_serves",),
    ),
    Mutant(
        name="unready-for-ever",
        what="while nobody places pods no replica is ready, however long that takes",
        file="services/placement/service.py",
        old='lambda: self.ctx.health.set("service", ok=True, detail=late)',
        new='lambda: self.ctx.health.set("service", ok=False, detail=late)',
        tests=("tests/contract/test_placement_readiness.py",),
    ),
    Mutant(
        name="preparing-is-serving",
        what="a leader that says that it is not done taking over counts as one that serves",
        file=_LEADERSHIP,
        old="self._leader_serves = answer == LEADING",
        new="self._leader_serves = bool(answer)",
        tests=(_TESTS + "test_another_leader_serves_when_it_says_so",),
    ),
    Mutant(
        name="an-old-replica-takes-the-lease-first",
        what="a process that has run for long takes a free key before a newer one can",
        file=_LEADERSHIP,
        old="free = not self._left_to_newer and not",
        new="free = not",
        tests=(_TESTS + "test_a_free_key_is_left_to_a_newer_process_for_a_moment",),
    ),
    Mutant(
        name="an-old-replica-never-takes-the-lease",
        what="a process that has run for long leaves a free key for ever",
        file=_LEADERSHIP,
        old="return now >= self._old_at and now - self._free_since_s < LEFT_S",
        new="return now >= self._old_at",
        tests=(_TESTS + "test_a_free_key_is_left_to_a_newer_process_for_a_moment",),
    ),
    Mutant(
        name="stopped-watches-are-kept",
        what="the bus keeps what a stopped watch tells, such as an ended session with its whole book",
        file="shared/bus/nats_bus.py",
        old="        self._watches.pop(watch_id, None)\n",
        new="        pass\n",
        tests=("tests/unit/shared/bus/test_nats_bus.py::test_what_is_stopped_holds_nothing_of_its_owner",),
    ),
]
