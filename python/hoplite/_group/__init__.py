"""Groups of ranks that call the same collectives, for the backends of torch and Ray.

The ranks meet through torch's key-value store (`torch/_rendezvous.py`), or by the group's name
(`ray/_rendezvous.py`). A killed rank's objects are deleted by other ranks in torch, and by the
supervisor, an actor of its node, in Ray.
"""
