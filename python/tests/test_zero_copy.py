from __future__ import annotations

import gc
import pickle
import random
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import hoplite
from stores import Cluster, await_that, used_bytes

LARGE = 4 << 20


def put_large(client: hoplite.Client, value: int = 7) -> hoplite.Ref:
    return client.put(None, np.full(LARGE, value, np.uint8))


def test_two_gets_show_the_same_memory(client: hoplite.Client) -> None:
    with put_large(client) as ref:
        first, second = client.get(ref), client.get(ref)
        assert np.shares_memory(first, second)
        assert first.ctypes.data % 64 == 0
        for private in (client.get(ref, copy=True), client.get(ref, copy=True)):
            assert not np.shares_memory(first, private)
            assert private.flags.writeable
            assert private.flags.owndata


def test_nobody_can_write_to_it(client: hoplite.Client) -> None:
    with put_large(client) as ref:
        array = client.get(ref)
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True
        with pytest.raises(ValueError):
            array[10:20].setflags(write=True)
        base = array.base
        with pytest.raises((TypeError, BufferError)):
            memoryview(base)[0] = 1
        with pytest.raises((TypeError, ValueError, BufferError)):
            np.frombuffer(base, np.uint8).flags.writeable = True
    with client.put(None, b"bytes") as ref:
        view = client.get(ref, copy=False)
        with pytest.raises(TypeError):
            view[0] = 1


def test_memory_is_kept_by_arrays_and_all_that_is_made_of_them(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        kept: dict[str, Any] = {}
        makers = {
            "array": lambda array: array,
            "slice": lambda array: array[5:6],
            "other dtype": lambda array: array.view(np.float64)[::3],
            "reshaped": lambda array: array.reshape(2, -1).T,
            "memoryview": lambda array: memoryview(array)[10:],
            "from buffer": lambda array: np.frombuffer(memoryview(array), np.uint8),
            "from dlpack": lambda array: np.asarray(array[::2]),
        }
        for name, make in makers.items():
            ref = put_large(client)
            kept[name] = make(client.get(ref))
            ref.delete()
            gc.collect()
            assert used_bytes(client) >= empty + LARGE, name
            del kept[name]
            gc.collect()
            await_that(f"{name} is given back", lambda: used_bytes(client) == empty)


def test_deleted_objects_stay_readable(node: Cluster) -> None:
    with node.connect() as client:
        ref = put_large(client, 3)
        array = client.get(ref)
        ref.delete()
        others = [put_large(client, value) for value in range(10)]
        assert (array == 3).all()
        del others


def test_arrays_of_a_pickle_keep_all_of_it(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        with client.put(
            None, {"a": np.ones(LARGE, np.uint8), "b": np.full(LARGE, 2, np.uint8)}
        ) as ref:
            part = client.get(ref)["b"][1000:2000]
        assert used_bytes(client) >= empty + 2 * LARGE
        assert (part == 2).all()
        del part
        await_that("all is given back", lambda: used_bytes(client) == empty)


def test_arrays_outlive_the_client(node: Cluster) -> None:
    with node.connect() as observer:
        empty = used_bytes(observer)
        client = node.connect()
        ref = put_large(client, 9)
        array = client.get(ref)
        client.close()
        del client
        observer.delete(ref)
        gc.collect()
        assert used_bytes(observer) >= empty + LARGE
        assert (array == 9).all()
        with pytest.raises(ValueError, match="closed"):
            ref.get()
        del array, ref
        await_that("it is given back", lambda: used_bytes(observer) == empty)


def test_garbage_in_cycles_is_collected(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        ref = put_large(client)
        cycle: list[Any] = [client.get(ref)]
        cycle.append(cycle)
        ref.delete()
        del cycle
        gc.collect()
        await_that("it is given back", lambda: used_bytes(client) == empty)


def test_a_weak_reference_does_not_keep_it(node: Cluster) -> None:
    with node.connect() as client:
        empty = used_bytes(client)
        ref = put_large(client)
        array = client.get(ref)
        weak = weakref.ref(array)
        ref.delete()
        del array
        assert weak() is None
        await_that("it is given back", lambda: used_bytes(client) == empty)


def test_threads_make_and_drop_arrays_under_stress(node: Cluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    thresholds = gc.get_threshold()
    with node.connect() as client:
        empty = used_bytes(client)
        refs = [
            client.put(f"object-{value}", np.full(70_000, value, np.int32)) for value in range(20)
        ]
        failures: list[BaseException] = []

        def work(number: int) -> None:
            choose = random.Random(seed + number)
            held: list[tuple[int, Any]] = []
            try:
                for _ in range(400):
                    value = choose.randrange(len(refs))
                    array = client.get(refs[value])
                    part = array[choose.randrange(len(array)) :: choose.randrange(1, 9)]
                    cycle: list[Any] = [part]
                    cycle.append(cycle)
                    held.append((value, choose.choice([array, part, memoryview(part), cycle])))
                    del array, part, cycle
                    while len(held) > 8:
                        expected, item = held.pop(choose.randrange(len(held)))
                        while isinstance(item, list):
                            item = item[0]
                        assert (np.asarray(item) == expected).all()
            except BaseException as error:
                failures.append(error)

        gc.set_threshold(1, 1, 1)
        try:
            threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            gc.set_threshold(*thresholds)
        assert not failures, failures
        client.delete(refs)
        gc.collect()
        await_that("all references are given back", lambda: used_bytes(client) == empty)


def test_arrays_that_were_got_can_be_put_and_pickled(client: hoplite.Client) -> None:
    value = np.arange(1000.0)
    with client.put(None, value) as ref:
        array = client.get(ref)
        with client.put(None, array) as copy:
            assert (client.get(copy) == value).all()
            assert not np.shares_memory(client.get(copy), array)
        assert (pickle.loads(pickle.dumps(array)) == value).all()


def test_a_private_copy_runs_behind_the_bytes(cluster: Cluster, client: hoplite.Client) -> None:
    value = np.random.default_rng(1).integers(0, 255, 20 << 20, np.uint8)
    with cluster.connect(1) as other, client.put(None, value) as ref:
        out = np.zeros_like(value)
        assert other.get_into(ref, out) == value.nbytes
        assert (out == value).all()
        assert (other.get(ref, copy=True) == value).all()
