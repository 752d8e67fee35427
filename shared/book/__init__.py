"""The book: which pod has which capacity. Facts in, book out, and the arithmetic of fitting. No I/O, no clock.

`book.Book` is the state; `arrays` is the same state as numpy arrays for the hot path; `demand` and `shares` are the
arithmetic of one pod on one node and of one slice on one GPU; `gangs` knows which pods belong together.
"""
