"""Benchmarks against other systems, on the shaped links of a lab.

* `workloads`: the workloads, their clocks, and their limits.
* `systems`: Hoplite and its peers, and the start of their workers.
* `team`: commands to the workers of a system, and their times.
* `limit`: the measured speed of the links.
* `suite`: all measurements, in order; a failure is recorded, and the rest continues.
* `results`: the stored measurements.
* `report`, `plots`: the measurements for people.
* `__main__`: the command line.
"""
