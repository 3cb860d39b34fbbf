from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stores import Cluster, await_that

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import torch.distributed as dist  # noqa: E402
from ranks import Setting, run  # noqa: E402


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(dist.DistBackendError) as raised:
        call()
    return str(raised.value)


def telling(rank: int) -> None:
    tensor = torch.full((3,), rank + 1.0)
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        assert not work.is_success()
        dist.send(torch.ones(1), 1)
    await_that("it is done", work.is_completed)
    assert tensor.tolist() == [3.0] * 3
    assert work.is_success()
    assert work.exception() is None
    assert [result.tolist() for result in work.result()] == [[3.0] * 3]
    with pytest.raises(RuntimeError, match="allreduce has no source rank"):
        work._source_rank()
    assert work.get_future().wait() == [tensor]

    work = dist.broadcast(torch.zeros(1 + rank), 0, async_op=True)
    await_that("it is done", work.is_completed)
    if rank == 1:
        assert not work.is_success()
        assert "rank 0 passed 4 bytes" in str(work.exception())


def test_an_operation_says_whether_it_is_done(node: Cluster) -> None:
    run(2, telling, setting=Setting(sockets=node.sockets * 2))


def telling_of_others(rank: int) -> None:
    gloo = dist.new_group(backend="gloo")
    work = dist.all_reduce(torch.ones(3), group=gloo, async_op=True)
    work.wait()
    assert work.is_completed()
    assert [result.tolist() for result in work.result()] == [[2.0] * 3]
    with pytest.raises(
        RuntimeError, match="may only be called on work objects that correspond to a recv"
    ):
        work._source_rank()
    if rank == 0:
        work = dist.irecv(torch.zeros(1), 1, group=gloo)
        assert not work.is_completed()
    dist.barrier()
    if rank == 1:
        for _ in range(2):
            dist.send(torch.ones(1), 0, group=gloo)
        return
    work.wait()
    assert work._source_rank() == 1
    assert dist.recv(torch.zeros(1), group=gloo) == 1


def test_operations_of_other_backends_answer_as_before(node: Cluster) -> None:
    run(2, telling_of_others, setting=Setting(sockets=node.sockets * 2))


class _Held(dist.Work):
    def get_future(self) -> torch.futures.Future[int]:
        return torch.futures.Future()


def test_other_operations_written_in_python_are_left_alone() -> None:
    from hoplite.torch._work import forward_from_wrapper

    forward_from_wrapper()
    assert not _Held().is_completed()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    work = torch._C._distributed_c10d._create_work_from_future(future)
    assert not work.is_completed()
    future.set_result(torch.ones(1))
    assert work.is_completed()


SIZE = 3
MESSAGES = 20


def receiving_from_any(rank: int) -> None:
    if rank != 0:
        for number in range(MESSAGES):
            dist.send(torch.tensor([rank, number]), 0, tag=7)
        dist.send(torch.tensor([rank, -1]), 0)
        dist.barrier()
        return
    seen: dict[int, list[int]] = {1: [], 2: []}
    for index in range(MESSAGES):
        tensor = torch.zeros(2, dtype=torch.int64)
        if index % 2:
            source = dist.recv(tensor, tag=7)
        else:
            work = dist.irecv(tensor, tag=7)
            assert work is not None
            work.wait()
            source = work._source_rank()
        assert source == tensor[0]
        seen[source].append(int(tensor[1]))
    tensors = [torch.zeros(2, dtype=torch.int64) for _ in range(MESSAGES)]
    for source in (1, 2):
        for _ in range(MESSAGES // 4):
            if len(seen[source]) < MESSAGES:
                tensor = torch.zeros(2, dtype=torch.int64)
                assert dist.recv(tensor, source, tag=7) == source
                seen[source].append(int(tensor[1]))
    left = 2 * MESSAGES - sum(map(len, seen.values()))
    works = [dist.irecv(tensor, tag=7) for tensor in tensors[:left]]
    for tensor, work in zip(tensors, works, strict=False):
        assert work is not None
        work.wait()
        assert work._source_rank() == tensor[0]
        seen[int(tensor[0])].append(int(tensor[1]))
    assert seen == {1: list(range(MESSAGES)), 2: list(range(MESSAGES))}
    for _ in range(2):
        dist.recv(tensors[0])
    dist.barrier()


def test_messages_of_any_rank(node: Cluster) -> None:
    run(SIZE, receiving_from_any, setting=Setting(sockets=node.sockets * SIZE))
    with node.connect() as client:
        await_that("everything is deleted", lambda: not list(client.list()))


def receiving_from_any_in_vain(rank: int) -> str | None:
    group = dist.new_group([2, 0, 1])
    if rank == 0:
        dist.distributed_c10d.set_timeout(timedelta(milliseconds=50), group)
        said = error_of(lambda: dist.recv(torch.zeros(1), group=group))
        assert "recv from any rank" in said
        assert "timeout after 0.05 s; nothing has come from rank " in said
        dist.distributed_c10d.set_timeout(timedelta(seconds=60), group)
    dist.barrier()
    if rank == 1:
        dist.send(torch.ones(1), 0, group=group)
    if rank == 0:
        assert dist.recv(torch.zeros(1), group=group) == 1
        dist.barrier()
        return error_of(lambda: dist.recv(torch.zeros(1)))
    dist.barrier()
    dist.distributed_c10d._update_default_pg(None)
    return None


def test_nobody_is_left_to_send(node: Cluster) -> None:
    said, *_ = run(SIZE, receiving_from_any_in_vain, setting=Setting(sockets=node.sockets * SIZE))
    assert "recv from any rank cannot be done" in said


def alone(rank: int) -> None:
    with pytest.raises(ValueError, match="no other rank to receive from"):
        dist.recv(torch.zeros(1))


def test_a_group_of_one_receives_from_nobody() -> None:
    run(1, alone)
