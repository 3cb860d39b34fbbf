from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import hoplite
from hoplite.ray import _rendezvous
from hoplite.ray._rendezvous import clean_up, meet
from stores import PATIENCE, Cluster, await_that

Group = tuple[str, list[str]]


class Meeting:
    def __init__(
        self, clients: list[hoplite.Client], pool: ThreadPoolExecutor, prefix: str
    ) -> None:
        self.clients, self.pool, self.prefix = clients, pool, prefix
        self.ids = _rendezvous._prefix(prefix, "group")

    def begin(self, size: int, rank: int, own: str, timeout: float = PATIENCE) -> Future[Group]:
        client = self.clients[rank % len(self.clients)]
        return self.pool.submit(meet, client, self.prefix, "group", size, rank, own, timeout)

    def host(self, size: int) -> _rendezvous._Host:
        return _rendezvous._Host(self.clients[0], self.ids, size, "host")

    def someone_came(self, rank: int, number: str) -> None:
        self.clients[1].put(f"{self.ids}join/{rank}/{number}", b"", confirm=True)
        self.clients[1].put(f"{self.ids}member/{number}", "dead", confirm=True)

    def welcome(self, *ranks: int) -> None:
        client = self.clients[0]
        for rank in ranks:
            place = f"{self.ids}join/{rank}/"
            await_that("it joins", lambda place=place: len(list(client.list(place))) > 0)
            (joined,) = client.list(place)
            number = str(joined.id).removeprefix(place)
            client.put(f"{self.ids}welcome/{number}", b"")
            member = f"{self.ids}member/{number}"
            await_that("it is a member", lambda member=member: client.contains(member))


@pytest.fixture
def meeting(cluster: Cluster, fresh: str) -> Iterator[Meeting]:
    clients = [cluster.connect(node) for node in range(3)]
    with ThreadPoolExecutor(8) as pool:
        yield Meeting(clients, pool, fresh)
    for client in clients:
        clean_up(client, fresh, "group")
        client.close()


def check_that_all_met(futures: list[Future[Group]], members: list[str]) -> None:
    groups = [future.result(PATIENCE) for future in futures]
    assert len({unique for unique, _ in groups}) == 1
    assert all(found == members for _, found in groups)


def has_offered(host: _rendezvous._Host) -> bool:
    if not host._offer:
        assert host.look() is None
    return bool(host._offer)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_meet_and_leave_nothing(meeting: Meeting, size: int) -> None:
    for _ in range(3):
        names = [f"member {rank}" for rank in range(size)]
        futures = [meeting.begin(size, rank, names[rank]) for rank in reversed(range(size))]
        check_that_all_met(futures[::-1], names)
        clean_up(meeting.clients[0], meeting.prefix, "group")
        assert [known.id for known in meeting.clients[0].list(meeting.ids)] == []


def test_the_last_to_answer_counts(meeting: Meeting) -> None:
    host = meeting.host(2)
    meeting.someone_came(1, "0123")
    await_that("an offer", lambda: has_offered(host))
    assert host._offer.members == ["host", "dead"]
    member = meeting.begin(2, 1, "alive")
    while (group := host.look()) is None:
        assert not member.done()
    assert group == member.result(PATIENCE)
    assert group[1] == ["host", "alive"]


@pytest.mark.parametrize("number", ["0" * 16, "f" * 16])
def test_one_who_does_not_accept_gives_way(meeting: Meeting, number: str) -> None:
    members = [meeting.begin(3, rank, f"alive {rank}") for rank in (1, 2)]
    meeting.welcome(1, 2)
    meeting.someone_came(1, number)
    host = meeting.begin(3, 0, "host")
    check_that_all_met([host, *members], ["host", "alive 1", "alive 2"])


def test_another_rank_0_goes_on(meeting: Meeting) -> None:
    member = meeting.begin(3, 1, "first")
    # Rank 1 may be late too.
    with pytest.raises(TimeoutError, match=r"did not come within 0\.5 s: (1, )?2$"):
        meeting.begin(3, 0, "host", 0.5).result(PATIENCE)
    meeting.someone_came(2, "0123")
    gone = meeting.host(3)
    await_that("an offer", lambda: has_offered(gone))
    last = meeting.begin(3, 2, "last")
    check_that_all_met([meeting.begin(3, 0, "host"), member, last], ["host", "first", "last"])


def test_who_is_missing_is_said(meeting: Meeting) -> None:
    member = meeting.begin(3, 1, "first", 3.0)
    meeting.welcome(1)
    meeting.someone_came(2, "0123")
    with pytest.raises(TimeoutError, match=r"with 3 members, .* within 0\.5 s: (1, )?2$"):
        meeting.begin(3, 0, "host", 0.5).result(PATIENCE)
    with pytest.raises(
        TimeoutError, match=r"not all of the 3 members of group 'group' came within 3\.0 s"
    ):
        member.result(PATIENCE)
    with pytest.raises(TimeoutError, match=r"with 2 members, .* within 0\.2 s: 1$"):
        meeting.begin(2, 0, "host", 0.2).result(PATIENCE)
