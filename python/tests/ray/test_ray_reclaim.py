from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hoplite.ray import _leases
from hoplite.ray._leases import Found, Lease
from hoplite.ray._place import Place
from hoplite.ray._reclaim import Due, Reclaimer, claims_on, unknown

MADE = "ray/c/p-2/object"


def found(token: str, is_alive: bool, *claims: str) -> Found:
    return Found(token, is_alive, frozenset(claims))


def test_nothing_is_due_while_all_are_alive() -> None:
    leases = [found("p-1", True, MADE), found("p-2", True)]
    assert Reclaimer().look(leases, 0.0) == Due()


def test_what_a_dead_process_made_is_due_after_a_while() -> None:
    reclaimer = Reclaimer(grace=5.0)
    gone = [found("p-2", False)]
    assert not reclaimer.look(gone, 100.0)
    assert not reclaimer.look(gone, 104.9)
    assert reclaimer.look(gone, 105.0) == Due(producers=("p-2",))


def test_the_while_begins_anew_for_a_lease_that_was_forgotten() -> None:
    reclaimer = Reclaimer(grace=5.0)
    reclaimer.look([found("p-2", False)], 100.0)
    reclaimer.look([], 103.0)
    assert not reclaimer.look([found("p-2", False)], 106.0)


def test_what_a_dead_owner_claimed_is_due_at_once() -> None:
    due = Reclaimer().look([found("p-1", False, MADE), found("p-2", True)], 0.0)
    assert due == Due(claimed=frozenset({MADE}))


def test_adopted_leases_are_due_like_others_until_they_are_forgotten() -> None:
    reclaimer = Reclaimer(grace=5.0)
    reclaimer.adopt({"p-9"})
    assert not reclaimer.look([], 100.0)
    assert reclaimer.look([found("p-1", True)], 105.0) == Due(producers=("p-9",))
    reclaimer.forget("p-9")
    assert not reclaimer.look([], 120.0)


def test_tokens_that_nobody_knows() -> None:
    ids = [
        "ray/c/p-1/object",
        "ray/c/p-2/object",
        "ray/c/j-1/object",
        "ray/c/group/x/join/1/2",
        "ray/c/mark/p-3",
    ]
    assert unknown(ids, {"p-1"}) == {"p-2"}


def test_only_the_living_claim() -> None:
    other = "ray/c/p-22/object"
    assert claims_on("p-2", [found("p-1", True, MADE, other)]) == {MADE}
    assert claims_on("p-2", [found("p-1", False, MADE)]) == set()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "leases").mkdir()
    return Place("c", "n", tmp_path)


def test_a_claim_lasts_until_it_is_dropped_as_often_as_it_was_made(place: Place) -> None:
    lease = Lease(place, "p-1")
    lease.claim(MADE)
    lease.claim(MADE)
    lease.drop(MADE)
    # A process cannot see its own lock.
    assert [seen.claims for seen in _leases.look(place)] == [{MADE}]
    lease.drop(MADE)
    assert [seen.claims for seen in _leases.look(place)] == [frozenset()]
    lease.close()


def test_ray_must_be_running_first() -> None:
    program = "import hoplite.ray; hoplite.ray.register(); hoplite.ray.register(); hoplite.ray.start_on_all_nodes()"
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert (
        done.stderr.splitlines()[-1]
        == "RuntimeError: Ray is not running in this process: call ray.init() first"
    )


HOLD = """
import sys, os, pathlib
from hoplite.ray._leases import Lease
from hoplite.ray._place import Place
place = Place("c", "n", pathlib.Path(sys.argv[1]))
lease = Lease(place, "p-1")
lease.claim("ray/c/p-2/object")
if sys.argv[2] == "fork" and os.fork() == 0:
    # A child that lives longer, and has the file open.
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] == "alone":
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_lease_ends_when_its_process_is_killed(place: Place, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place.directory), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert list(_leases.look(place)) == [found("p-1", True, MADE)]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert list(_leases.look(place)) == [found("p-1", False, MADE)]
    _leases.forget(place, "p-1")
    assert list(place.leases.iterdir()) == []


def test_a_lease_that_is_being_made_is_not_seen(place: Place) -> None:
    (place.leases / "p-1.new").touch()
    (place.leases / "p-1.claims").mkdir()
    assert list(_leases.look(place)) == []
