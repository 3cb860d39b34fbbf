from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray.experimental.collective import create_collective_group, destroy_collective_group
from ray.util import collective
from ray.util.collective.types import ReduceOp
from ray_cluster import eventually, objects, on

import hoplite
import hoplite.ray

hoplite.ray.register()

pytestmark = pytest.mark.usefixtures("stores", "nothing_left")

OPS = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
}
COUNTS = [1, 100_000, 400_000]
GROUPS = ["group", "pair", "lonely", "alone"]


def array(kind: str, count: int, value: float, dtype: str = "float32") -> Any:
    made = np.full(count, value, dtype)
    return torch.from_numpy(made) if kind == "torch" else made


@ray.remote(num_cpus=0)
class Member:
    def init(self, size: int, rank: int, group: str, timeout: str = "200") -> None:
        os.environ["HOPLITE_COLLECTIVE_TIMEOUT"] = timeout
        collective.init_collective_group(size, rank, "hoplite", group)

    def limit(self, group: str, seconds: float) -> None:
        collective.get_group_handle(group)._timeout = seconds

    def destroy(self, group: str) -> None:
        collective.destroy_collective_group(group)

    def leave(self) -> None:
        for group in GROUPS:
            if collective.is_group_initialized(group):
                collective.destroy_collective_group(group)

    def info(self, group: str) -> tuple[bool, int, int]:
        return (
            collective.is_group_initialized(group),
            collective.get_rank(group),
            collective.get_collective_group_size(group),
        )

    def call(self, name: str, group: str, tensor: Any, *arguments: Any, **options: Any) -> Any:
        tensor = tensor.copy() if isinstance(tensor, np.ndarray) else tensor
        getattr(collective, name)(tensor, *arguments, group_name=group, **options)
        return tensor

    def as_given(self, name: str, group: str, tensor: Any, *arguments: Any) -> Any:
        getattr(collective, name)(tensor, *arguments, group_name=group)
        return tensor

    def allgather(self, group: str, tensor: Any, outs: list[Any]) -> list[Any]:
        outs = [out.copy() if isinstance(out, np.ndarray) else out for out in outs]
        collective.allgather(outs, tensor, group)
        return outs

    def reducescatter(self, group: str, tensors: list[Any], op: ReduceOp) -> Any:
        out = (
            np.zeros_like(tensors[0])
            if isinstance(tensors[0], np.ndarray)
            else torch.zeros_like(tensors[0])
        )
        collective.reducescatter(out, tensors, group, op)
        return out

    def interrupted(self, name: str, group: str, *arguments: Any) -> str:
        main = threading.get_ident()

        def interrupt() -> None:
            own = collective.get_group_handle(group)._group
            while not own._is_running and not own._messages:
                time.sleep(0.01)
            signal.pthread_kill(main, signal.SIGALRM)

        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            threading.Thread(target=interrupt).start()
            getattr(collective, name)(np.ones(10), *arguments, group_name=group)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            signal.signal(signal.SIGALRM, before)
        return "done"

    def barrier(self, group: str, delay: float) -> tuple[float, float]:
        time.sleep(delay)
        began = time.time()
        collective.barrier(group)
        return began, time.time()

    def strided(self, group: str) -> tuple[list[Any], list[Any]]:
        whole = np.zeros((4, 3))
        collective.allreduce(whole[:, 1], group)
        whole[:, 1] += 1
        collective.allreduce(whole[:, 1], group)
        tensor = torch.ones(2, 3).t()
        collective.broadcast(tensor, 0, group)
        return whole.tolist(), tensor.tolist()

    def many(self, group: str, root: int, rounds: int) -> tuple[list[float], int]:
        seen, most = [], 0
        for number in range(rounds):
            tensor = np.full(
                100_000, number if collective.get_rank(group) == root else -1.0, np.float32
            )
            collective.broadcast(tensor, root, group)
            collective.reduce(tensor, root, group)
            seen.append(float(tensor[0]))
            most = max(most, len(objects(hoplite.ray.client())))
        return seen, most


@pytest.fixture(scope="module")
def actors(stores: list[hoplite.ray.Node]) -> list[Any]:
    made = [Member.options(**on(node)).remote() for node in ("first", "second", "first")]
    ray.get([member.__ray_ready__.remote() for member in made])
    return made


@pytest.fixture
def members(actors: list[Any]) -> Iterator[list[Any]]:
    yield actors
    ray.get([member.leave.remote() for member in actors])


