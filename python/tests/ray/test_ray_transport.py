from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayDirectTransportError
from ray_cluster import eventually, objects, on

import hoplite
import hoplite.ray

hoplite.ray.register()

pytestmark = pytest.mark.usefixtures("stores", "nothing_left")


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Producer:
    def __init__(self) -> None:
        self.tensor = torch.zeros(1000)
        self.attempts = 0

    @ray.method(tensor_transport="hoplite")
    def make(self, value: float, count: int = 100_000) -> torch.Tensor:
        return torch.full((count,), value)

    @ray.method(tensor_transport="hoplite")
    def echo(self, value: Any) -> Any:
        return value

    @ray.method(tensor_transport="hoplite_numpy")
    def echo_arrays(self, value: Any) -> Any:
        return value

    @ray.method(tensor_transport="hoplite")
    def own(self) -> torch.Tensor:
        return self.tensor

    def change_own(self) -> None:
        self.tensor += 1

    def put(self) -> list[Any]:
        self.ref = ray.put(torch.ones(100_000), _tensor_transport="hoplite")
        return [self.ref]

    def node(self) -> str:
        return hoplite.ray.client().node


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Consumer:
    def total(self, tensor: torch.Tensor) -> float:
        return float(tensor.sum())

    def add_one(self, tensor: torch.Tensor) -> float:
        tensor += 1
        return float(tensor.sum())

    def look(self, value: Any) -> Any:
        return value

    def describe(self, arrays: list[np.ndarray[Any, Any]]) -> list[Any]:
        return [
            (array.dtype.str, array.shape, array.flags.writeable, array.tobytes())
            for array in arrays
        ]

    def get(self, refs: list[Any]) -> list[float]:
        return [float(tensor.sum()) for tensor in ray.get(refs)]


@pytest.fixture(scope="module")
def producer(stores: list[hoplite.ray.Node]) -> Any:
    return Producer.options(**on("first")).remote()


@pytest.fixture(scope="module")
def consumers(stores: list[hoplite.ray.Node]) -> list[Any]:
    return [Consumer.options(**on(node)).remote() for node in ("first", "second", "second")]


@pytest.fixture
def mortal(stores: list[hoplite.ray.Node]) -> Iterator[Any]:
    actor = Producer.options(**on("second")).remote()
    yield actor
    ray.kill(actor)


def test_a_tensor_reaches_several_actors(producer: Any, consumers: list[Any]) -> None:
    ref = producer.make.remote(2.0)
    assert ray.get([consumer.total.remote(ref) for consumer in consumers]) == [200_000.0] * 3
    assert float(ray.get(ref).sum()) == 200_000.0


def test_it_goes_through_the_stores_and_is_deleted(
    producer: Any, consumers: list[Any], client: hoplite.Client
) -> None:
    # Workers of Ray lack this module's neighbours.
    from stores import retry

    before = objects(client)
    ref = producer.make.remote(2.0)
    ray.get(consumers[1].total.remote(ref))
    (made,) = objects(client) - before
    info = retry(client.stat, made)
    assert info is not None
    assert (info.dtype, info.shape) == ("float32", (100_000,))
    assert len(info.locations) == 2
    del ref
    eventually(lambda: made not in objects(client))


def test_tensors_in_other_values(producer: Any, consumers: list[Any]) -> None:
    value = {
        "layers": [torch.arange(6.0).reshape(2, 3), torch.ones(50_000, dtype=torch.bfloat16)],
        "step": 7,
        "strided": torch.arange(10).reshape(2, 5).t(),
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "grad": torch.ones(2, requires_grad=True),
        "plain": np.ones(3),
    }
    got = ray.get(consumers[1].look.remote(producer.echo.remote(value)))
    assert got["step"] == 7
    assert got["layers"][1].dtype == torch.bfloat16
    for name in ("strided", "nothing", "scalar", "grad"):
        assert torch.equal(got[name], value[name].detach()), name
    assert all(map(torch.equal, got["layers"], value["layers"]))
    np.testing.assert_array_equal(got["plain"], value["plain"])


def test_a_value_without_tensors(producer: Any, consumers: list[Any]) -> None:
    assert ray.get(consumers[1].look.remote(producer.echo.remote({"a": 1}))) == {"a": 1}


def test_arrays_arrive_read_only_and_in_place(producer: Any, consumers: list[Any]) -> None:
    arrays = [
        np.arange(5.0),
        np.ones(100_000, np.int16),
        np.zeros((0, 2)),
        np.array([(1, 2.0)], "i4,f8"),
    ]
    described = ray.get(consumers[1].describe.remote(producer.echo_arrays.remote(arrays)))
    for (dtype, shape, is_writable, contents), array in zip(described, arrays, strict=True):
        assert (dtype, shape, contents) == (array.dtype.str, array.shape, array.tobytes())
        assert not is_writable
    assert not ray.get(producer.echo_arrays.remote(arrays[1])).flags.writeable


