"""Placement: which node and GPUs each pod gets, and why. Keeps the book."""
