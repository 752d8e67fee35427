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
        old="if review.user.username != account:",
        new="if not review.user.username:",
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
        old="return _leave(node, grants) if grants else _release(node, watcher)",
        new="return _release(node, watcher)",
        tests=(
            "tests/unit/services/operator/test_enrolment.py::test_a_node_keeps_its_agent_while_pods_with_grants_run_there",
        ),
    ),
    Mutant(
        name="nats-servers-replaced-at-once",
        what="a NATS server is replaced while another one is away, so that the streams have no leader",
        file="services/operator/nats_servers.py",
        old="(old[:1] if whole else [])",
        new="old[:1]",
        tests=("tests/unit/services/operator/test_nats_servers.py::test_none_is_replaced_while_another_is_away",),
    ),
]
