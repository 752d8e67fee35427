from __future__ import annotations

from cli.doctor.base import CannotLook, Finding, Site
from shared.version import version


class Versions:
    """Whether all services, and this `kerf`, are of one version."""

    name = "versions"

    async def run(self, site: Site) -> list[Finding]:
        if not site.services:
            raise CannotLook(site.services_error or "no service answers which version it has")
        by_version: dict[str, set[str]] = {version(): {"this kerf"}}
        for about in site.services:
            by_version.setdefault(about.answer.version, set()).add(about.answer.service)
        if len(by_version) == 1:
            return [Finding(self.name, "ok", f"all are {version()}")]
        told = "; ".join(f"{number}: {', '.join(sorted(names))}" for number, names in sorted(by_version.items()))
        do = "finish the upgrade: versions next to each other work together, others are not tried"
        return [Finding(self.name, "warn", f"several versions: {told}", do)]
