"""Keeps an installation of Kerf in order: passwords, certificates, enrolled nodes, and the state that people read."""
