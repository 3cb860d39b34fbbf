"""Sum of sparse tensors."""

from __future__ import annotations

import torch

from hoplite._group.round import Round, at_once
from hoplite._group.schedules import allgather
from hoplite.torch._tensors import Lent


async def allreduce(round: Round, tensor: torch.Tensor) -> None:
    """Sums tensors of one shape: gathers their counts, and then all elements."""
    own = tensor.detach().coalesce()
    about = torch.tensor([own._nnz(), own.sparse_dim(), *own.shape])
    abouts = [torch.empty_like(about) for _ in range(round.size)]
    await _gather(round, about, abouts, "n")
    for rank, other in enumerate(abouts):
        if not torch.equal(other[1:], about[1:]):
            raise ValueError(
                f"rank {rank} passed a sparse tensor of the shape {other[2:].tolist()}, "
                f"and rank {round.rank} one of {about[2:].tolist()}"
            )
    counts = [int(other[0]) for other in abouts]
    indices = [own.indices().new_empty((own.sparse_dim(), count)) for count in counts]
    values = [own.values().new_empty((count, *own.values().shape[1:])) for count in counts]
    await at_once(
        _gather(round, own.indices(), indices, "i"), _gather(round, own.values(), values, "v")
    )
    total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), own.shape)
    with torch.no_grad():
        tensor.copy_(total.coalesce())


async def _gather(round: Round, own: torch.Tensor, rooms: list[torch.Tensor], part: str) -> None:
    outs = [Lent(room, is_written=True).buffer for room in rooms]
    await allgather(round, Lent(own, is_read=True).buffer, outs, part)
