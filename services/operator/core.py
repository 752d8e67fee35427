"""What an installation needs, from what is observed of it. Pure: objects in, writes out; time and chance are arguments.

Everything is decided from the present state, so a change that was missed or a write that failed is made up for by the
next decision. Writes carry what they were decided on: a POST fails where the object is there by now, a PATCH where it
has changed, so two operators at once do no harm.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from services.operator import certificates as pki
from services.operator import enrolment, identities, nats_servers, passwords
from services.operator.authority import Authorities, authorities, leaf, server_names
from services.operator.conditions import LISTED, TOLD_ONCE, conditions
from services.operator.config import Config
from services.operator.messages import Condition, Decision, Entropy, Notice, Write
from services.operator.objects import (
    ADMISSION_TLS,
    AUTHORITY,
    BUNDLE,
    CONFIG_MAP,
    NATS_TLS,
    NATS_USERS,
    SCHEDULERS,
    SECRET,
    STATUS,
    WEBHOOKS,
    ConfigMap,
    Secret,
    encoded,
)
from services.operator.observed import PART_OF, Observed
from shared.formats import UNREADABLE
from shared.kube.resources import Resource
from shared.model.timestamps import seconds_text

NODES_AT_ONCE = 50


class Core:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.seen = Observed(enrolment=config.enrolment)
        self.conditions: tuple[Condition, ...] = ()
        """The state of the installation, as of the last decision."""
        self._noticed: dict[str, str] = {}
        self._occupied: set[str] = set()
        """Nodes of which an Event says that they wait to be enrolled."""

    def decide(self, now_s: float, entropy: Entropy) -> Decision:
        """All that should be written now. Call it again after each change, and now and then for time itself."""
        writes: list[Write] = []
        notices: list[Notice] = []
        if self.config.nats_url:
            writes += self._users(now_s, entropy)
            writes += nats_servers.decide(self.seen.stateful_set, self.seen.servers)
        if self.config.certificates == "bootstrap":
            writes += self._own_certificates(now_s, entropy)
        else:
            writes += self._others_certificates()
        if SCHEDULERS not in self.seen.maps:  # made where it is missing, and the administrator's from then on
            writes.append(self._make(CONFIG_MAP, SCHEDULERS, {"accounts": LISTED}, f"ConfigMap {SCHEDULERS} was made"))
        if self.config.enrolment:
            self._enrol(writes, notices)
        writes += self._report(now_s, notices)
        return Decision(writes=tuple(writes), notices=tuple(notices))

    @property
    def unfinished(self) -> bool:
        """Whether `decide` has more to decide at once."""
        return bool(self.seen.dirty)

    def again(self, write: Write) -> None:
        """This write failed: what it was about is looked at anew."""
        if write.name in self.seen.nodes:
            self.seen.dirty.add(write.name)

    # --- users and certificates -------------------------------------------------------------------------------------

    def _users(self, now_s: float, entropy: Entropy) -> list[Write]:
        base = self._present_or_lost(NATS_USERS)
        added = passwords.missing(base, entropy) | identities.missing(base, now_s, entropy)
        return self._keep_secret(NATS_USERS, added, f"users of NATS: {', '.join(sorted(added)) or 'as before'}")

    def _own_certificates(self, now_s: float, entropy: Entropy) -> list[Write]:
        base = self._present_or_lost(AUTHORITY)
        found = authorities(base, self.seen.bundle, self.config, now_s, entropy)
        writes = self._keep_secret(AUTHORITY, found.changed, "the CA")
        if found.changed:
            return writes  # what is signed by it, or names it, follows when this has been written
        writes += self._keep_map(BUNDLE, {"ca.crt": found.bundle})
        for name, names in server_names(self.config).items():
            writes += self._leaf(name, names, found, now_s, entropy)
        until = pki.made_at(found.signer.certificate) + self.config.authority_overlap_s
        return [*writes, *self._trust_webhook(found.bundle, beside=now_s if now_s < until else 0.0)]

    def _leaf(self, name: str, names: tuple[str, ...], by: Authorities, now_s: float, entropy: Entropy) -> list[Write]:
        data, why = leaf(self._present_or_lost(name), names, by, self.config, now_s, entropy)
        what = f"a new certificate, because {why}" if why else "the CAs of now"
        return self._keep_secret(name, dict(data), what, kind="kubernetes.io/tls")

    def _others_certificates(self) -> list[Write]:
        """The CAs of certificates that others make go to where clients read them."""
        writes: list[Write] = []
        nats = self.seen.secret(NATS_TLS).text("ca.crt")
        if nats:
            writes += self._keep_map(BUNDLE, {"ca.crt": nats})
        admission = self.seen.secret(ADMISSION_TLS).text("ca.crt")
        return [*writes, *(self._trust_webhook(admission) if admission else [])]

    def _trust_webhook(self, bundle: str, *, beside: float = 0.0) -> list[Write]:
        """Sets caBundle. Certificates that are in it already and are valid at `beside` (Unix seconds; 0: none) stay:
        the webhook's pods may still serve one of them, of an installation before the operator or of a CA that is
        lost."""
        present = self.seen.webhooks
        changed = []
        for webhook in present.webhooks if present else ():
            kept = pki.others(_decoded(webhook.client_config.ca_bundle), bundle, beside)
            wanted = base64.b64encode((bundle + kept).encode()).decode()
            if webhook.client_config.ca_bundle != wanted:
                changed.append({"name": webhook.name, "clientConfig": {"caBundle": wanted}})
        if present is None or not changed:
            return []
        name, body = present.metadata.name, {"webhooks": changed}
        why = f"caBundle of {name} was set"
        return [Write(method="PATCH", resource=WEBHOOKS, name=name, body=body, strategic=True, why=why)]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _enrol(self, writes: list[Write], notices: list[Notice]) -> None:
        """Some nodes at a time; the others wait."""
        seen = self.seen
        for name in sorted(seen.dirty)[:NODES_AT_ONCE]:
            seen.dirty.discard(name)
            node = seen.nodes.get(name)
            if node is not None:
                others = seen.others_on(name)
                write, notice = enrolment.decide(
                    node, seen.grants[name], watcher=self.config.watcher_account, others=others
                )
                writes += [write] if write is not None else []
                waits = bool(others) and enrolment.waits(node)
                # One Event for a node that waits, however many of its pods come and go meanwhile.
                known = waits and name in self._occupied
                notices += [notice] if notice is not None and not known else []
                (self._occupied.add if waits else self._occupied.discard)(name)

    # --- the state of the installation --------------------------------------------------------------------------------

    def _report(self, now_s: float, notices: list[Notice]) -> list[Write]:
        known = {c.type: c for c in _read_conditions(self.seen.maps.get(STATUS))}
        when = seconds_text(now_s)
        found = []
        for condition in conditions(self.seen, self.config, now_s):
            before = known.get(condition.type)
            since = before.last_transition_time if before and before.status == condition.status else when
            found.append(msgspec.structs.replace(condition, last_transition_time=since))
            self._notice(condition, notices)
        self.conditions = tuple(found)
        bad = [f"{c.reason}: {c.message}" for c in found if c.status != "True"]
        text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
        return self._keep_map(STATUS, {"conditions": text, "summary": "; ".join(bad) or "Kerf is in order"})

    def _notice(self, condition: Condition, notices: list[Notice]) -> None:
        """An Event for each new problem; once, until it has gone or changed."""
        bad = condition.status == "False"
        problem = (condition.reason if condition.reason in TOLD_ONCE else condition.message) if bad else ""
        if problem and self._noticed.get(condition.type) != problem:
            notices.append(Notice(reason=condition.reason, note=condition.message))
        self._noticed[condition.type] = problem

    # --- writes -------------------------------------------------------------------------------------------------------

    def _present_or_lost(self, name: str) -> Secret:
        return self.seen.secrets.get(name) or self.seen.lost.get(name) or Secret()

    def _keep_secret(self, name: str, data: dict[str, Any], what: str, *, kind: str = "Opaque") -> list[Write]:
        """Makes the Secret, puts it back as it was, or changes these keys of it (None: removes)."""
        present, base = self.seen.secrets.get(name), self._present_or_lost(name).data
        wanted = encoded({key: value for key, value in data.items() if value is not None})
        changed: dict[str, str | None] = {key: value for key, value in wanted.items() if base.get(key) != value}
        changed |= {key: None for key, value in data.items() if value is None and key in base}
        if present is None:
            why = f"Secret {name} was put back" if name in self.seen.lost else f"Secret {name} was made: {what}"
            whole = {key: value for key, value in (base | changed).items() if value is not None}
            return [self._make(SECRET, name, whole, why, kind=kind)]
        return [self._change(SECRET, present, changed, f"Secret {name} was changed: {what}")] if changed else []

    def _keep_map(self, name: str, data: dict[str, str]) -> list[Write]:
        present = self.seen.maps.get(name)
        if present is None:
            return [self._make(CONFIG_MAP, name, data, f"ConfigMap {name} was made")]
        changed = {key: value for key, value in data.items() if present.data.get(key) != value}
        return [self._change(CONFIG_MAP, present, changed, f"ConfigMap {name} was changed")] if changed else []

    def _make(self, resource: Resource, name: str, data: dict[str, Any], why: str, *, kind: str = "") -> Write:
        space = self.config.namespace
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": space, "labels": PART_OF},
            "data": data,
        }
        body |= {"type": kind} if kind else {}
        return Write(method="POST", resource=resource, name=name, body=body, why=why)

    def _change(self, resource: Resource, present: Secret | ConfigMap, data: dict[str, Any], why: str) -> Write:
        meta = present.metadata
        body = {"metadata": {"resourceVersion": meta.resource_version}, "data": data}
        return Write(method="PATCH", resource=resource, name=meta.name, body=body, why=why)


def _decoded(ca_bundle: str) -> str:
    """Empty for what is no base64 of a text."""
    try:
        return base64.b64decode(ca_bundle, validate=True).decode()
    except ValueError:
        return ""


def _read_conditions(status: ConfigMap | None) -> tuple[Condition, ...]:
    """What the operator has written before; none where a user has written something else."""
    if status is None:
        return ()
    try:
        return msgspec.json.decode(status.data.get("conditions", "[]"), type=tuple[Condition, ...])
    except UNREADABLE:
        return ()
