"""MIG instances of real GPUs: those of a fixed layout, and those that the agent makes and destroys as grants say."""
