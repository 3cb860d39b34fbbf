"""Benchmarks against other systems, on the shaped links of a lab.

`suite` runs `workloads` on `systems`; `team` commands the workers of a system. `results` stores the
times. `report` and `plots` show them beside the speed of the links, which `limit` measures.
"""
