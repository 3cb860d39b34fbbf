"""Distributed checkpoints of torch in the stores, in place of files.

    import torch.distributed.checkpoint as dcp
    from hoplite.torch.checkpoint import HopliteReader, HopliteWriter

    dcp.save(state_dict, storage_writer=HopliteWriter("run-7"))
    dcp.load(state_dict, storage_reader=HopliteReader("run-7"))

A checkpoint is in memory, until the stores end, or `delete` or later checkpoints delete it.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future as ConcurrentFuture
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

import hoplite
from hoplite._group import link as links
from hoplite._pickles import check_pickle
from hoplite._timeouts import Deadline
from hoplite.errors import Timeout
from hoplite.torch._opened import opened
from hoplite.torch._state import Entry, bytes_of, copy_overlap, dtype_of
from hoplite.torch._versions import Turn, Version, Versions, Wanted, object_id
from hoplite.torch._writing import PUT_TIMEOUT, at_once

__all__ = ["HopliteReader", "HopliteWriter", "delete"]

_KIND = "checkpoints"
READ_TIMEOUT = 10.0
MAX_AT_ONCE = 8

Checkpoint = str | os.PathLike[str]
T = TypeVar("T")


class _Stored(NamedTuple):
    id: str
    dtype: str = ""
    """Empty for values other than tensors."""
    sizes: tuple[int, ...] = ()


class _Named:
    def __init__(
        self, name: Checkpoint, client: hoplite.Client | None, timeout: float | None
    ) -> None:
        self.name = os.fspath(name)
        self._client = client
        self._timeout = timeout

    def use(self, work: Callable[[links.Link, Versions], T]) -> T:
        with opened(self.name, self._client, _KIND) as (link, versions):
            return work(link, versions)

    def reset(self, checkpoint_id: Checkpoint | None = None) -> None:
        if checkpoint_id:
            self.name = os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Checkpoint) -> bool:
        return bool(os.fspath(checkpoint_id))


class HopliteWriter(_Named, StorageWriter):
    """Puts a checkpoint. `dcp.save` blocks until all parts are in the stores.

    Args:
        version: The name of this checkpoint, such as a step; `None` for the next number.
        keep: The number of complete checkpoints that stay.
        client: `None` for that of `hoplite.init`.
        timeout: Seconds for which each object may wait for room.

    Examples:
        >>> import torch.distributed.checkpoint as dcp
        >>> from hoplite.torch.checkpoint import HopliteWriter
        >>> saved = dcp.save({"weight": torch.ones(3)}, storage_writer=HopliteWriter("run"), no_dist=True)
    """

    def __init__(
        self,
        name: Checkpoint,
        *,
        version: Version | None = None,
        keep: int = 1,
        client: hoplite.Client | None = None,
        timeout: float | None = PUT_TIMEOUT,
    ) -> None:
        super().__init__(name, client, timeout)
        if keep < 1:
            raise ValueError(f"keep is at least 1, not {keep}")
        self._version, self._keep = version, keep
        self._turn: Turn | None = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if is_coordinator:
            self._turn = self.use(
                lambda link, versions: link.run(versions.announce(self._version, 1))
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        turn = self._announced()
        return [replace(plan, storage_data=object_id(turn, i)) for i, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []

        def put_all(link: links.Link, versions: Versions) -> None:
            def puts() -> Iterator[Coroutine[Any, Any, None]]:
                for index, item in enumerate(plan.items):
                    data, id = planner.resolve_data(item), f"{plan.storage_data}{index}"
                    if isinstance(data, torch.Tensor):
                        contents = bytes_of(data.detach())
                        stored = _Stored(
                            id, str(data.dtype).removeprefix("torch."), tuple(data.shape)
                        )
                    else:
                        contents, stored = data.getbuffer(), _Stored(id)
                    results.append(WriteResult(item.index, contents.nbytes, tuple(stored)))
                    yield versions.put(id, [contents] if contents.nbytes else [], self._timeout)

            at_once(link, puts())

        self.use(put_all)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        turn = self._announced()
        metadata.storage_data = {
            result.index: result.storage_data for of_rank in results for result in of_rank
        }
        contents = pickle.dumps(metadata)

        def tell(link: links.Link, versions: Versions) -> None:
            link.run(versions.put(object_id(turn, "metadata"), [contents], self._timeout))
            link.run(versions.finish(turn, 0))
            link.run(versions.forget_old(self._keep))

        self.use(tell)

    def _announced(self) -> Turn:
        if self._turn is None:
            raise RuntimeError("this is not the writer of the coordinator")
        return self._turn


class HopliteReader(_Named, StorageReader):
    """Gets a checkpoint: the newest complete one, or `version`. `dcp.load` blocks until it is here.

    Args:
        client: `None` for that of `hoplite.init`.
        timeout: Seconds to wait for the checkpoint.

    Examples:
        >>> import torch.distributed.checkpoint as dcp
        >>> from hoplite.torch.checkpoint import HopliteReader, HopliteWriter
        >>> saved = dcp.save({"weight": torch.ones(3)}, storage_writer=HopliteWriter("run"), no_dist=True)
        >>> state = {"weight": torch.zeros(3)}
        >>> dcp.load(state, storage_reader=HopliteReader("run"), no_dist=True)
        >>> state["weight"]
        tensor([1., 1., 1.])
    """

    def __init__(
        self,
        name: Checkpoint,
        *,
        version: Version | None = None,
        client: hoplite.Client | None = None,
        timeout: float | None = READ_TIMEOUT,
    ) -> None:
        super().__init__(name, client, timeout)
        self._version = version
        self._stored: dict[MetadataIndex, tuple[Any, ...]] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        deadline = Deadline(self._timeout)

        def find(link: links.Link, versions: Versions) -> Metadata:
            wanted = Wanted(self._version, is_complete=True)
            turn = link.run(versions.find(wanted, deadline))
            id = object_id(turn, "metadata")
            view = link.run(versions.get(id, deadline.left()))
            check_pickle(versions.allow_pickle, id)
            metadata: Metadata = pickle.loads(view.tobytes())
            return metadata

        return self.use(find)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self._stored = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        def get_all(link: links.Link, versions: Versions) -> None:
            coming: list[tuple[Any, ConcurrentFuture[Any]]] = []
            items = iter(plan.items)
            while True:
                while len(coming) < MAX_AT_ONCE and (item := next(items, None)) is not None:
                    id = _Stored(*self._stored[item.storage_index]).id
                    get = asyncio.run_coroutine_threadsafe(versions.get(id, PUT_TIMEOUT), link.loop)
                    coming.append((item, get))
                if not coming:
                    return
                item, get = coming.pop(0)
                self._load(item, get.result(), planner)

        try:
            self.use(get_all)
        except Timeout as error:
            raise Timeout(
                f"checkpoint {self.name!r} was deleted, or did not arrive within {PUT_TIMEOUT:g} s: {error}"
            ) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _load(self, item: Any, view: Any, planner: LoadPlanner) -> None:
        if item.type is LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(view.tobytes()))
            return
        stored = _Stored(*self._stored[item.storage_index])
        target = planner.resolve_tensor(item).detach()
        contents = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        source = Entry((), stored.dtype, stored.sizes, (0,) * len(stored.sizes), stored.sizes)
        wanted = source._replace(offsets=tuple(item.storage_offsets), sizes=tuple(item.lengths))
        dtype = dtype_of(stored.dtype)
        if target.dtype is dtype:
            copy_overlap(source, contents, wanted, target)
        else:
            # Converts to the reader's dtype, as checkpoints in files do.
            part = torch.empty(wanted.sizes, dtype=dtype)
            copy_overlap(source, contents, wanted, part)
            target.copy_(part)
        planner.commit_tensor(item, target)


def delete(name: Checkpoint, *, client: hoplite.Client | None = None) -> None:
    """Deletes all checkpoints of a name. Blocks until they are gone.

    Examples:
        >>> from hoplite.torch import checkpoint
        >>> checkpoint.delete("run")
    """

    def forget(link: links.Link, versions: Versions) -> None:
        for turn in link.run(versions.known()).begun:
            link.run(versions.delete(turn))

    _Named(name, client, None).use(forget)
