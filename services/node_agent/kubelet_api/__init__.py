"""The kubelet's gRPC interfaces: the protos of k8s.io/kubelet v0.36.4 (Apache-2.0, the Kubernetes authors), and what
`make protos` generates from them."""
