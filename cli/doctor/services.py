from __future__ import annotations

from collections import Counter

from cli.doctor.base import Finding, Site

NEEDED = ("placement", "watcher", "metrics")
"""Without the preemptor no pod is preempted; admission has no connection to NATS; agents are counted by node."""


class Services:
    """Which services are connected to NATS, and whether they are well."""

    name = "services"

    async def run(self, site: Site) -> list[Finding]:
        site.connection(site.services_error)
        count = Counter(about.answer.service for about in site.services)
        findings = [
            Finding(
                self.name,
                "fail",
                f"no {name} is connected to this NATS",
                f"kubectl -n kerf-system get pods; look at the log of kerf-{name}",
            )
            for name in NEEDED
            if not count[name]
        ]
        if site.leaderless and count["placement"]:
            text = f"no placement leads: {count['placement']} connected, and none answers; nothing is placed"
            do = "look at their logs (session_ended, log_incomplete), and whether a watcher is connected"
            findings.append(Finding(self.name, "fail", text, do))
        for about in site.services:
            answer = about.answer
            for part, why in answer.problems.items():
                do = "look at its log and /readyz"
                findings.append(
                    Finding(self.name, "fail", f"{answer.service} {answer.instance} is not well: {part}: {why}", do)
                )
        if findings:
            return findings
        told = ", ".join(f"{number} {name}" for name, number in sorted(count.items()))
        return [Finding(self.name, "ok", f"connected and well: {told}")]
