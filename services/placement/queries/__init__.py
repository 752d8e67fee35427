"""Answers to questions on the bus."""
