"""What the operator's core decides: writes, Events, and the conditions of the installation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from shared.kube.resources import Resource

Entropy = Callable[[int], bytes]
"""Returns so many random bytes: `secrets.token_bytes` outside of tests."""


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One request to the API server. A PATCH that must not overwrite a change carries a resourceVersion in its body."""

    method: Literal["POST", "PATCH", "DELETE"]
    resource: Resource
    name: str
    body: dict[str, Any] = {}
    strategic: bool = False
    why: str
    """What happened, for the log."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """An Event on a node, or, without a node, on the installation (ConfigMap kerf-status)."""

    reason: str
    note: str
    node: str = ""
    warning: bool = True


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As in Kubernetes' conditions."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: str = ""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    writes: tuple[Write, ...] = ()
    notices: tuple[Notice, ...] = ()
