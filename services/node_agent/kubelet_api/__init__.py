"""gRPC interfaces of the kubelet and of the container runtime.

Protos of k8s.io/kubelet and k8s.io/cri-api v0.36.4 (Apache-2.0, the Kubernetes authors), and the code that
`make protos` generates from them.
"""
