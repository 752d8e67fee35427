"""Scheduling cases that KAI-Scheduler, HAMi and Volcano test themselves with, run through Kerf's own code.

Each case is told in Kerf's objects; what decides is the placement core, or the function of ours that answers the case's
question. Nothing of a peer is rebuilt here.
"""
