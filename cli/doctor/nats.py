from __future__ import annotations

from cli.doctor.base import Finding, Site
from shared.redaction import redact


class Nats:
    """Whether a NATS server answers, and by which means the connection is protected."""

    name = "nats"

    async def run(self, site: Site) -> list[Finding]:
        if site.bus is None:
            return [Finding(self.name, "fail", site.bus_error, "see that pod kerf-nats-0 runs, and the URL is right")]
        server = site.bus.server()
        where = f"{redact(site.url)}: server {server.get('server_name', '?')}, version {server.get('version', '?')}"
        if not await site.bus.alive():
            return [Finding(self.name, "fail", f"{where} does not answer a ping", "look at the server's log")]
        if site.bus.peer_certificate() or site.simulated:
            return [Finding(self.name, "ok", where)]
        return [
            Finding(
                self.name,
                "warn",
                f"{where}, without TLS: passwords and events cross the network in the clear",
                "give the server a certificate, and clients its CA by KERF_NATS_CA",
            )
        ]
