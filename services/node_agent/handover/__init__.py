"""Hands a container its slice when it starts: by device plugin or DRA (interfaces in `base.py`), and CPUs by NRI."""
