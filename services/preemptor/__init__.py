"""The preemptor: proposes which pods are preempted and how, and executes plans that placement has reserved."""
