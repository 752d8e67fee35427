"""The preemptor: nobody ends before placement has reserved, beyond a budget, twice in a row, or in another's stead."""

from tests.mutants.mutant import Mutant

CORE = "services/preemptor/core.py"
BUDGETS = "services/preemptor/budgets.py"
PROTECTION = "services/preemptor/protection.py"
UNIT = "tests/unit/services/preemptor"
TEST = f"{UNIT}/test_core.py"
PLANS = f"{UNIT}/test_planner.py"
WRITES = "tests/unit/shared/kube/test_writes.py"
VERY_POD = f"{WRITES}::test_an_eviction_and_a_deletion_are_of_the_very_pod_and_of_no_other_of_its_name"

MUTANTS = [
    Mutant(
        name="evicts-though-refused",
        what="the preemptor evicts although placement refused",
        file=CORE,
        old="        elif not event.answer.ok:\n",
        new="        elif False:\n",
        tests=(f"{TEST}::test_where_placement_refuses_another_node_is_tried",),
    ),
    Mutant(
        name="stand-by-proposes",
        what="a preemptor that does not lead proposes plans",
        file=CORE,
        old="if self.ready and proposes and len(self.executions)",
        new="if self.ready and len(self.executions)",
        tests=(f"{TEST}::test_who_stands_by_proposes_nothing",),
    ),
    Mutant(
        name="evictions-before-they-are-restore",
        what="evictions are asked for before they are written down",
        file=CORE,
        old=(
            "            *(m.SaveProtection(known, self.protection.expires_at(known) - now) for known in self.protection.changed()),\n"
            "            *out,\n"
        ),
        new=(
            "            *out,\n"
            "            *(m.SaveProtection(known, self.protection.expires_at(known) - now) for known in self.protection.changed()),\n"
        ),
        tests=(f"{TEST}::test_who_gives_back_reads_that_and_when_it_comes_again",),
    ),
    Mutant(
        name="plan-goes-on-without-a-victim",
        what="a plan of which one victim cannot be evicted evicts the others",
        file=CORE,
        old="        if stuck is None:\n",
        new="        if True:\n",
        tests=(f"{TEST}::test_a_budget_that_says_no_at_the_api_server_gives_the_plan_up_and_finds_another",),
    ),
    Mutant(
        name="budgeted-victims-at-once",
        what="victims under a budget are asked together with the others",
        file="services/preemptor/plan_execution.py",
        old=(
            "        return tuple(\n"
            "            victim\n"
            "            for victim in self.plan.victims\n"
            "            if victim.uid in self.victims_left and (not first or victim.uid == first)\n"
            "        )\n"
        ),
        new="        return tuple(victim for victim in self.plan.victims if victim.uid in self.victims_left)\n",
        tests=(
            f"{TEST}::test_who_is_under_a_budget_is_asked_first_the_tightest_first_and_the_others_when_the_api_server_has_taken_those",
        ),
    ),
    Mutant(
        name="budget-one-too-generous",
        what="disruption budgets are one too generous",
        file=BUDGETS,
        old="self._promised[name] + count <= allowed[name] for",
        new="self._promised[name] + count <= allowed[name] + 1 for",
        tests=(f"{PLANS}::test_a_budget_of_one_lets_no_two_go",),
    ),
    Mutant(
        name="plans-under-option-not-counted",
        what="budgets do not count the victims of plans under option",
        file=BUDGETS,
        old="self._promised = Counter(name for uid in promised if uid in self._book.pods for name in self.of(uid))",
        new="self._promised = Counter()",
        tests=(f"{PLANS}::test_plans_under_way_count_against_budgets",),
    ),
    Mutant(
        name="plans-of-a-round-not-counted",
        what="budgets do not count the victims of other plans of the same round",
        file=BUDGETS,
        old="        self._promised.update(name for victim in victims if",
        new="        self._promised.update(name for victim in () if",
        tests=(f"{PLANS}::test_plans_of_one_round_count_against_budgets",),
    ),
    Mutant(
        name="hourly-budget-of-a-plan",
        what="one plan may ask for more than a namespace may give in an hour",
        file=BUDGETS,
        old="budgets_of(self._book.pods[uid], self._book) | hourly",
        new="budgets_of(self._book.pods[uid], self._book)",
        tests=(f"{UNIT}/test_protection.py::test_no_plan_asks_for_more_than_a_namespace_may_give",),
    ),
    Mutant(
        name="hourly-budget-not-spent",
        what="a namespace gives any number of pods in an hour",
        file=PROTECTION,
        old="        self._evicted.setdefault(known.namespace, deque()).append(now)\n",
        new="",
        tests=(f"{UNIT}/test_protection.py::test_what_has_ended_counts_for_an_hour",),
    ),
    Mutant(
        name="no-protection",
        what="pods that have come back after an eviction are asked again at once",
        file=PROTECTION,
        old="return known is not None and bool(known.since) and self._until(known, state) > now",
        new="return False",
        tests=(
            f"{UNIT}/test_protection.py::test_who_comes_in_the_stead_of_a_successor_is_left_alone_for_twice_as_long",
        ),
    ),
    Mutant(
        name="protection-does-not-grow",
        what="pods that are evicted again and again are left alone no longer",
        file=PROTECTION,
        old="return self._first_s * 2.0 ** (generation - 1)",
        new="return self._first_s",
        tests=(
            f"{UNIT}/test_protection.py::test_who_comes_in_the_stead_of_a_successor_is_left_alone_for_twice_as_long",
        ),
    ),
    Mutant(
        name="eviction-without-uid",
        what="an eviction ends whatever pod has the name now",
        file="shared/kube/writes.py",
        old='options: dict[str, Any] = {"preconditions": _preconditions(order.uid, order.resource_version)}',
        new="options: dict[str, Any] = {}",
        tests=(VERY_POD,),
    ),
    Mutant(
        name="deletion-without-uid",
        what="a deletion ends whatever pod has the name now",
        file="shared/kube/writes.py",
        old=(
            "        body = {\n"
            '            "apiVersion": "v1",\n'
            '            "kind": "DeleteOptions",\n'
            '            "preconditions": _preconditions(order.uid, order.resource_version),\n'
            "        }\n"
        ),
        new='        body = {"apiVersion": "v1", "kind": "DeleteOptions"}\n',
        tests=(VERY_POD,),
    ),
]
