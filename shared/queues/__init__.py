"""Queues: limits, use, fair shares and preemption between them.

Pure; used by placement and the preemptor.
"""
