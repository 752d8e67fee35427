"""The ways in which a container that is about to start gets its slice, behind one small interface (`base.py`)."""
