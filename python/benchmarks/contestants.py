"""Measured stores. A timed loop has only the call and the clock."""

from __future__ import annotations

import json
import logging
import os
import platform
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

import hoplite
from figures import Figures
from hoplite import _native
from hoplite._programs import program

#: Memory beside the measured arrays; Ray needs at least 75 MiB.
SPARE_BYTES = 128 << 20
#: Seconds. A store takes one to five to prefault a GiB.
WAIT_LIMIT = 120.0
_POLL_INTERVAL = 0.01


class NotThere(Exception):
    """A requirement is missing."""


class Contestant(ABC):
    name: str

    @abstractmethod
    def timed_puts(self, array: Any, names: list[str], times: list[int]) -> list[Any]:
        """Appends each put's nanoseconds to `times`. Returns handles."""

    @abstractmethod
    def timed_gets(self, handles: list[Any], times: list[int]) -> Any:
        """Appends each get's nanoseconds to `times`. Returns the last array."""

    @abstractmethod
    def delete(self, handles: list[Any]) -> None:
        """Also empties the list."""

    @abstractmethod
    def about(self) -> dict[str, str]: ...


class Memcpy(Contestant):
    """The lower bound of a put: one copy into shared memory."""

    name = "memcpy"

    def __init__(self) -> None:
        self._room: Any = np.empty(0, np.uint8)

    def timed_puts(self, array: Any, names: list[str], times: list[int]) -> list[Any]:
        if len(self._room) != len(array):
            self._room = np.frombuffer(mmap(-1, len(array)), np.uint8)
        room = self._room
        for _ in names:
            started = perf_counter_ns()
            np.copyto(room, array)
            times.append(perf_counter_ns() - started)
        return []

    def timed_gets(self, handles: list[Any], times: list[int]) -> Any:
        return None

    def delete(self, handles: list[Any]) -> None:
        pass

    def about(self) -> dict[str, str]:
        return {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "cores": str(os.cpu_count()),
        }


class RoundTrip(Contestant):
    """The lower bound of a call after a pause: a round trip over a Unix socket."""

    name = "round trip"

    _MESSAGE = bytes(64)

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[RoundTrip]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(["cat"], stdin=theirs.fileno(), stdout=theirs.fileno())
        with process, ours:
            yield cls(ours)

    def timed_puts(self, array: Any, names: list[str], times: list[int]) -> list[Any]:
        self._exchange(len(names), times)
        return names

    def timed_gets(self, handles: list[Any], times: list[int]) -> Any:
        self._exchange(len(handles), times)

    def _exchange(self, count: int, times: list[int]) -> None:
        send, receive, message = self._socket.sendall, self._socket.recv, self._MESSAGE
        for _ in range(count):
            started = perf_counter_ns()
            send(message)
            answer = receive(len(message))
            times.append(perf_counter_ns() - started)
            if answer != message:
                raise AssertionError("another message came back")

    def delete(self, handles: list[Any]) -> None:
        pass

    def about(self) -> dict[str, str]:
        return {}


class HopliteStore(Contestant):
    name = "hoplite"

    def __init__(self, client: hoplite.Client) -> None:
        self._client = client

    @classmethod
    @contextmanager
    def running(cls, most_bytes: int) -> Iterator[HopliteStore]:
        with tempfile.TemporaryDirectory(prefix="hoplite-benchmark-") as directory:
            socket, log = Path(directory) / "store.sock", Path(directory) / "log"
            command = [_program("hoplite-store"), "--socket", str(socket)]
            command += ["--memory", str(most_bytes + SPARE_BYTES), "--print-addresses"]
            command += ["--exit-with-parent", str(os.getpid())]
            with (
                open(log, "wb") as out,
                subprocess.Popen(
                    command, env=_environment(), stdout=subprocess.PIPE, stderr=out
                ) as process,
            ):
                try:
                    assert process.stdout is not None
                    process.stdout.readline()
                    if not process.stdout.readline():
                        raise NotThere(f"the store did not start: {log.read_text().strip()}")
                    with hoplite.connect(socket) as client:
                        yield cls(client)
                finally:
                    process.terminate()

    def timed_puts(self, array: Any, names: list[str], times: list[int]) -> list[Any]:
        put = self._client.put
        handles = []
        for name in names:
            started = perf_counter_ns()
            handle = put(name, array)
            times.append(perf_counter_ns() - started)
            handles.append(handle)
        return handles

    def timed_gets(self, handles: list[Any], times: list[int]) -> Any:
        get = self._client.get
        array = None
        for handle in handles:
            array = None
            started = perf_counter_ns()
            array = get(handle)
            times.append(perf_counter_ns() - started)
        return array

    def delete(self, handles: list[Any]) -> None:
        self._client.delete(handles)
        handles.clear()

    def about(self) -> dict[str, str]:
        return {"hoplite, extension": f"{_native.BUILD} build"}


