"""The faults of a campaign: each breaks a part of the cluster, and repairs it later."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from lab import Lab
from lab.daemons import Daemon, Hoplite

from .preload import Preload

_SLOW_BITS_S: Final = 2_000_000
_GARBAGE_BYTES: Final = 4096
_CONNECTIONS: Final = 20
_FILL_BYTES: Final = 4 << 20
_END_S: Final = 60.0
_EFFECT_S: Final = 30.0
_POLL_S: Final = 0.05
_ODDS: Final = (3, 10, 30)
FILLERS: Final = [f"filler/{number}" for number in range(64)]
HALF: Final = "half"


@dataclass
class Target:
    """The cluster that faults break.

    Attributes:
        stores, shards: their hosts.
        spare: a host without daemons.
        random: chooses the broken part, and the time until its repair.
        ended: the daemons that faults have asked to end.
        effects: counted by the preloaded library.
    """

    lab: Lab
    hoplite: Hoplite
    stores: list[str]
    shards: list[str]
    spare: str
    random: random.Random
    preload: Preload
    ended: list[Daemon] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)

    def store(self) -> str:
        return self.random.choice(self.stores)

    def shard(self) -> str:
        return self.random.choice(self.shards)

    def start_store(self, host: str) -> None:
        self.hoplite.start_store(self.lab.host(host))
        self.hoplite.stores[host].await_ready()

    def end(self, daemon: Daemon) -> None:
        daemon.terminate()
        daemon.wait(_END_S)
        self.ended.append(daemon)


@contextmanager
def killed_store(target: Target) -> Iterator[str]:
    host = target.store()
    target.hoplite.stores[host].kill()
    yield f"the store of {host} is killed"
    target.start_store(host)


@contextmanager
def restarted_store(target: Target) -> Iterator[str]:
    host = target.store()
    target.end(target.hoplite.stores[host])
    yield f"the store of {host} ends and starts again"
    target.start_store(host)


@contextmanager
def drained_store(target: Target) -> Iterator[str]:
    host = target.store()
    target.hoplite.client(
        target.lab.host(host),
        "stop",
        "--drain",
        "30s",
        capture_output=True,
        timeout=_END_S * 2,
        check=False,
    )
    target.end(target.hoplite.stores[host])
    yield f"the store of {host} is drained and starts again"
    target.start_store(host)


@contextmanager
def killed_shard(target: Target) -> Iterator[str]:
    host = target.shard()
    target.hoplite.shards[host].kill()
    yield f"the shard of {host} is killed"
    target.hoplite.start_shard(target.lab.host(host))


@contextmanager
def replaced_shard(target: Target) -> Iterator[str]:
    old, new = target.shard(), target.spare
    at = target.lab.host(target.store())
    target.hoplite.replace_shard(at, target.lab.host(old), target.lab.host(new))
    target.shards[target.shards.index(old)] = new
    target.spare = old
    yield f"the shard of {new} has replaced the one of {old}"
    target.end(target.hoplite.shards.pop(old))


@contextmanager
def _frozen(daemon: Daemon) -> Iterator[str]:
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield f"{daemon.name} is frozen"
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def frozen_store(target: Target) -> AbstractContextManager[str]:
    return _frozen(target.hoplite.stores[target.store()])


def frozen_shard(target: Target) -> AbstractContextManager[str]:
    return _frozen(target.hoplite.shards[target.shard()])


@contextmanager
def isolated(target: Target) -> Iterator[str]:
    host = target.random.choice(target.stores + target.shards)
    target.lab.cut(host)
    yield f"{host} is cut off"
    target.lab.repair(host)


@contextmanager
def cut_pair(target: Target) -> Iterator[str]:
    one, other = target.random.sample(target.stores + target.shards, 2)
    target.lab.cut_between(one, other)
    yield f"{one} and {other} do not reach each other"
    target.lab.repair_between(one, other)


@contextmanager
def cut_one_way(target: Target) -> Iterator[str]:
    one, other = target.random.sample(target.stores + target.shards, 2)
    target.lab.cut_one_way(one, other)
    yield f"packets from {one} do not reach {other}"
    target.lab.repair_one_way(one, other)


@contextmanager
def slow_link(target: Target) -> Iterator[str]:
    host = target.store()
    target.lab.set_rate(host, _SLOW_BITS_S)
    yield f"the link of {host} is slow"
    target.lab.set_rate(host, target.lab.plan.rate_bits_s)


@contextmanager
def full_arena(target: Target) -> Iterator[str]:
    host = target.lab.host(target.store())
    for name in FILLERS:
        put = target.hoplite.client(
            host,
            "--timeout",
            "1s",
            "put",
            name,
            "-",
            input=bytes(_FILL_BYTES),
            capture_output=True,
            check=False,
        )
        if put.returncode:
            break
    yield f"the arena of {host.name} is full"
    target.hoplite.client(
        host, "--timeout", "20s", "delete", *FILLERS, capture_output=True, check=False
    )


@contextmanager
def garbage(target: Target) -> Iterator[str]:
    victim = target.random.choice(target.stores + target.shards)
    host = target.lab.host(victim)
    port = target.hoplite.port(victim)
    program = (
        "import os, socket, sys\n"
        f"for _ in range({_CONNECTIONS}):\n"
        "    try:\n"
        "        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as peer:\n"
        f"            peer.sendall(os.urandom({_GARBAGE_BYTES}))\n"
        "            peer.settimeout(1)\n"
        "            peer.recv(100)\n"
        "    except OSError: pass\n"
    )
    sender = target.lab.host(
        target.random.choice([name for name in target.stores if name != victim])
    )
    sender.run(
        [sys.executable, "-c", program, host.address, str(port)],
        timeout=_END_S * 2,
        check=False,
    )
    yield f"{victim} gets {_CONNECTIONS} connections with garbage"


@contextmanager
def killed_client(target: Target) -> Iterator[str]:
    host = target.lab.host(target.store())
    program = target.hoplite.programs / "hoplite"
    reader, writer = os.pipe()
    half = host.popen(
        [program, "put", HALF, "-"],
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    waiting = host.popen(
        [program, "get", "absent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.write(writer, bytes(1000))
    yield f"a client of {host.name} is killed in the middle of a put"
    for client in (half, waiting):
        client.kill()
        client.wait()
    os.close(reader)
    os.close(writer)


@contextmanager
def _preloaded(target: Target, host: str, kind: str, setting: int) -> Iterator[None]:
    faults = target.preload.faults[host]
    before = faults.count(kind)
    faults.set(kind, setting)
    try:
        yield
        ends_at = time.monotonic() + _EFFECT_S
        while faults.count(kind) == before and time.monotonic() < ends_at:
            time.sleep(_POLL_S)
    finally:
        faults.set(kind, 0)
    target.effects[kind] += faults.count(kind) - before


@contextmanager
def flipped_bytes(target: Target) -> Iterator[str]:
    host, odds = target.random.choice(target.stores + target.shards), target.random.choice(_ODDS)
    with _preloaded(target, host, "flip-bytes", odds):
        yield f"bits flip in one of {odds} sends of {host}"


@contextmanager
def truncated_bytes(target: Target) -> Iterator[str]:
    host, odds = target.random.choice(target.stores + target.shards), target.random.choice(_ODDS)
    with _preloaded(target, host, "truncate-bytes", odds):
        yield f"one of {odds} sends of {host} ends halfway, with its connection"


@contextmanager
def clock_jump(target: Target) -> Iterator[str]:
    host = target.random.choice(target.stores + target.shards)
    jump_s = target.random.choice((-3600, 3600))
    # The daemon logs the end of sessions, with the time.
    with (
        _preloaded(target, host, "truncate-bytes", min(_ODDS)),
        _preloaded(target, host, "clock-jump", jump_s),
    ):
        yield f"the wall clock of {host} jumps by {jump_s} s, and its connections end"


Fault = Callable[[Target], AbstractContextManager[str]]

# Each fault, with the longest time until its repair in seconds.
FAULTS: Final[dict[str, tuple[Fault, float]]] = {
    "kill-store": (killed_store, 6),
    "restart-store": (restarted_store, 1),
    "drain-store": (drained_store, 1),
    "kill-shard": (killed_shard, 6),
    "replace-shard": (replaced_shard, 4),
    "freeze-store": (frozen_store, 12),
    "freeze-shard": (frozen_shard, 12),
    "cut-host": (isolated, 15),
    "cut-pair": (cut_pair, 12),
    "cut-one-way": (cut_one_way, 12),
    "slow-link": (slow_link, 8),
    "full-arena": (full_arena, 4),
    "garbage": (garbage, 1),
    "kill-client": (killed_client, 2),
    "flip-bytes": (flipped_bytes, 8),
    "truncate-bytes": (truncated_bytes, 8),
    "clock-jump": (clock_jump, 6),
}
