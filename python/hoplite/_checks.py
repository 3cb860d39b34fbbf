"""Checks ids and values before a call sends anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeVar

from hoplite import _serialize
from hoplite._serialize import Described, Encoded, Framework, Layout
from hoplite.errors import InvalidRequest, TypeMismatch
from hoplite.ref import Ref, key

#: A `str` stands for its UTF-8 bytes.
Id = str | bytes | Ref[Any]
AnyId = TypeVar("AnyId", str, bytes, Ref[Any], str | bytes | Ref[Any])
Op = Literal["sum", "min", "max", "prod"]
TtlAction = Literal["delete", "free"]


def text(id: Id) -> str | bytes:
    return id.id if isinstance(id, Ref) else id


def listed(ids: Iterable[AnyId]) -> list[AnyId]:
    if isinstance(ids, (str, bytes, Ref)):
        raise TypeError("expected several ids, such as a list of them, not one")
    return list(ids)


def lifetime_of(
    owner: str | None, ttl: float | None, ttl_action: TtlAction
) -> tuple[str | None, float | None, TtlAction] | None:
    if owner is None and ttl is None and ttl_action == "delete":
        return None
    return owner, ttl, ttl_action


def owners_of(owner: str | Iterable[str]) -> list[str]:
    return [owner] if isinstance(owner, str) else list(owner)


def several(ids: Id | Iterable[Id]) -> list[Id]:
    return [ids] if isinstance(ids, (str, bytes, Ref)) else list(ids)


def own_id(sources: list[Id], rank: int) -> Id:
    check_rank(rank, len(sources))
    return sources[rank]


def needs_quorum(if_absent: str | None) -> bool:
    if if_absent not in (None, "quorum"):
        raise ValueError(f'if_absent must be "quorum" or None, not {if_absent!r}')
    return if_absent is not None


def check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank} among {size} participants")


def as_given(ids: list[str | bytes], given: list[AnyId]) -> list[AnyId]:
    by_key = {key(id): id for id in given}
    return [by_key[key(id)] for id in ids]


def divide(ids: list[AnyId], chosen: list[int]) -> tuple[list[AnyId], list[AnyId]]:
    indices = set(chosen)
    left = [id for index, id in enumerate(ids) if index not in indices]
    return [ids[index] for index in chosen], left


def check_framework(framework: Framework) -> None:
    if framework not in (None, "numpy", "torch", "jax"):
        raise ValueError(f'a framework is "numpy", "torch" or "jax", not {framework!r}')


def check_reducible(encoded: Encoded) -> None:
    if encoded.dtype == "opaque":
        raise TypeError("only arrays of numbers can be reduced")


def check_op(id: Id, encoded: Encoded, op: Op) -> None:
    if encoded.dtype == "bool" and op in ("sum", "prod"):
        reason = f"{op} is not defined for elements of type bool"
        raise TypeMismatch(
            f"object {text(id)!r} cannot be reduced: {reason}", id=text(id), reason=reason
        )


def check_layout(id: Id, described: _serialize.Described, wanted: Layout) -> None:
    found = _serialize.layout(described, "torch" if wanted.kind == "tensor" else "numpy", text(id))
    if (found.kind, found.dtype, found.shape) != (wanted.kind, wanted.dtype, wanted.shape):
        reason = f"it is {_describe(found)}, to be copied into {_describe(wanted)}"
        raise TypeMismatch(
            f"object {text(id)!r} does not fit: {reason}", id=text(id), reason=reason
        )


class Part(NamedTuple):
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    user: bytes


def all_of(id: Id, described: Described, count: int) -> Described:
    return described


def part_of(id: Id, described: Described, count: int) -> Described:
    shape = described.shape
    if not shape or shape[0] % count:
        what = "an object without a shape" if shape is None else f"an array of shape {list(shape)}"
        reason = f"{what} cannot be divided along its first axis among {count} participants"
        raise InvalidRequest(
            f"object {text(id)!r} cannot be scattered: {reason}", id=text(id), reason=reason
        )
    part = (shape[0] // count, *shape[1:])
    return Part(described.nbytes // count, described.dtype, part, described.user)


def check_gathered(id: Id, described: Described, count: int, wanted: Layout) -> None:
    if wanted.kind == "buffer":
        return
    found = _serialize.layout(described, "torch" if wanted.kind == "tensor" else "numpy", text(id))
    shapes = [(count, *found.shape)]
    if found.shape:
        shapes.append((count * found.shape[0], *found.shape[1:]))
    if (found.kind, found.dtype) != (wanted.kind, wanted.dtype) or wanted.shape not in shapes:
        reason = (
            f"it is {_describe(found)}, of which {count} are to be copied into {_describe(wanted)}"
        )
        raise TypeMismatch(
            f"object {text(id)!r} does not fit: {reason}", id=text(id), reason=reason
        )


def _describe(layout: Layout) -> str:
    if layout.kind in ("array", "tensor", "jax"):
        return f"{layout.dtype}{list(layout.shape)}"
    others = {"bytes": "bytes", "buffer": "bytes", "arrow": "a value of Arrow"}
    return others.get(layout.kind, "a pickle")
