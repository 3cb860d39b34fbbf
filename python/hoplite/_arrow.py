"""Tables and arrays of Arrow, and frames of polars, as Arrow IPC streams, read in place.

An object is padding, which aligns the first large buffer to 64 bytes, followed by an uncompressed
stream. The header names the value's form and the padding:

| tag | forms |
| --- | --- |
| `py1:arrow` | `table`, `batch`, `array`, `chunked` |
| `py1:polars` | `frame`, `series` |

On reading, Arrow checks lengths. A client that refuses pickles also checks offsets and indices.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from hoplite._headers import BadHeader
from hoplite._pickles import ALIGNMENT, check_fits

TAG_ARROW = b"py1:arrow"
TAG_POLARS = b"py1:polars"

_FORMS = {TAG_ARROW: (b"table", b"batch", b"array", b"chunked"), TAG_POLARS: (b"frame", b"series")}
#: Oldest pyarrow that runs no pickles in a schema (CVE-2023-47248) and has string views.
_OLDEST = (16,)
_REFUSALS = (
    ValueError,
    TypeError,
    KeyError,
    NotImplementedError,
    OSError,
    MemoryError,
    StopIteration,
    struct.error,
)
_DICTIONARY_BATCH = 2
#: Smaller buffers, in bytes, are appended to the buffer before them.
_SMALL_BYTES = 4096


class Form(NamedTuple):
    tag: bytes
    name: bytes
    padding_bytes: int


class _Pieces:
    """A file-like object for Arrow. It joins small buffers, and keeps large ones in place."""

    closed = False

    def __init__(self, limit: int) -> None:
        self.pieces: list[Any] = []
        self.nbytes = 0
        self.padding_bytes = -1
        self._limit = limit

    def write(self, contents: Any) -> int:
        size_bytes = memoryview(contents).nbytes
        check_fits(self.nbytes + size_bytes, self._limit)
        if size_bytes > _SMALL_BYTES:
            if self.padding_bytes < 0:
                self.padding_bytes = -self.nbytes % ALIGNMENT
            self.pieces.append(contents)
        elif self.pieces and isinstance(self.pieces[-1], bytearray):
            self.pieces[-1] += contents
        else:
            self.pieces.append(bytearray(contents))
        self.nbytes += size_bytes
        return size_bytes

    def flush(self) -> None: ...

    close = flush


def encode(value: object, limit: int) -> tuple[list[Any], bytes] | None:
    """Returns the buffers and the header of an object, without copying large buffers.

    Returns None for other values, or if a stream would lose the type.

    Raises:
        TooLarge: for a value of more than `limit` bytes.
    """
    form = _form_of(value)
    arrow = form and _pyarrow()
    if form is None or arrow is None:
        return None
    tag, name, convert = form
    sink = _Pieces(limit)
    try:
        data = convert(value, arrow)
        if data is None:
            return None
        with arrow.ipc.new_stream(arrow.PythonFile(sink, "w"), data.schema) as stream:
            stream.write(data)
    except (arrow.ArrowException, NotImplementedError):
        return None
    padding = max(sink.padding_bytes, 0)
    header = tag + b" " + name + (b" %d" % padding if padding else b"")
    return ([bytes(padding)] if padding else []) + sink.pieces, header


def _form_of(value: object) -> tuple[bytes, bytes, Callable[[Any, Any], Any]] | None:
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package == "pyarrow":
        arrow = sys.modules["pyarrow"]
        if kind is arrow.Table:
            return TAG_ARROW, b"table", lambda table, _: table
        if kind is arrow.RecordBatch:
            return TAG_ARROW, b"batch", lambda batch, _: batch
        if kind is arrow.ChunkedArray:
            return TAG_ARROW, b"chunked", lambda chunked, arrow: arrow.table([chunked], [""])
        if isinstance(value, arrow.Array) and not _is_plain(value, arrow):
            return TAG_ARROW, b"array", lambda array, arrow: arrow.record_batch([array], [""])
    if package == "polars":
        polars = sys.modules["polars"]
        if kind is polars.DataFrame:
            return TAG_POLARS, b"frame", _table_of_frame
        if kind is polars.Series:
            return (
                TAG_POLARS,
                b"series",
                lambda series, arrow: _table_of_frame(series.to_frame(), arrow),
            )
    return None


def _is_plain(array: Any, arrow: Any) -> bool:
    """True for numbers without nulls, which are stored as plain arrays for reduces."""
    is_number = arrow.types.is_integer(array.type) or arrow.types.is_floating(array.type)
    return bool(is_number and array.null_count == 0)


def _table_of_frame(frame: Any, arrow: Any) -> Any:
    polars = sys.modules["polars"]
    table = frame.to_arrow(compat_level=polars.CompatLevel.newest())
    back = polars.from_arrow(table.schema.empty_table())
    return table if back.schema == frame.schema else None


def parse(header: bytes) -> Form:
    tag, _, rest = header.partition(b" ")
    name, _, padding = rest.partition(b" ")
    if name not in _FORMS[tag]:
        raise BadHeader(f"{header[:32]!r} names no value of Arrow or polars")
    if padding and not (padding.isdigit() and len(padding) <= 2 and int(padding) < ALIGNMENT):
        raise BadHeader(f"{padding[:32]!r} is no padding")
    return Form(tag, name, int(padding or b"0"))


def decode(contents: memoryview, form: Form, *, trusts: bool) -> Any:
    """Makes a value from an object, in place.

    Args:
        trusts: False checks each offset, index and character of the columns.
    Raises:
        BadHeader: if the object does not match the header.
        ImportError: if pyarrow or polars is missing.
    """
    arrow = _pyarrow()
    if arrow is None:
        raise ImportError(f"the object is of Arrow: reading it needs pyarrow {_OLDEST[0]} or later")
    stored = arrow.py_buffer(contents[form.padding_bytes :])
    try:
        if not trusts:
            _check_plain(stored, arrow)
        with arrow.ipc.open_stream(stored) as stream:
            is_one = form.name in (b"batch", b"array")
            table = stream.read_next_batch() if is_one else stream.read_all()
        table.validate(full=not trusts)
        if not trusts:
            # Names that are not UTF-8 raise here.
            str(table.schema)
    except (arrow.ArrowException, *_REFUSALS) as error:
        raise BadHeader(f"it is no stream of Arrow: {error}") from None
    if form.name in (b"table", b"batch"):
        return table
    if form.name != b"frame" and table.num_columns != 1:
        raise BadHeader(f"an array has one column, not {table.num_columns}")
    if form.tag == TAG_ARROW:
        return table.column(0)
    return _polars_of(table, form)


def _check_plain(stored: Any, arrow: Any) -> None:
    """Refuses compressed batches, whose decompression could take any amount of memory."""
    reader = arrow.ipc.MessageReader.open_stream(stored)
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if message.type in ("record batch", "dictionary") and _is_compressed(
            memoryview(message.metadata)
        ):
            raise BadHeader("a batch is compressed")


def _is_compressed(metadata: memoryview) -> bool:
    """Parses the flatbuffer of a batch (format/Message.fbs)."""
    message = _Table(metadata, *struct.unpack_from("<I", metadata))
    batch = message.table(2)
    if message.byte(1) == _DICTIONARY_BATCH:
        batch = batch.table(1)
    return batch.place(3) is not None


class _Table(NamedTuple):
    buffer: memoryview
    start: int

    def place(self, field: int) -> int | None:
        vtable = self.start - self._read("<i", self.start)
        if 6 + 2 * field > self._read("<H", vtable):
            return None
        offset = self._read("<H", vtable + 4 + 2 * field)
        return self.start + offset if offset else None

    def table(self, field: int) -> _Table:
        if (place := self.place(field)) is None:
            raise BadHeader("a message of the stream has no batch")
        return _Table(self.buffer, place + self._read("<I", place))

    def byte(self, field: int) -> int:
        place = self.place(field)
        return 0 if place is None else self._read("<B", place)

    def _read(self, kind: str, place: int) -> int:
        if place < 0:
            raise BadHeader("a message of the stream points before its beginning")
        return int(struct.unpack_from(kind, self.buffer, place)[0])


def _polars_of(table: Any, form: Form) -> Any:
    try:
        import polars
    except ImportError as error:
        raise ImportError("the object is of polars, which is not installed") from error
    try:
        frame: Any = polars.from_arrow(table, rechunk=False)
    except (Exception, polars.exceptions.PanicException) as error:
        raise BadHeader(f"it is no frame of polars: {error}") from None
    return frame if form.name == b"frame" else frame.to_series()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        return None
    version = pyarrow.__version__.partition(".")[0]
    return pyarrow if version.isdigit() and (int(version),) >= _OLDEST else None