@pytest.fixture(params=[2, 3])
def group(request: pytest.FixtureRequest, members: list[Any]) -> Iterator[list[Any]]:
    some = members[: request.param]
    ray.get([member.init.remote(len(some), rank, "group") for rank, member in enumerate(some)])
    yield some
    ray.get([member.destroy.remote("group") for member in some])


def begin_all(
    group: list[Any], name: str, tensors: list[Any], *arguments: Any, **options: Any
) -> list[Any]:
    return [
        member.call.remote(name, "group", tensor, *arguments, **options)
        for member, tensor in zip(group, tensors, strict=True)
    ]


def call_all(
    group: list[Any], name: str, tensors: list[Any], *arguments: Any, **options: Any
) -> list[Any]:
    return list(ray.get(begin_all(group, name, tensors, *arguments, **options)))


def check(got: Any, count: int, value: float) -> None:
    assert len(got) == count
    assert (np.asarray(got) == value).all(), (got[:3], value)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("count", COUNTS)
def test_allreduce(group: list[Any], kind: str, count: int) -> None:
    values = [float(rank + 2) for rank in range(len(group))]
    for op, numpy_op in OPS.items():
        for got in call_all(
            group, "allreduce", [array(kind, count, value) for value in values], op=op
        ):
            assert isinstance(got, torch.Tensor) == (kind == "torch")
            check(got, count, float(numpy_op.reduce(values)))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16", "float64"])
def test_allreduce_of_each_dtype(group: list[Any], dtype: str) -> None:
    for got in call_all(
        group, "allreduce", [array("numpy", 10, rank + 1, dtype) for rank in range(len(group))]
    ):
        assert got.dtype == dtype
        check(got, 10, sum(range(len(group) + 1)))


@pytest.mark.parametrize("root", [0, 1])
def test_reduce_changes_only_the_root(group: list[Any], root: int) -> None:
    for kind in ("numpy", "torch"):
        got = call_all(
            group, "reduce", [array(kind, 100_000, rank + 1.0) for rank in range(len(group))], root
        )
        for rank, tensor in enumerate(got):
            check(tensor, 100_000, sum(range(len(group) + 1)) if rank == root else rank + 1)


@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("count", COUNTS)
def test_broadcast(group: list[Any], root: int, count: int) -> None:
    kinds = ["numpy", "torch", "numpy"][: len(group)]
    for got in call_all(
        group, "broadcast", [array(kind, count, i) for i, kind in enumerate(kinds)], root
    ):
        check(got, count, root)


def test_allgather(group: list[Any]) -> None:
    size = len(group)
    calls = [
        member.allgather.remote(
            "group", array("torch", 50_000, rank), [array("numpy", 50_000, -1)] * size
        )
        for rank, member in enumerate(group)
    ]
    for outs in ray.get(calls):
        for rank, out in enumerate(outs):
            check(out, 50_000, rank)


def test_reducescatter(group: list[Any]) -> None:
    size = len(group)
    for kind in ("numpy", "torch"):
        for op, numpy_op in OPS.items():
            parts = [
                [array(kind, 1000, 10.0 * rank + part) for part in range(size)]
                for rank in range(size)
            ]
            calls = [
                member.reducescatter.remote("group", tensors, op)
                for member, tensors in zip(group, parts, strict=True)
            ]
            for part, got in enumerate(ray.get(calls)):
                check(
                    got, 1000, float(numpy_op.reduce([10.0 * rank + part for rank in range(size)]))
                )


def test_send_and_receive(group: list[Any]) -> None:
    for source, to in ((0, 1), (1, 0), (0, 1)):
        sent = group[source].call.remote("send", "group", array("torch", 100_000, 7.0 + source), to)
        got = group[to].call.remote("recv", "group", array("numpy", 100_000, 0.0), source)
        check(ray.get(got), 100_000, 7.0 + source)
        ray.get(sent)


def test_a_barrier_waits_for_all(group: list[Any]) -> None:
    times = ray.get(
        [member.barrier.remote("group", 0.3 * rank) for rank, member in enumerate(group)]
    )
    assert min(ended for _, ended in times) >= max(began for began, _ in times)


def test_tensors_that_are_not_contiguous(group: list[Any]) -> None:
    for whole, tensor in ray.get([member.strided.remote("group") for member in group]):
        assert whole == [[0.0, len(group), 0.0]] * 4
        assert tensor == [[1.0, 1.0]] * 3


