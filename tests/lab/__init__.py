"""Hosts on one machine: network namespaces whose links have a given rate, queue and failures.

Each host is a network namespace with one interface, a name and an address. A pair of token buckets
shapes its link, one for each direction. The links meet in bridges, which have a separate namespace.

* `plan`: the hosts and links, and the commands that build them. Pure.
* `lab`: builds a lab, cuts links, counts bytes, and removes the lab.
* `registry`: all labs of the machine and their owners, and the removal of labs after a crash.
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
