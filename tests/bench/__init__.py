"""Benchmarks against other systems, on the shaped links of a lab.

`suite` runs `workloads` on `systems`; `team` commands a system's workers. `report` and `plots` show
`results` beside the speed of the links, which `limit` measures.
"""
