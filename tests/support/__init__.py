"""Helpers that several test folders share: builders of objects, and drivers of cores."""
