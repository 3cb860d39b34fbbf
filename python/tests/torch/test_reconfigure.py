from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra of several gigabytes")

import ranks  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ranks import Setting  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402

from stores import Cluster  # noqa: E402

TIMEOUT = timedelta(seconds=60)


class Rank:
    def __init__(self, rank: int, directory: Path, size: int) -> None:
        self.rank, self.size = rank, size
        self.store = dist.FileStore(str(directory / "handles"), size)
        self.backend: Any = dist.get_backend_impl(c10d._get_default_group(), torch.device("cpu"))
        assert dist._supports_reconfigure()
        assert self.backend.supports_reconfigure

    def handles(self, when: str) -> list[str]:
        self.store.set(f"{when}/{self.rank}", dist._get_reconfigure_handle())
        return [self.store.get(f"{when}/{rank}").decode() for rank in range(self.size)]

    def all_are_here(self, when: str) -> None:
        self.store.set(f"here/{when}/{self.rank}", "")
        for rank in range(self.size):
            self.store.get(f"here/{when}/{rank}")

    @staticmethod
    def reconfigure(uuid: int, handles: Any) -> None:
        dist._reconfigure(uuid, handles, timeout=TIMEOUT).wait()

    @staticmethod
    def check(rank: int, size: int) -> None:
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        tensor = torch.full((4,), rank + 1.0)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((4,), size * (size + 1) / 2))
        sent = torch.full((3,), float(rank))
        dist.broadcast(sent, group_src=size - 1)
        assert torch.equal(sent, torch.full((3,), size - 1.0))


def _all(me: Rank) -> None:
    for uuid in (1, 2):
        me.reconfigure(uuid, me.handles(f"{uuid}"))
        me.check(me.rank, me.size)


def _messages(me: Rank) -> None:
    me.reconfigure(1, me.handles("first"))
    to, source = (me.rank + 1) % me.size, (me.rank - 1) % me.size
    received = torch.zeros(4)
    sending = me.backend.send([torch.full((4,), float(me.rank))], to, 0)
    me.backend.recv([received], source, 0).wait()
    sending.wait()
    assert torch.equal(received, torch.full((4,), float(source)))


def _without(me: Rank, excluded: int) -> None:
    me.reconfigure(1, me.handles("first"))
    me.check(me.rank, me.size)
    handles = me.handles("second")
    if me.rank != excluded:
        del handles[excluded]
        me.reconfigure(2, handles)
        me.check(me.rank - (me.rank > excluded), me.size - 1)
    me.all_are_here("end")


def _without_last(me: Rank) -> None:
    _without(me, me.size - 1)


def _without_middle(me: Rank) -> None:
    _without(me, 1)


def _alone_and_together(me: Rank) -> None:
    me.reconfigure(10 + me.rank, [dist._get_reconfigure_handle()])
    me.check(0, 1)
    me.reconfigure(1, me.handles("together"))
    me.check(me.rank, me.size)
    me.reconfigure(20 + me.rank, [dist._get_reconfigure_handle()])
    me.check(0, 1)
    me.all_are_here("end")


def _late(me: Rank) -> None:
    handles = me.handles("first")
    if me.rank < 2:
        me.reconfigure(1, handles[:2])
        me.check(me.rank, 2)
    me.reconfigure(2, me.handles("all"))
    me.check(me.rank, me.size)


def _split_and_merge(me: Rank) -> None:
    handles = me.handles("first")
    if me.rank < 1:
        me.reconfigure(1, handles[:1])
        me.check(0, 1)
    else:
        me.reconfigure(2, handles[1:])
        me.check(me.rank - 1, me.size - 1)
    me.reconfigure(3, me.handles("all"))
    me.check(me.rank, me.size)


def _abort(me: Rank) -> None:
    me.reconfigure(1, me.handles("first"))
    me.check(me.rank, me.size)
    me.all_are_here("checked")
    me.backend.abort()
    assert me.backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
    with pytest.raises(dist.DistBackendError, match="cannot be done in group"):
        dist.all_reduce(torch.ones(1))
    me.reconfigure(2, me.handles("again"))
    me.check(me.rank, me.size)


def _a_set(me: Rank) -> None:
    me.reconfigure(1, set(me.handles("first")))
    me.check(dist.get_rank(), me.size)


def _mistakes(me: Rank) -> None:
    with pytest.raises(dist.DistBackendError, match="has no members yet: reconfigure it first"):
        dist.all_reduce(torch.ones(1))
    own = dist._get_reconfigure_handle()
    me.reconfigure(me.rank, [own])
    with pytest.raises(RuntimeError, match=f"the uuid {me.rank} was already used"):
        me.reconfigure(me.rank, [own])
    handles = me.handles("first")
    with pytest.raises(RuntimeError, match="the handles do not contain the handle of this rank"):
        me.reconfigure(10, [handle for handle in handles if handle != own])
    with pytest.raises(RuntimeError, match="the handles contain a handle twice"):
        me.reconfigure(10, [own, own])
    with pytest.raises(RuntimeError, match="this is no handle of the hoplite backend: 'nonsense'"):
        me.reconfigure(10, [own, "nonsense"])
    me.check(0, 1)
    me.all_are_here("end")


def _killed(me: Rank) -> None:
    me.reconfigure(1, me.handles("first"))
    me.check(me.rank, me.size)
    me.all_are_here("checked")
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError, match="rank 1 is gone"):
        dist.all_reduce(torch.ones(1))
    me.size = 2
    me.rank = me.rank // 2
    me.reconfigure(2, me.handles("second"))
    me.check(me.rank, 2)


def _one_does_not_come(me: Rank) -> None:
    handles = me.handles("first")
    if me.rank < 2:
        # Rank 0 gives up, and tells rank 1, which may be late too.
        timeout = timedelta(seconds=1) if me.rank == 0 else TIMEOUT
        with pytest.raises(RuntimeError, match=r"nothing has come from rank ([01], )*2\b"):
            dist._reconfigure(1, handles, timeout=timeout).wait()
    me.all_are_here("end")


CASES: dict[str, Callable[[Rank], None]] = {
    case.__name__: case
    for case in (
        _all,
        _messages,
        _without_last,
        _without_middle,
        _alone_and_together,
        _late,
        _split_and_merge,
        _abort,
        _a_set,
        _mistakes,
        _killed,
        _one_does_not_come,
    )
}


def _be(rank: int, case: str, directory: Path, size: int) -> None:
    CASES[case](Rank(rank, directory, size))


@pytest.mark.parametrize("case", CASES)
def test_a_group_whose_members_change(cluster: Cluster, tmp_path: Path, case: str) -> None:
    setting = Setting(cluster.sockets, options={"enable_reconfigure": True})
    ranks.run(3, _be, case, tmp_path, 3, setting=setting)


def test_with_a_private_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    setting = Setting(environment=environment, options={"enable_reconfigure": True})
    ranks.run(3, _be, "_without_last", tmp_path, 3, setting=setting)
