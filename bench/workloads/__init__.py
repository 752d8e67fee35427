"""Named workloads in a slice's real CDI edits: on the fake driver anywhere, on a GPU where there is one."""
