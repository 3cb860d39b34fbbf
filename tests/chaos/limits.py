"""Puts with a quota or a ttl."""

import time
from typing import TYPE_CHECKING, Final

import hoplite

if TYPE_CHECKING:
    from .workload import Worker

_OBJECTS: Final = 2
_PUT_S: Final = 1.0
_TTL_S: Final = 3.0
_TOO_LARGE_FOR_SHARDS_BYTES: Final = 20_000


def quota(worker: "Worker") -> None:
    where, prefix = worker.somewhere(), worker.fresh("q") + "/"
    names = [f"{prefix}{number}" for number in range(_OBJECTS + 2)]
    worker.history.names += names
    limits = ("--prefix", prefix, "--objects", str(_OBJECTS))
    if worker.run_program(where, "quota", "set", *limits).returncode:
        return
    fits = [_put(worker, where, name) for name in names[: _OBJECTS + 1]]
    listed = worker.run_program(where, "quota", "--json").stdout
    if False in fits[:_OBJECTS]:
        worker.history.violate(f"quota: a put below {prefix} on {where} was refused")
    if all(fits) and prefix.encode() in listed:
        worker.history.violate(f"quota: {prefix} on {where} has too many objects")
    removed = worker.run_program(where, "quota", "remove", "--prefix", prefix)
    if removed.returncode == 0 and _put(worker, where, names[-1]) is False:
        worker.history.violate(f"quota: {prefix} on {where} was removed, and still limits")
    worker.remove(names)


def _put(worker: "Worker", where: str, name: str) -> bool | None:
    """Returns `None` after an unrelated error."""
    value = worker.random.randbytes(worker.random.choice((100, 20_000)))

    def put(client: hoplite.Client) -> bool:
        try:
            client.put(name, value, _PUT_S)
        except hoplite.QuotaExceeded:
            worker.history.count("quota", "exceeded")
            return False
        return True

    return worker.perform("put below a quota", where, put)


def expire(worker: "Worker") -> None:
    where, name = worker.somewhere(), worker.fresh("e")
    worker.history.expiring.add(name)
    value = worker.random.randbytes(_TOO_LARGE_FOR_SHARDS_BYTES)
    ends_at = time.monotonic() + _TTL_S
    put = worker.perform(
        "put with a ttl",
        where,
        lambda client: client.put(
            name, value, worker.timeout_s, confirm=True, replicas=1, ttl=_TTL_S
        ),
    )

    def read(client: hoplite.Client) -> bytes:
        try:
            return bytes(client.get(name, _PUT_S))
        except hoplite.Deleted:
            if time.monotonic() < ends_at:
                worker.history.violate(f"ttl: {name} on {where} is deleted too early")
            raise

    got = None if put is None else worker.perform("get", where, read)
    if got not in (None, value):
        worker.history.violate(f"wrong bytes: {name} on {where}")