def test_many_calls_leave_few_objects(group: list[Any], client: hoplite.Client) -> None:
    before = len(objects(client))
    for rank, (seen, most) in enumerate(
        ray.get([member.many.remote("group", 1, 60) for member in group])
    ):
        assert seen == [number * (len(group) if rank == 1 else 1) for number in range(60)]
        assert before < most < before + 150


def test_what_cannot_be_reduced(group: list[Any]) -> None:
    with pytest.raises(TypeError, match="numbers"):
        call_all(group, "allreduce", [np.ones(3, np.complex64)] * len(group))
    for got in call_all(group, "allreduce", [np.ones(3)] * len(group)):
        check(got, 3, len(group))


def test_shapes_that_differ(members: list[Any]) -> None:
    pair = members[:2]
    ray.get([member.init.remote(2, rank, "group", "60") for rank, member in enumerate(pair)])
    root, other = begin_all(pair, "broadcast", [np.ones(3), np.ones(4)])
    with pytest.raises(hoplite.TypeMismatch) as raised:
        ray.get(other)
    assert isinstance(raised.value, RuntimeError)
    with contextlib.suppress(RuntimeError):
        ray.get(root)
    with pytest.raises(RuntimeError, match="does not fit: it is float64"):
        ray.get([member.barrier.remote("group", 0.0) for member in pair])
    ray.get([member.destroy.remote("group") for member in pair])


@pytest.mark.parametrize("name", ["allreduce", "broadcast"])
@pytest.mark.parametrize("count", COUNTS)
def test_shapes_of_the_same_size_that_differ(members: list[Any], name: str, count: int) -> None:
    pair = members[:2]
    ray.get([member.init.remote(2, rank, "group", "20") for rank, member in enumerate(pair)])
    errors = []
    for call in begin_all(pair, name, [np.ones((count, 2)), np.ones((2, count))]):
        try:
            ray.get(call)
        except RuntimeError as error:
            errors.append(error)
    ray.get([member.destroy.remote("group") for member in pair])
    assert any(isinstance(error, hoplite.TypeMismatch) for error in errors), errors
    assert all(f"{count}" in str(error) for error in errors), errors


def test_arrays_that_are_read_only(group: list[Any]) -> None:
    with pytest.raises(
        TypeError, match=r"broadcast writes to its array, and this one is read-only: pass a copy"
    ):
        ray.get(group[1].as_given.remote("broadcast", "group", np.ones(10), 0))
    calls = [
        group[0].as_given.remote("broadcast", "group", np.ones(10), 0),
        *(member.call.remote("broadcast", "group", np.zeros(10), 0) for member in group[1:]),
    ]
    for got in ray.get(calls):
        check(got, 10, 1)


def test_a_member_that_does_not_come(members: list[Any]) -> None:
    with pytest.raises(TimeoutError, match=r"did not come within 1\.0 s: 1, 2"):
        ray.get(members[0].init.remote(3, 0, "lonely", "1"))
    pair = members[:2]
    ray.get([member.init.remote(2, rank, "group") for rank, member in enumerate(pair)])
    ray.get(pair[0].limit.remote("group", 5.0))
    with pytest.raises(
        hoplite.Timeout, match="timeout after 5 s; nothing has come from rank 1"
    ) as raised:
        ray.get(pair[0].barrier.remote("group", 0.0))
    assert isinstance(raised.value, RuntimeError)
    # A barrier could complete before the end is known.
    receive = pair[1].call.remote("recv", "group", np.zeros(10), 0)
    with pytest.raises(hoplite.ray.collective.GroupEnded, match="nothing has come from rank 1"):
        ray.get(receive)
    with pytest.raises(hoplite.ray.collective.GroupEnded, match="nothing has come from rank 1"):
        ray.get(pair[1].barrier.remote("group", 0.0))
    ray.get([member.destroy.remote("group") for member in pair])


@pytest.mark.parametrize("name", ["allreduce", "recv"])
def test_a_call_that_is_interrupted_ends_the_group(members: list[Any], name: str) -> None:
    pair = members[:2]
    ray.get([member.init.remote(2, rank, "group", "120") for rank, member in enumerate(pair)])
    arguments = [1] if name == "recv" else []
    assert ray.get(pair[0].interrupted.remote(name, "group", *arguments)) == "interrupted"
    with pytest.raises(hoplite.ray.collective.GroupEnded, match="rank 0 was interrupted"):
        ray.get(pair[1].barrier.remote("group", 0.0))
    ray.get([member.destroy.remote("group") for member in pair])


