"""How the members of a collective group find each other, who know only its name, its size and their own ranks.

The group may have had members before, which failed and left their objects, and Ray says of an actor that it was killed a
little before it is. So each member that joins makes up a number, and rank 0 welcomes each number that it sees; who gets a
welcome answers; rank 0 offers a group to those of each rank that were the last to answer; who gets an offer accepts it; and
when all have accepted, rank 0 says that the group stands. If somebody else of a rank answers before that, there is a new
offer. What is left of others is deleted in the end.

Three small objects from each member, and two to each from rank 0 and one to all.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from dataclasses import dataclass
from itertools import count

from hoplite import Client

#: How often rank 0 looks who has joined, in seconds.
_INTERVAL = 0.02
#: How long an offer is left to those who have not accepted it, if there are others of their ranks, and how long an answer
#: that is there may take to come; in seconds.
_PATIENCE = 1.0


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
    prefix = _prefix(prefix, name)
    deadline = time.monotonic() + timeout
    if rank == 0:
        host = _Host(client, prefix, size, own)
        while (group := host.look()) is None:
            if time.monotonic() > deadline:
                absent = ", ".join(map(str, host.absent()))
                raise TimeoutError(
                    f"of group {name!r} with {size} members, these ranks did not come within {timeout} s: {absent}"
                )
        return group
    group = _join(client, prefix, rank, own, deadline)
    if group is None:
        raise TimeoutError(f"not all of the {size} members of group {name!r} came within {timeout} s")
    return group


def clean_up(client: Client, prefix: str, name: str) -> None:
    """Deletes what `meet` has left. To be called by rank 0, once all members have returned from it."""
    client.delete([str(known.id) for known in client.list(_prefix(prefix, name))])


def _prefix(prefix: str, name: str) -> str:
    # An id has at most 255 bytes.
    return f"{prefix}group/{hashlib.sha256(name.encode()).hexdigest()[:16]}/"


def _join(client: Client, prefix: str, rank: int, own: str, deadline: float) -> tuple[str, list[str]] | None:
    """Returns the group, if it stands before the deadline."""

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    def first(*ids: str) -> str | None:
        here, _ = client.wait(ids, 1, left())
        return str(here[0]) if here else None

    number = secrets.token_hex(8)
    client.put(f"{prefix}join/{rank}/{number}", b"")
    if first(f"{prefix}welcome/{number}") is None:
        return None
    client.put(f"{prefix}member/{number}", own)
    came = first(f"{prefix}offer/{number}/0")
    for turn in count(1):
        if came is None:
            break
        try:
            unique, members = client.get(came, left())
        except TimeoutError:
            break
        client.put(f"{prefix}accept/{unique}/{rank}", b"")
        stands = f"{prefix}stands/{unique}"
        came = first(stands, f"{prefix}offer/{number}/{turn}")
        if came == stands:
            return unique, members
    return None


@dataclass(frozen=True)
class _Offer:
    """What was offered to one member of each rank."""

    unique: str
    numbers: dict[int, str]
    """By rank."""
    members: list[str]
    made: float


class _Host:
    """Rank 0 of a group that is to be."""

    def __init__(self, client: Client, prefix: str, size: int, own: str) -> None:
        self._client = client
        self._prefix = prefix
        self._own = own
        self._ranks = range(1, size)
        # The ranks of all who have joined, by their numbers.
        self._joined: dict[str, int] = {}
        # What those said of themselves who have answered; of those of the same rank, the last one counts.
        self._answers: dict[str, str] = {}
        self._offer: _Offer | None = None
        self._silent: list[int] = []

    def look(self) -> tuple[str, list[str]] | None:
        """Looks who is there, for a moment, and returns the group once it stands."""
        self._welcome()
        self._listen()
        if self._offer and not self._silent:
            # Confirmed, so that it is found by whoever cleans up.
            self._client.put(f"{self._prefix}stands/{self._offer.unique}", b"", confirm=True)
            return self._offer.unique, self._offer.members
        self._give_others_a_turn()
        numbers = {self._joined[number]: number for number in self._answers}
        if len(numbers) == len(self._ranks) and (self._offer is None or numbers != self._offer.numbers):
            self._make_offer(numbers)
        return None

    def absent(self) -> list[int]:
        """The ranks that the group lacks."""
        have = {self._joined[number] for number in self._answers}
        return [rank for rank in self._ranks if rank not in have] or self._silent

    def _welcome(self) -> None:
        for known in self._client.list(f"{self._prefix}join/"):
            _, rank, number = str(known.id).rsplit("/", 2)
            if number not in self._joined and int(rank) in self._ranks:
                self._joined[number] = int(rank)
                self._client.put(f"{self._prefix}welcome/{number}", b"")

    def _listen(self) -> None:
        """Waits a little for answers, and for the acceptance of the offer."""
        answers = {
            f"{self._prefix}member/{number}": number for number in self._joined if number not in self._answers
        }
        accepted = {}
        if self._offer:
            accepted = {f"{self._prefix}accept/{self._offer.unique}/{rank}": rank for rank in self._ranks}
        if not answers and not accepted:
            time.sleep(_INTERVAL)
            return
        here, missing = self._client.wait([*answers, *accepted], timeout=_INTERVAL)
        for id in here:
            if id in answers:
                # If it is gone meanwhile, it is looked for again.
                with contextlib.suppress(TimeoutError):
                    self._answers[answers[str(id)]] = self._client.get(str(id), _PATIENCE)
        self._silent = [accepted[str(id)] for id in missing if id in accepted]

    def _give_others_a_turn(self) -> None:
        """If some have not accepted the offer for a while, others of their ranks count, if there are any."""
        if self._offer and time.monotonic() > self._offer.made + _PATIENCE:
            silent = [self._offer.numbers[rank] for rank in self._silent]
            self._answers = {number: self._answers.pop(number) for number in silent} | self._answers

    def _make_offer(self, numbers: dict[int, str]) -> None:
        unique = secrets.token_hex(8)
        members = [self._own, *(self._answers[numbers[rank]] for rank in self._ranks)]
        for number in numbers.values():
            # Somebody who was rank 0 before may have made offers, too. They are confirmed, so that each one is counted.
            turn = sum(1 for _ in self._client.list(f"{self._prefix}offer/{number}/"))
            self._client.put(f"{self._prefix}offer/{number}/{turn}", (unique, members), confirm=True)
        self._offer = _Offer(unique, numbers, members, time.monotonic())
        self._silent = list(self._ranks)
