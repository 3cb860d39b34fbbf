"""Groups of ranks that call the same collectives, for the backends of torch and Ray.

`member.py` is one rank's view of a group. `schedules.py` composes each collective from puts, gets
and reduces. The ranks meet through torch's key-value store (`torch/_rendezvous.py`), or by the
group's name (`ray/_rendezvous.py`). A killed rank's objects are deleted by other ranks in torch,
and by the supervisor, an actor of its node, in Ray.
"""
