"""The webhook: understands every dialect of a GPU request, and writes one. Pure; needs no bus."""
