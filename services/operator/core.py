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
from services.operator import enrolment, identities, nats_servers, passwords, schedulers
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
        self._authorities_seen: dict[str, tuple[str, float]] = {}
        """By Secret of certificates that others make: its CA, and when it was first seen, in Unix seconds."""
        self._leaving: dict[str, float] = {}
        """Nodes that leave, and when they were first seen to, in Unix seconds."""
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
            writes += self._others_certificates(now_s)
        writes += self._schedulers()
        if self.config.enrolment:
            self._enrol(writes, notices, now_s)
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
        # ConfigMap kerf-ca is read by clients of NATS alone; where others run NATS, it is theirs, with another CA.
        bundle = self.seen.bundle if self.config.nats_url else ""
        found = authorities(base, bundle, self.config, now_s, entropy)
        writes = self._keep_secret(AUTHORITY, found.changed, "the CA")
        if found.changed:
            return writes  # what is signed by it, or names it, follows when this has been written
        if self.config.nats_url:
            writes += self._keep_map(BUNDLE, {"ca.crt": found.bundle})
        for name, names in server_names(self.config).items():
            writes += self._leaf(name, names, found, now_s, entropy)
        until = pki.made_at(found.signer.certificate) + self.config.authority_overlap_s
        return [*writes, *self._trust_webhook(found.bundle, beside=now_s if now_s < until else 0.0)]

    def _leaf(self, name: str, names: tuple[str, ...], by: Authorities, now_s: float, entropy: Entropy) -> list[Write]:
        data, why = leaf(self._present_or_lost(name), names, by, self.config, now_s, entropy, client=name == NATS_TLS)
        what = f"a new certificate, because {why}" if why else "the CAs of now"
        return self._keep_secret(name, dict(data), what, kind="kubernetes.io/tls")

    def _others_certificates(self, now_s: float) -> list[Write]:
        """The CAs of certificates that others make go to where clients read them. An earlier CA stays beside a new one
        for a while: servers go on with the certificate that they have until the kubelet has brought them the next."""
        writes: list[Write] = []
        nats = self.seen.secret(NATS_TLS).text("ca.crt")
        if nats and self.config.nats_url:
            kept = pki.others(self.seen.bundle, nats, self._beside(NATS_TLS, nats, now_s))
            writes += self._keep_map(BUNDLE, {"ca.crt": nats + kept})
        admission = self.seen.secret(ADMISSION_TLS).text("ca.crt")
        if admission:
            writes += self._trust_webhook(admission, beside=self._beside(ADMISSION_TLS, admission, now_s))
        return writes

    def _beside(self, name: str, bundle: str, now_s: float) -> float:
        """The time at which CAs beside this one must be valid to stay; 0 where the overlap is over. It counts from when
        this operator first saw the CA."""
        before, since = self._authorities_seen.get(name, ("", now_s))
        if before != bundle:
            since = now_s
        self._authorities_seen[name] = bundle, since
        return now_s if now_s < since + self.config.authority_overlap_s else 0.0

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

    def _schedulers(self) -> list[Write]:
        """The ConfigMap is made where it is missing, and is the administrator's from then on: what the settings name is
        added, and nothing is taken out."""
        present = self.seen.maps.get(SCHEDULERS)
        have = [LISTED] if present is None else schedulers.accounts(present.data.get("accounts", ""))
        lacking = [account for account in self.config.schedulers if account not in have]
        if present is None:
            made = {"accounts": " ".join(have + lacking)}
            return [self._make(CONFIG_MAP, SCHEDULERS, made, f"ConfigMap {SCHEDULERS} was made")]
        return self._keep_map(SCHEDULERS, {"accounts": " ".join(have + lacking)}) if lacking else []

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _enrol(self, writes: list[Write], notices: list[Notice], now_s: float) -> None:
        """Some nodes at a time; the others wait. Those that leave are looked at each time: their agents end."""
        seen, config = self.seen, self.config
        for name in [*sorted(seen.dirty)[:NODES_AT_ONCE], *sorted(self._leaving.keys() - seen.dirty)]:
            seen.dirty.discard(name)
            node, since = seen.nodes.get(name), self._leaving.pop(name, now_s)
            if node is not None:
                others = seen.others_on(name)
                if enrolment.leaves(node):
                    self._leaving[name] = min(since, now_s)
                write, notice = enrolment.decide(
                    node,
                    seen.grants[name],
                    watcher=config.watcher_account,
                    others=others,
                    agents=seen.agents_on(name, config.namespace, config.agent_account),
                    settled=now_s - min(since, now_s) >= config.leaving_s,
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
