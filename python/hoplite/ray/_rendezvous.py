"""How the members of a collective group find each other, who know only its name, its size and their own ranks.

The group may have had members before, which failed and left their objects; nobody may be taken for one of those. So each
member that joins makes up a number, and rank 0 welcomes each number that it sees; who gets a welcome reports; and when all
ranks have reported, rank 0 says so to all of them. What is left of others is never answered, and is deleted in the end.

Two small objects from each member, and n from rank 0.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence

from hoplite import Client

#: How often rank 0 looks who has joined, in seconds.
_INTERVAL = 0.02


def meet(
    client: Client, prefix: str, name: str, size: int, rank: int, own: str, timeout: float
) -> tuple[str, list[str]]:
    """Waits until all members of a group have called this.

    Args:
        prefix: how the ids of objects begin; the same in all members.
        name: of the group; there is one at a time.
        own: what the other members are to know of this one.
        timeout: in seconds.
    Returns:
        A name that no other group has, and what is to be known of each member, by rank.
    Raises:
        TimeoutError: says who has not come.
    """
    # An id has at most 255 bytes.
    prefix = f"{prefix}group/{hashlib.sha256(name.encode()).hexdigest()[:16]}/"
    deadline = time.monotonic() + timeout
    if rank == 0:
        return _host(client, prefix, name, size, own, deadline, timeout)
    number = secrets.token_hex(8)
    client.put(f"{prefix}join/{rank}/{number}", b"")
    try:
        unique: str = client.get(f"{prefix}welcome/{number}", timeout)
        client.put(f"{prefix}member/{unique}/{rank}", own)
        members: list[str] = client.get(f"{prefix}all/{unique}", max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        raise TimeoutError(
            f"not all of the {size} members of group {name!r} came within {timeout} s"
        ) from None
    return unique, members


def _host(
    client: Client, prefix: str, name: str, size: int, own: str, deadline: float, timeout: float
) -> tuple[str, list[str]]:
    unique = secrets.token_hex(8)
    ranks = range(1, size)
    ids = [f"{prefix}member/{unique}/{rank}" for rank in ranks]
    welcomed: set[str] = set()
    missing: Sequence[str] = ids
    while missing:
        joined = {str(known.id).rpartition("/")[2] for known in client.list(f"{prefix}join/")}
        for number in joined - welcomed:
            client.put(f"{prefix}welcome/{number}", unique)
        welcomed |= joined
        _, missing = client.wait(ids, timeout=_INTERVAL)
        if missing and time.monotonic() > deadline:
            absent = ", ".join(id.rpartition("/")[2] for id in missing)
            raise TimeoutError(
                f"of group {name!r} with {size} members, these ranks did not come within {timeout} s: {absent}"
            )
    members = [own, *client.gather(ids)]
    client.put(f"{prefix}all/{unique}", members)
    return unique, members


def clean_up(client: Client, prefix: str, name: str) -> None:
    """Deletes what `meet` has left. To be called by rank 0, once all members have returned from it."""
    prefix = f"{prefix}group/{hashlib.sha256(name.encode()).hexdigest()[:16]}/"
    client.delete([str(known.id) for known in client.list(prefix)])
