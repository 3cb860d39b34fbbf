"""The native half of the package; private."""

from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from os import PathLike
from typing import Any, Literal, final

from hoplite.ref import Ref

__all__ = [
    "BUILD",
    "VERSION",
    "AsyncClient",
    "Client",
    "Mailbox",
    "Progress",
    "Reader",
    "Span",
    "View",
    "Writer",
    "check_allreduce",
    "connect",
    "connect_async",
    "default_socket_path",
    "default_timeout",
    "look_for_spans",
]

_Id = str | bytes | Ref[Any]
_TimeLimit = float | Literal["default"] | None
_Pieces = Sequence[Any]
_Shape = tuple[int, ...]
#: The owner, the seconds to live, and the action at their end.
_Lifetime = tuple[str | None, float | None, str]
_Objects = Sequence[tuple[_Id, _Pieces, str, _Shape | None, bytes]]
_List = list

BUILD: str
VERSION: str

def default_socket_path() -> str: ...
def look_for_spans(variable: ContextVar[Span | None]) -> None: ...
def check_allreduce(target: _Id, sources: Iterable[_Id], op: str, timeout: _TimeLimit) -> None: ...
def default_timeout() -> float | None: ...
def connect(
    socket: str | PathLike[str] | None,
    timeout: float | None,
    program: str,
    reconnect: bool,
    owners: list[str] = ...,
) -> Client: ...
def connect_async(
    socket: str | PathLike[str] | None,
    timeout: float | None,
    program: str,
    reconnect: bool,
    owners: list[str] = ...,
) -> Future[AsyncClient]: ...

@final
class Span:
    def __new__(cls, traceparent: str) -> Span: ...

@final
class Progress:
    def __new__(cls, callback: Callable[[int, int], object]) -> Progress: ...
    def report(self) -> None: ...

