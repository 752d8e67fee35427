"""The preemptor: proposes which pods are preempted and how, and executes the plans that are reserved."""
