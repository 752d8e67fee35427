"""The operator's settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from shared.service.settings import Count, Patience, Ratio, Seconds

Days = Annotated[float, msgspec.Meta(gt=0)]


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """`certificates`: bootstrap makes and renews them; cert-manager and existing only watch what another has made."""

    kubeconfig: str = ""
    """Empty: KUBECONFIG, then the service account of the pod, then ~/.kube/config."""
    context: str = ""
    strict_x509: bool = True
    """False accepts a cluster CA without the key-usage extension, which Python 3.13 and later refuse."""
    namespace: str = "kerf-system"
    certificates: Literal["bootstrap", "cert-manager", "existing"] = "bootstrap"
    certificate_days: Days = 90.0
    authority_days: Days = 1825.0
    authority_overlap_s: Patience = 86400.0
    """How long a new CA is only trusted before it signs: until then every client has read the new bundle. Where others
    make the certificates: how long an earlier CA is trusted beside a new one."""
    renew_left: Ratio = 1 / 3
    """A certificate is renewed when this part of its life is left."""
    unready_s: Patience = 60.0
    """A pod of Kerf's that is not ready for this time is reported."""
    warn_days: Days = 14.0
    """Certificates that others renew are reported this long before their end, or when a quarter of their life is left
    if that is later."""
    nats_url: str = "nats://kerf-nats:4222"
    """The NATS servers of this installation; empty: others run them, and make their users and certificates."""
    nats_tls: bool = True
    nats_servers: Count = 1
    agent_account: str = "kerf-node-agent"
    """The ServiceAccount of node agents."""
    agent_audience: str = "kerf-nats"
    agent_session_s: Seconds = 86400.0
    """The NATS session of a client that came by token ends after this time at the latest, and its token is checked
    anew."""
    listening_namespaces: tuple[str, ...] = ()
    """Each ServiceAccount of these namespaces may receive the events of its own namespace."""
    listening_accounts: tuple[str, ...] = ()
    """ServiceAccounts, as namespace/name, that may receive all events and read those that the stream still has."""
    reload_after_s: Patience = 90.0
    """How long the kubelet has to bring a renewed certificate into the servers' volume before they are to read it."""
    reload_users_after_s: Patience = 5.0
    """The same for the users' permissions, of which the kubelet is told at once."""
    webhook: str = "kerf-dialects"
    """The MutatingWebhookConfiguration that gets the CA; empty: none."""
    schedulers: tuple[str, ...] = ()
    """Accounts that may bind pods: they are added to ConfigMap kerf-schedulers, from which nothing is taken out."""
    enrolment: bool = True
    leaving_s: Patience = 10.0
    """How long a node that leaves keeps its agent at least: Bindings that were decided before may still come."""
    watcher_account: str = "kerf-watcher"
    lease_s: Seconds = 5.0
    """A leader that has not renewed its Lease for this time is replaced."""
    retry_s: Seconds = 2.0
    check_s: Seconds = 15.0
    """How often the NATS servers and the time left of certificates are looked at."""

    def __post_init__(self) -> None:
        for account in self.listening_accounts:
            namespace, _, name = account.partition("/")
            if not namespace or not name or "/" in name:
                raise ValueError(f"listening_accounts names {account!r}; write NAMESPACE/NAME of a ServiceAccount")
