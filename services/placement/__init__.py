"""Who goes where, and why. Keeps the book."""
