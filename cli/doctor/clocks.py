from __future__ import annotations

from cli.doctor.base import CannotLook, Finding, Site

WARN_MS, FAIL_MS = 1_000, 30_000


class Clocks:
    """How far the clocks of the services' machines are from this machine's. No decision depends on it; times of events,
    traces, tokens and certificates do."""

    name = "clocks"

    async def run(self, site: Site) -> list[Finding]:
        if not site.services:
            raise CannotLook(site.services_error or "no service answers what its clock says")
        off = [about for about in site.services if abs(about.ahead_ms) >= WARN_MS]
        if not off:
            return [Finding(self.name, "ok", f"{len(site.services)} clocks within {WARN_MS} ms of this machine's")]
        return [
            Finding(
                self.name,
                "fail" if abs(about.ahead_ms) >= FAIL_MS else "warn",
                f"the clock of {about.answer.service} {about.answer.instance} is {abs(about.ahead_ms) / 1000:.1f} s "
                f"{'ahead of' if about.ahead_ms > 0 else 'behind'} this machine's",
                "run chrony or another NTP client on both machines",
            )
            for about in off
        ]
