"""Allocation on Alibaba's openb trace, as in "Beware of Fragmentation" (USENIX ATC 2023), through the service's
engine."""
