"""Proves limits on the GPU itself: a limit that was not seen to hold is not offered."""
