from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import hoplite
from stores import PATIENCE, Cluster, await_that, used_bytes

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import torch.distributed as dist  # noqa: E402
from ranks import Setting, is_installed, run  # noqa: E402

NEVER = 1000.0


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(dist.DistBackendError) as raised:
        call()
    return str(raised.value)


RESTARTED = """
import os, signal, sys, torch, torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("hoplite")
rank = dist.get_rank()
tensor = torch.full((100_000,), rank + 1.0)
dist.all_reduce(tensor)
if attempt < 2 and rank == attempt:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(tensor)
# In one piece: the ranks share the pipe.
os.write(1, f"{attempt} {rank} {tensor[-1].item()}\\n".encode())
dist.destroy_process_group()
"""


def test_torchrun_starts_them_again(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("the package was installed without its entry points")
    (tmp_path / "restarted.py").write_text(RESTARTED)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    environment.pop("HOPLITE_SOCKET", None)
    done = subprocess.run(
        [
            *torchrun,
            "--max-restarts",
            "2",
            "--monitor-interval",
            "0.1",
            str(tmp_path / "restarted.py"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["2 0 18.0", "2 1 18.0", "2 2 18.0"]
    assert list(tmp_path.glob("hoplite-private-*")) == []


def test_torch_finds_it_by_itself(node: Cluster) -> None:
    if not is_installed():
        pytest.skip("the package was installed without its entry points")
    program = """
import torch, torch.distributed as dist
dist.init_process_group("hoplite", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(2)
dist.all_reduce(tensor)
assert dist.get_backend() == "hoplite"
dist.destroy_process_group()
dist.init_process_group("cpu:hoplite", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(tensor)
print(tensor.tolist())
"""
    environment = {**os.environ, "HOPLITE_SOCKET": node.sockets[0]}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1.0, 1.0]"


def many_at_once(rank: int) -> None:
    tensors = [torch.full((1000,), float(rank + index)) for index in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    threads = [threading.Thread(target=work.wait) for work in reversed(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, tensor in enumerate(tensors):
        assert tensor.tolist() == [1.0 + 2 * index] * 1000


def test_many_operations_at_once() -> None:
    run(2, many_at_once)


def callbacks(rank: int) -> None:
    first, second = torch.ones(3), torch.ones(3)

    def again(future: Any) -> Any:
        (reduced,) = future.value()
        dist.all_reduce(second, async_op=True).get_future().wait()
        return reduced + second

    future = dist.all_reduce(first, async_op=True).get_future().then(again)
    assert future.wait().tolist() == [4.0] * 3
    work = dist.all_reduce(first, async_op=True)
    work.wait()
    assert work.get_future().done()


def test_futures_and_callbacks() -> None:
    run(2, callbacks)


def two_groups(rank: int) -> None:
    everybody, pair = dist.new_group([0, 1, 2]), dist.new_group([0, 2])
    works = []
    tensors = []
    for index in range(20):
        tensor = torch.full((500,), float(rank))
        works.append(dist.all_reduce(tensor, group=everybody, async_op=True))
        tensors.append((tensor, 3.0))
        if rank != 1:
            tensor = torch.full((500,), float(rank + index))
            works.append(dist.all_reduce(tensor, group=pair, async_op=True))
            tensors.append((tensor, 2.0 + 2 * index))
    for work in reversed(works):
        work.wait()
    for tensor, expected in tensors:
        assert tensor.tolist() == [expected] * 500
    if rank != 1:
        tensor = torch.full((2,), float(rank))
        dist.broadcast(tensor, 2, group=pair)
        assert tensor.tolist() == [2.0, 2.0]
        dist.destroy_process_group(pair)
    dist.barrier()
    assert dist.get_world_size(everybody) == 3


def test_two_groups_at_once() -> None:
    run(3, two_groups)


def again(rank: int, directory: str) -> None:
    for index in range(3):
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 4
        dist.destroy_process_group()
        dist.init_process_group(
            "hoplite", init_method=f"file://{directory}/{index}", rank=rank, world_size=2
        )


def test_a_group_after_another(tmp_path: Path) -> None:
    run(2, again, str(tmp_path))


def train_for_long(rank: int, socket: str) -> None:
    tensor = torch.ones(40_000)
    most = 0
    with hoplite.connect(socket) as client:
        for index in range(300):
            dist.all_reduce(tensor.fill_(1.0))
            dist.broadcast(tensor, index % 2)
            if index % 3 == 0:
                dist.reduce(tensor, 0)
                dist.gather(tensor, [torch.empty(40_000)] * 2 if rank == 0 else None)
            if index % 20 == 0:
                most = max(most, sum(1 for _ in client.list("torch/")))
        for index in range(200):
            dist.broadcast(tensor, 0)
            if index % 20 == 0:
                most = max(most, sum(1 for _ in client.list("torch/")))
        for _ in range(100):
            if rank == 0:
                dist.send(tensor, 1)
            else:
                dist.recv(tensor, 0)
        dist.barrier()
    assert most < 200


def test_a_long_training_leaves_nothing(node: Cluster) -> None:
    run(2, train_for_long, node.sockets[0], setting=Setting(sockets=node.sockets * 2))
    with node.connect() as client:
        await_that("everything is deleted", lambda: not list(client.list()))
        assert used_bytes(client) == 0


def more_than_fits(rank: int) -> None:
    tensor = torch.empty(1 << 20)
    for index in range(160):
        tensor.fill_(float(index if rank == 0 else -1))
        dist.broadcast(tensor, 0)
        assert tensor[0].item() == tensor[-1].item() == index


def test_broadcasts_of_more_than_fits(node: Cluster) -> None:
    run(2, more_than_fits, setting=Setting(sockets=node.sockets * 2))


def killed(rank: int) -> str | None:
    tensor = torch.ones(10)
    if rank == 1:
        dist.all_reduce(tensor)
        os.kill(os.getpid(), signal.SIGKILL)
    said = error_of(lambda: [dist.all_reduce(tensor) for _ in range(2)])
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert error_of(dist.barrier)
    assert error_of(lambda: dist.recv(tensor, 1))
    return said


@pytest.mark.parametrize("where", ["one node", "several nodes"])
def test_a_rank_is_killed(where: str, cluster: Cluster) -> None:
    sockets = cluster.sockets if where == "several nodes" else cluster.sockets[:1] * 3
    first, none, last = run(3, killed, setting=Setting(sockets=sockets, timeout=NEVER))
    assert none is None
    assert "rank 1 is gone" in first
    assert "rank 1 is gone" in last


def killed_while_all_wait(rank: int, size: int) -> str | None:
    if rank == 2:
        with hoplite.connect() as client:
            await_that(
                "the others are there",
                lambda: sum("/1/" in str(info.id) for info in client.list("torch/")) >= 2,
            )
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: dist.all_reduce(torch.ones(size)))


@pytest.mark.parametrize("size", [10, 20_000, 400_000])
def test_a_rank_is_killed_while_others_wait_for_it(node: Cluster, size: int) -> None:
    first, second, _ = run(
        3, killed_while_all_wait, size, setting=Setting(sockets=node.sockets * 3, timeout=NEVER)
    )
    assert "rank 2 is gone" in first
    assert "rank 2 is gone" in second
    with node.connect() as client:
        await_that("everything is deleted", lambda: not list(client.list()))


def killed_with_the_store(rank: int) -> str | None:
    if rank == 0:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    return error_of(lambda: [dist.barrier() for _ in range(2)])


def test_the_rank_that_keeps_a_private_store_is_killed() -> None:
    _, said = run(2, killed_with_the_store, setting=Setting(timeout=NEVER))
    assert "rank 0 is gone" in said or "the store is gone" in said


def raising(rank: int) -> str | None:
    dist.barrier()
    if rank == 0:
        dist.distributed_c10d._update_default_pg(None)
        return None
    return error_of(lambda: dist.all_reduce(torch.ones(10)))


def test_a_rank_ends_without_destroying_the_group(node: Cluster) -> None:
    _, said = run(2, raising, setting=Setting(sockets=node.sockets * 2, timeout=NEVER))
    assert "rank 0" in said


def await_an_end() -> None:
    with hoplite.connect() as client:
        await_that(
            "a rank has left",
            lambda: any("/end/" in str(info.id) for info in client.list("torch/")),
        )


def broadcast_by_one_who_leaves(rank: int, size: int) -> str | None:
    if rank == 0:
        dist.broadcast(torch.ones(size), 0)
        dist.distributed_c10d._update_default_pg(None)
        return None
    await_an_end()
    tensor = torch.zeros(size)
    dist.broadcast(tensor, 0)
    assert tensor.tolist() == [1.0] * size
    return error_of(dist.barrier)


@pytest.mark.parametrize("size", [4, 100_000])
def test_what_a_rank_has_given_outlives_it(node: Cluster, size: int) -> None:
    setting = Setting(sockets=node.sockets * 2)
    _, said = run(2, broadcast_by_one_who_leaves, size, setting=setting)
    assert "rank 0 has ended without destroying the group" in said
    with node.connect() as client:
        await_that("everything is deleted", lambda: not list(client.list()))


def reduced_with_one_who_leaves(rank: int) -> list[float]:
    from hoplite._group import schedules

    views_of_all = schedules._views_of_all

    async def late(round: Any, contents: Any, part: str, *expected: Any) -> Any:
        await round.put(round.id(f"{part}v", rank), contents)
        ids: list[str] = []
        while not any("/end/" in id for id in ids):
            page, _ = await round.client.list(b"torch/", b"", 1000)
            ids = [about["id"] for about in page]
        return await views_of_all(round, contents, part, *expected)

    if rank == 1:
        schedules._views_of_all = late  # type: ignore[assignment]
    tensor = torch.full((4,), rank + 1.0)
    dist.all_reduce(tensor)
    dist.distributed_c10d._update_default_pg(None)
    return [float(element) for element in tensor]


def test_a_rank_that_has_its_result_may_leave(node: Cluster) -> None:
    setting = Setting(sockets=node.sockets * 2)
    assert run(2, reduced_with_one_who_leaves, setting=setting) == [[3.0] * 4] * 2


def receiving_from_the_second_who_leaves(rank: int) -> str | None:
    if rank == 2:
        return error_of(lambda: dist.recv(torch.ones(1), 1))
    if rank == 1:
        await_an_end()
    return None


def test_the_second_rank_that_leaves_is_not_waited_for(node: Cluster) -> None:
    setting = Setting(sockets=node.sockets * 3, timeout=NEVER)
    *_, said = run(3, receiving_from_the_second_who_leaves, setting=setting)
    assert "recv from rank 1 cannot be done" in said


def failing_after_one_has_left(rank: int) -> str | None:
    if rank == 0:
        dist.broadcast(torch.ones(10), 0)
        dist.reduce(torch.ones(10), 2)
        return None
    await_an_end()
    if rank == 1:
        return error_of(lambda: dist.broadcast(torch.ones(11), 0))
    return error_of(lambda: [dist.broadcast(torch.ones(10), 0), dist.reduce(torch.ones(10), 2)])


def test_a_failure_is_heard_of_after_a_rank_has_left(node: Cluster) -> None:
    setting = Setting(sockets=node.sockets * 3, timeout=NEVER)
    _, first, second = run(3, failing_after_one_has_left, setting=setting)
    assert "rank 0 passed 40 bytes, and rank 1 expected 44" in first
    assert "rank 0 passed 40 bytes, and rank 1 expected 44" in second
    with node.connect() as client:
        await_that("everything is deleted", lambda: not list(client.list()))


def interrupted(rank: int) -> str | None:
    dist.barrier()
    if rank == 1:
        return error_of(lambda: dist.recv(torch.ones(10), 0))
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])

    def receive() -> None:
        timer.start()
        dist.recv(torch.ones(10), 1)

    with pytest.raises(KeyboardInterrupt):
        receive()
    dist.distributed_c10d._abort_process_group()
    return None


def test_a_wait_can_be_interrupted(node: Cluster) -> None:
    _, said = run(2, interrupted, setting=Setting(sockets=node.sockets * 2, timeout=NEVER))
    assert "rank 0 has aborted it" in said


def forgetful(rank: int) -> str | None:
    dist.barrier()
    dist.distributed_c10d.set_timeout(timedelta(seconds=3), dist.group.WORLD)
    if rank != 2:
        return error_of(lambda: dist.all_reduce(torch.ones(10)))
    with hoplite.connect() as client:
        await_that(
            "somebody gives up",
            lambda: any("/end/" in str(info.id) for info in client.list("torch/")),
        )
    return error_of(lambda: dist.all_reduce(torch.ones(10)))


def test_a_timeout_says_who_is_missing(node: Cluster) -> None:
    said = run(3, forgetful, setting=Setting(sockets=node.sockets * 3))
    assert all("timeout after 3 s" in text for text in said), said
    assert any(re.search(r"nothing has come from rank ([01], )*2\b", text) for text in said[:2]), (
        said
    )


def own_timeouts(rank: int) -> None:
    if rank == 0:
        work = dist.irecv(torch.ones(1), 1)
        said = error_of(lambda: work.wait(timedelta(milliseconds=10)))
        assert "not done within 0.01 s" in said
        dist.distributed_c10d.set_timeout(timedelta(milliseconds=50))
        said = error_of(lambda: dist.recv(torch.ones(1), 1, tag=2))
        assert "recv from rank 1" in said
        assert "timeout after 0.05 s" in said
        dist.distributed_c10d.set_timeout(timedelta(seconds=60))
    dist.barrier()


def test_timeouts_of_receives() -> None:
    run(2, own_timeouts)


def receiving_again(rank: int) -> None:
    from datetime import timedelta

    if rank == 0:
        dist.distributed_c10d.set_timeout(timedelta(milliseconds=50))
        for work in [dist.irecv(torch.zeros(1), 1) for _ in range(2)]:
            error_of(work.wait)
        dist.distributed_c10d.set_timeout(timedelta(seconds=60))
    dist.barrier()
    for number in (1.0, 2.0, 3.0):
        tensor = torch.full((1,), number if rank == 1 else 0.0)
        if rank == 1:
            dist.send(tensor, 0)
        else:
            dist.recv(tensor, 1)
        assert tensor.item() == number


def test_a_receive_that_failed_leaves_the_message_to_the_next_one() -> None:
    run(2, receiving_again)


def disagreeing(rank: int, size: int) -> str:
    tensor = torch.ones(size, dtype=torch.float32 if rank else torch.float64)
    return error_of(lambda: dist.all_reduce(tensor))


@pytest.mark.parametrize("size", [10, 100_000])
def test_ranks_that_disagree_on_the_type(node: Cluster, size: int) -> None:
    said = run(3, disagreeing, size, setting=Setting(sockets=node.sockets * 3, timeout=NEVER))
    assert any("f64" in text for text in said), said


def wrong_size(rank: int) -> str | None:
    def call() -> None:
        dist.broadcast(torch.ones(10 + rank), 0)
        dist.barrier()

    return error_of(call)


def test_ranks_that_disagree_on_the_size(node: Cluster) -> None:
    said = run(2, wrong_size, setting=Setting(sockets=node.sockets * 2, timeout=NEVER))
    assert all("rank 0 passed 40 bytes, and rank 1 expected 44" in text for text in said), said


def aborted(rank: int) -> str:
    if rank == 0:
        work = dist.irecv(torch.ones(1), 1)
        waiting = dist.all_reduce(torch.ones(1), async_op=True)
        dist.distributed_c10d._abort_process_group()
        assert "rank 0 has aborted it" in error_of(work.wait)
        return error_of(waiting.wait)
    return error_of(lambda: dist.recv(torch.ones(1), 0))


def test_abort(node: Cluster) -> None:
    said = run(2, aborted, setting=Setting(sockets=node.sockets * 2, timeout=NEVER))
    assert all("rank 0 has aborted it" in text for text in said), said


def aborted_by_one(rank: int) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    with hoplite.connect() as client:
        # A group that aborts waits only a second for slower ranks.
        if rank == 0:
            client.get("rank 1 has its results", PATIENCE)
            dist.distributed_c10d._abort_process_group()
            return
        client.put("rank 1 has its results", b"")
        await_that(
            "rank 0 has left",
            lambda: any(str(info.id).endswith("/done/0") for info in client.list("torch/")),
        )
        await_that(
            "rank 0 has deleted what it had put",
            lambda: not any(str(info.id).endswith("v0") for info in client.list("torch/")),
        )


def test_who_aborts_deletes_what_it_has_put(node: Cluster) -> None:
    run(2, aborted_by_one, setting=Setting(sockets=node.sockets * 2, timeout=NEVER))


def unsupported(rank: int) -> None:
    dense = torch.ones(3)
    for call, what in {
        (lambda: dist.all_reduce(dense, dist._make_nccl_premul_sum(2.0))): "not with PREMUL_SUM",
        (
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
        ): "AVG is not defined",
        (
            lambda: dist.all_reduce(dense.to(torch.float8_e4m3fn))
        ): "cannot reduce elements of type float8_e4m3fn",
        (lambda: dist.all_reduce(dense.to_sparse(), dist.ReduceOp.MAX)): "support SUM only",
        (lambda: dist.all_gather_into_tensor(torch.ones(3), dense)): "the output has 3 elements",
    }.items():
        with pytest.raises((NotImplementedError, TypeError, ValueError, RuntimeError), match=what):
            call()
    dist.all_reduce(dense)
    assert dense.tolist() == [2.0] * 3


def test_what_is_not_supported() -> None:
    run(2, unsupported)


def forking(rank: int) -> None:
    dist.barrier()
    child = os.fork()
    if child == 0:
        try:
            dist.barrier()
        except hoplite.ForkedChild:
            os._exit(17)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    dist.barrier()


def test_a_forked_child_is_told() -> None:
    run(2, forking)


def sockets_of(rank: int) -> str:
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    return str(backend._group.link.socket)


def test_the_store_that_runs_is_used(node: Cluster) -> None:
    assert run(2, sockets_of, setting=Setting(sockets=node.sockets * 2)) == node.sockets * 2


def test_a_rank_without_a_store_uses_that_of_its_node(node: Cluster) -> None:
    assert run(2, sockets_of, setting=Setting(sockets=[None, node.sockets[0]])) == node.sockets * 2


def test_a_private_store_is_shared_and_ends_with_the_group() -> None:
    sockets = run(3, sockets_of)
    assert len(set(sockets)) == 1
    await_that("it is gone", lambda: not Path(sockets[0]).exists())


def lingering(rank: int) -> float:
    tensor = torch.full((1000,), float(rank))
    if rank == 1:
        time.sleep(0.5)
    dist.broadcast(tensor, 0)
    return float(tensor[0])


def test_the_store_outlives_those_who_still_need_it() -> None:
    assert run(2, lingering) == [0.0, 0.0]


def test_stores_that_do_not_know_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Cluster(tmp_path / "a", 1, "16MiB") as one, Cluster(tmp_path / "b", 1, "16MiB") as other:
        setting = Setting(sockets=[*one.sockets, *other.sockets], timeout=10.0)
        with pytest.raises(AssertionError, match="does not see the objects of rank 0"):
            run(2, strangers, setting=setting)


def strangers(rank: int) -> None:
    dist.barrier()


def test_a_socket_where_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="rank 1 has no store"):
        run(2, strangers, setting=Setting(sockets=[None, str(tmp_path / "nobody.sock")]))
