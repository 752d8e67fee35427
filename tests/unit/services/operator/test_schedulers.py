"""Accounts that bind pods and are not listed, by what RBAC says."""

from __future__ import annotations

import pytest

from services.operator.objects import ClusterRole, ClusterRoleBinding, RoleRef, Rule, Subject
from services.operator.schedulers import unlisted
from shared.model.kube_object import Meta

BINDS = Rule(api_groups=("",), resources=("pods", "pods/binding"), verbs=("create",))
ACCOUNT = Subject(kind="ServiceAccount", name="s", namespace="ns")


def found(
    rule: Rule, subject: Subject = ACCOUNT, *, listed: str = "", pods: int = 1, own: tuple[str, ...] = ()
) -> list[str]:
    binding = ClusterRoleBinding(
        metadata=Meta(name="b"), role_ref=RoleRef(kind="ClusterRole", name="r"), subjects=(subject,)
    )
    roles = {"r": ClusterRole(metadata=Meta(name="r"), rules=(rule,))}
    return list(unlisted(roles, [binding], listed=listed, running={("ns", "s"): pods}, own=own))


def test_an_account_that_may_bind_and_runs_is_named() -> None:
    assert found(BINDS) == ["system:serviceaccount:ns:s"]
    assert found(BINDS, Subject(kind="User", name="jane")) == ["jane"]


@pytest.mark.parametrize(
    "rule",
    [
        Rule(api_groups=("*",), resources=("*",), verbs=("*",)),
        Rule(api_groups=("",), resources=("pods/binding",), verbs=("get",)),
        Rule(api_groups=("",), resources=("bindings",), verbs=("list", "watch")),
        Rule(api_groups=("apps",), resources=("pods/binding",), verbs=("create",)),
    ],
)
def test_administrators_and_readers_are_no_schedulers(rule: Rule) -> None:
    assert found(rule) == []


def test_accounts_that_are_listed_ours_or_not_in_use_are_not_named() -> None:
    assert found(BINDS, listed="a system:serviceaccount:ns:s b") == []
    assert found(BINDS, own=("system:serviceaccount:ns:s",)) == []
    assert found(BINDS, pods=0) == []
    assert found(BINDS, Subject(kind="Group", name="g")) == []
