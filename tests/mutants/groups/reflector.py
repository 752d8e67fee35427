"""How the watcher keeps up with the API server: what it has forgotten is listed anew, and nothing older replaces
what is newer."""

from tests.mutants.mutant import Mutant

REFLECTOR = "shared/kube/reflector.py"
REFLECT = "shared/kube/reflect.py"
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
        file=REFLECTOR,
        old="listing = not self.reflection.resource_version or wanted > self._done",
        new="listing = not self.reflection.resource_version",
        tests=(f"{FOLLOWS}::test_a_refresh_waits_for_a_list_that_started_after_it",),
    ),
    Mutant(
        name="refresh-waits-for-no-list",
        what="a wish for a list is fulfilled before the list is whole",
        file=REFLECTOR,
        old="                if listing and not self.reflection.listing:\n",
        new="                if listing:\n",
        tests=(f"{FOLLOWS}::test_a_refresh_waits_for_a_list_that_started_after_it",),
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
]
