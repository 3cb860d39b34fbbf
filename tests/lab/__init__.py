"""Hosts on one machine: network namespaces with shaped links.

A pair of token buckets shapes each host's link, and bridges in a separate namespace join the
links. `plan` is pure, `lab` builds it, and `registry` removes leftovers.

    from lab import Lab, Plan

    with Lab(Plan(hosts=8, rate_bits_s=200_000_000)) as lab:
        lab.host("h0").run(["ip", "address"])
        lab.cut("h3")
"""

from .errors import LabError, NotAvailable
from .lab import Host, Lab, Traffic
from .plan import Plan, parse_rate

__all__ = ["Host", "Lab", "LabError", "NotAvailable", "Plan", "Traffic", "parse_rate"]
