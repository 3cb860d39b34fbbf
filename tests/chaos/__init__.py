"""Random faults on real daemons, and a model that checks every result.

In a lab, `campaign` runs the workers of `workload` and the faults of `faults`; `history` is the
model.
"""
