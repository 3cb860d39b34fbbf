"""Benchmarks against other systems, on the shaped links of a lab.

`suite` runs `workloads` on `systems`; `team` commands their workers. `results` stores the times,
and `report` and `plots` show them beside the limit, which `limit` measures.
"""
