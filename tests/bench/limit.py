"""The physical limit: one stream on one link, measured in the same lab as the systems."""

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from lab import Lab

from .errors import BenchError, Missing

_PORT: Final = 5201
_SECONDS: Final = 3
_OMIT_SECONDS: Final = 1
_TIMEOUT_S: Final = 60
_ECHOES: Final = 200

_ECHO_SERVER: Final = """
import socket
server = socket.create_server(("", 5202))
print("ready", flush=True)
connection, _ = server.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while byte := connection.recv(1): connection.sendall(byte)
"""
_ECHO_CLIENT: Final = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5202)) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(int(sys.argv[2])):
        started = time.perf_counter()
        connection.sendall(b"x")
        connection.recv(1)
        print(time.perf_counter() - started)
"""


@dataclass(frozen=True)
class Limit:
    """The speed of a link.

    Attributes:
        payload_bytes_s: of one stream, the lesser of both directions.
        round_trip_s: the median for a byte, between sockets of two processes.
    """

    payload_bytes_s: float
    round_trip_s: float


def missing() -> str:
    return "" if shutil.which("iperf3") else "no iperf3: run `apt-get install iperf3`"


def measure(lab: Lab) -> Limit:
    if lacking := missing():
        raise Missing(lacking)
    return Limit(min(_stream(lab, []), _stream(lab, ["--reverse"])), _round_trip(lab))


def _stream(lab: Lab, arguments: list[str]) -> float:
    server, client = lab.hosts[0], lab.hosts[1]
    with _running(
        server.popen(
            ["iperf3", "--server", "--one-off", "--port", str(_PORT)], stdout=subprocess.DEVNULL
        )
    ):
        _await_listener(lab, _PORT)
        command = ["iperf3", "--client", server.name, "--port", str(_PORT), "--json", *arguments]
        command += ["--time", str(_SECONDS), "--omit", str(_OMIT_SECONDS)]
        result = client.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    found: dict[str, Any] = json.loads(result.stdout or "{}")
    if result.returncode != 0:
        raise BenchError(f"iperf3 failed: {found.get('error', result.stderr)}")
    return float(found["end"]["sum_received"]["bits_per_second"]) / 8


def _round_trip(lab: Lab) -> float:
    python = "python3"
    server = lab.hosts[0].popen([python, "-c", _ECHO_SERVER], stdout=subprocess.PIPE)
    with _running(server):
        assert server.stdout is not None
        server.stdout.readline()
        command = [python, "-c", _ECHO_CLIENT, lab.hosts[0].name, str(_ECHOES)]
        result = lab.hosts[1].run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    if result.returncode != 0:
        raise BenchError(f"the round trip of a byte failed: {result.stderr}")
    return statistics.median(map(float, result.stdout.split()))


@contextmanager
def _running(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def _await_listener(lab: Lab, port: int) -> None:
    """Reads the system's tables, because a connection would be iperf3's only client."""
    deadline = time.monotonic() + _TIMEOUT_S
    wanted = f":{port:04X} "
    while time.monotonic() < deadline:
        tables = lab.hosts[0].run(
            ["cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True, check=False
        )
        rows = [line.split() for line in tables.stdout.splitlines()]
        if any(len(row) > 3 and f"{row[1]} ".endswith(wanted) and row[3] == "0A" for row in rows):
            return
        time.sleep(0.02)
    raise BenchError(f"nobody listens on port {port}")