class RayStore(Contestant):
    name = "ray"

    def __init__(self, ray: Any) -> None:
        from ray._private import internal_api

        self._ray = ray
        api: Any = internal_api
        self._memory_info = api.get_memory_info_reply
        self._state = api.get_state_from_address(ray.get_runtime_context().gcs_address)

    @classmethod
    @contextmanager
    def running(cls, most_bytes: int) -> Iterator[RayStore]:
        try:
            import ray
        except ImportError as error:
            raise NotThere(
                'Ray is not there: `pip install "hoplite[ray]"`, or say --without-ray'
            ) from error
        with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as directory:
            ray.init(
                address="local",
                num_cpus=1,
                object_store_memory=most_bytes + SPARE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _temp_dir=directory,
                _system_config={"preallocate_plasma_memory": True},
            )
            try:
                yield cls(ray)
            finally:
                ray.shutdown()

    def timed_puts(self, array: Any, names: list[str], times: list[int]) -> list[Any]:
        put = self._ray.put
        handles = []
        for _ in names:
            started = perf_counter_ns()
            handle = put(array)
            times.append(perf_counter_ns() - started)
            handles.append(handle)
        return handles

    def timed_gets(self, handles: list[Any], times: list[int]) -> Any:
        get = self._ray.get
        array = None
        for handle in handles:
            array = None
            started = perf_counter_ns()
            array = get(handle)
            times.append(perf_counter_ns() - started)
        return array

    def delete(self, handles: list[Any]) -> None:
        handles.clear()
        _await(
            "Ray has deleted what nobody refers to",
            lambda: self._stats().object_store_bytes_used == 0,
        )
        stats = self._stats()
        if stats.spilled_bytes_total or stats.object_store_bytes_fallback:
            raise AssertionError("Ray has had objects on a disk: its figures would say nothing")

    def _stats(self) -> Any:
        return self._memory_info(self._state).store_stats

    def about(self) -> dict[str, str]:
        return {"ray": self._ray.__version__}


class RustProgram:
    """`hoplite bench local`: the same calls by the Rust client."""

    name = "rust"

    _MANY_BYTES = 1 << 20
    _FEWEST = 10

    def __init__(self) -> None:
        self._program = _program("hoplite")
        self._build = ""
        self._puts: list[dict[str, Any]] = []
        self._gets: list[dict[str, Any]] = []

    def measure(self, size: int, count: int) -> None:
        which = 0 if size <= self._MANY_BYTES else 1
        if size <= self._MANY_BYTES:
            sizes = ["--small-size", f"{size}", "--samples", f"{max(count, self._FEWEST)}"]
            sizes += ["--size", f"{self._MANY_BYTES}", "--repetitions", "1"]
        else:
            sizes = [
                "--size",
                f"{size}",
                "--repetitions",
                f"{count}",
                "--samples",
                f"{self._FEWEST}",
            ]
        found = self._run([*sizes, "--cold-samples", "0"])
        for call, into in (("put", self._puts), ("get", self._gets)):
            into.append([one for one in found if one["name"].endswith(f" {call}")][which])

    def measure_cold(self, size: int, count: int) -> None:
        sizes = [
            "--small-size",
            f"{size}",
            "--samples",
            f"{self._FEWEST}",
            "--cold-samples",
            f"{count}",
        ]
        found = self._run([*sizes, "--size", f"{self._MANY_BYTES}", "--repetitions", "1"])
        for call, into in (("put", self._puts), ("get", self._gets)):
            into += [one for one in found if f" {call}, after " in one["name"]]

    def _run(self, arguments: list[str]) -> list[dict[str, Any]]:
        command = [self._program, "bench", "local", "--json", *arguments]
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NotThere(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        self._build = report["build"]
        measurements: list[dict[str, Any]] = report["measurements"]
        return measurements

    def results(self) -> tuple[Figures | None, Figures | None]:
        puts, gets = Figures.together(self._puts), Figures.together(self._gets)
        self._puts, self._gets = [], []
        return puts, gets

    def about(self) -> dict[str, str]:
        return {"hoplite, programs": f"{self._build} build"}


def _program(name: str) -> str:
    try:
        return program(name)
    except FileNotFoundError as error:
        raise NotThere(str(error)) from error


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOPLITE_")}


def _await(what: str, condition: Any) -> None:
    ends = time.monotonic() + WAIT_LIMIT
    while not condition():
        if time.monotonic() > ends:
            raise NotThere(f"waited {WAIT_LIMIT:.0f} s in vain until {what}")
        time.sleep(_POLL_INTERVAL)
