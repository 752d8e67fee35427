"""How well slices hold: on the fake driver anywhere, on a GPU where there is one."""
