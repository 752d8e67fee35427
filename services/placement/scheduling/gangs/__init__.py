"""Gangs: pods that are placed all or none. Pure. `shared.book.gangs` knows the members; here are where a gang would fit
(`domains`), the attempt on the book that is rolled back if it fails (`placing`), and the sentences (`messages`)."""
