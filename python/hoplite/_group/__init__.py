"""Groups of ranks that call the same collectives: the common part of the backends for torch and for
Ray.

* `member.py`: one rank of a group: the order of its collectives, their timeouts, and the end of the
  group.
* `schedules.py`: each collective as puts, gets and reduces, and its variant for small buffers.
* `round.py`: buffers, and the objects of one collective.
* `channels.py`: the ids of messages between two ranks.
* `ledger.py`: when the objects of a collective can be deleted.
* `link.py`: the thread that performs collectives.

The backends differ in how ranks find each other. torch gives a group a key-value store, and each
rank joins once (`torch/_rendezvous.py`). Members in Ray know a name, and may follow members that
failed (`ray/_rendezvous.py`). They also differ in who deletes the objects of a killed rank: the
other ranks in torch, supervisors in Ray.
"""
