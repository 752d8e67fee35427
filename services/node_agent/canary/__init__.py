"""Proof on the device itself: a limit that was not seen to hold is not offered."""
