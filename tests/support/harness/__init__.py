"""Placement and preemptor cores in simulated surroundings, as parts that tests and benches put together.

- `Placement`: a placement core whose log, API server and nodes answer at once.
- `Proposals`: pods that run and wait there, and plans that are proposed to it as the preemptor does.
- `Preemptor`: a preemptor core whose book contains a cluster.
- `Cluster`: both cores in one loop with a simulated clock. Its parts are the two above, an `ApiServer`, `Nodes`, and
  `Conditions`: what goes wrong, which is nothing by default and much with `Faults`.
"""
