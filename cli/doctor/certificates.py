from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from cli.doctor.base import CannotLook, Finding, Site, Status

FAIL_DAYS, WARN_DAYS = 3, 21
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kerf-dialects"
_LOOK = "look at ConfigMap kerf-status and the log of kerf-operator"
SECRET = "/api/v1/namespaces/kerf-system/secrets/kerf-admission"  # noqa: S105 - a path


class Certificates:
    """How many days the certificates of NATS and of the webhook, and the webhook's CA, are still valid."""

    name = "certificates"

    async def run(self, site: Site) -> list[Finding]:
        findings: list[Finding] = []
        if site.bus is not None and (der := site.bus.peer_certificate()):
            findings.append(judge("the NATS server's certificate", x509.load_der_x509_certificate(der)))
        if site.simulated:
            return findings or [Finding(self.name, "ok", "a simulated cluster has none")]
        try:
            findings += await self._of_webhook(site)
        except CannotLook as error:
            findings.append(Finding(self.name, "warn", f"the webhook's are not checked: {error}", error.remedy))
        return findings

    async def _of_webhook(self, site: Site) -> list[Finding]:
        webhook = await site.get(WEBHOOK)
        if webhook is None:
            text = "there is no webhook kerf-dialects: pods in other systems' words are not read"
            return [Finding(self.name, "warn", text, "apply k8s/24-webhook.yaml, if they should be")]
        findings = []
        entries: dict[str, list[str]] = {}
        """Names by bundle: each entry of the configuration has its own."""
        for entry in webhook["webhooks"]:
            entries.setdefault(entry.get("clientConfig", {}).get("caBundle", ""), []).append(entry.get("name", ""))
        if without := entries.pop("", None):
            text = (
                f"the webhook kerf-dialects has no caBundle for {', '.join(without)}: the API server refuses every pod "
                "that it is asked about"
            )
            findings.append(Finding(self.name, "fail", text, _LOOK))
        trusted = {bundle: x509.load_pem_x509_certificates(base64.b64decode(bundle)) for bundle in entries}
        for ca in dict.fromkeys(ca for cas in trusted.values() for ca in cas):
            findings.append(judge("the webhook's CA", ca))
        try:
            secret = await site.get(SECRET)
        except CannotLook as error:  # usual for an account without a right to Secrets; what was found stays
            text = f"the webhook's certificate is not checked: {error}"
            return [*findings, Finding(self.name, "warn", text, error.remedy)]
        if secret is None:
            text = "there is no Secret kerf-admission, so the webhook has no certificate"
            return [*findings, Finding(self.name, "fail", text, _LOOK)]
        chain = x509.load_pem_x509_certificates(base64.b64decode(secret["data"]["tls.crt"]))
        findings.append(judge("the webhook's certificate", chain[0]))
        for bundle, cas in trusted.items():
            if not any(_issued(one, ca) for one in chain for ca in cas):
                text = (
                    f"no CA of the webhook kerf-dialects for {', '.join(entries[bundle])} has issued the webhook's "
                    "certificate: the API server refuses every pod that it is asked about"
                )
                findings.append(Finding(self.name, "fail", text, _LOOK))
        return findings


def _issued(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):  # another issuer, another kind of key, another key
        return False
    return True


def judge(what: str, certificate: x509.Certificate, now: datetime | None = None) -> Finding:
    """By what is left: of a short life the last quarter is little, for it is renewed when a third is left, and the last
    eighth very little."""
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    left = certificate.not_valid_after_utc - (now or datetime.now(UTC))
    until = f"until {certificate.not_valid_after_utc:%Y-%m-%d}"
    if left.total_seconds() <= 0:
        return Finding(Certificates.name, "fail", f"{what} has expired: it was valid {until}", "renew it now")
    status: Status = "ok"
    if left < min(timedelta(days=WARN_DAYS), life / 4):
        status = "fail" if left < min(timedelta(days=FAIL_DAYS), life / 8) else "warn"
    text = f"{what} is valid for {left.days} more days, {until}"
    return Finding(Certificates.name, status, text, "" if status == "ok" else "renew it")
