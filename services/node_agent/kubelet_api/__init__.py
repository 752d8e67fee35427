"""gRPC interfaces of the kubelet and of the container runtime: protos of k8s.io/kubelet and k8s.io/cri-api v0.36.4 (Apache-2.0,
the Kubernetes authors), and what `make protos` generates from them."""
