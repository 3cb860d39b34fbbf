from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import docstrings
import numpy as np
import pytest

import hoplite
from stores import PATIENCE, Cluster, await_that

distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")

from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster, get_worker  # noqa: E402

import hoplite.dask  # noqa: E402

LARGE = (1 << 20) // 8
GRACE = 1.0


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Each worker has its store; the client shares the first one."""
    monkeypatch.setattr(hoplite.dask, "GRACE", GRACE)
    monkeypatch.setattr(hoplite.dask, "PUT_TIMEOUT", PATIENCE)
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[0])
    hoplite.shutdown()
    workers = {
        number: {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "env": {"HOPLITE_SOCKET": socket, "PYTHONPATH": os.path.dirname(__file__)},
            },
        }
        for number, socket in enumerate(cluster.sockets)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard": False, "host": "127.0.0.1"}}
    with SpecCluster(workers, scheduler, silence_logs=False) as dask, Client(dask) as client:
        client.run(_set_times)
        hoplite.dask.install(client)
        yield client
        client.run(_delete_all)
    with hoplite.connect(cluster.sockets[0]) as store:
        await_that("nothing is left", lambda: not list(store.list("dask/")))
    hoplite.shutdown()


def _delete_all() -> None:
    import hoplite.dask

    hoplite.dask._handles.delete_all()


def _set_times() -> None:
    import hoplite.dask

    hoplite.dask.GRACE = GRACE
    # Else Dask would copy the array itself.
    hoplite.dask.PUT_TIMEOUT = PATIENCE


def objects() -> list[Any]:
    return list(hoplite.init().list("dask/"))


def make(value: float, count: int = LARGE) -> Any:
    return np.full(count, value)


def look(array: Any) -> tuple[str, bool, float]:
    return get_worker().address, array.flags.writeable, float(array.sum())


def addresses(client: Any) -> list[str]:
    return sorted(client.scheduler_info(n_workers=-1)["workers"])


def test_a_result_is_put_once_and_got_in_place(client: Any) -> None:
    first, *others = addresses(client)
    made = client.submit(make, 2.0, workers=[first], pure=False)
    assert client.submit(look, made, workers=[first]).result()[1], "who made it has it as it was"
    looked = [client.submit(look, made, workers=[worker], pure=False) for worker in others]
    assert client.gather(looked) == [(worker, False, 2.0 * LARGE) for worker in others]
    (info,) = objects()
    assert info.nbytes == 8 * LARGE
    assert len(info.locations) == 3

    array = made.result()
    assert not array.flags.writeable
    assert array.sum() == 2.0 * LARGE
    assert len(objects()) == 1
    del made, looked
    await_that("it is deleted", lambda: not objects())
    assert array.sum() == 2.0 * LARGE


@pytest.mark.parametrize("array", [np.ones(10), np.array([{}] * 3), np.ones(LARGE)[::2]])
def test_what_is_small_or_is_no_plain_memory_goes_as_ever(client: Any, array: Any) -> None:
    first, second, _ = addresses(client)
    made = client.submit(lambda: array, workers=[first], pure=False)
    got = client.submit(lambda array: array, made, workers=[second], pure=False).result()
    np.testing.assert_array_equal(got, array)
    assert objects() == []


def test_arrays_in_what_tasks_return(client: Any) -> None:
    first, second, _ = addresses(client)
    made = client.submit(lambda: {"a": make(1.0), "b": [make(2.0), 3]}, workers=[first], pure=False)

    def use(state: Any) -> Any:
        return state["a"].sum() + state["b"][0].sum() + state["b"][1]

    assert client.submit(use, made, workers=[second]).result() == 3.0 * LARGE + 3


def test_scatter_to_all_workers(client: Any) -> None:
    array = make(1.0)
    future = hoplite.dask.scatter(array, client)
    array[:] = 5.0  # A later change does not affect the scattered array.
    looked = [
        client.submit(look, future, workers=[worker], pure=False) for worker in addresses(client)
    ]
    assert sorted(client.gather(looked)) == [
        (worker, False, 1.0 * LARGE) for worker in addresses(client)
    ]
    assert len(objects()) == 1
    del future, looked
    await_that("it is deleted", lambda: not objects())


def test_what_is_deleted_later_does_not_undo_shutdown(client: Any, cluster: Cluster) -> None:
    future = hoplite.dask.scatter(make(1.0), client)
    hoplite.shutdown()
    del future
    with cluster.connect() as store:
        await_that("it is deleted", lambda: not list(store.list("dask/")))
    hoplite.init(cluster.sockets[2])
    hoplite.shutdown()


def test_scatter_several(client: Any) -> None:
    futures = hoplite.dask.scatter({"large": make(1.0), "small": 7}, client)
    assert (
        client.submit(lambda a, b: a.sum() + b, futures["large"], futures["small"]).result()
        == LARGE + 7
    )
    one, two = hoplite.dask.scatter([make(1.0), make(2.0)], client, broadcast=False)
    assert client.submit(lambda a, b: a.sum() + b.sum(), one, two).result() == 3.0 * LARGE


def test_a_worker_that_dies_while_it_holds_a_handle(client: Any) -> None:
    first, second, third = addresses(client)
    made = client.submit(make, 2.0, workers=[first], allow_other_workers=True, pure=False)
    looked = client.submit(look, made, workers=[second], pure=False)
    assert looked.result()[2] == 2.0 * LARGE
    (before,) = objects()
    process = client.run(os.getpid, workers=[first])[first]
    os.kill(process, signal.SIGKILL)
    await_that(
        "what it had put is deleted", lambda: before.id not in {info.id for info in objects()}
    )
    assert client.submit(look, made, workers=[third], pure=False).result()[2] == 2.0 * LARGE
    await_that("there are three again", lambda: len(addresses(client)) == 3)
    new = next(worker for worker in addresses(client) if worker not in (second, third))
    assert client.submit(look, made, workers=[new], pure=False).result()[1:] == (False, 2.0 * LARGE)


def test_an_array_whose_object_is_gone_is_sent_again(client: Any) -> None:
    hoplite_client = hoplite.init()
    hoplite_client.put("dask/gone", make(1.0))
    array = hoplite.dask._handles.get("dask/gone")
    hoplite_client.delete("dask/gone")
    future = client.scatter(array, hash=False)
    assert client.submit(np.sum, future).result() == LARGE


def _delete_what_is_sent_first() -> None:
    import hoplite.dask

    handles: Any = hoplite.dask._handles
    id_of = handles.id_of

    def deleting(array: Any) -> str | None:
        id: str | None = id_of(array)
        if id is not None:
            handles.id_of = id_of
            handles._delete(id)
        return id

    handles.id_of = deleting


def _wait_a_moment() -> None:
    import hoplite.dask

    hoplite.dask.GET_TIMEOUT = 1.0


def test_dask_asks_again_when_a_handle_comes_too_late(client: Any) -> None:
    first, second, _ = addresses(client)
    client.run(_delete_what_is_sent_first, workers=[first])
    client.run(_wait_a_moment, workers=[second])
    made = client.submit(make, 2.0, workers=[first], pure=False)
    looked = client.submit(look, made, workers=[second], pure=False)
    assert looked.result(timeout=PATIENCE) == (second, False, 2.0 * LARGE)


def _lose_what_comes_first() -> None:
    import hoplite.dask

    handles = vars(hoplite.dask._handles)

    def get(id: str) -> Any:
        del handles["get"]
        raise hoplite.Deleted(f"{id} was deleted", id=id)

    handles["get"] = get


def test_dask_asks_again_for_what_is_deleted_on_the_way(client: Any) -> None:
    first, second, _ = addresses(client)
    client.run(_lose_what_comes_first, workers=[second])
    made = client.submit(make, 2.0, workers=[first], pure=False)
    looked = client.submit(look, made, workers=[second], pure=False)
    assert looked.result(timeout=PATIENCE) == (second, False, 2.0 * LARGE)


def test_install_comes_first() -> None:
    program = "import hoplite.dask; hoplite.dask.scatter([1])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (
        done.stderr.splitlines()[-1]
        == "RuntimeError: call hoplite.dask.install before hoplite.dask.scatter"
    )


@pytest.mark.parametrize("name", hoplite.dask.__all__)
def test_example(name: str, client: Any) -> None:
    found = docstrings.examples(hoplite.dask, name, getattr(hoplite.dask, name))
    assert found is not None
    docstrings.run(found, {"hoplite": hoplite, "np": np, "dask_client": client})


def test_a_local_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_SOCKET", cluster.sockets[1])
    hoplite.shutdown()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as dask,
        Client(dask) as client,
    ):
        hoplite.dask.install(client)
        future = hoplite.dask.scatter(make(1.0), client)
        looked = [
            client.submit(look, future, workers=[worker], pure=False)
            for worker in addresses(client)
        ]
        assert {found[1:] for found in client.gather(looked)} == {(False, 1.0 * LARGE)}
        client.run(_delete_all)
    with hoplite.connect(cluster.sockets[1]) as store:
        for info in store.list("dask/"):
            store.delete(info.id)
    hoplite.shutdown()


def repeat(size: int) -> Any:
    return np.broadcast_to(1.0, (size, size))


def shape_of(array: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return array.shape, array.strides


def test_an_array_of_one_element_in_many_places_stays_small(client: Any) -> None:
    first, second, _ = addresses(client)
    for size in (4000, 100_000):
        made = client.submit(repeat, size, workers=[first], pure=False)
        found = client.submit(shape_of, made, workers=[second], pure=False)
        assert found.result() == ((size, size), (0, 0))
    assert not objects()
    scattered = hoplite.dask.scatter(repeat(100_000), client)
    assert client.submit(shape_of, scattered, workers=[second]).result()[0] == (100_000, 100_000)
    assert not objects()


def fail_to_put() -> None:
    import hoplite.dask

    def put(array: Any) -> str:
        raise MemoryError("no memory for a copy")

    hoplite.dask._handles.put = put


def succeed_again() -> None:
    import hoplite.dask

    del hoplite.dask._handles.put


def test_any_failure_to_share_leaves_it_to_dask(client: Any) -> None:
    first, second, _ = addresses(client)
    client.run(fail_to_put)
    try:
        made = client.submit(make, 2.0, workers=[first], pure=False)
        assert client.submit(look, made, workers=[second], pure=False).result()[2] == 2.0 * LARGE
    finally:
        client.run(succeed_again)
    assert not objects()


def fail_to_get() -> None:
    import hoplite.dask

    def get(id: str) -> Any:
        raise hoplite.dask.HopliteError("the store here has no room for it, ever")

    hoplite.dask._handles.get = get


def get_again() -> None:
    import hoplite.dask

    del hoplite.dask._handles.get


def test_a_worker_that_cannot_get_an_array_has_it_sent_by_dask(client: Any) -> None:
    first, second, third = addresses(client)
    client.run(fail_to_get, workers=[second])
    try:
        made = client.submit(make, 3.0, workers=[first], pure=False)
        assert client.submit(look, made, workers=[second], pure=False).result()[2] == 3.0 * LARGE
    finally:
        client.run(get_again, workers=[second])
    assert client.submit(look, made, workers=[third], pure=False).result()[2] == 3.0 * LARGE


def test_arrays_that_only_a_pickle_brings_back_are_left_to_dask(client: Any) -> None:
    first, second, _ = addresses(client)
    made = client.submit(make_strings, workers=[first], pure=False)
    assert client.submit(last, made, workers=[second], pure=False).result() == "b"
    assert not objects()


def make_strings() -> Any:
    return np.array(["a"] * (1 << 17) + ["b"], dtype=np.dtypes.StringDType())


def last(array: Any) -> str:
    return str(array[-1])


def test_no_handle_harms_a_worker(client: Any) -> None:
    store = hoplite.init()
    hostile = [
        b"py1:ndarray ('|O', (1,))",
        b"py1:ndarray [",
        b"py1:pickle",
        b"py1:torch x",
        b"py1:later",
    ]
    for number, user in enumerate(hostile):
        store._native.put(f"hostile/{number}", [bytes(8)], "opaque", None, user, 30.0, False)
        with pytest.raises(ConnectionError, match="cannot get an array from the stores"):
            hoplite.dask._loads({hoplite.dask._KEY: f"hostile/{number}"}, [])
        store.delete([f"hostile/{number}", f"hostile/{number}/plain"])
