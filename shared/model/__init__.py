"""The nouns of Kerf and their units: frozen structs and pure functions, no I/O.

Inside Kerf memory is MiB and compute is per mille of one GPU, always integers, with the unit in the name.
"""
