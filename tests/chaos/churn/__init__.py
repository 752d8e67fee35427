"""A long chaos test with its own auditor: pods come and go for a given time while parts of Kerf fail.

`python -m tests.chaos.churn --seconds 600 --seed 1`, or `make churn`.
"""
