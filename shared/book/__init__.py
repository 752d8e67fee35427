"""Who has what: facts in, book out, and the arithmetic of fitting. No I/O, no clock.

`book.Book` is the state; `arrays` is the same state as columns for the hot path; `demand` and `shares` are the
arithmetic of one pod on one node and of one slice on one GPU; `gangs` is who belongs together.
"""
