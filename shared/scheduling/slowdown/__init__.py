"""Predicted slowdown of a pod by the way in which its GPU is shared. Pure."""
