"""One-line weakenings of the code, each with the test that must notice it. `make mutants` tries them all."""
