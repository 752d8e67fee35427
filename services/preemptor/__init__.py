"""Who should give way, and how gently: it proposes, placement reserves, it executes."""
