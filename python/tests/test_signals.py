from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import hoplite
from stores import PATIENCE, SHORT, Cluster, await_that

WAITS = {
    "get": "client.get('never there')",
    "private": "client.get('never there', copy=True)",
    "get_into": "client.get_into('never there', bytearray(10))",
    "wait": "client.wait(['never there'])",
    "reduce": "client.reduce('target', ['never there'])",
    "gather": "client.gather(['never there', 'nor that'])",
    "allreduce": "client.allreduce('target', ['mine', 'never there'], 0, np.zeros(10))",
    "reduce_scatter": "client.reduce_scatter('target', ['mine', 'never there'], 0, np.zeros(10))",
    "allgather_into": "client.allgather_into('target', ['mine', 'never there'], 0, np.zeros(4), np.zeros(2))",
    "all_to_all": "client.all_to_all('round', [b'mine', b'yours'], 0)",
    "barrier": "client.barrier('round', 2, 0)",
    "put": "client.put('does not fit', np.zeros(60 << 20, np.uint8), None)",
    "asyncio": "asyncio.run(a_get())",
}


@pytest.mark.parametrize("what", WAITS)
def test_control_c_ends_a_wait(node: Cluster, what: str) -> None:
    code = f"""
import asyncio, hoplite, hoplite.aio, numpy as np, sys, time
client = hoplite.connect({node.sockets[0]!r})
client.put("filler", np.zeros(40 << 20, np.uint8))

async def a_get():
    async with await hoplite.aio.connect({node.sockets[0]!r}) as other:
        await other.get('never there')

try:
    print("ready", flush=True)
    {WAITS[what]}
except KeyboardInterrupt:
    client.put("afterwards", b"x")
    print("interrupted", client.get("afterwards"), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(SHORT)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert out == "interrupted b'x'\n"
        assert process.returncode == 0


def test_handlers_run_while_a_call_goes_on(client: hoplite.Client, fresh: str) -> None:
    heard: list[float] = []

    def hear(*_: object) -> None:
        heard.append(time.monotonic())
        if len(heard) == 2:
            client.put(fresh, b"heard twice")

    before = signal.signal(signal.SIGALRM, hear)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        assert client.get(fresh, PATIENCE) == b"heard twice", "handlers do not end it"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    client.delete(fresh)


def test_a_handler_may_use_the_client_that_waits(client: hoplite.Client, fresh: str) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: client.put(fresh, b"from the handler"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert client.get(fresh, PATIENCE) == b"from the handler"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_a_handler_raises_ends_the_call(client: hoplite.Client, fresh: str) -> None:
    class Enough(Exception):
        pass

    def handler(*_: object) -> None:
        raise Enough

    def with_alarm(call: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        call()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for call in (lambda: client.get(fresh), lambda: client.reduce(fresh + "target", [fresh])):
            with pytest.raises(Enough):
                with_alarm(call)
    finally:
        signal.signal(signal.SIGALRM, before)
    client.put(fresh + "target", b"nothing is left of the reduce")


def test_other_threads_run_while_one_waits_or_copies(client: hoplite.Client, fresh: str) -> None:
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1
            time.sleep(0.001)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    try:
        sys.setswitchinterval(PATIENCE)
        for number, wait in enumerate(
            (
                lambda: client.wait([fresh + "absent"], timeout=0.1),
                lambda: client.put(fresh, np.zeros(32 << 20, np.uint8)),
                lambda: client.get(fresh, copy=True),
            )
        ):

            def is_counted(wait: Callable[[], object] = wait) -> bool:
                before = counted
                wait()
                return counted > before

            await_that(f"another thread runs during call {number}", is_counted)
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    client.delete(fresh)


def test_many_threads_wait_for_each_other(client: hoplite.Client, fresh: str) -> None:
    count, rounds = 16, 20
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round in range(rounds):
                if (round, number) != (0, 0):
                    previous = (
                        f"{fresh}{round}/{number - 1}"
                        if number
                        else f"{fresh}{round - 1}/{count - 1}"
                    )
                    assert client.get(previous, PATIENCE)[0] >= 0
                client.put(f"{fresh}{round}/{number}", np.full(5000, number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    client.delete(
        [f"{fresh}{round}/{number}" for round in range(rounds) for number in range(count)]
    )


def test_the_processor_is_idle_while_calls_wait(client: hoplite.Client, fresh: str) -> None:
    threads = [
        threading.Thread(target=client.wait, args=([fresh],), kwargs={"timeout": 2.0})
        for _ in range(10)
    ]
    before = time.process_time()
    for thread in threads:
        thread.start()
    client.wait([fresh], timeout=2.0)
    for thread in threads:
        thread.join()
    assert time.process_time() - before < 1.0


def test_control_c_ends_connecting(node: Cluster) -> None:
    code = f"""
import hoplite
try:
    print("ready", flush=True)
    hoplite.connect({node.sockets[0]!r}, timeout=None)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    node.store(0).process.send_signal(signal.SIGSTOP)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(SHORT)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "interrupted\n")
