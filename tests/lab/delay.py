"""Delays the frames of a rack's uplink, for kernels without netem.

A process between two bridges forwards each frame later. It forwards about ten megabits per second.
"""

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from . import system
from .errors import LabError, NotAvailable
from .lab import Lab
from .plan import SWITCH, namespace

_TUN: Final = "/dev/net/tun"
# TUNSETIFF of linux/if_tun.h.
_SET_INTERFACE: Final = 0x400454CA
_TAP: Final = 0x0002 | 0x1000
_FRAME_BYTES: Final = 2048
_MAX_WAITING: Final = 4096


class Delay:
    def __init__(self, lab: Lab, rack: str, delay_s: float) -> None:
        if rack not in lab.plan.rack_names:
            raise ValueError(f"there is no rack {rack!r}")
        self._rack = rack
        self._delay_s = delay_s
        self._namespace = namespace(lab.name, SWITCH)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if not os.access(_TUN, os.R_OK | os.W_OK):
            raise NotAvailable(f"to delay frames needs {_TUN}")
        taps = [f"far-{self._rack}", f"near-{self._rack}"]
        command = ["ip", "netns", "exec", self._namespace, sys.executable, "-m", "lab.delay"]
        self._process = subprocess.Popen(
            [*command, str(self._delay_s), *taps],
            stdout=subprocess.PIPE,
            text=True,
            cwd=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._end()
            raise LabError("the process that delays frames did not start")
        self._ip(f"link set {self._rack} nomaster", f"link set up-{self._rack} nomaster")
        for tap, bridge in zip(taps, ("middle", f"br-{self._rack}"), strict=True):
            self._ip(f"link set {tap} master {bridge} up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        self._ip(
            f"link set {self._rack} master middle up",
            f"link set up-{self._rack} master br-{self._rack} up",
        )

    def _ip(self, *lines: str) -> None:
        system.configure(self._namespace, ("".join(f"{line}\n" for line in lines), ""))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def relay(delay_s: float, one: int, other: int) -> None:
    to = {one: other, other: one}
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select([one, other], [], [], timeout)[0]:
            frame = os.read(device, _FRAME_BYTES)
            if len(waiting) < _MAX_WAITING:
                waiting.append((time.monotonic() + delay_s, to[device], frame))
        # Equal delays keep the order.
        while waiting and waiting[0][0] <= time.monotonic():
            _, device, frame = waiting.popleft()
            try:
                os.write(device, frame)
            except OSError:
                pass  # The device is not up yet, or not any more.


def _open(name: str) -> int:
    device = os.open(_TUN, os.O_RDWR)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH", name.encode(), _TAP))
    return device


if __name__ == "__main__":
    devices = [_open(name) for name in sys.argv[2:4]]
    print("ready", flush=True)
    relay(float(sys.argv[1]), devices[0], devices[1])
