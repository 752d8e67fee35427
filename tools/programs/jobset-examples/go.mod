module kerf.dev/tools/programs/jobset-examples

go 1.26.0

// The last release whose module has the project's example manifests.
require sigs.k8s.io/jobset v0.7.3
