"""How the watcher keeps up with the API server: what it has forgotten is listed anew, and nothing older replaces
what is newer."""

from tests.mutants.mutant import Mutant

REFLECTOR = "shared/kube/reflector.py"
REFLECT = "shared/kube/reflect.py"
REFRESHES = "shared/kube/refreshes.py"
FOLLOWS = "tests/unit/shared/kube/test_reflector.py"
TEST = "tests/unit/shared/kube/test_reflect.py"

MUTANTS = [
    Mutant(
        name="410-goes-on",
        what="a 410 goes on from the version that the server has forgotten",
        file=REFLECTOR,
        old="                    self.reflection.expired()\n",
        new="                    pass\n",
        tests=(f"{FOLLOWS}::test_a_version_that_the_server_has_forgotten_is_followed_by_a_new_list",),
    ),
    Mutant(
        name="refresh-without-a-list",
        what="whoever wants all of it anew gets a watch",
        file=REFRESHES,
        old="self.completing = incomplete or self.wishes > self._met",
        new="self.completing = incomplete",
        tests=(f"{FOLLOWS}::test_a_refresh_waits_for_a_list_that_started_after_it",),
    ),
    Mutant(
        name="refresh-waits-for-no-list",
        what="a wish for a list is fulfilled before the list is whole",
        file=REFLECTOR,
        old="passed = not self.reflection.listing and self",
        new="passed = self",
        tests=(f"{FOLLOWS}::test_a_refresh_waits_for_a_list_that_started_after_it",),
    ),
    Mutant(
        name="refresh-waits-for-no-version",
        what="a wish is met by a watch that has not passed the server's version",
        file=REFLECTOR,
        old="self.reflection.listing and self.reflection.version >= newest",
        new="self.reflection.listing",
        tests=(f"{FOLLOWS}::test_a_refresh_of_many_objects_waits_for_a_watch_that_has_passed_the_servers_version",),
    ),
    Mutant(
        name="short-watches-for-ever",
        what="a server whose watches do not say where they are is never listed",
        file=REFRESHES,
        old="if self._watched >= SHORT_WATCHES:",
        new="if False:",
        tests=(
            f"{FOLLOWS}::test_where_no_watch_passes_the_servers_version_there_is_a_list_and_lists_alone_for_a_while",
        ),
    ),
    Mutant(
        name="short-watches-tried-each-time",
        what="a server whose watches do not say where they are is asked anew for each wish",
        file=REFRESHES,
        old="return now >= self._lists_until",
        new="return True",
        tests=(
            f"{FOLLOWS}::test_where_no_watch_passes_the_servers_version_there_is_a_list_and_lists_alone_for_a_while",
        ),
    ),
    Mutant(
        name="goal-moves",
        what="the version to pass is read anew for each watch",
        file=REFLECTOR,
        old="newest = self._refreshes.goal or (await",
        new="newest = (await",
        tests=(f"{FOLLOWS}::test_the_version_to_pass_stays_while_the_server_goes_on",),
    ),
    Mutant(
        name="nothing-happened-waited-for",
        what="a watch is to pass the version that it begins with",
        file=REFLECTOR,
        old="if newest and self.reflection.version >= newest and self._complete(wishes):",
        new="if False:",
        tests=(f"{FOLLOWS}::test_where_nothing_has_happened_the_state_is_complete",),
    ),
    Mutant(
        name="broken-watches-counted",
        what="a server whose connections break is listed anew for everybody",
        file=REFLECTOR,
        old="        wishes = self._refreshes.begin(incomplete=listing)\n",
        new="        wishes = self._refreshes.begin(incomplete=listing)\n        self._refreshes.watch_ended()\n",
        tests=(f"{FOLLOWS}::test_watches_that_break_lead_to_no_list",),
    ),
    Mutant(
        name="restored-server-believed",
        what="a watch from a version that a restored server never had is taken for one that has passed it",
        file=REFLECTOR,
        old="if not newest >= self.reflection.version > 0:",
        new="if False:",
        tests=(f"{FOLLOWS}::test_a_server_that_is_behind_what_is_known_is_listed",),
    ),
    Mutant(
        name="wish-breaks-a-list",
        what="a list that makes progress begins anew for each wish",
        file=REFLECTOR,
        old="if self._following is not None and not self._refreshes.under_way:",
        new="if self._following is not None:",
        tests=(f"{FOLLOWS}::test_a_wish_during_a_refresh_lets_it_end_and_comes_next",),
    ),
    Mutant(
        name="wish-forgotten",
        what="a wish that came during a refresh is met when the watch happens to end",
        file=REFRESHES,
        old="return self.wishes > self._met",
        new="return False",
        tests=(f"{FOLLOWS}::test_a_wish_during_a_refresh_lets_it_end_and_comes_next",),
    ),
    Mutant(
        name="silent-list-waited-for",
        what="a list that has fallen silent is waited for",
        file=REFRESHES,
        old="asyncio.get_running_loop().time() - self._heard_at < QUIET_S",
        new="True",
        tests=(f"{FOLLOWS}::test_a_wish_during_a_refresh_that_has_fallen_silent_begins_it_anew",),
    ),
    Mutant(
        name="broken-list-gone-on-with",
        what="after a list that broke off the watch goes on from where it was",
        file=REFLECT,
        old='        self._listed = None\n        self.resource_version = ""\n\n    def event',
        new="        self._listed = None\n\n    def event",
        tests=(f"{TEST}::test_an_aborted_list_reports_no_deletion",),
    ),
    Mutant(
        name="any-bookmark-ends-a-list",
        what="a bookmark of progress ends a list, and what it has not named yet is gone",
        file=REFLECT,
        old='return self.end_list(mark.resource_version) if mark.annotations.get(INITIAL_END) == "true" else []',
        new="return self.end_list(mark.resource_version)",
        tests=(f"{TEST}::test_a_watch_list_ends_with_its_bookmark",),
    ),
    Mutant(
        name="older-versions-told",
        what="an older version of an object replaces a newer one",
        file=REFLECT,
        old="        if known is not None and version(known.metadata) >= version(meta):\n",
        new="        if False:\n",
        tests=(f"{TEST}::test_a_version_comes_once",),
    ),
    Mutant(
        name="old-bearer-not-ended",
        what="a name with a new bearer leaves the old one there",
        file=REFLECT,
        old="            if before is not None:\n",
        new="            if False:\n",
        tests=(f"{TEST}::test_a_name_with_a_new_bearer_ends_the_old_one_first",),
    ),
    Mutant(
        name="deletions-not-told",
        what="the end of an object is told as its last state",
        file=REFLECT,
        old='        if kind != "DELETED":\n',
        new="        if True:\n",
        tests=(f"{TEST}::test_a_deletion_is_certain_and_reported_with_the_last_state",),
    ),
    Mutant(
        name="listed-version-is-absent",
        what="while API servers of two versions serve, all objects of a kind are told as gone",
        file="shared/kube/discovery.py",
        old="            missing.append(version)\n",
        new="            pass\n",
        tests=("tests/unit/shared/kube/test_discovery.py::test_a_version_that_is_listed_and_not_there_says_nothing",),
    ),
]
