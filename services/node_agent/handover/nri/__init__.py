"""NRI, the way in which a container gets the CPUs beside its GPUs: where they are is a wish, never a condition."""
