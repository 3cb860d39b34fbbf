"""Forms a group from members that know only its name, size and their own ranks.

Failed members may have left objects, so ranks identify no members:

1. Each member chooses a random number, and joins with its rank and number.
2. Rank 0 welcomes each number.
3. A welcomed member puts its description.
4. Rank 0 offers a group to the latest described member of each rank.
5. The members accept. If another member of a rank appears first, rank 0 makes a new offer.
6. When all have accepted, rank 0 announces the group. Left objects are deleted later.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from dataclasses import dataclass
from itertools import count

from hoplite import Client, Unavailable

_INTERVAL = 0.02
#: Seconds to send a description, or to accept an offer before another member of the rank gets one.
_WAIT_LIMIT = 1.0


def meet(
    client: Client, prefix: str, name: str, size: int, rank: int, own: str, timeout: float
) -> tuple[str, list[str]]:
    """Waits until all members of a group have called this.

    Args:
        prefix: of object ids; the same in all members.
        name: one group of a name can exist at a time.
        own: this member's description.
    Returns:
        A unique name, and the members' descriptions by rank.
    Raises:
        TimeoutError: names the missing ranks.
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
        raise TimeoutError(
            f"not all of the {size} members of group {name!r} came within {timeout} s"
        )
    return group


def clean_up(client: Client, prefix: str, name: str) -> None:
    """Deletes the objects of `meet`. Rank 0 calls this after all members have returned."""
    client.delete([str(known.id) for known in client.list(_prefix(prefix, name))])


def _prefix(prefix: str, name: str) -> str:
    # An id has at most 255 bytes.
    return f"{prefix}group/{hashlib.sha256(name.encode()).hexdigest()[:16]}/"


def _join(
    client: Client, prefix: str, rank: int, own: str, deadline: float
) -> tuple[str, list[str]] | None:
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
    unique: str
    numbers: dict[int, str]
    """Maps each rank to the number of its member."""
    members: list[str]
    made: float


class _Host:
    def __init__(self, client: Client, prefix: str, size: int, own: str) -> None:
        self._client = client
        self._prefix = prefix
        self._own = own
        self._ranks = range(1, size)
        self._joined: dict[str, int] = {}
        # Descriptions by the member's number; a rank's last member counts.
        self._answers: dict[str, str] = {}
        self._offer: _Offer | None = None
        self._silent: list[int] = []

    def look(self) -> tuple[str, list[str]] | None:
        self._welcome()
        self._listen()
        if self._offer and not self._silent:
            # Confirmed, so that `clean_up` finds it.
            self._client.put(f"{self._prefix}stands/{self._offer.unique}", b"", confirm=True)
            return self._offer.unique, self._offer.members
        self._prefer_others()
        numbers = {self._joined[number]: number for number in self._answers}
        if len(numbers) == len(self._ranks) and (
            self._offer is None or numbers != self._offer.numbers
        ):
            self._make_offer(numbers)
        return None

    def absent(self) -> list[int]:
        have = {self._joined[number] for number in self._answers}
        return [rank for rank in self._ranks if rank not in have] or self._silent

    def _welcome(self) -> None:
        # The next `look` tries again.
        with contextlib.suppress(Unavailable):
            for known in self._client.list(f"{self._prefix}join/"):
                _, rank, number = str(known.id).rsplit("/", 2)
                if number not in self._joined and int(rank) in self._ranks:
                    self._client.put(f"{self._prefix}welcome/{number}", b"")
                    self._joined[number] = int(rank)

    def _listen(self) -> None:
        answers = {
            f"{self._prefix}member/{number}": number
            for number in self._joined
            if number not in self._answers
        }
        accepted = {}
        if self._offer:
            accepted = {
                f"{self._prefix}accept/{self._offer.unique}/{rank}": rank for rank in self._ranks
            }
        if not answers and not accepted:
            time.sleep(_INTERVAL)
            return
        here, missing = self._client.wait([*answers, *accepted], timeout=_INTERVAL)
        for id in here:
            if id in answers:
                with contextlib.suppress(TimeoutError):
                    self._answers[answers[str(id)]] = self._client.get(str(id), _WAIT_LIMIT)
        self._silent = [accepted[str(id)] for id in missing if id in accepted]

    def _prefer_others(self) -> None:
        if self._offer and time.monotonic() > self._offer.made + _WAIT_LIMIT:
            silent = [self._offer.numbers[rank] for rank in self._silent]
            self._answers = {number: self._answers.pop(number) for number in silent} | self._answers

    def _make_offer(self, numbers: dict[int, str]) -> None:
        unique = secrets.token_hex(8)
        members = [self._own, *(self._answers[numbers[rank]] for rank in self._ranks)]
        for number in numbers.values():
            # An earlier rank 0 may have made offers.
            turn = sum(1 for _ in self._client.list(f"{self._prefix}offer/{number}/"))
            self._client.put(
                f"{self._prefix}offer/{number}/{turn}", (unique, members), confirm=True
            )
        self._offer = _Offer(unique, numbers, members, time.monotonic())
        self._silent = list(self._ranks)
