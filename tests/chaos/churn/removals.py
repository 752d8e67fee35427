"""What removed which pod, from the API server's own audit log; and which pods a plan names as victims, from its
announcements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from shared.bus.port import Incoming, LogEntry
from shared.contracts.envelope import unwrap
from shared.contracts.events import PreemptionAbandoned, PreemptionExecuted, PreemptionProposed, PreemptionReserved
from shared.contracts.preemption import ENDS, Plan
from tests.chaos.churn.auditor import Gone

WATCHER = "system:serviceaccount:kerf-system:kerf-watcher"
POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  users: ["{user}"]
  verbs: [delete]
  resources: [{group: "", resources: [pods]}]
- level: Metadata
  users: ["{user}"]
  verbs: [create]
  resources: [{group: "", resources: [pods/eviction]}]
- level: None
""".replace("{user}", WATCHER)


class _Object(msgspec.Struct):
    name: str = ""
    subresource: str = ""


class _Status(msgspec.Struct):
    code: int = 0


class _Request(msgspec.Struct, rename="camel"):
    stage: str
    audit_id: str = msgspec.field(name="auditID")
    object_ref: _Object = msgspec.field(default_factory=_Object)
    response_status: _Status | None = None


_DECODER = msgspec.json.Decoder(_Request)


def flags(state: Path) -> tuple[str, ...]:
    """With which the API server writes the log. A request is in it before it is carried out."""
    policy = state / "audit-policy.yaml"
    policy.write_text(POLICY)
    return f"--audit-policy-file={policy}", f"--audit-log-path={_log(state)}", "--audit-log-maxsize=10000"


def read(state: Path) -> dict[str, Gone]:
    """By the pod's name: the removals that the watcher requested and that were not refused. A request that a kill cut
    off may have happened."""
    asked: dict[str, _Request] = {}
    for line in _log(state).read_bytes().splitlines() if _log(state).exists() else []:
        try:
            request = _DECODER.decode(line)
        except msgspec.DecodeError:
            continue  # The API server was killed while it wrote this line.
        if request.response_status is None and request.audit_id in asked:
            continue
        asked[request.audit_id] = request
    out: dict[str, Gone] = {}
    for request in asked.values():
        if request.response_status is None or request.response_status.code < 400:
            ref = request.object_ref
            before = out.get(ref.name, Gone())
            evicted = ref.subresource == "eviction"
            out[ref.name] = Gone(evicted=before.evicted or evicted, deleted=before.deleted or not evicted)
    return out


def _log(state: Path) -> Path:
    return state / "audit.log"


class Plans:
    """Names of the pods that are victims of a plan.

    A plan is announced when it is proposed, when it is reserved and when it is over, so one announcement that is lost
    with the store of NATS does no harm.
    """

    def __init__(self) -> None:
        self.victims: set[str] = set()

    async def heard(self, message: Incoming | LogEntry) -> None:
        event = unwrap(message.payload)[1]
        if isinstance(event, PreemptionProposed | PreemptionReserved | PreemptionExecuted | PreemptionAbandoned):
            self.victims.update(_ending(event.plan))


def _ending(plan: Plan) -> Iterable[str]:
    return (victim.name for victim in plan.victims if victim.action in ENDS)


def account(vanished: Iterable[str], removed: dict[str, Gone], plans: Plans) -> dict[str, Gone]:
    return {
        name: msgspec.structs.replace(removed.get(name, Gone()), planned=name in plans.victims) for name in vanished
    }
