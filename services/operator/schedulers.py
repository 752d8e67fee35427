"""Which accounts bind pods beside Kerf, and are missing in ConfigMap kerf-schedulers.

Nothing on a pod says which account bound it. So an account counts as a scheduler if a ClusterRole lets it create
`pods/binding` by that name (not by a wildcard, which administrators' tools have), and as in use if it is no
ServiceAccount, or a pod runs as it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from services.operator.objects import ClusterRole, ClusterRoleBinding, Rule

_RESOURCES = ("pods/binding", "bindings")


def accounts(listed: str) -> list[str]:
    """The accounts of the list, separated as the policy kerf-binding separates them."""
    return re.findall(r"[^ \t\r\n]+", listed)


def unlisted(
    roles: Mapping[str, ClusterRole],
    bindings: Iterable[ClusterRoleBinding],
    *,
    listed: str,
    running: Mapping[tuple[str, str], int],
    own: tuple[str, ...],
) -> dict[str, str]:
    """Accounts that may bind pods, are in use and not listed, with the ClusterRoleBinding that lets them.

    `listed`: the list as it stands in the ConfigMap. `running`: how many pods run as a ServiceAccount, by (namespace,
    name).
    """
    known = {*accounts(listed), *own}
    may_bind = {name for name, role in roles.items() if any(_binds(rule) for rule in role.rules or ())}
    found: dict[str, str] = {}
    for binding in bindings:
        if binding.role_ref.kind != "ClusterRole" or binding.role_ref.name not in may_bind:
            continue
        for subject in binding.subjects or ():
            if subject.kind == "ServiceAccount" and running.get((subject.namespace, subject.name), 0):
                account = f"system:serviceaccount:{subject.namespace}:{subject.name}"
            elif subject.kind == "User":
                account = subject.name
            else:
                continue
            if account not in known:
                found[account] = binding.metadata.name
    return dict(sorted(found.items()))


def _binds(rule: Rule) -> bool:
    return (
        any(group in ("", "*") for group in rule.api_groups)
        and any(resource in _RESOURCES for resource in rule.resources)
        and any(verb in ("create", "*") for verb in rule.verbs)
    )
