from __future__ import annotations

from cli.doctor.base import Finding, Site


class Drivers:
    """Whether each node's agent has answered, its GPUs are healthy, and which NVIDIA drivers there are."""

    name = "drivers"

    async def run(self, site: Site) -> list[Finding]:
        site.connection(site.nodes_error)
        if not site.nodes:
            do = "label a GPU node kerf.dev/managed=true, and see that its kerf-node-agent runs"
            return [Finding(self.name, "warn", "no node has GPUs", do)]
        findings = []
        drivers: dict[str, list[str]] = {}
        for node in site.nodes:
            drivers.setdefault("simulated" if node.simulated else node.driver_version, []).append(node.node)
            if not node.synced:
                do = "look at the log of its kerf-node-agent; nothing new is placed there until it answers"
                findings.append(Finding(self.name, "fail", f"the agent of {node.node} does not answer placement", do))
            for gpu in node.gpus:
                if gpu.state != "healthy":
                    text = f"{node.node}: GPU {gpu.index} {gpu.uuid} is {gpu.state}: {gpu.reason or 'no reason given'}"
                    findings.append(Finding(self.name, "warn", text, "see docs/operators.md, GPUs that fail"))
        unknown = drivers.pop("", [])
        if unknown:
            text = f"nodes without a driver: {len(unknown)}, such as {unknown[0]}"
            do = "see that nvidia-smi works there, and that the agent mounts the driver's root"
            findings.append(Finding(self.name, "fail", text, do))
        told = ", ".join(f"{version} on {len(nodes)}" for version, nodes in sorted(drivers.items()))
        if drivers:
            findings.append(Finding(self.name, "ok", f"nodes: {len(site.nodes)}, drivers: {told}"))
        return findings