@final
class View:
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> _Shape | None: ...
    @property
    def user(self) -> bytes: ...
    @property
    def is_stale(self) -> bool: ...
    def tobytes(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class Reader:
    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> _Shape | None: ...
    @property
    def user(self) -> bytes: ...
    @property
    def is_stale(self) -> bool: ...

@final
class Writer: ...

@final
class Mailbox:
    def __new__(cls) -> Mailbox: ...
    def fileno(self) -> int: ...
    def deliver(self) -> None: ...

@final
class Client:
    @property
    def node(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def max_object_bytes(self) -> int: ...
    @property
    def confirmed_from_bytes(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def process(self) -> int: ...
    @property
    def usable(self) -> bool: ...
    def share(self) -> Client: ...
    def tracked(self, progress: Progress) -> Client: ...
    def close(self) -> None: ...
    def put(
        self,
        id: _Id,
        pieces: _Pieces,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
        confirm: int,
        replicas: int = 0,
        lifetime: _Lifetime | None = None,
        quorum: bool = False,
    ) -> None: ...
    def create(
        self,
        id: _Id,
        size_bytes: int,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
        confirm: int,
        replicas: int,
        lifetime: _Lifetime | None,
        quorum: bool,
    ) -> Writer: ...
    def write(self, writer: Writer, piece: Any) -> None: ...
    def seal(self, writer: Writer) -> None: ...
    def get(self, id: _Id, timeout: _TimeLimit, allow_stale: bool = False) -> View: ...
    def open(self, id: _Id, timeout: _TimeLimit, allow_stale: bool = False) -> Reader: ...
    def read(self, reader: Reader, out: Any, timeout: _TimeLimit) -> None: ...
    def get_into(self, id: _Id, out: Any, timeout: _TimeLimit) -> int: ...
    def check_count(self, objects: int) -> None: ...
    def put_many(
        self,
        objects: _Objects,
        timeout: _TimeLimit,
        confirm: int,
        replicas: int,
        lifetime: _Lifetime | None = None,
    ) -> _List[Exception | None]: ...
    def get_many(
        self, ids: Iterable[_Id], timeout: _TimeLimit, allow_stale: bool
    ) -> _List[View | Exception]: ...
    def delete_many(self, ids: Iterable[_Id], timeout: _TimeLimit) -> _List[bool | Exception]: ...
    def gather(self, ids: Iterable[_Id], timeout: _TimeLimit) -> _List[View]: ...
    def gather_into(self, ids: Iterable[_Id], out: Any, timeout: _TimeLimit) -> _List[int]: ...
    def allgather(
        self,
        ids: Iterable[_Id],
        rank: int,
        pieces: _Pieces,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
    ) -> _List[View]: ...
    def reduce(
        self,
        target: _Id,
        sources: Iterable[_Id],
        op: str,
        num_objects: int | None,
        deterministic: bool,
        byte_range: tuple[int, int] | None,
        replicas: int,
        timeout: _TimeLimit,
    ) -> _List[str | bytes]: ...
    def allreduce_into(
        self,
        target: _Id,
        sources: Iterable[_Id],
        rank: int,
        out: Any,
        op: str,
        deterministic: bool,
        timeout: _TimeLimit,
    ) -> int: ...
    def reduce_scatter_into(
        self,
        target: _Id,
        sources: Iterable[_Id],
        rank: int,
        out: Any,
        op: str,
        deterministic: bool,
        timeout: _TimeLimit,
    ) -> int: ...
    def allgather_into(
        self, target: _Id, sources: Iterable[_Id], rank: int, out: Any, timeout: _TimeLimit
    ) -> int: ...
    def all_to_all(
        self,
        name: _Id,
        parts: Sequence[_Pieces],
        rank: int,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
    ) -> _List[View]: ...
    def barrier(self, name: _Id, participants: int, rank: int, timeout: _TimeLimit) -> None: ...
    def delete(
        self, ids: Iterable[_Id], timeout: _TimeLimit, wait_all: bool = False
    ) -> tuple[int, _List[str], int]: ...
    def wait(self, ids: Iterable[_Id], count: int, timeout: _TimeLimit) -> _List[int]: ...
    def contains(self, id: _Id) -> bool: ...
    def locate(self, id: _Id, timeout: _TimeLimit) -> dict[str, Any]: ...
    def describe(self, id: _Id) -> dict[str, Any]: ...
    def list(
        self, prefix: bytes, after: bytes, limit: int
    ) -> tuple[_List[dict[str, Any]], bytes | None]: ...
    def status(self) -> dict[str, Any]: ...

@final
class AsyncClient:
    @property
    def node(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def max_object_bytes(self) -> int: ...
    @property
    def confirmed_from_bytes(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def process(self) -> int: ...
    @property
    def usable(self) -> bool: ...
    def share(self) -> AsyncClient: ...
    def tracked(self, progress: Progress) -> AsyncClient: ...
    def close(self) -> None: ...
    def put(
        self,
        id: _Id,
        pieces: _Pieces,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
        confirm: int,
        replicas: int = 0,
        lifetime: _Lifetime | None = None,
        quorum: bool = False,
    ) -> Future[None]: ...
    def create(
        self,
        id: _Id,
        size_bytes: int,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
        confirm: int,
        replicas: int,
        lifetime: _Lifetime | None,
        quorum: bool,
    ) -> Future[Writer]: ...
    def write(self, writer: Writer, piece: Any) -> Future[None]: ...
    def seal(self, writer: Writer) -> Future[None]: ...
    def get(self, id: _Id, timeout: _TimeLimit, allow_stale: bool = False) -> Future[View]: ...
    def open(self, id: _Id, timeout: _TimeLimit, allow_stale: bool = False) -> Future[Reader]: ...
    def read(self, reader: Reader, out: Any, timeout: _TimeLimit) -> Future[None]: ...
    def get_into(self, id: _Id, out: Any, timeout: _TimeLimit) -> Future[int]: ...
    def check_count(self, objects: int) -> None: ...
    def put_many(
        self,
        objects: _Objects,
        timeout: _TimeLimit,
        confirm: int,
        replicas: int,
        lifetime: _Lifetime | None = None,
    ) -> Future[_List[Exception | None]]: ...
    def get_many(
        self, ids: Iterable[_Id], timeout: _TimeLimit, allow_stale: bool
    ) -> Future[_List[View | Exception]]: ...
    def delete_many(
        self, ids: Iterable[_Id], timeout: _TimeLimit
    ) -> Future[_List[bool | Exception]]: ...
    def gather(self, ids: Iterable[_Id], timeout: _TimeLimit) -> Future[_List[View]]: ...
    def gather_into(
        self, ids: Iterable[_Id], out: Any, timeout: _TimeLimit
    ) -> Future[_List[int]]: ...
    def allgather(
        self,
        ids: Iterable[_Id],
        rank: int,
        pieces: _Pieces,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
    ) -> Future[_List[View]]: ...
    def reduce(
        self,
        target: _Id,
        sources: Iterable[_Id],
        op: str,
        num_objects: int | None,
        deterministic: bool,
        byte_range: tuple[int, int] | None,
        replicas: int,
        timeout: _TimeLimit,
    ) -> Future[_List[str | bytes]]: ...
    def allreduce_into(
        self,
        target: _Id,
        sources: Iterable[_Id],
        rank: int,
        out: Any,
        op: str,
        deterministic: bool,
        timeout: _TimeLimit,
    ) -> Future[int]: ...
    def reduce_scatter_into(
        self,
        target: _Id,
        sources: Iterable[_Id],
        rank: int,
        out: Any,
        op: str,
        deterministic: bool,
        timeout: _TimeLimit,
    ) -> Future[int]: ...
    def allgather_into(
        self, target: _Id, sources: Iterable[_Id], rank: int, out: Any, timeout: _TimeLimit
    ) -> Future[int]: ...
    def all_to_all(
        self,
        name: _Id,
        parts: Sequence[_Pieces],
        rank: int,
        dtype: str,
        shape: _Shape | None,
        user: bytes,
        timeout: _TimeLimit,
    ) -> Future[_List[View]]: ...
    def barrier(
        self, name: _Id, participants: int, rank: int, timeout: _TimeLimit
    ) -> Future[None]: ...
    def delete(
        self, ids: Iterable[_Id], timeout: _TimeLimit, wait_all: bool = False
    ) -> Future[tuple[int, _List[str], int]]: ...
    def wait(self, ids: Iterable[_Id], count: int, timeout: _TimeLimit) -> Future[_List[int]]: ...
    def contains(self, id: _Id) -> Future[bool]: ...
    def locate(self, id: _Id, timeout: _TimeLimit) -> Future[dict[str, Any]]: ...
    def describe(self, id: _Id) -> Future[dict[str, Any]]: ...
    def list(
        self, prefix: bytes, after: bytes, limit: int
    ) -> Future[tuple[_List[dict[str, Any]], bytes | None]]: ...
    def status(self) -> Future[dict[str, Any]]: ...