def test_receivers_have_what_was_returned(producer: Any, consumers: list[Any]) -> None:
    ref = producer.own.remote()
    ray.get(producer.change_own.remote())
    assert ray.get(consumers[0].add_one.remote(ref)) == 1000.0
    assert ray.get(consumers[1].total.remote(ref)) == 0.0


def test_the_driver_puts(consumers: list[Any]) -> None:
    ref = ray.put([torch.ones(100_000), torch.zeros(3)], _tensor_transport="hoplite")
    first, second = ray.get(consumers[2].look.remote(ref))
    assert (float(first.sum()), second.tolist()) == (100_000.0, [0.0] * 3)


def test_actors_put_and_pass_on_references(producer: Any, consumers: list[Any]) -> None:
    refs = [*ray.get(producer.put.remote()), producer.make.remote(2.0)]
    ray.get(refs)
    assert ray.get(consumers[1].get.remote(refs)) == [100_000.0, 200_000.0]
    assert ray.get(consumers[2].get.remote(refs)) == [100_000.0, 200_000.0]
    ray.get(producer.put.remote())
    del refs
    ray.get(producer.__ray_call__.remote(lambda actor: setattr(actor, "ref", None)))


def test_receiving_into_buffers(producer: Any) -> None:
    one, two = torch.zeros(3), torch.zeros(2, 2, dtype=torch.int32)
    ref = producer.echo.remote([torch.ones(3), torch.full((2, 2), 5, dtype=torch.int32)])
    ray.experimental.set_target_for_ref(ref, [one, two])
    got = ray.get(ref)
    assert got[0] is one
    assert got[1] is two
    assert (one.sum(), two.sum()) == (3, 20)
    single = torch.zeros(100_000)
    ref = producer.make.remote(4.0)
    ray.experimental.set_target_for_ref(ref, [single])
    assert ray.get(ref) is single
    assert single[-1] == 4.0


def test_many_are_fetched_at_once(producer: Any) -> None:
    refs = [producer.make.remote(float(value), 10_000) for value in range(20)]
    assert [float(tensor[0]) for tensor in ray.get(refs)] == [float(value) for value in range(20)]


def test_a_method_whose_tensors_do_not_fit_fails(producer: Any) -> None:
    with pytest.raises(hoplite.ObjectTooLarge):
        ray.get(producer.make.remote(1.0, 100_000_000))


def test_tensors_for_which_there_is_no_room_are_carried_by_ray(
    producer: Any, consumers: list[Any]
) -> None:
    count = 40_000_000
    ref = producer.make.remote(1.0, count)
    assert ray.get(consumers[1].total.remote(ref)) == count
    room = torch.zeros(count)
    ray.experimental.set_target_for_ref(ref, [room])
    assert ray.get(ref) is room
    assert room[-1] == 1.0
    arrays = producer.echo_arrays.remote(np.zeros(1))
    assert not ray.get(arrays).flags.writeable


def test_an_object_that_is_lost(
    producer: Any, consumers: list[Any], client: hoplite.Client
) -> None:
    before = objects(client)
    ref = producer.make.remote(1.0)
    ray.wait([ref])
    client.delete(objects(client) - before)
    began = time.monotonic()
    waiting = consumers[1].total.remote(ref)
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(ref, timeout=0.5)
    assert time.monotonic() - began < 30
    consumers[1].__ray_call__.options(concurrency_group="_ray_system_error").remote(
        _abort, ref.hex()
    )
    with pytest.raises(RayDirectTransportError, match="aborted"):
        ray.get(waiting)


def _abort(actor: Any, obj_id: str) -> None:
    from ray.experimental import CommunicatorMetadata
    from ray.experimental.rdt.util import get_tensor_transport_manager

    transport = get_tensor_transport_manager("HOPLITE")
    while not transport._fetches:
        time.sleep(0.01)
    transport.abort_transport(obj_id, CommunicatorMetadata())


def test_a_tensor_outlives_its_producer(
    mortal: Any, consumers: list[Any], client: hoplite.Client
) -> None:
    before = objects(client)
    refs = [mortal.make.remote(3.0), mortal.make.remote(4.0)]
    ray.wait(refs, num_returns=2)
    made = objects(client) - before
    assert len(made) == 2
    ray.kill(mortal)
    # Longer than the grace period.
    time.sleep(8)
    assert ray.get(consumers[0].total.remote(refs[0])) == 300_000.0
    assert float(ray.get(refs[1])[0]) == 4.0
    assert made <= objects(client)
    del refs
    eventually(lambda: not made & objects(client))


