"""Queues: what each may use, what it uses, and which one is owed something. Pure; placement and the preemptor ask the
same tree."""
