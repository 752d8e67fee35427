from __future__ import annotations

from cli.doctor.base import CannotLook, Finding, Site
from shared.bus.jetstream import StreamInfo
from shared.bus.port import BusError, NoStream
from shared.bus.provision import wanted


class Streams:
    """Whether the streams and buckets exist with Kerf's settings, and all their replicas are current."""

    name = "streams"

    async def run(self, site: Site) -> list[Finding]:
        bus = site.connection()
        found: dict[str, StreamInfo] = {}
        for config in wanted():
            try:
                found[config["name"]] = await bus.js.stream_info(config["name"])
            except NoStream:
                continue
            except BusError as error:
                raise CannotLook(f"{error}; NATS user {site.user or '(none)'} may not read streams") from error
        findings = [
            Finding(self.name, "fail", f"{name} does not exist", "start placement: its leader creates it")
            for name in (config["name"] for config in wanted())
            if name not in found
        ]
        replicas = {name: int(info.config.get("num_replicas", 1)) for name, info in found.items()}
        if len(set(replicas.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in replicas.items())
            findings.append(
                Finding(
                    self.name, "fail", f"streams have different numbers of replicas: {told}", "see docs/operators.md"
                )
            )
        for name, info in found.items():
            for replica in () if info.cluster is None else info.cluster.replicas:
                if replica.offline or not replica.current:
                    how = "offline" if replica.offline else "behind"
                    do = f"see that pod {replica.name} runs and has disk space"
                    findings.append(Finding(self.name, "warn", f"{name}: replica {replica.name} is {how}", do))
            if info.cluster is not None and not info.cluster.leader:
                findings.append(
                    Finding(self.name, "fail", f"{name} has no leader", "see that most of the NATS servers run")
                )
        if findings:
            return findings
        count = max(replicas.values(), default=1)
        beside = "" if count > 1 else ", on one server: if it is down, Kerf waits, and placed pods run on"
        return [Finding(self.name, "ok", f"{len(found)} streams with {count} replica{'s' * (count > 1)} each{beside}")]
