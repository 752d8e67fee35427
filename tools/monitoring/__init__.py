"""Prometheus rules, their tests and Grafana dashboards, from one definition: `python -m tools.monitoring` writes them.

The files in k8s/chart/files/monitoring are plain: no Helm syntax, no placeholders. A test compares every
metric and label that they name with what the services export.
"""
