"""Benchmarks against other systems, on the shaped links of a lab.

* `workloads`: what is measured, from when to when, and how fast it could be.
* `systems`: Hoplite and its peers: how their workers are started.
* `team`: tells the workers of a system what to do, and takes the time.
* `limit`: what the links can do, measured.
* `suite`: all of it, in order; what fails is noted, and the rest goes on.
* `results`: what was measured, as it is stored.
* `report`, `plots`: the same for people.
* `__main__`: the command line.
"""
