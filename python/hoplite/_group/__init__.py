"""Groups of ranks that call the same collectives: the base of the backends for torch and Ray.

`member.py` has one rank's view of a group, and `schedules.py` each collective as puts, gets and
reduces. The ranks find each other through torch's key-value store (`torch/_rendezvous.py`), or by
the name of their group (`ray/_rendezvous.py`). The objects of a killed rank are deleted by other
ranks in torch, and by the supervisor, an actor of its node, in Ray.
"""
