"""Torch backend: checks arguments, and lends tensors to collectives."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend
from torch.distributed.distributed_c10d import Store

from hoplite._group import link as links
from hoplite._group import schedules
from hoplite._group.member import Group
from hoplite._group.operation import ANY, Operation
from hoplite._group.round import Round, at_once
from hoplite.errors import Timeout
from hoplite.torch import _sparse
from hoplite.torch._member import Member
from hoplite.torch._rendezvous import agree
from hoplite.torch._tensors import Lent, average, check_same_dtype, reduction_of, split, split_rows
from hoplite.torch._work import Work


def create(options: Any, _backend_options: object) -> C10DBackend | dist.ProcessGroup:
    if options.enable_reconfigure:
        from hoplite.torch._reconfigure import create_reconfigurable

        return create_reconfigurable(options)
    return _create(
        options.store, options.group_rank, options.group_size, options.group_id, options.timeout
    )


def _create(store: Store, rank: int, size: int, name: str, timeout: timedelta) -> HopliteBackend:
    agreement = agree(store, rank, size, timeout)
    link = links.acquire(agreement.socket, "hoplite.torch")
    try:
        prefixes = [agreement.prefix] * size
        group = Group(link, prefixes, name, rank, failed, agreement.neighbours)
    except BaseException:
        link.release()
        raise
    if not agreement.is_shared:
        try:
            group.hello(timeout.total_seconds())
        except BaseException as error:
            group.abort(str(error))
            raise
    return HopliteBackend(group, rank, size, timeout)


class HopliteBackend(Member):
    # torch 2.15 recurses for ever without this flag.
    supports_coalescing = False
    supports_splitting = True
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = False

    def split(self, store: Store, ranks: list[int], options: C10DBackend.Options) -> C10DBackend:
        """Makes a subgroup. torch calls this on all ranks of this group."""
        if self._rank not in ranks:
            # torch 2.15 crashes if a backend returns None.
            raise NotImplementedError(
                "split_group of the hoplite backend has to name every rank, "
                f"and rank {self._rank} is in none of the groups: use new_group"
            )
        return _create(
            store, ranks.index(self._rank), len(ranks), options.group_name, options._timeout
        )

    # Collectives of one tensor per rank

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Work:
        return self._allreduce("allreduce", [self._only(tensors)], options)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], options: Any) -> Work:
        return self._allreduce("allreduce_coalesced", tensors, options)

    def _allreduce(self, name: str, tensors: list[torch.Tensor], options: Any) -> Work:
        if any(tensor.layout is torch.sparse_coo for tensor in tensors):
            return self._allreduce_sparse(self._only(tensors), options)
        reductions = [reduction_of(tensor, options.reduceOp) for tensor in tensors]
        lent = [Lent(tensor, is_read=True, is_written=True) for tensor in tensors]

        async def run(round: Round) -> None:
            await at_once(
                *(
                    schedules.allreduce(round, memory.array(reduction), reduction.op, part)
                    for memory, reduction, part in zip(
                        lent, reductions, _parts(len(tensors)), strict=True
                    )
                )
            )
            for memory in lent:
                self._average(memory.tensor, options)
                memory.give_back()

        nbytes = 2 * sum(memory.nbytes for memory in lent)
        return self._issue(name, run, tensors, options, meets=True, nbytes=nbytes)

    def allreduce_sparse(self, tensors: list[torch.Tensor], options: Any) -> Work:
        return self._allreduce_sparse(self._only(tensors), options)

    def _allreduce_sparse(self, tensor: torch.Tensor, options: Any) -> Work:
        if options.reduceOp.op != dist.ReduceOp.SUM:
            raise NotImplementedError(
                f"sparse tensors support SUM only, not {options.reduceOp.op.name}"
            )

        async def run(round: Round) -> None:
            await _sparse.allreduce(round, tensor)

        return self._issue("allreduce of sparse tensors", run, [tensor], options, meets=True)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        tensor, root = self._only(tensors), options.rootRank
        is_root = root == self._rank
        lent = Lent(tensor, is_read=is_root, is_written=not is_root)

        async def run(round: Round) -> None:
            await schedules.broadcast(round, root, lent.buffer)
            lent.give_back()

        return self._issue("broadcast", run, tensors, options, nbytes=lent.nbytes)

    def reduce(self, tensors: list[torch.Tensor], options: Any) -> Work:
        tensor, root = self._only(tensors), options.rootRank
        reduction = reduction_of(tensor, options.reduceOp)
        lent = Lent(tensor, is_read=True, is_written=root == self._rank)

        async def run(round: Round) -> None:
            await schedules.reduce(round, root, lent.array(reduction), reduction.op)
            if root == self._rank:
                self._average(lent.tensor, options)
                lent.give_back()

        return self._issue("reduce", run, tensors, options, nbytes=lent.nbytes * (self._size + 1))

    def barrier(self, options: Any) -> Work:
        return self._issue("barrier", schedules.meet, [], options, meets=True)

    def monitored_barrier(self, options: Any, wait_all_ranks: bool) -> None:
        """Waits for all ranks. The error names all missing ones, whatever `wait_all_ranks`."""
        milliseconds = self._timeout_of(options) / timedelta(milliseconds=1)

        async def run(round: Round) -> None:
            try:
                await schedules.meet(round)
            except Timeout:
                missing = await round.missing()
                ranks = f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                raise dist.DistBackendError(
                    f"Rank {self._rank} timed out in monitoredBarrier: "
                    f"{ranks} failed to pass monitoredBarrier in {milliseconds:g} ms"
                ) from None

        self._issue("barrier", run, [], options, meets=True).wait()

    # Collectives that gather

    def allgather(
        self, outs: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        tensor, parts = self._only(tensors), self._for_each_rank(self._only(outs))
        return self._allgather("allgather", [(tensor, parts)], [*parts], options)

    def allgather_coalesced(
        self, outs: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        parts = [list(of_ranks) for of_ranks in zip(*self._for_each_rank(outs), strict=True)]
        pairs = list(zip(tensors, parts, strict=True))
        return self._allgather(
            "allgather_coalesced", pairs, [t for of_rank in outs for t in of_rank], options
        )

    def all_gather_single(self, out: torch.Tensor, tensor: torch.Tensor, options: Any) -> Work:
        return self._all_gather_single("all_gather_single", [out], [tensor], options)

    def all_gather_single_coalesced(
        self, outs: list[torch.Tensor], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        return self._all_gather_single("all_gather_single_coalesced", outs, tensors, options)

    def _all_gather_single(
        self, name: str, outs: list[torch.Tensor], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        pairs = []
        for out, tensor in zip(outs, tensors, strict=True):
            check_same_dtype(out, tensor)
            if out.numel() != tensor.numel() * self._size:
                raise ValueError(
                    f"the output has {out.numel()} elements, and {self._size} ranks with {tensor.numel()} each contribute"
                )
            pairs.append((tensor, [out]))
        return self._allgather(name, pairs, outs, options)

    def _allgather(
        self,
        name: str,
        pairs: list[tuple[torch.Tensor, list[torch.Tensor]]],
        results: list[torch.Tensor],
        options: Any,
    ) -> Work:
        inputs = [Lent(tensor, is_read=True) for tensor, _ in pairs]
        outs = [[Lent(out, is_written=True) for out in parts] for _, parts in pairs]
        wholes = [parts[0].buffer if len(parts) == 1 else None for parts in outs]
        rooms = [
            [part.buffer for part in parts] if whole is None else split(whole, self._size)
            for parts, whole in zip(outs, wholes, strict=True)
        ]

        async def run(round: Round) -> None:
            await at_once(
                *(
                    schedules.allgather(round, memory.buffer, room, part, whole)
                    for memory, room, part, whole in zip(
                        inputs, rooms, _parts(len(inputs)), wholes, strict=True
                    )
                )
            )
            _give_back(out for parts in outs for out in parts)

        nbytes = sum(memory.nbytes for memory in inputs)
        return self._issue(name, run, results, options, meets=True, nbytes=nbytes)

    def gather(
        self, outs: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        tensor, root = self._only(tensors), options.rootRank
        parts = self._for_each_rank(self._only(outs)) if root == self._rank else []
        lent = Lent(tensor, is_read=True)
        rooms = [Lent(part, is_written=True) for part in parts]

        async def run(round: Round) -> None:
            await schedules.gather(round, root, lent.buffer, [room.buffer for room in rooms])
            _give_back(rooms)

        return self._issue("gather", run, parts, options, nbytes=lent.nbytes * self._size)

    # Collectives that scatter

    def scatter(
        self, outs: list[torch.Tensor], tensors: list[list[torch.Tensor]], options: Any
    ) -> Work:
        out, root = self._only(outs), options.rootRank
        parts = self._for_each_rank(self._only(tensors)) if root == self._rank else []
        lent = Lent(out, is_written=True)
        contents = [Lent(part, is_read=True) for part in parts]

        async def run(round: Round) -> None:
            await schedules.scatter(round, root, [part.buffer for part in contents], lent.buffer)
            lent.give_back()

        return self._issue("scatter", run, outs, options, nbytes=lent.nbytes * self._size)

    def reduce_scatter(
        self, outs: list[torch.Tensor], tensors: list[list[torch.Tensor]], options: Any
    ) -> Work:
        out, parts = self._only(outs), self._for_each_rank(self._only(tensors))
        for part in parts:
            check_same_dtype(out, part)
        if out.numel() != parts[self._rank].numel():
            raise ValueError(
                f"the output has {out.numel()} elements, and the input for this rank {parts[self._rank].numel()}"
            )
        whole = torch.cat([part.detach().reshape(-1) for part in parts])
        sizes = [part.numel() * part.element_size() for part in parts]
        return self._reduce_scatter("reduce_scatter", [(out, whole, sizes)], outs, options)

    def reduce_scatter_single(self, out: torch.Tensor, tensor: torch.Tensor, options: Any) -> Work:
        return self._reduce_scatter_single("reduce_scatter_single", [out], [tensor], options)

    def reduce_scatter_single_coalesced(
        self, outs: list[torch.Tensor], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        return self._reduce_scatter_single(
            "reduce_scatter_single_coalesced", outs, tensors, options
        )

    def _reduce_scatter_single(
        self, name: str, outs: list[torch.Tensor], tensors: list[torch.Tensor], options: Any
    ) -> Work:
        parts = []
        for out, tensor in zip(outs, tensors, strict=True):
            check_same_dtype(out, tensor)
            if tensor.numel() != out.numel() * self._size:
                raise ValueError(
                    f"the input has {tensor.numel()} elements, for {self._size} ranks that take {out.numel()} each"
                )
            parts.append((out, tensor, [out.numel() * out.element_size()] * self._size))
        return self._reduce_scatter(name, parts, outs, options)

    def _reduce_scatter(
        self,
        name: str,
        parts: list[tuple[torch.Tensor, torch.Tensor, list[int]]],
        results: list[torch.Tensor],
        options: Any,
    ) -> Work:
        reductions = [reduction_of(tensor, options.reduceOp) for _, tensor, _ in parts]
        inputs = [Lent(tensor, is_read=True) for _, tensor, _ in parts]
        outs = [Lent(out, is_written=True) for out, _, _ in parts]
        sizes = [part[2] for part in parts]

        async def run(round: Round) -> None:
            await at_once(
                *(
                    schedules.reduce_scatter(
                        round, lent.array(reduction), part_bytes, out.buffer, reduction.op, part
                    )
                    for lent, reduction, part_bytes, out, part in zip(
                        inputs, reductions, sizes, outs, _parts(len(outs)), strict=True
                    )
                )
            )
            for out in outs:
                self._average(out.tensor, options)
                out.give_back()

        nbytes = 2 * sum(memory.nbytes for memory in inputs)
        return self._issue(name, run, results, options, meets=True, nbytes=nbytes)

    def _average(self, tensor: torch.Tensor, options: Any) -> None:
        if options.reduceOp.op == dist.ReduceOp.AVG:
            average(tensor, self._size)

    # All to all

    def alltoall(self, outs: list[torch.Tensor], tensors: list[torch.Tensor], options: Any) -> Work:
        self._for_each_rank(outs)
        contents = [Lent(part, is_read=True) for part in self._for_each_rank(tensors)]
        rooms = [Lent(part, is_written=True) for part in outs]

        async def run(round: Round) -> None:
            await schedules.all_to_all(
                round, [part.buffer for part in contents], [room.buffer for room in rooms]
            )
            _give_back(rooms)

        nbytes = sum(part.nbytes for part in contents)
        return self._issue("alltoall", run, outs, options, meets=True, nbytes=nbytes)

    def all_to_all_single(
        self,
        out: torch.Tensor,
        tensor: torch.Tensor,
        out_sizes: list[int],
        sizes: list[int],
        options: Any,
    ) -> Work:
        check_same_dtype(out, tensor)
        contents, room = Lent(tensor, is_read=True), Lent(out, is_written=True)
        parts = split_rows(contents.buffer, tensor, sizes, self._size)
        rooms = split_rows(room.buffer, out, out_sizes, self._size)

        async def run(round: Round) -> None:
            await schedules.all_to_all(round, parts, rooms)
            room.give_back()

        return self._issue(
            "all_to_all_single", run, [out], options, meets=True, nbytes=contents.nbytes
        )

    # Messages

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Work:
        """The work ends when the store has the message."""
        lent = Lent(self._only(tensors), is_read=True)
        id = self._group.id_of_sent(destination, tag)

        async def run(round: Round) -> None:
            await round.put(id, lent.buffer)

        return self._issue_message(f"send to rank {destination}", run, tensors, id, lent.nbytes)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Work:
        lent = Lent(self._only(tensors), is_written=True)
        id = self._group.id_of_received(source, tag)

        async def run(round: Round) -> None:
            await round.get_into(id, lent.buffer, source)
            lent.give_back()

        return self._issue_message(
            f"recv from rank {source}", run, tensors, id, lent.nbytes, source
        )

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int) -> Work:
        """Receives a message for which no receive from a specific rank waits."""
        if self._size == 1:
            raise ValueError("there is no other rank to receive from")
        lent = Lent(self._only(tensors), is_written=True)

        async def run(round: Round) -> None:
            source = await self._group.match(round, operation)
            await round.get_into(operation.message, lent.buffer, source)
            lent.give_back()
            work.source = source

        work = Work("recv from any rank", tensors, self._group.link)
        timeout = self._options._timeout.total_seconds()
        operation = Operation(
            "recv from any rank", run, work.finish, timeout, nbytes=lent.nbytes, source=ANY, tag=tag
        )
        self._group.submit_message(operation)
        return work


def failed(message: str, _cause: BaseException | None) -> Exception:
    return dist.DistBackendError(message)


def _give_back(memories: Iterable[Lent]) -> None:
    for memory in memories:
        memory.give_back()


def _parts(count: int) -> list[str]:
    return [""] if count == 1 else [f"{index}." for index in range(count)]
