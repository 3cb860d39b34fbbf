"""Prepares tensors for collectives, and finishes them afterwards."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from hoplite._dtypes import NAMES_OF_TORCH
from hoplite._group.round import Buffer, GroupOp
from hoplite._memory import memory_of

_OPS: dict[Any, GroupOp] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "sum",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "and",
    dist.ReduceOp.BOR: "or",
    dist.ReduceOp.BXOR: "xor",
}
#: Operations for bool, as in NCCL: a sum is true if any element is.
_OPS_OF_BOOL: dict[GroupOp, GroupOp] = {"sum": "max", "prod": "min"}
NO_SPARSE = "the hoplite backend has no sparse tensors: make them dense first"


class Reduction(NamedTuple):
    dtype: str
    op: GroupOp


class Lent:
    """Lends a collective the memory of a tensor, or of a copy if it is not contiguous."""

    def __init__(
        self, tensor: torch.Tensor, *, is_read: bool = False, is_written: bool = False
    ) -> None:
        if tensor.layout is not torch.strided:
            raise NotImplementedError(NO_SPARSE)
        if tensor.device.type != "cpu":
            raise NotImplementedError(
                f'the hoplite backend has tensors on the CPU only, not on {tensor.device}: initialise with "cpu:hoplite,'
                f'{tensor.device.type}:..." to leave those to another one'
            )
        if tensor.is_quantized:
            raise NotImplementedError("the hoplite backend has no quantized tensors")
        self._given = tensor.detach()
        is_plain = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        if is_plain:
            self.tensor = self._given
        elif is_read:
            self.tensor = self._given.resolve_conj().resolve_neg().contiguous()
        else:
            self.tensor = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._is_copy = not is_plain
        self.nbytes = tensor.numel() * tensor.element_size()
        self.buffer = Buffer(memory_of(self.tensor, torch))

    def array(self, reduction: Reduction) -> Buffer:
        return Buffer(self.buffer.memory, reduction.dtype, (self.tensor.numel(),))

    def give_back(self) -> None:
        if self._is_copy:
            self._given.copy_(self.tensor)


def reduction_of(tensor: torch.Tensor, op: Any) -> Reduction:
    if op.op not in _OPS:
        raise NotImplementedError(
            "the hoplite backend reduces with SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR, "
            f"not with {op.op.name}"
        )
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = NAMES_OF_TORCH.get(name)
    if dtype is None:
        raise NotImplementedError(f"the hoplite backend cannot reduce elements of type {name}")
    if op.op == dist.ReduceOp.AVG and dtype == "bool":
        raise TypeError(
            "AVG is not defined for elements of type bool, as in the NCCL backend: use SUM"
        )
    of_numbers = _OPS[op.op]
    if of_numbers in ("and", "or", "xor") and tensor.dtype.is_floating_point:
        raise ValueError(f"{op.op.name} is not defined for elements of type {name}")
    return Reduction(
        dtype, _OPS_OF_BOOL.get(of_numbers, of_numbers) if dtype == "bool" else of_numbers
    )


def average(sums: torch.Tensor, count: int) -> None:
    """Divides the sums in place. Integer quotients truncate toward zero, as in NCCL."""
    dtype = sums.dtype
    if dtype.is_floating_point:
        sums.div_(count)
    elif dtype.is_signed:
        wide = sums if count <= torch.iinfo(dtype).max else sums.long()
        sums.copy_(wide.div_(count, rounding_mode="trunc"))
    else:
        # torch cannot divide wide unsigned integers.
        array = sums.numpy()
        np.floor_divide(array, np.uint64(count), out=array, dtype=np.uint64, casting="unsafe")


def check_same_dtype(out: torch.Tensor, tensor: torch.Tensor) -> None:
    if out.dtype != tensor.dtype:
        raise ValueError(f"the output is of {out.dtype}, the input of {tensor.dtype}")


def split(buffer: Buffer, count: int) -> list[Buffer]:
    return _divide(buffer, [buffer.nbytes // count] * count)


def split_rows(buffer: Buffer, tensor: torch.Tensor, rows: list[int], count: int) -> list[Buffer]:
    total = tensor.shape[0] if tensor.dim() else 1
    if not rows:
        if total % count:
            raise ValueError(f"{total} rows cannot be divided among {count} ranks")
        return split(buffer, count)
    if len(rows) != count or sum(rows) != total:
        raise ValueError(f"the sizes {rows} do not divide {total} rows among {count} ranks")
    row_bytes = buffer.nbytes // total if total else 0
    return _divide(buffer, [length * row_bytes for length in rows])


def _divide(buffer: Buffer, sizes: list[int]) -> list[Buffer]:
    ends = list(accumulate(sizes))
    return [Buffer(buffer.memory[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
