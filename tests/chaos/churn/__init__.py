"""A long chaos with an auditor of its own: pods come and go for as long as it is told to, while parts of Kerf fail.

`python -m tests.chaos.churn --seconds 600 --seed 1`, or `make churn`.
"""
