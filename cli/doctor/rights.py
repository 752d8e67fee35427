from __future__ import annotations

from cli.doctor.base import Finding, Site, Status
from shared.contracts import permissions, queries, subjects


class Rights:
    """What this connection's NATS user may do, of what `kerf` does."""

    name = "rights"

    async def run(self, site: Site) -> list[Finding]:
        site.connection()
        if not site.user:
            status: Status = "ok" if site.simulated else "warn"
            text = "the connection has no NATS user: the server permits every client everything"
            return [Finding(self.name, status, text, "" if status == "ok" else "use the users of k8s/nats.conf")]
        user = next((known for known in permissions.USERS if known.name == site.user), None)
        if user is None:
            return [
                Finding(
                    self.name,
                    "warn",
                    f"NATS user {site.user} is not one of Kerf's, so its permissions are not known",
                    "use user reader, or operator to cordon and drain",
                )
            ]
        asked = [query for query in queries.QUERIES if "cli" in query.publisher]
        missing = [query.name for query in asked if user.name not in permissions.askers(query)]
        if missing:
            return [
                Finding(
                    self.name,
                    "warn",
                    f"NATS user {user.name} may not ask {', '.join(missing)}",
                    "use user reader, or operator to cordon and drain",
                )
            ]
        evicts = any(subjects.CMD_EVICT in row.subjects for row in user.publish)
        more = "cordon and drain" if evicts else "not cordon or drain (user operator may)"
        return [Finding(self.name, "ok", f"NATS user {user.name} may ask all questions, and {more}")]
