"""Groups of ranks that call the same collectives: what the backends for torch and for Ray share.

`member.py` is a rank's part in a group: the order of its collectives, their time limits, and the end of the group.
`schedules.py` says of each collective which objects are put, got and reduced, and when it is small; `round.py` has what
these are made of. `channels.py` names the messages between two ranks. `ledger.py` says when an object is needed no more.
`link.py` is the thread that performs all of it.

Not shared is how the ranks find each other, since they know different things before: torch gives a group a key-value
store, and each rank joins once (`torch/_rendezvous.py`); the members of Ray know a name, and may have had predecessors
who failed (`ray/_rendezvous.py`). Nor is who deletes the objects of a rank that was killed: torch's ranks watch each
other, Ray's nodes have keepers.
"""
