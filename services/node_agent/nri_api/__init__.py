"""NRI's messages, and those of ttrpc that carry them: parts of the protos of github.com/containerd/nri v0.12.3 and
github.com/containerd/ttrpc v1.2.9 (Apache-2.0, the containerd authors), and what `make protos` generates from them."""