def test_what_a_producer_put_ends_with_it(mortal: Any, client: hoplite.Client) -> None:
    before = objects(client)
    refs = ray.get(mortal.put.remote())
    (made,) = objects(client) - before
    ray.kill(mortal)
    eventually(lambda: made not in objects(client))
    del refs


def test_a_producer_that_is_restarted(
    mortal: Any, consumers: list[Any], client: hoplite.Client
) -> None:
    before = objects(client)
    first = mortal.make.remote(1.0)
    ray.wait([first])
    ray.kill(mortal, no_restart=False)
    second = mortal.make.remote(2.0)
    assert ray.get([consumers[1].total.remote(ref) for ref in (first, second)]) == [
        100_000.0,
        200_000.0,
    ]
    del first, second
    eventually(lambda: objects(client) <= before)


@ray.remote(num_cpus=0)
class Mixed:
    @ray.method(tensor_transport="hoplite")
    def send_tensor(self) -> torch.Tensor:
        return torch.ones(1000)

    @ray.method(tensor_transport="hoplite_numpy")
    def send_array(self) -> np.ndarray[Any, Any]:
        return np.ones(1000)

    def copies(self) -> int:
        ref = ray.put({"array": np.ones(1 << 18), "tensor": torch.ones(1 << 18)})
        first, second = ray.get(ref), ray.get(ref)
        assert first["array"].sum() == first["tensor"].sum() == 1 << 18
        addresses = [
            (got["array"].ctypes.data, got["tensor"].data_ptr()) for got in (first, second)
        ]
        return sum(a != b for a, b in zip(*addresses, strict=True))


def test_what_goes_through_the_store_of_ray_stays_in_place(stores: list[hoplite.ray.Node]) -> None:
    environment = {"env_vars": {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}}
    actor: Any = Mixed.options(**on("first"), runtime_env=environment).remote()
    assert ray.get(actor.copies.remote()) == 0
    for send in (actor.send_tensor, actor.send_array, actor.send_tensor):
        ref = send.remote()
        assert ray.get(ref).sum() == 1000
        del ref
        assert ray.get(actor.copies.remote()) == 0
    ray.kill(actor)


@ray.remote(num_cpus=0)
class Particular:
    def register(self, kind: str) -> None:
        ray.util.register_serializer(
            np.ndarray,
            serializer=lambda array: (kind, array.sum()),
            deserializer=lambda value: value,
        )

    def deregister(self) -> None:
        ray.util.deregister_serializer(np.ndarray)

    @ray.method(tensor_transport="hoplite_numpy")
    def send_array(self) -> np.ndarray[Any, Any]:
        return np.ones(1000)

    def pickled(self) -> Any:
        return ray.get(ray.put(np.ones(3)))


def test_serializers_that_others_have_registered_stay(stores: list[hoplite.ray.Node]) -> None:
    actor: Any = Particular.options(**on("first")).remote()

    def send() -> None:
        got = ray.get(actor.send_array.remote())
        assert isinstance(got, np.ndarray)
        assert got.sum() == 1000

    for kind in ("before the first use", "later"):
        ray.get(actor.register.remote(kind))
        for _ in range(2):
            send()
            assert ray.get(actor.pickled.remote()) == (kind, 3)
    ray.get(actor.deregister.remote())
    send()
    assert isinstance(ray.get(actor.pickled.remote()), np.ndarray)
    ray.kill(actor)


@ray.remote(num_cpus=0)
class Owner:
    def call(self, producer: Any) -> None:
        self.refs = [producer.make.remote(1.0) for _ in range(3)]
        ray.wait(self.refs, num_returns=3)


def test_what_is_owned_ends_with_its_owner(producer: Any, client: hoplite.Client) -> None:
    before = objects(client)
    owner = Owner.options(**on("second")).remote()
    ray.get(owner.call.remote(producer))
    assert len(objects(client) - before) == 3
    ray.kill(owner)
    eventually(lambda: objects(client) <= before)


def test_actors_that_a_task_creates(consumers: list[Any]) -> None:
    @ray.remote(num_cpus=0)
    def create(consumer: Any) -> float:
        producer = Producer.options(**on("second")).remote()
        return ray.get(consumer.total.remote(producer.make.remote(2.0)))

    assert ray.get(create.remote(consumers[0])) == 200_000.0
    gc.collect()
