from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

import hoplite
import hoplite.aio
from stores import PATIENCE, SHORT, Cluster


def test_values_of_all_kinds_come_back_in_order(
    cluster: Cluster, client: hoplite.Client, fresh: str
) -> None:
    values = {
        f"{fresh}array": np.arange(6).reshape(2, 3),
        f"{fresh}bytes": b"bytes",
        f"{fresh}text": "text",
        f"{fresh}nested": {"mean": np.ones(3), "step": 7},
        f"{fresh}large": np.zeros(100_000),
        f"{fresh}empty": np.zeros((0, 4), np.float32),
    }
    refs = client.put_many(values, PATIENCE, confirm=True)
    assert [ref.id for ref in refs] == list(values)
    assert (refs[0].dtype, refs[0].shape, refs[0].client) == ("int64", (2, 3), client)
    with hoplite.connect(cluster.sockets[1]) as other:
        for reader in (client, other):
            got = reader.get_many(refs, PATIENCE)
            for value, expected in zip(got, values.values(), strict=True):
                np.testing.assert_equal(value, expected)
        private = other.get_many(refs[:1], PATIENCE, copy=True)[0]
        private[0, 0] = 9
        assert other.delete_many([*refs, f"{fresh}absent"], PATIENCE) == [True] * len(refs) + [
            False
        ]


def test_ids_may_be_chosen_by_the_client_and_objects_come_from_any_iterable(
    client: hoplite.Client,
) -> None:
    def pairs() -> Iterator[tuple[None, bytes]]:
        for number in range(3):
            yield None, bytes([number])

    refs = client.put_many(pairs())
    assert len({ref.id for ref in refs}) == 3
    assert client.get_many(ref for ref in refs) == [b"\0", b"\1", b"\2"]
    assert client.put_many([]) == client.get_many([]) == client.delete_many([]) == []


def test_each_object_has_its_own_result(client: hoplite.Client, fresh: str) -> None:
    taken, free = f"{fresh}taken", f"{fresh}free"
    client.put(taken, b"before")
    with pytest.raises(hoplite.errors.AlreadyExists):
        client.put_many({taken: b"after", free: b"free"})
    assert client.get(free) == b"free", "the others are stored"
    results = client.put_many({taken: b"after", free: b"free"}, return_exceptions=True)
    assert isinstance(results[0], hoplite.errors.AlreadyExists)
    assert results[0].id == taken
    assert isinstance(results[1], hoplite.Ref)
    absent = f"{fresh}absent"
    values = client.get_many([taken, absent], SHORT, return_exceptions=True)
    assert values[0] == b"before"
    assert isinstance(values[1], hoplite.errors.Timeout)
    assert values[1].id == absent
    with pytest.raises(hoplite.errors.Timeout):
        client.get_many([taken, absent], SHORT)


def test_a_pickle_is_refused_alone(cluster: Cluster, client: hoplite.Client, fresh: str) -> None:
    refs = client.put_many({f"{fresh}pickle": {"a": 1}, f"{fresh}array": np.ones(2)}, confirm=True)
    with hoplite.connect(cluster.sockets[0], allow_pickle=False) as careful:
        values = careful.get_many(refs, return_exceptions=True)
        assert isinstance(values[0], hoplite.errors.PickleRefused)
        np.testing.assert_array_equal(values[1], np.ones(2))
        with pytest.raises(hoplite.errors.PickleRefused):
            careful.get_many(refs)
        with pytest.raises(hoplite.errors.PickleRefused):
            careful.put_many({f"{fresh}other": {"a": 1}})


@pytest.mark.parametrize("name", ["get_many", "delete_many"])
def test_too_many_ids_are_refused(client: hoplite.Client, name: str) -> None:
    with pytest.raises(hoplite.errors.LimitExceeded) as refused:
        getattr(client, name)(["x"] * 10_000_000)
    assert refused.value.maximum == 65_536
    with pytest.raises(hoplite.errors.LimitExceeded):
        client.put_many([(None, b"")] * 65_537)
    with pytest.raises(TypeError, match="expected several ids"):
        getattr(client, name)("one")


def test_the_asynchronous_client_has_them_too(cluster: Cluster, fresh: str) -> None:
    async def main() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            ids = [f"{fresh}{number}" for number in range(500)]
            get = asyncio.create_task(client.get_many(ids, PATIENCE))
            await asyncio.sleep(0)
            refs = await client.put_many((id, np.full(3, k)) for k, id in enumerate(ids))
            values = await get
            assert [int(value[0]) for value in values] == list(range(500))
            assert await client.delete_many(refs) == [True] * 500
            late = asyncio.create_task(client.get_many(ids, PATIENCE))
            await asyncio.sleep(0)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late

    asyncio.run(main())
