from __future__ import annotations

import os
import threading
import uuid
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hoplite
from hoplite._dtypes import DTYPES as KNOWN
from stores import PATIENCE, Cluster, retry

DTYPES = [*KNOWN.values(), np.dtype(ml_dtypes.bfloat16)]
OPS: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


def arrays_of(seed: int, dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> list[Any]:
    """Makes arrays of small numbers, whose sums and products are exact in most types."""
    choose = np.random.default_rng(seed)
    return [
        choose.integers(0, 2 if dtype.kind == "b" else 3, shape).astype(dtype) for _ in range(count)
    ]


def expected(arrays: list[Any], op: str) -> Any:
    result = arrays[0]
    for array in arrays[1:]:
        with np.errstate(all="ignore"):
            result = OPS[op](result, array).astype(array.dtype)
    return result


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_operation(
    cluster: Cluster, client: hoplite.Client, fresh: str, dtype: Any
) -> None:
    arrays = arrays_of(7, dtype, (5, 301), 4)
    refs = []
    for rank, array in enumerate(arrays):
        with cluster.connect(rank % 3) as other:
            refs.append(other.put(f"{fresh}{rank}", array))
    for op in OPS:
        target = fresh + op
        if dtype.kind == "b" and op in ("sum", "prod"):
            with pytest.raises(hoplite.TypeMismatch) as caught:
                client.reduce(target, refs, op, timeout=PATIENCE)
            assert caught.value.id in {ref.id for ref in refs}
            continue
        reduced = client.reduce(target, refs, op, timeout=PATIENCE)
        assert all(isinstance(ref, hoplite.Ref) for ref in reduced)
        assert sorted(ref.id for ref in reduced) == sorted(ref.id for ref in refs)
        got = client.get(target)
        assert (got.dtype, got.shape) == (dtype, (5, 301))
        assert (got == expected(arrays, op)).all()
    client.delete([*refs, *(fresh + op for op in OPS)])


@settings(max_examples=60)
@given(data=st.data())
def test_any_reduce(cluster: Cluster, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**32))
    name = f"any/{uuid.uuid4().hex}/"
    dtype = data.draw(st.sampled_from([d for d in DTYPES if d.kind != "b"]))
    count = data.draw(st.integers(1, 6))
    shape = data.draw(
        st.sampled_from(
            [(), (1,), (0,), (3, 0), (17,), (4096 // dtype.itemsize,), (2, 33, 500), (70_000,)]
        )
    )
    num = data.draw(st.none() | st.integers(1, count))
    op = data.draw(st.sampled_from(sorted(OPS)))
    before = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    nodes = data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    arrays = arrays_of(seed, dtype, shape, count)
    sources = [f"{name}{rank}" for rank in range(count)]
    clients = [cluster.connect(node) for node in range(3)]

    def put(rank: int) -> None:
        clients[nodes[rank]].put(sources[rank], arrays[rank])

    for rank in range(count):
        if before[rank]:
            put(rank)

    def put_late() -> None:
        for rank in range(count):
            if not before[rank]:
                put(rank)

    late = threading.Thread(target=put_late)
    late.start()
    reduced = clients[0].reduce(name + "target", sources, op, num_objects=num, timeout=PATIENCE)
    late.join()
    assert len(reduced) == (num or count)
    assert len(set(reduced)) == len(reduced)
    chosen = [arrays[sources.index(source)] for source in reduced]
    got = clients[data.draw(st.integers(0, 2))].get(name + "target", PATIENCE)
    assert (got.dtype, got.shape) == (dtype, shape)
    assert (got == expected(chosen, op)).all()
    clients[0].delete([*sources, name + "target"])


def test_floats_are_as_good_as_numpys(client: hoplite.Client, fresh: str) -> None:
    choose = np.random.default_rng(int(os.environ.get("HOPLITE_SEED", "1")))
    arrays = [choose.standard_normal(100_000).astype(np.float32) for _ in range(8)]
    arrays[3][5], arrays[4][6], arrays[5][7] = np.nan, np.inf, -np.inf
    sources = [client.put(f"{fresh}{rank}", array).id for rank, array in enumerate(arrays)]
    client.reduce(fresh + "sum", sources, timeout=PATIENCE)
    np.testing.assert_allclose(
        client.get(fresh + "sum"), np.sum(arrays, axis=0), rtol=1e-5, atol=1e-5
    )
    client.reduce(fresh + "max", sources, "max", timeout=PATIENCE)
    np.testing.assert_array_equal(client.get(fresh + "max"), np.maximum.reduce(arrays))
    for round in range(2):
        client.reduce(f"{fresh}fixed/{round}", sources, deterministic=True, timeout=PATIENCE)
    first, second = (client.get(f"{fresh}fixed/{round}") for round in range(2))
    assert first.tobytes() == second.tobytes()
    in_order = arrays[0]
    for array in arrays[1:]:
        in_order = in_order + array
    np.testing.assert_array_equal(first, in_order)
    client.delete([info.id for info in client.list(fresh)])


def test_integers_wrap_around(client: hoplite.Client, fresh: str) -> None:
    sources = [client.put(f"{fresh}{rank}", np.full(10, 100, np.int8)) for rank in range(3)]
    client.reduce(fresh, sources, timeout=PATIENCE)
    assert (client.get(fresh) == 44).all()


def test_a_reduce_of_a_reduce_is_read_before_it_is_done(cluster: Cluster, fresh: str) -> None:
    outcome: list[Any] = []

    def read() -> None:
        with cluster.connect(2) as other:
            outcome.append(other.get(fresh + "all", PATIENCE, copy=True))

    def reduce(target: str, sources: list[str]) -> None:
        with cluster.connect(1) as other:
            other.reduce(target, sources, timeout=PATIENCE)

    threads = [
        threading.Thread(target=read),
        threading.Thread(target=reduce, args=(fresh + "all", [fresh + "left", fresh + "right"])),
        threading.Thread(target=reduce, args=(fresh + "left", [fresh + "0", fresh + "1"])),
        threading.Thread(target=reduce, args=(fresh + "right", [fresh + "2", fresh + "3"])),
    ]
    for thread in threads:
        thread.start()
    with cluster.connect(0) as client:
        for rank in range(4):
            client.put(f"{fresh}{rank}", np.full(1_000_000, 10**rank))
    for thread in threads:
        thread.join()
    assert (outcome[0] == 1111).all()


def test_how_it_was_done_is_known(client: hoplite.Client, fresh: str) -> None:
    sources = [client.put(f"{fresh}{rank}", np.ones(300_000)) for rank in range(3)]
    client.reduce(fresh, sources, num_objects=2, timeout=PATIENCE)
    known = retry(client.stat, fresh)
    assert known is not None
    assert known.reduce is not None
    assert (known.reduce.op, known.reduce.reduced, known.reduce.sources) == ("sum", 2, 3)
    assert known.reduce.plan
    assert (known.reduce.is_running, known.reduce.position) == (False, None)


@pytest.mark.parametrize("participants", [1, 2, 3])
@pytest.mark.parametrize("size", [10, 300_000])
def test_allreduce(cluster: Cluster, fresh: str, participants: int, size: int) -> None:
    sources = [f"{fresh}{rank}" for rank in range(participants)]
    arrays = [np.random.default_rng(rank).standard_normal(size) for rank in range(participants)]
    outcomes: list[Any] = [None] * participants

    def work(rank: int) -> None:
        with cluster.connect(rank) as client:
            if rank == 0:
                client.put(sources[0], arrays[0])
                out = np.empty(size)
                assert client.allreduce(fresh + "all", sources, 0, out=out, timeout=PATIENCE) is out
                outcomes[0] = out
            else:
                outcomes[rank] = client.allreduce(
                    fresh + "all", sources, rank, arrays[rank], timeout=PATIENCE
                )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(participants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        np.testing.assert_allclose(outcome, np.sum(arrays, axis=0))
        assert outcome.tobytes() == outcomes[0].tobytes()
        assert outcome.flags.writeable
    with cluster.connect(0) as client:
        client.delete_allreduce(fresh + "all", sources)
        assert list(client.list(fresh)) == []


def test_a_member_tells_how_far_it_is(cluster: Cluster, fresh: str) -> None:
    # The stores exchange directly only if all sources come in time.
    for attempt in range(20):
        target, sources = f"{fresh}all{attempt}", [f"{fresh}{attempt}/{rank}" for rank in range(2)]
        with cluster.connect(0) as first, cluster.connect(1) as second:
            for client, source in zip((first, second), sources, strict=True):
                client.put(source, np.ones(100_000))
            ranks = [
                threading.Thread(
                    target=client.allreduce,
                    args=(target, sources, rank),
                    kwargs={"timeout": PATIENCE},
                )
                for rank, client in enumerate((first, second))
            ]
            for thread in ranks:
                thread.start()
            for thread in ranks:
                thread.join()
            known = retry(second.stat, target)
            second.delete_allreduce(target, sources)
        assert known is not None
        position = None if known.reduce is None else known.reduce.position
        if known.reduce is not None and position is not None and position.stage == "has the target":
            assert (position.members, position.nbytes) == (2, 800_000)
            assert position.final_bytes == 800_000, position
            assert known.reduce.op == "sum"
            return
    pytest.fail("no allreduce was made by a session")
