"""What the operator answers about NATS' clients, and the tokens that it signs."""

from __future__ import annotations

import json
from typing import Any

import nkeys
import pytest
from msgspec.structs import replace

from services.operator import callout
from services.operator.callout import Review, ReviewedUser
from services.operator.config import Config
from services.operator.tokens import AccountKey, claims_of, new_seed
from shared.contracts.permissions import User, agent_of, granted, tenant_of, tool_of

KEY = AccountKey(new_seed(bytes(range(32))))
AGENT = "system:serviceaccount:kerf-system:kerf-node-agent"
NODE = {"authentication.kubernetes.io/node-name": ("n.1",)}


def review(**changed: Any) -> Review:
    fields = {"authenticated": True, "audiences": ("kerf-nats",), "user": ReviewedUser(username=AGENT, extra=NODE)}
    return Review(**(fields | changed))  # type: ignore[arg-type]


def question() -> callout.Question:
    claims = {"nats": {"user_nkey": "UABC", "server_id": {"id": "NSERVER"}, "connect_opts": {"auth_token": "t"}}}
    return callout.read(KEY.sign(claims).encode())


def test_a_question_is_read() -> None:
    assert (question().user_key, question().server, question().token) == ("UABC", "NSERVER", "t")


@pytest.mark.parametrize("payload", [b"", b"a.b", b"a.b.c", b"a.e30.c", "ä.ö.ü".encode("latin-1")])
def test_what_is_no_question_is_named_so(payload: bytes) -> None:
    with pytest.raises(callout.Unreadable):
        callout.read(payload)


def test_an_agents_token_names_its_node() -> None:
    assert callout.judge(review(), Config()).user == agent_of("n.1")


LISTENING = Config(listening_namespaces=("team-a",), listening_accounts=("team-a/billing", "monitoring/usage"))


@pytest.mark.parametrize(
    ("account", "user"),
    [
        ("team-a:default", tenant_of("team-a")),
        ("team-a:billing", tool_of("team-a", "billing")),
        ("monitoring:usage", tool_of("monitoring", "usage")),
        ("monitoring:other", None),
        ("team-b:billing", None),
        ("kerf-system:kerf-node-agent", None),  # of an agent nothing else is taken: its token names no node
    ],
)
def test_listed_accounts_hear_events(account: str, user: User | None) -> None:
    config = replace(LISTENING, listening_namespaces=("team-a", "kerf-system"))
    reviewed = ReviewedUser(username=f"system:serviceaccount:{account}")
    verdict = callout.judge(review(user=reviewed), config)
    assert (verdict.user, bool(verdict.refusal)) == (user, user is None)


def test_who_is_not_listed_is_told_which_setting_would_do_it() -> None:
    reviewed = ReviewedUser(username="system:serviceaccount:team-b:billing")
    refusal = callout.judge(review(user=reviewed), LISTENING).refusal
    assert refusal == (
        "the token is that of ServiceAccount team-b/billing, which may not listen: add its namespace to the operator's "
        "listening_namespaces, or itself to its listening_accounts"
    )


@pytest.mark.parametrize("account", ["usage", "/usage", "monitoring/", "a/b/c"])
def test_an_account_without_a_namespace_is_refused_at_the_start(account: str) -> None:
    with pytest.raises(ValueError, match="write NAMESPACE/NAME"):
        Config(listening_accounts=(account,))


def test_a_tenant_that_says_nothing_is_denied_everything() -> None:
    """A server takes an empty list of allowed subjects for none: it would allow everything."""
    assert granted(tenant_of("team-a"))["pub"] == {"deny": [">"]}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"authenticated": False, "error": "expired"}, "does not accept the token: expired"),
        ({"audiences": ("other",)}, "not for audience kerf-nats"),
        (
            {"user": ReviewedUser(username="system:serviceaccount:other:kerf-node-agent", extra=NODE)},
            "ServiceAccount other/kerf-node-agent, which may not listen",
        ),
        ({"user": ReviewedUser(username="admin", extra=NODE)}, "which is no ServiceAccount"),
        ({"user": ReviewedUser(username=AGENT)}, "names no node"),
        ({"user": ReviewedUser(username=AGENT, extra={next(iter(NODE)): ("a", "b")})}, "names no node"),
    ],
)
def test_other_tokens_are_refused_with_the_reason(changed: Any, reason: str) -> None:
    verdict = callout.judge(review(**changed), Config())
    assert verdict.user is None
    assert reason in verdict.refusal


def test_the_answer_names_the_subjects_of_one_node_and_an_end() -> None:
    verdict = callout.Verdict(user=agent_of("n.1"))
    answer = json.loads(claims_of(callout.answer(question(), verdict, KEY, 100.7, 60).decode()))
    assert (answer["aud"], answer["sub"], answer["iss"]) == ("NSERVER", "UABC", KEY.public)
    user = json.loads(claims_of(answer["nats"]["jwt"]))
    assert (user["aud"], user["sub"]) == ("$G", "UABC")
    assert 145 <= user["exp"] <= 160
    allowed = user["nats"]["pub"]["allow"]
    assert "kerf.v1.beat.n_2e1" in allowed
    assert not [subject for subject in allowed if subject.startswith("kerf.v1.beat.") and subject.endswith("*")]
    assert user["nats"]["sub"]["allow"] == [
        "_INBOX_node_agent.n_2e1.>",
        "kerf.v1.cmd.node.n_2e1.*",
        "kerf.v1.query.about",
    ]


def test_sessions_that_begin_together_end_over_a_quarter_of_their_time() -> None:
    def end_of(node: str) -> int:
        verdict = callout.Verdict(user=agent_of(node))
        answer = json.loads(claims_of(callout.answer(question(), verdict, KEY, 0, 1000).decode()))
        return int(json.loads(claims_of(answer["nats"]["jwt"]))["exp"])

    ends = [end_of(f"node-{i}") for i in range(200)]
    assert all(750 <= end <= 1000 for end in ends)
    assert all([end for end in ends if low <= end < low + 50] for low in range(750, 1000, 50))
    assert end_of("node-1") == end_of("node-1")


def test_a_refusal_has_no_user() -> None:
    answer = json.loads(claims_of(callout.answer(question(), callout.Verdict(refusal="no"), KEY, 100, 60).decode()))
    assert answer["nats"] == {"type": "authorization_response", "version": 2, "error": "no"}


@pytest.mark.parametrize(
    "seed", ["", "SAAA", "not base32!", nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER).decode()]
)
def test_what_is_no_accounts_seed_is_refused(seed: str) -> None:
    with pytest.raises(ValueError, match="seed"):
        AccountKey(seed)
