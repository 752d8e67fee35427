"""Plans: built from the planner's options, executed step by step, or only shown (`kerf preempt --dry-run`)."""
