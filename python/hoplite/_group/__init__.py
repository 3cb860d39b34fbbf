"""Groups of ranks that call the same collectives: the base of the backends for torch and Ray.

`member.py` has one rank's view of a group, and `schedules.py` each collective as puts, gets and reduces. The
backends find ranks through torch's key-value store (`torch/_rendezvous.py`), or by the name of a group
(`ray/_rendezvous.py`). A killed rank's objects are deleted by other ranks in torch, and by supervisors in Ray.
"""
