from __future__ import annotations

import copy
import inspect
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hoplite
from hoplite import errors
from stores import PATIENCE

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_all_classes_are_exported_and_are_of_one_family() -> None:
    defined = {
        value
        for _, value in inspect.getmembers(errors, inspect.isclass)
        if value.__module__ == errors.__name__
    }
    assert defined == set(CLASSES)
    for error in CLASSES:
        assert getattr(hoplite, error.__name__) is error
        assert error.__name__ in hoplite.__all__
        assert issubclass(error, hoplite.HopliteError)


@pytest.mark.parametrize("error", CLASSES)
def test_errors_are_pickled_with_all_they_have(error: type[hoplite.HopliteError]) -> None:
    made = error("what went wrong", id=b"\xff", retryable=True, size_bytes=7)
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(again) is error
        assert str(again) == "what went wrong"
        assert (again.id, again.retryable, again.size_bytes) == (b"\xff", True, 7)


def test_ids_in_errors_are_what_people_gave(client: hoplite.Client, fresh: str) -> None:
    for id, named in (
        (fresh + "ü", fresh + "ü"),
        (b"\xff\x00", b"\xff\x00"),
        (fresh.encode(), fresh),
    ):
        with pytest.raises(hoplite.Timeout) as caught:
            client.get(id, 0)
        assert caught.value.id == named
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.operation == "get"
        assert caught.value.waited < PATIENCE, "not the default timeout"
        assert caught.value.retryable
    assert str(caught.value).endswith(f"(object {fresh})")


def test_a_timeout_says_what_was_missing(client: hoplite.Client, fresh: str) -> None:
    with pytest.raises(hoplite.Timeout) as caught:
        client.get(fresh, 0.05)
    assert caught.value.missing == "object"
    assert list(caught.value.missing_ids) == [fresh]
    assert f"no store offers object {fresh}" in str(caught.value)
    sources = [f"{fresh}/{rank}" for rank in range(2)]
    for timeout in (0.2, 2.0, 20.0):
        with pytest.raises(hoplite.Timeout) as caught:
            client.allreduce(fresh, sources, 0, np.zeros(4), timeout=timeout)
        # A busy directory may locate no source in time.
        if list(caught.value.missing_ranks) == [1]:
            break
    assert caught.value.missing == "participants"
    assert list(caught.value.missing_ranks) == [1]
    assert list(caught.value.missing_ids) == [sources[1]]
    assert hoplite.Timeout("plain").missing is None


WRONG_IDS: list[Any] = [None, 7, 1.5, ["x"], object(), bytearray(b"x"), np.str_]


@pytest.mark.parametrize("id", WRONG_IDS, ids=repr)
def test_wrong_ids(client: hoplite.Client, id: Any) -> None:
    calls: list[Any] = [
        lambda: client.get(id),
        lambda: client.get(id, copy=True),
        lambda: client.get_into(id, bytearray(1)),
        lambda: client.contains(id),
        lambda: client.stat(id),
        lambda: client.reduce(id, ["x"]),
        lambda: client.reduce("x", [id]),
        lambda: client.wait([id]),
        lambda: client.gather([id]),
        lambda: client.delete([id]),
        lambda: client.allreduce("x", [id], 0),
        lambda: hoplite.Ref(id),
    ]
    if id is not None:
        calls.append(lambda: client.put(id, b"x"))
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_a_lone_id_is_not_several(client: hoplite.Client) -> None:
    for lone in ("abc", b"abc", hoplite.Ref("abc")):
        for call in (client._native.gather, client._native.delete):
            with pytest.raises(TypeError, match="not one"):
                call(lone, 0.0)
    calls: list[Any] = [
        client.wait,
        client.gather,
        lambda ids: client.reduce("x", ids),
        lambda ids: client.allreduce("x", ids, 0),
        lambda ids: client.allgather(ids, 0, b"x"),
        lambda ids: client.delete_allreduce("x", ids),
    ]
    for call in calls:
        for lone in ("abc", b"abc", hoplite.Ref("abc")):
            with pytest.raises(TypeError, match="not one"):
                call(lone)


def test_handles_of_other_libraries(client: hoplite.Client, fresh: str) -> None:
    class Handle:
        def __init__(self, id: Any) -> None:
            self.__hoplite_id__ = id

    client.put(fresh, b"x")
    assert client.get(Handle(fresh)) == b"x"  # type: ignore[arg-type]
    endless = Handle(None)
    endless.__hoplite_id__ = endless
    for wrong in (endless, Handle(Handle(fresh)), Handle(7)):
        with pytest.raises(TypeError, match="an id is"):
            client.get(wrong)  # type: ignore[arg-type]


def test_an_allreduce_that_makes_no_sense_puts_nothing(client: hoplite.Client, fresh: str) -> None:
    value, own = np.ones(3), fresh + "own"
    nonsense: list[tuple[type[Exception], Any]] = [
        (hoplite.InvalidRequest, lambda: client.allreduce(fresh, [own], 0, value, "mean")),  # type: ignore[arg-type]
        (TypeError, lambda: client.allreduce(7, [own], 0, value)),  # type: ignore[type-var]
        (TypeError, lambda: client.allreduce(fresh, [own, 7], 0, value)),  # type: ignore[list-item]
        (hoplite.InvalidId, lambda: client.allreduce(fresh, [own, ""], 0, value)),
        (ValueError, lambda: client.allreduce(fresh, [own], 0, value, timeout=-1)),
        (hoplite.TypeMismatch, lambda: client.allreduce(fresh, [own], 0, value, out=np.ones(4))),
        (
            hoplite.TypeMismatch,
            lambda: client.allreduce(fresh, [own], 0, value, out=np.ones(3, np.float32)),
        ),
        (hoplite.TypeMismatch, lambda: client.allreduce(fresh, [own], 0, value > 0, "prod")),
    ]
    for error, call in nonsense:
        with pytest.raises(error):
            call()
    assert not client.contains(own)


