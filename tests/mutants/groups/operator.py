"""The operator: the identity of an agent, what clients trust, and what is never made anew."""

from tests.mutants.mutant import Mutant

_CALLOUT = "services/operator/callout.py"
_CALLOUT_TESTS = "tests/unit/services/operator/test_callout.py::test_other_tokens_are_refused_with_the_reason"
_CORE_TESTS = "tests/unit/services/operator/test_core.py::"

MUTANTS = [
    Mutant(
        name="agent-token-of-any-audience",
        what="a token that was made for another server lets an agent in",
        file=_CALLOUT,
        old="if config.agent_audience not in review.audiences:",
        new="if not config.agent_audience:",
        tests=(_CALLOUT_TESTS,),
    ),
    Mutant(
        name="agent-token-of-any-account",
        what="any pod with a token for NATS is the agent of its node",
        file=_CALLOUT,
        old="if (namespace, name) == (config.namespace, config.agent_account):",
        new="if name == config.agent_account:",
        tests=(_CALLOUT_TESTS,),
    ),
    Mutant(
        name="agent-beats-for-others",
        what="an agent may publish heartbeats of every node",
        file="shared/contracts/permissions.py",
        old="row(s.heartbeat(node), s.release(node),",
        new="row(s.HEARTBEAT_ALL, s.release(node),",
        tests=(
            "tests/unit/shared/contracts/test_permissions.py::test_what_an_agent_says_and_hears_of_its_node_is_its_own",
        ),
    ),
    Mutant(
        name="lost-secret-made-anew",
        what="a deleted Secret gets new passwords, which no running server knows",
        file="services/operator/core.py",
        old="return self.seen.secrets.get(name) or self.seen.lost.get(name) or Secret()",
        new="return self.seen.secrets.get(name) or Secret()",
        tests=(_CORE_TESTS + "test_a_secret_that_is_lost_is_put_back_as_it_was",),
    ),
    Mutant(
        name="new-ca-signs-at-once",
        what="a new CA signs before clients have it",
        file="services/operator/authority.py",
        old="now_s >= pki.made_at(following.certificate) + config.authority_overlap_s",
        new="now_s >= pki.made_at(following.certificate)",
        tests=(_CORE_TESTS + "test_what_is_made_while_a_new_ca_is_only_trusted_is_signed_by_the_old_one",),
    ),
    Mutant(
        name="node-released-under-its-pods",
        what="a node loses its agent and taint while pods with grants run there",
        file="services/operator/enrolment.py",
        old="    if grants or not leaves(node):\n",
        new="    if not leaves(node):\n",
        tests=(
            "tests/unit/services/operator/test_enrolment.py::test_a_node_keeps_its_agent_while_pods_with_grants_run_there",
        ),
    ),
    Mutant(
        name="node-released-under-late-bindings",
        what="a node's agent ends while pods may still be bound there by decisions from before",
        file="services/operator/enrolment.py",
        old="    if not settled or (agents",
        new="    if (agents",
        tests=("tests/unit/services/operator/test_enrolment.py::test_a_node_leaves_in_steps",),
    ),
    Mutant(
        name="node-released-under-its-agent",
        what="a node is anyone's while Kerf's agent still offers its GPUs",
        file="services/operator/enrolment.py",
        old="    if not settled or (agents and not enrolled(node)):\n",
        new="    if not settled:\n",
        tests=("tests/unit/services/operator/test_enrolment.py::test_a_node_leaves_in_steps",),
    ),
    Mutant(
        name="late-binding-without-an-agent",
        what="a pod that is bound late to a node that leaves finds no agent there",
        file="services/operator/enrolment.py",
        old='{} if enrolled(node) else {names.LABEL_ENROLLED: "true"}\n    if taints is None and not labels:\n        return None, None\n    pods',
        new="{}\n    if taints is None and not labels:\n        return None, None\n    pods",
        tests=("tests/unit/services/operator/test_enrolment.py::test_a_pod_that_is_bound_late_gets_the_agent_back",),
    ),
    Mutant(
        name="gpus-served-to-others-are-unused",
        what="a node whose GPU a pod of another node uses is released",
        file="services/operator/observed.py",
        old="{spec.node_name, _serving_node(grant) or spec.node_name}",
        new="{spec.node_name}",
        tests=("tests/unit/services/operator/test_core.py::test_a_node_that_serves_its_gpu_to_another_one_is_in_use",),
    ),
    Mutant(
        name="agents-of-others-count",
        what="any pod with Kerf's label keeps a node from being released",
        file="services/operator/observed.py",
        old="            and (pod.metadata.namespace, pod.spec.service_account_name) == (namespace, account)\n",
        new="",
        tests=(
            "tests/unit/services/operator/test_core.py::test_a_node_that_leaves_is_looked_at_until_its_agent_has_ended",
        ),
    ),
    Mutant(
        name="listed-schedulers-are-taken-out",
        what="the operator takes accounts out of the administrator's list of schedulers",
        file="services/operator/core.py",
        old='have = [LISTED] if present is None else schedulers.accounts(present.data.get("accounts", ""))',
        new="have = [LISTED]",
        tests=(
            "tests/unit/services/operator/test_core.py"
            "::test_schedulers_of_the_settings_are_added_to_the_list_and_none_is_taken_out",
        ),
    ),
    Mutant(
        name="earlier-ca-of-others-is-dropped-at-once",
        what="clients refuse servers that have not read their new certificate yet",
        file="services/operator/core.py",
        old="return now_s if now_s < since + self.config.authority_overlap_s else 0.0",
        new="return 0.0",
        tests=(
            "tests/unit/services/operator/test_core.py"
            "::test_an_earlier_ca_of_others_is_trusted_beside_a_new_one_for_a_while",
        ),
    ),
    Mutant(
        name="earlier-ca-of-others-stays",
        what="a CA that others have replaced is trusted until it expires",
        file="services/operator/core.py",
        old="return now_s if now_s < since + self.config.authority_overlap_s else 0.0",
        new="return now_s",
        tests=(
            "tests/unit/services/operator/test_core.py"
            "::test_an_earlier_ca_of_others_is_trusted_beside_a_new_one_for_a_while",
        ),
    ),
    Mutant(
        name="requests-for-nothing-are-counted",
        what="pods that ask for 0 of a resource crash every watcher when they end",
        file="services/watcher/node_requests.py",
        old=" for name, amount in requested(pod).items() if amount}",
        new=" for name, amount in requested(pod).items()}",
        tests=("tests/unit/services/watcher/test_node_requests.py::test_pods_that_ask_for_0_come_and_go_on_a_node",),
    ),
    Mutant(
        name="admission-ends-at-once",
        what="pods cannot be created while admission is rolled out",
        file="services/admission/service.py",
        old="        await asyncio.sleep(config.serve_on_s)\n",
        new="",
        tests=("tests/unit/services/admission/test_service.py::test_it_answers_for_a_while_after_it_was_told_to_end",),
    ),
    Mutant(
        name="several-budgets-are-tried-again",
        what="an eviction that the API server never carries out is repeated until its plan's deadline",
        file="shared/kube/outcomes.py",
        old=" or SEVERAL_BUDGETS in message:",
        new=":",
        tests=("tests/unit/shared/kube/test_writes.py::test_an_eviction_under_several_budgets_is_refused_for_good",),
    ),
    Mutant(
        name="nats-servers-replaced-at-once",
        what="a NATS server is replaced while another one is away, so that the streams have no leader",
        file="services/operator/nats_servers.py",
        old="(old[:1] if whole else [])",
        new="old[:1]",
        tests=("tests/unit/services/operator/test_nats_servers.py::test_none_is_replaced_while_another_is_away",),
    ),
    Mutant(
        name="listener-of-any-namespace",
        what="accounts of every namespace hear events",
        file=_CALLOUT,
        old="    if namespace in config.listening_namespaces:\n",
        new="    if namespace:\n",
        tests=("tests/unit/services/operator/test_callout.py::test_listed_accounts_hear_events",),
    ),
    Mutant(
        name="listener-by-its-name-alone",
        what="an account of any namespace has the rights of a listed one of that name",
        file=_CALLOUT,
        old='    if f"{namespace}/{name}" in config.listening_accounts:\n',
        new='    if name in [account.partition("/")[2] for account in config.listening_accounts]:\n',
        tests=("tests/unit/services/operator/test_callout.py::test_listed_accounts_hear_events",),
    ),
    Mutant(
        name="who-says-nothing-may-say-everything",
        what="a user token with no subjects to publish allows all of them",
        file="shared/contracts/permissions.py",
        old='"pub": {"allow": says} if says or user.responds else {"deny": [">"]},',
        new='"pub": {"allow": says},',
        tests=("tests/unit/services/operator/test_callout.py::test_a_tenant_that_says_nothing_is_denied_everything",),
    ),
    Mutant(
        name="lease-taken-again",
        what="an operator that ends takes the Lease again that it has just given up",
        file="services/operator/lease.py",
        old='if action == "wait" or self._ends:',
        new='if action == "wait":',
        tests=("tests/unit/services/operator/test_lease.py::test_a_lease_that_was_given_up_is_not_taken_again",),
    ),
]
