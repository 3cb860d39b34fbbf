"""Hosts on one machine: network namespaces whose links have the rate, the queue and the failures that a test wants.

Each host is a network namespace with one interface, a name and an address. A pair of token buckets shapes its link, one
for each direction. The links meet in bridges, which live in a namespace of their own.

* `plan`: what to build, and with which commands. Pure.
* `lab`: builds it, cuts it, counts its bytes, takes it down.
* `registry`: which labs there are, who owns them, and how one is removed, also when its owner crashed.
* `daemons`: Hoplite's directory and stores, one store on each host.
* `__main__`: the command line.

    from lab import Lab, Plan

    with Lab(Plan(hosts=8, rate_bits_s=200_000_000)) as lab:
        lab.host("h0").run(["ip", "address"])
        lab.cut("h3")
"""

from .errors import LabError, NotAvailable
from .lab import Host, Lab, Traffic
from .plan import Plan, parse_rate

__all__ = ["Host", "Lab", "LabError", "NotAvailable", "Plan", "Traffic", "parse_rate"]
