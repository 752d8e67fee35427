"""Nodes that come and go: Kerf with the real Karpenter on a real API server, over hollow nodes.

    python -m bench.autoscale [--pods 200] [--waves 4] [--json]

Karpenter is its own program (sigs.k8s.io/karpenter, with the KWOK provider that its authors test it with): it sees the
pending pods, starts nodes, and removes empty ones. A hollow agent stands for each node's kubelet and for Kerf's agent.
"""
