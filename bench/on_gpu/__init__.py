"""Everything that a machine with a GPU can tell, in steps of bounded time, each with a result of its own."""
