from __future__ import annotations

import functools
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hoplite
from stores import await_that

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import torch.distributed as dist  # noqa: E402
from ranks import Setting, run  # noqa: E402

from hoplite.torch._tensors import NAMES_OF_TORCH, average  # noqa: E402

SIZE = 3
DTYPES = sorted(NAMES_OF_TORCH)
OPS = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}


def spread(pattern: Any, shape: tuple[int, ...]) -> Any:
    count = int(torch.Size(shape).numel())
    return pattern.repeat(count // len(pattern) + 1)[:count].reshape(shape)


def pattern(rank: int, dtype: Any) -> Any:
    values = (torch.arange(5) * 7 + rank * 3) % 5
    return (values % 2 if dtype == torch.bool else values).to(dtype)


def contribution(rank: int, dtype: Any, shape: tuple[int, ...] = (5, 3)) -> Any:
    return spread(pattern(rank, dtype), shape)


def reduced(op: str, dtype: Any, shape: tuple[int, ...] = (5, 3)) -> Any:
    parts = [pattern(rank, dtype) for rank in range(SIZE)]
    if dtype == torch.bool:
        logical = torch.logical_or if op in ("SUM", "MAX") else torch.logical_and
        return spread(functools.reduce(logical, parts), shape)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return spread(functools.reduce(OPS[op], [part.to(wide) for part in parts]).to(dtype), shape)


def check(found: Any, expected: Any) -> None:
    if found.dtype != expected.dtype or not torch.equal(found, expected):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        raise AssertionError(f"{found} is not {expected}")


#: Lengths that ranks reduce, stores reduce, and stores reduce in parts.
LENGTHS = {"small": 2, "large": 24_000, "very large": 400_000}


def reduce_everything(rank: int, length: int) -> None:
    whole = (SIZE * length, 1)
    for name in DTYPES:
        dtype = getattr(torch, name)
        for op in OPS:
            expected = reduced(op, dtype, whole)
            tensor = contribution(rank, dtype, whole)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            check(tensor, expected)
            tensor = contribution(rank, dtype, whole)
            dist.reduce(tensor, 1, getattr(dist.ReduceOp, op))
            check(tensor, expected if rank == 1 else contribution(rank, dtype, whole))
            out = torch.empty(length, 1, dtype=dtype)
            dist.reduce_scatter_tensor(
                out, contribution(rank, dtype, whole), getattr(dist.ReduceOp, op)
            )
            check(out, expected[rank * length : (rank + 1) * length])
        if dtype.is_floating_point:
            tensor = contribution(rank, dtype, whole)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            check(tensor, reduced("SUM", dtype, whole) / SIZE)


@pytest.mark.parametrize("length", ["small", "large", "very large"])
@pytest.mark.parametrize("where", ["one node", "several nodes"])
def test_reduce_of_all_types(cluster: Any, where: str, length: str) -> None:
    sockets = cluster.sockets if where == "several nodes" else cluster.sockets[:1] * SIZE
    run(SIZE, reduce_everything, LENGTHS[length], setting=Setting(sockets=sockets))


def wrapped(number: int, dtype: Any) -> int:
    limits = torch.iinfo(dtype)
    return (number - limits.min) % (limits.max - limits.min + 1) + limits.min


def truncated(number: int, divisor: int) -> int:
    return number // divisor if number >= 0 else -(-number // divisor)


def integers(rank: int, dtype: Any) -> list[int]:
    limits = torch.iinfo(dtype)
    few = [7 + rank, 20 * rank, limits.max - rank, limits.min + rank, limits.max // 2]
    return [*few, *(wrapped(-number, dtype) for number in few)]


def average_integers(rank: int, length: int) -> None:
    names = [
        name for name in DTYPES if not getattr(torch, name).is_floating_point and name != "bool"
    ]
    assert {"uint8", "int8", "int32", "int64", "uint64"} <= {*names}
    for dtype in [getattr(torch, name) for name in names]:
        numbers = [integers(peer, dtype) for peer in range(SIZE)]
        sums = [wrapped(sum(of_peers), dtype) for of_peers in zip(*numbers, strict=True)]
        quotients = torch.tensor([truncated(number, SIZE) for number in sums], dtype=dtype)
        given, expected = (
            spread(elements, (SIZE * length, 1))
            for elements in (torch.tensor(numbers[rank], dtype=dtype), quotients)
        )
        own = expected[rank * length : (rank + 1) * length]

        tensor = given.clone()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check(tensor, expected)
        tensor = torch.stack([given, given], 1)
        dist.all_reduce(tensor[:, 0], dist.ReduceOp.AVG)
        check(tensor[:, 0], expected)
        check(tensor[:, 1], given)
        tensor = given.clone()
        dist.reduce(tensor, 1, dist.ReduceOp.AVG)
        check(tensor, expected if rank == 1 else given)
        out = torch.empty(length, 1, dtype=dtype)
        dist.reduce_scatter_tensor(out, given, dist.ReduceOp.AVG)
        check(out, own)
        out = torch.empty(length, 1, dtype=dtype)
        dist.reduce_scatter(out, list(given.split(length)), dist.ReduceOp.AVG)
        check(out, own)
        tensors = [given.clone(), given[:2].clone()]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
        check(tensors[0], expected)
        check(tensors[1], expected[:2])
        outs = [torch.empty(length, 1, dtype=dtype) for _ in range(2)]
        with dist._coalescing_manager():
            for out in outs:
                dist.reduce_scatter_tensor(out, given, dist.ReduceOp.AVG)
        for out in outs:
            check(out, own)


@pytest.mark.parametrize("length", ["small", "large"])
def test_averages_of_integers_are_truncated_as_nccl_does(cluster: Any, length: str) -> None:
    run(SIZE, average_integers, LENGTHS[length], setting=Setting(sockets=cluster.sockets))


@pytest.mark.parametrize("count", [1, 3, 127, 128, 255, 256, 300, 32768, 65536])
def test_averages_of_more_ranks_than_the_type_has_numbers(count: int) -> None:
    for name in ("uint8", "int8", "uint16", "int16", "int32", "uint64"):
        dtype = getattr(torch, name)
        numbers = [number for rank in range(SIZE) for number in integers(rank, dtype)]
        sums = torch.tensor(numbers, dtype=dtype)
        average(sums, count)
        check(sums, torch.tensor([truncated(number, count) for number in numbers], dtype=dtype))


BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


def reduce_bits(rank: int, length: int) -> None:
    for name in DTYPES:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            with pytest.raises(ValueError, match="BXOR is not defined"):
                dist.all_reduce(torch.ones(3, dtype=dtype), dist.ReduceOp.BXOR)
            continue
        for op, reduce in BITWISE.items():
            parts = [contribution(peer, dtype, (SIZE * length,)) for peer in range(SIZE)]
            expected = functools.reduce(reduce, parts)
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            check(tensor, expected)
            tensor = parts[rank].clone()
            dist.reduce(tensor, 1, getattr(dist.ReduceOp, op))
            check(tensor, expected if rank == 1 else parts[rank])
            out = torch.empty(length, dtype=dtype)
            dist.reduce_scatter_tensor(out, parts[rank], getattr(dist.ReduceOp, op))
            check(out, expected[rank * length : (rank + 1) * length])


@pytest.mark.parametrize("length", ["small", "large"])
def test_bitwise_reductions(length: str) -> None:
    run(SIZE, reduce_bits, LENGTHS[length])


def reduce_sparse(rank: int) -> None:
    def of(peer: int, shape: tuple[int, ...]) -> Any:
        indices = torch.tensor([[index, 2] for index in range(peer)]).reshape(peer, 2).t()
        values = torch.full((peer, *shape[2:]), peer + 1.0)
        return torch.sparse_coo_tensor(indices, values, shape)

    for shape in ((4, 3), (4, 3, 2), (40_000, 3, 9)):
        tensor = of(rank, shape)
        dist.all_reduce(tensor)
        check(tensor.to_dense(), sum(of(peer, shape).to_dense() for peer in range(SIZE)))
    with pytest.raises(RuntimeError, match="support SUM only"):
        dist.all_reduce(of(rank, (4, 3)), dist.ReduceOp.MAX)
    with pytest.raises(RuntimeError, match="of the shape"):
        dist.all_reduce(of(rank, (4 + rank, 3)))


def test_sparse_tensors() -> None:
    run(SIZE, reduce_sparse)


def through_autograd(rank: int, length: int) -> None:
    from torch.distributed.nn import functional

    def gradient(make: Any, *tensors: Any) -> list[Any]:
        given = [tensor.clone().requires_grad_() for tensor in tensors]
        made = make(given)
        total = sum(part.sum() for part in made) if isinstance(made, (list, tuple)) else made.sum()
        total.backward()
        return [tensor.grad for tensor in given]

    own = [torch.full((length,), float(peer)) for peer in range(SIZE)]
    ones = torch.ones(length)
    for found in gradient(
        lambda given: functional.reduce_scatter(torch.empty(length), given), *own
    ):
        check(found, ones)
    outs = [torch.empty(length) for _ in range(SIZE)]
    for found in gradient(lambda given: functional.all_to_all(outs, given), *own):
        check(found, ones)
    for found in gradient(lambda given: functional.scatter(given, 0), *own):
        check(found, ones if rank == 0 else torch.zeros(length))
    (found,) = gradient(lambda given: functional.all_reduce(given[0]), own[rank])
    check(found, ones * SIZE)
    (found,) = gradient(lambda given: functional.broadcast(given[0], 0), own[rank])
    check(found, ones * SIZE if rank == 0 else torch.zeros(length))
    (found,) = gradient(lambda given: functional.all_gather(given[0]), own[rank])
    check(found, ones * SIZE)
    (found,) = gradient(lambda given: functional.gather(given[0], 1), own[rank])
    check(found, ones)


@pytest.mark.parametrize("length", [1, 5, 30_000])
def test_autograd(length: int) -> None:
    run(SIZE, through_autograd, length)


def split_up(rank: int) -> None:
    part = dist.split_group(split_ranks=[[2, 0], [1]])
    tensor = torch.full((2,), float(rank))
    dist.all_reduce(tensor, group=part)
    check(tensor, torch.full((2,), 1.0 if rank == 1 else 2.0))
    assert dist.get_backend(part) == "hoplite"
    assert dist.get_rank(part) == {2: 0, 0: 1, 1: 0}[rank]
    if rank == 2:
        with pytest.raises(RuntimeError, match="has to name every rank"):
            dist.split_group(split_ranks=[[0, 1]])
    else:
        dist.barrier(group=dist.split_group(split_ranks=[[0, 1]]))
    dist.barrier()


@pytest.mark.skipif(torch.__version__ < "2.15", reason="torch 2.14 splits only groups of GPUs")
def test_a_group_that_is_split() -> None:
    run(SIZE, split_up)


def monitored(rank: int) -> str:
    dist.monitored_barrier()
    if rank == 1:
        with hoplite.connect() as client:
            await_that(
                "the others give up",
                lambda: any("/end/" in str(info.id) for info in client.list("torch/")),
            )
        return ""
    with pytest.raises(RuntimeError) as raised:
        dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=True)
    return str(raised.value)


def test_a_monitored_barrier(cluster: Any) -> None:
    first, _, last = run(SIZE, monitored, setting=Setting(sockets=cluster.sockets[:1] * SIZE))
    for said in (first, last):
        assert re.search(
            r"Ranks? (0, )?1(, 2)? failed to pass monitoredBarrier in 3000 ms", said
        ), said


def move_everything(rank: int) -> None:
    for name in [*DTYPES, "complex64", "complex128", "float8_e4m3fn"]:
        dtype = getattr(torch, name)

        def of(peer: int, dtype: Any = dtype) -> Any:
            return contribution(peer, torch.float32).to(dtype)

        def as_bytes(tensor: Any) -> Any:
            return tensor.contiguous().view(torch.uint8)

        tensor = of(rank) if rank == 2 else torch.zeros(5, 3).to(dtype)
        dist.broadcast(tensor, 2)
        check(as_bytes(tensor), as_bytes(of(2)))
        outs = [torch.zeros(5, 3).to(dtype) for _ in range(SIZE)]
        dist.all_gather(outs, of(rank))
        for peer in range(SIZE):
            check(as_bytes(outs[peer]), as_bytes(of(peer)))
        whole = torch.zeros(SIZE * 5, 3).to(dtype)
        dist.all_gather_into_tensor(whole, of(rank))
        check(as_bytes(whole), as_bytes(torch.cat([of(peer) for peer in range(SIZE)])))


def test_moves_of_all_types() -> None:
    run(SIZE, move_everything)


def shapes(rank: int) -> None:
    for shape in [(), (0,), (0, 4), (1,), (2, 3, 4), (300_000,), (SIZE, 120_000)]:
        tensor = torch.full(shape, rank + 1.0)
        dist.all_reduce(tensor)
        check(tensor, torch.full(shape, 6.0))
        tensor = torch.full(shape, float(rank))
        dist.broadcast(tensor, 1)
        check(tensor, torch.full(shape, 1.0))
        outs = [torch.empty(shape) for _ in range(SIZE)]
        dist.all_gather(outs, torch.full(shape, float(rank)))
        for peer in range(SIZE):
            check(outs[peer], torch.full(shape, float(peer)))
        gathered = [torch.empty(shape) for _ in range(SIZE)] if rank == 2 else None
        dist.gather(torch.full(shape, float(rank)), gathered, dst=2)
        for peer in range(SIZE if rank == 2 else 0):
            check(gathered[peer], torch.full(shape, float(peer)))
        out = torch.empty(shape)
        dist.scatter(
            out,
            [torch.full(shape, 10.0 * peer) for peer in range(SIZE)] if rank == 1 else None,
            src=1,
        )
        check(out, torch.full(shape, 10.0 * rank))


def test_shapes() -> None:
    run(SIZE, shapes)


def not_contiguous(rank: int) -> None:
    tensor = torch.zeros(4, 6)
    part = tensor[:, ::2]
    part.fill_(rank + 1)
    dist.all_reduce(part)
    check(tensor, torch.tensor([6.0, 0.0]).repeat(4, 3))
    transposed = (torch.arange(6.0).reshape(2, 3) * (rank == 0)).t()
    dist.broadcast(transposed, 0)
    check(transposed, torch.arange(6.0).reshape(2, 3).t())
    negative = torch.full((2,), complex(0, rank)).conj().imag
    outs = list(torch.zeros(2, SIZE).unbind(1))
    dist.all_gather(outs, negative)
    for peer in range(SIZE):
        check(outs[peer], torch.full((2,), -float(peer)))
    parameter = torch.nn.Parameter(torch.full((3,), float(rank)))
    with torch.no_grad():
        dist.all_reduce(parameter, dist.ReduceOp.MAX)
    check(parameter.detach(), torch.full((3,), 2.0))


def test_tensors_that_are_not_contiguous() -> None:
    run(SIZE, not_contiguous)


def all_to_all(rank: int) -> None:
    out = torch.empty(SIZE, 2)
    dist.all_to_all_single(out, torch.arange(SIZE * 2.0).reshape(SIZE, 2) + 100 * rank)
    check(
        out,
        torch.tensor(
            [[100.0 * peer + 2 * rank, 100.0 * peer + 2 * rank + 1] for peer in range(SIZE)]
        ),
    )
    sizes = [peer + 1 for peer in range(SIZE)]
    out = torch.empty(SIZE * (rank + 1), 2)
    dist.all_to_all_single(out, torch.full((sum(sizes), 2), float(rank)), [rank + 1] * SIZE, sizes)
    check(out, torch.cat([torch.full((rank + 1, 2), float(peer)) for peer in range(SIZE)]))
    outs = [torch.empty(rank + 1) for _ in range(SIZE)]
    dist.all_to_all(outs, [torch.full((peer + 1,), 10.0 * rank + peer) for peer in range(SIZE)])
    for peer in range(SIZE):
        check(outs[peer], torch.full((rank + 1,), 10.0 * peer + rank))
    out = torch.empty(2 * (rank + 1))
    dist.reduce_scatter(
        out, [torch.full((2 * (peer + 1),), float(rank + peer)) for peer in range(SIZE)]
    )
    check(out, torch.full((2 * (rank + 1),), 3.0 + 3 * rank))


def test_all_to_all_and_uneven_parts() -> None:
    run(SIZE, all_to_all)


def messages(rank: int) -> None:
    right, left = (rank + 1) % SIZE, (rank - 1) % SIZE
    inbox = [torch.empty(3) for _ in range(4)]
    receives = [dist.irecv(inbox[index], left, tag=index % 2) for index in range(4)]
    for index in range(4):
        dist.isend(torch.full((3,), 10.0 * rank + index), right, tag=index % 2).wait()
    for receive in receives:
        receive.wait()
    for index in range(4):
        check(inbox[index], torch.full((3,), 10.0 * left + index))
    objects = [{"from": rank}] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(objects, 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"from": 0}]
    ops = [
        dist.P2POp(dist.isend, torch.tensor([rank]), right),
        dist.P2POp(dist.irecv, torch.empty(1, dtype=int), left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert ops[1].tensor.item() == left


def test_messages() -> None:
    run(SIZE, messages)


def objects(rank: int) -> None:
    everything: list[Any] = [None] * SIZE
    dist.all_gather_object(everything, {"rank": rank, "list": list(range(rank * 100))})
    assert everything == [{"rank": peer, "list": list(range(peer * 100))} for peer in range(SIZE)]
    said = [f"from {rank}"]
    dist.broadcast_object_list(said, 2)
    assert said == ["from 2"]
    mine: list[Any] = [None]
    dist.scatter_object_list(
        mine, [f"for {peer}" for peer in range(SIZE)] if rank == 0 else None, 0
    )
    assert mine == [f"for {rank}"]


def test_objects() -> None:
    run(SIZE, objects)


def coalesced(rank: int) -> None:
    tensors = [torch.full((size,), rank + 1.0) for size in (3, 1, 200_000)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        check(tensor, torch.full(tensor.shape, 6.0))
    outs = [torch.empty(SIZE * size) for size in (2, 5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for out, size in zip(outs, (2, 5), strict=True):
            dist.all_gather_into_tensor(out, torch.full((size,), float(rank)))
    manager.wait()
    for out, size in zip(outs, (2, 5), strict=True):
        check(out, torch.arange(3.0).repeat_interleave(size))
    outs = [torch.empty(size) for size in (2, 5)]
    with dist._coalescing_manager():
        for out, size in zip(outs, (2, 5), strict=True):
            dist.reduce_scatter_tensor(out, torch.arange(3.0).repeat_interleave(size))
    for out in outs:
        check(out, torch.full(out.shape, 3.0 * rank))


def test_coalesced() -> None:
    run(SIZE, coalesced)


def functional(rank: int) -> None:
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (SIZE,))
    total = functional.all_reduce(torch.full((2,), rank + 1.0), "sum", mesh)
    check(functional.wait_tensor(total), torch.full((2,), 6.0))
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, mesh)
    check(functional.wait_tensor(gathered), torch.arange(3.0).repeat_interleave(2))
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    whole = torch.arange(12.0).reshape(6, 2)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    assert isinstance(tensor, DTensor)
    check(tensor.redistribute(mesh, [Replicate()]).to_local(), whole)
    check((tensor.t() @ tensor).full_tensor(), whole.t() @ whole)


def test_functional_collectives_and_meshes() -> None:
    run(SIZE, functional)


def single(rank: int) -> None:
    tensor = torch.arange(3.0)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    check(tensor, torch.arange(3.0))
    outs = [torch.empty(3)]
    dist.all_gather(outs, tensor)
    check(outs[0], tensor)
    dist.barrier()


def test_a_group_of_one() -> None:
    run(1, single)


def _with_checks(rank: int) -> None:
    dist.destroy_process_group()
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group(
        "hoplite", store=dist.FileStore(os.environ["RENDEZVOUS"], SIZE), rank=rank, world_size=SIZE
    )


def checked(rank: int) -> None:
    _with_checks(rank)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    check(tensor, torch.full((3,), float(SIZE)))

    everything: list[Any] = [None] * SIZE
    dist.all_gather_object(everything, rank)
    assert everything == list(range(SIZE))


def test_with_the_checks_of_torch(tmp_path: Path) -> None:
    run(SIZE, checked, setting=Setting(environment={"RENDEZVOUS": str(tmp_path / "rendezvous")}))


def mismatched(rank: int) -> str:
    _with_checks(rank)
    with pytest.raises(RuntimeError) as error:
        dist.all_reduce(torch.ones(3 + rank))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    check(tensor, torch.full((3,), float(SIZE)))
    return str(error.value)


def test_the_checks_of_torch_find_what_differs(tmp_path: Path) -> None:
    said = run(
        SIZE, mismatched, setting=Setting(environment={"RENDEZVOUS": str(tmp_path / "rendezvous")})
    )
    for rank, text in enumerate(said):
        assert "Detected mismatch between collectives on ranks" in text
        assert f"Rank {rank} is running collective" in text
        assert f"TensorShape=[{3 + rank}]" in text


def mixed(rank: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    assert dist.get_backend_config() == "cpu:hoplite,meta:gloo"
    assert type(group._get_backend(torch.device("cpu"))).__name__ == "HopliteBackend"
    assert type(group._get_backend(torch.device("meta"))).__name__ == "ProcessGroupGloo"
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)
    check(tensor, torch.full((3,), sum(range(SIZE)) * 1.0))
    half = dist.new_group([0, 1], backend="cpu:hoplite,meta:gloo")
    if rank < 2:
        outs = [torch.zeros(3) for _ in range(2)]
        dist.all_gather(outs, torch.full((3,), float(rank)), group=half)
        check(torch.stack(outs), torch.tensor([[0.0] * 3, [1.0] * 3]))
    everything: list[Any] = [None] * SIZE
    dist.all_gather_object(everything, rank)
    assert everything == list(range(SIZE))


def test_beside_another_backend() -> None:
    run(SIZE, mixed, setting=Setting(backend="cpu:hoplite,meta:gloo"))