def test_ids_that_are_no_ids(client: hoplite.Client) -> None:
    for id in ("", b"", "x" * 256, "ü" * 128, b"x" * 1000):
        with pytest.raises(hoplite.InvalidId) as caught:
            client.get(id)
        assert isinstance(caught.value, ValueError)
        assert caught.value.length_bytes == len(id.encode() if isinstance(id, str) else id)
    with pytest.raises(UnicodeEncodeError):
        client.get("\udc80")


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf])
def test_times_that_are_none(client: hoplite.Client, timeout: float) -> None:
    calls: list[Any] = [
        lambda: client.get("x", timeout),
        lambda: client.get("x", timeout, copy=True),
        lambda: client.get_into("x", np.zeros(3), timeout),
        lambda: client.get_into("x", bytearray(3), timeout),
        lambda: client.allreduce("x", ["y"], 0, timeout=timeout),
        lambda: client.put("x", b"x", timeout),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="timeout"):
            call()


def test_times_of_the_wrong_type(client: hoplite.Client) -> None:
    for timeout in ("1", [1], b"1"):
        with pytest.raises(TypeError):
            client.get("x", timeout)  # type: ignore[arg-type]


def test_long_times(client: hoplite.Client, fresh: str) -> None:
    client.put(fresh, b"x")
    for timeout in (math.inf, 1e300, 10**18, True, np.float32(5)):
        assert client.get(fresh, timeout) == b"x"


def test_other_nonsense(client: hoplite.Client, fresh: str) -> None:
    client.put(fresh + "0", np.zeros(3))
    client.put(fresh + "bytes", b"123")
    sources = [fresh + "0"]
    nonsense: list[tuple[type[Exception], Any]] = [
        (hoplite.InvalidRequest, lambda: client.reduce(fresh, sources, "mean")),  # type: ignore[arg-type]
        (TypeError, lambda: client.reduce(fresh, sources, 3)),  # type: ignore[arg-type]
        (hoplite.InvalidRequest, lambda: client.reduce(fresh, sources, num_objects=0)),
        (OverflowError, lambda: client.reduce(fresh, sources, num_objects=-1)),
        (TypeError, lambda: client.reduce(fresh, sources, num_objects=1.5)),  # type: ignore[arg-type]
        (hoplite.DuplicateId, lambda: client.reduce(fresh + "0", sources)),
        (hoplite.TypeMismatch, lambda: client.reduce(fresh, [fresh + "bytes"])),
        (ValueError, lambda: client.get(sources[0], framework="tensorflow")),  # type: ignore[arg-type]
        (ValueError, lambda: client.allreduce(fresh, sources, 1)),
        (ValueError, lambda: client.allreduce(fresh, sources, -1)),
        (TypeError, lambda: client.allreduce(fresh, sources, 0, {"not": "an array"})),
        (TypeError, lambda: client.allreduce(fresh, sources, 0, b"bytes")),
        (hoplite.TypeMismatch, lambda: client.allreduce(fresh, sources, 0, out=np.zeros(4))),
        (ValueError, lambda: client.allgather(sources, 1, b"x")),
        (hoplite.InvalidRequest, lambda: client.wait(sources, 2)),
        (OverflowError, lambda: client.wait(sources, -1)),
        (TypeError, lambda: list(client.list(7))),  # type: ignore[arg-type]
        (hoplite.InvalidId, lambda: next(client.list("x" * 256))),
    ]
    for error, call in nonsense:
        with pytest.raises(error):
            call()
    assert not client.contains(fresh)


def test_connecting_to_what_is_no_store(tmp_path: Any) -> None:
    import socket

    (tmp_path / "file").write_text("x")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "left over"))
    for path, reason in (
        (tmp_path / "nothing", "NoSuchSocket"),
        (tmp_path / "file", "NotASocket"),
        (tmp_path / "left over", "NotListening"),
        ("/" + "x" * 200, "PathTooLong"),
    ):
        with pytest.raises(hoplite.ConnectFailed) as caught:
            hoplite.connect(path)
        assert (caught.value.reason, str(caught.value.path)) == (reason, str(path))
        assert isinstance(caught.value, ConnectionError)
    listening.listen()
    with pytest.raises(hoplite.ConnectFailed) as caught:
        hoplite.connect(tmp_path / "left over", timeout=0.05)
    assert caught.value.reason == "TimedOut"
    listening.close()
    with pytest.raises(TypeError):
        hoplite.connect(7)  # type: ignore[arg-type]


def test_a_socket_that_other_users_could_replace(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(hoplite.ConnectFailed, match="other users may write to") as caught:
        hoplite.connect(place / "store.sock")
    assert (caught.value.reason, caught.value.untrusted, caught.value.owner) == (
        "UntrustedPlace",
        str(place),
        os.geteuid(),
    )
    assert not caught.value.retryable
    if os.geteuid() != 0:
        pytest.skip("only root can make directories of other users")
    place.chmod(0o755)
    os.chown(place, 4_000_001, -1)
    with pytest.raises(hoplite.ConnectFailed, match="belongs to user 4000001") as caught:
        hoplite.init(place / "store.sock")
    assert (caught.value.reason, caught.value.owner) == ("UntrustedPlace", 4_000_001)


def test_a_client_that_is_closed(cluster: Any) -> None:
    client = hoplite.connect(cluster.sockets[0])
    with client as same:
        assert same is client
        assert client.usable
    assert not client.usable
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.get("x")
    assert "node-0" in repr(client)
