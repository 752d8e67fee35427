"""Ways of sharing a GPU: one driver a file, behind `base.Driver`."""
