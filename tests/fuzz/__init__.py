"""Damaged input for every parser that reads what others write.

That is webhook bodies, annotations, policies, settings, messages of the bus, checkpoints, entries of KV, files that
containers write, NRI and CRI, and files of measurements.

A case is a golden example with a few random changes. Its parser may accept it, or refuse it with its documented error;
another exception, more than `SLOW_S` of CPU time, or a broken promise of the parser (such as a grant that is not the
same when it is read again) is a failure. Case N of a parser is the same on every machine.

A few hundred cases run with the tests, `make fuzz CASES=100000` as many as are wanted.
"""