def test_a_receive_that_failed_leaves_the_message_to_the_next_one(members: list[Any]) -> None:
    pair = members[:2]
    ray.get([member.init.remote(2, rank, "group") for rank, member in enumerate(pair)])
    ray.get(pair[0].limit.remote("group", 1.0))
    with pytest.raises(hoplite.Timeout):
        ray.get(pair[0].call.remote("recv", "group", np.zeros(10), 1))
    ray.get(pair[0].limit.remote("group", 200.0))
    for number in (1.0, 2.0):
        ray.get(pair[1].call.remote("send", "group", np.full(10, number), 0))
    for number in (1.0, 2.0):
        check(ray.get(pair[0].call.remote("recv", "group", np.zeros(10), 1)), 10, number)
    ray.get([member.destroy.remote("group") for member in pair])


def test_groups_that_are_declared(members: list[Any]) -> None:
    collective.create_collective_group(members, 3, [2, 0, 1], "hoplite", "group")
    for got in call_all(members, "allreduce", [np.ones(10)] * 3):
        check(got, 10, 3)
    assert [info[1:] for info in ray.get([member.info.remote("group") for member in members])] == [
        (2, 3),
        (0, 3),
        (1, 3),
    ]
    ray.get([member.destroy.remote("group") for member in members])
    assert ray.get(members[0].info.remote("group")) == (False, -1, -1)


def test_groups_of_the_experimental_api(members: list[Any]) -> None:
    handle = create_collective_group(members[:2], "hoplite", "group")
    for got in call_all(members[:2], "broadcast", [np.ones(10), np.zeros(10)]):
        check(got, 10, 1)
    destroy_collective_group(handle)


def test_groups_do_not_disturb_each_other(members: list[Any]) -> None:
    for name, some in (("group", members), ("pair", members[1:])):
        ray.get([member.init.remote(len(some), rank, name) for rank, member in enumerate(some)])
    first = [member.call.remote("allreduce", "group", np.ones(10)) for member in members]
    second = [
        member.call.remote("broadcast", "pair", np.full(10, rank))
        for rank, member in enumerate(members[1:])
    ]
    assert [got[0] for got in ray.get(first)] == [3.0] * 3
    assert [got[0] for got in ray.get(second)] == [0, 0]
    for name, some in (("group", members), ("pair", members[1:])):
        ray.get([member.destroy.remote(name) for member in some])


def test_a_group_again_after_a_member_was_killed(
    members: list[Any], client: hoplite.Client
) -> None:
    before = objects(client)
    victim = Member.options(**on("second")).remote()
    pair = [members[0], victim]
    ray.get(victim.__ray_ready__.remote())
    ray.get([member.init.remote(2, rank, "group") for rank, member in enumerate(pair)])
    call_all(pair, "allreduce", [np.ones(100_000)] * 2)
    ray.kill(victim)
    ray.get(members[0].destroy.remote("group"))
    stray = Member.options(**on("second")).remote()
    process = ray.get(stray.__ray_call__.remote(lambda member: os.getpid()))
    joining = stray.init.remote(2, 1, "group")
    eventually(lambda: any("/join/1/" in id for id in objects(client)))
    ray.kill(stray)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(joining)
    eventually(lambda: not Path(f"/proc/{process}").exists())
    pair = [members[0], members[1]]
    ray.get([member.init.remote(2, rank, "group") for rank, member in enumerate(pair)])
    for got in call_all(pair, "allreduce", [np.ones(100_000)] * 2):
        check(got, 100_000, 2)
    ray.get([member.destroy.remote("group") for member in pair])
    ours = ray.get(members[0].__ray_call__.remote(_own_prefix))
    eventually(lambda: all(id.startswith(ours) for id in objects(client) - before))
    client.delete([id for id in objects(client) - before])


def _own_prefix(member: Any) -> str:
    from hoplite.ray import _leases

    return _leases.of_process().prefix


def test_a_group_of_one(members: list[Any]) -> None:
    ray.get(members[0].init.remote(1, 0, "alone"))
    check(ray.get(members[0].call.remote("allreduce", "alone", np.ones(3))), 3, 1)
    ray.get(members[0].destroy.remote("alone"))
