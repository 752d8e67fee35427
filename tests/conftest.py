"""For all tests."""

from __future__ import annotations

import hypothesis

# A limit on the time of an example fails on a busy machine, and says nothing about the code.
hypothesis.settings.register_profile("kerf", deadline=None)
hypothesis.settings.load_profile("kerf")
