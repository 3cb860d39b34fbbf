"""Faults at random on real daemons, and a model that checks every result.

`campaign` runs workers and faults in a lab, `workload` is the workers, `faults` the faults, and
`history` the model. `make chaos SECONDS=300` runs it.
"""
