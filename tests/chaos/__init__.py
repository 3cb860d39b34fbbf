"""Random faults on real daemons, and a model that checks every result.

`campaign` runs the workers of `workload` and the faults of `faults` in a lab; `history` is the
model. `make chaos SECONDS=300` runs it.
"""
