"""Links fail, and hosts die, during a transfer."""

import subprocess
import tempfile
import time
import unittest
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from lab import Lab, Plan
from lab.daemons import Hoplite
from lab.tests.test_daemons import PROGRAMS, TIMEOUT_S, lacking
from lab.tests.test_lab import await_that

RATE_BITS_S = 50_000_000
# Until the fault, the object takes 7 s: a busy machine may delay the fault.
SLOW_BITS_S = 10_000_000
SIZE_BYTES = 8 << 20
MIDDLE_BYTES = SIZE_BYTES // 4
# Length of a cut that stores tolerate.
SHORT_CUT_S = 1.5
PATIENT = ("--node-grace", f"{TIMEOUT_S}s")
SEED = 20210823
CONTENTS = Random(SEED).randbytes(SIZE_BYTES)


def floats(factor: int) -> bytes:
    return array("f", [factor * element for element in range(1, 9)]).tobytes() * (SIZE_BYTES // 32)


class Cluster:
    def __init__(self, lab: Lab, hoplite: Hoplite, files: Path) -> None:
        self.lab = lab
        self.hoplite = hoplite
        self.files = files
        self.before = lab.traffic()

    def put(self, host: str, name: str, contents: bytes, *arguments: str) -> None:
        self.hoplite.client(
            self.lab.host(host),
            "put",
            name,
            "-",
            *arguments,
            input=contents,
            timeout=TIMEOUT_S,
            check=True,
        )

    def start(self, host: str, *arguments: str) -> "subprocess.Popen[str]":
        command: list[str | Path] = [
            self.hoplite.programs / "hoplite",
            "--timeout",
            f"{TIMEOUT_S}s",
            *arguments,
        ]
        return self.lab.host(host).popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def start_get(self, host: str, name: str) -> "subprocess.Popen[str]":
        return self.start(host, "get", name, "-o", str(self.files / f"{name}-{host}"))

    def got(self, host: str, name: str) -> bytes:
        return (self.files / f"{name}-{host}").read_bytes()

    def mark(self) -> None:
        self.before = self.lab.traffic()

    def slow_down(self, *hosts: str, rate_bits_s: int = SLOW_BITS_S) -> None:
        for host in hosts:
            self.lab.set_rate(host, rate_bits_s)

    def speed_up(self, *hosts: str) -> None:
        self.slow_down(*hosts, rate_bits_s=RATE_BITS_S)

    def received_bytes(self, link: str) -> int:
        return (self.lab.traffic()[link] - self.before[link]).received_bytes

    def sent_bytes(self, link: str) -> int:
        return (self.lab.traffic()[link] - self.before[link]).sent_bytes

    def await_bytes(self, count: Callable[[str], int], link: str, least: int) -> None:
        await_that(f"{least} bytes at {link}", lambda: count(link) >= least)


@contextmanager
def cluster(plan: Plan, shard_arguments: Sequence[str] = ()) -> Iterator[Cluster]:
    with (
        Lab(plan) as lab,
        Hoplite(lab, PROGRAMS, memory="128MiB", shard_arguments=shard_arguments) as hoplite,
        tempfile.TemporaryDirectory() as files,
    ):
        yield Cluster(lab, hoplite, Path(files))


@unittest.skipIf(lacking(), lacking())
class Failures(unittest.TestCase):
    def end(self, process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
        self.addCleanup(process.kill)
        output, errors = process.communicate(timeout=2 * TIMEOUT_S)
        self.assertEqual(process.returncode, code, errors)
        return output, errors

    def relayed(self, found: Cluster) -> dict[str, "subprocess.Popen[str]"]:
        """Starts two gets: h1 reads from h0, and another host from h1."""
        found.put("h0", "x", CONTENTS)
        found.slow_down("h0")
        found.mark()
        gets = {"h1": found.start_get("h1", "x")}
        found.await_bytes(found.received_bytes, "h1", 1 << 16)
        gets |= {host: found.start_get(host, "x") for host in ("h2", "h3")}
        found.await_bytes(found.sent_bytes, "h1", MIDDLE_BYTES)
        self.assertLess(found.received_bytes("h2"), SIZE_BYTES)
        self.assertLess(found.received_bytes("h3"), SIZE_BYTES)
        return gets

    def test_a_relay_that_is_cut_off_is_replaced_and_goes_on_when_it_is_back(self) -> None:
        with cluster(Plan(hosts=4, rate_bits_s=RATE_BITS_S)) as found:
            gets = self.relayed(found)
            found.lab.cut("h1")
            found.speed_up("h0")
            for host in ("h2", "h3"):
                self.end(gets[host])
                self.assertEqual(found.got(host, "x"), CONTENTS)
            self.assertIsNone(gets["h1"].poll())
            found.lab.repair("h1")
            self.end(gets["h1"])
            self.assertEqual(found.got("h1", "x"), CONTENTS)
            self.assertTrue(all(store.is_running() for store in found.hoplite.stores.values()))

    def test_a_relay_that_dies_with_its_host_is_replaced(self) -> None:
        with cluster(Plan(hosts=4, rate_bits_s=RATE_BITS_S)) as found:
            gets = self.relayed(found)
            found.lab.kill("h1")
            found.speed_up("h0")
            gets.pop("h1").communicate()
            for host, get in gets.items():
                self.end(get)
                self.assertEqual(found.got(host, "x"), CONTENTS)

    def reducing(self, found: Cluster, *arguments: str) -> "subprocess.Popen[str]":
        for host in (1, 2, 3):
            found.put(f"h{host}", f"g{host}", floats(host), "--dtype", "f32")
        found.slow_down("h1", "h2", "h3")
        found.mark()
        reduce = found.start("h0", "reduce", "sum", "g1", "g2", "g3", *arguments)
        found.await_bytes(found.received_bytes, "h0", MIDDLE_BYTES)
        return reduce

    def check_sum(self, found: Cluster, reduced: str) -> None:
        self.end(found.start_get("h0", "sum"))
        self.assertEqual(
            found.got("h0", "sum"), floats(sum(int(name[1:]) for name in reduced.split()))
        )

    def test_a_reduce_goes_on_after_a_source_was_cut_off_for_a_moment(self) -> None:
        with cluster(Plan(hosts=4, rate_bits_s=RATE_BITS_S), PATIENT) as found:
            reduce = self.reducing(found)
            found.lab.cut("h2")
            time.sleep(SHORT_CUT_S)
            self.assertIsNone(reduce.poll())
            found.speed_up("h1", "h2", "h3")
            found.lab.repair("h2")
            reduced, _ = self.end(reduce)
            self.assertEqual(sorted(reduced.split()), ["g1", "g2", "g3"])
            self.check_sum(found, reduced)

    def test_a_spare_takes_the_place_of_a_source_that_is_cut_off_for_good(self) -> None:
        with cluster(Plan(hosts=4, rate_bits_s=RATE_BITS_S)) as found:
            reduce = self.reducing(found, "--num", "2")
            joined = [host for host in ("h1", "h2", "h3") if found.sent_bytes(host) > 1 << 16]
            found.lab.cut(joined[0])
            found.speed_up("h1", "h2", "h3")
            reduced, _ = self.end(reduce)
            self.assertEqual(len(reduced.split()), 2)
            self.assertNotIn(f"g{joined[0][1:]}", reduced.split())
            self.check_sum(found, reduced)

    def test_a_source_that_dies_with_its_host_is_named(self) -> None:
        with cluster(Plan(hosts=4, rate_bits_s=RATE_BITS_S)) as found:
            reduce = self.reducing(found)
            found.lab.kill("h2")
            found.speed_up("h1", "h2", "h3")
            _, errors = self.end(reduce, code=1)
            self.assertIn("g2", errors)

    def test_racks_go_on_alone_and_together_again(self) -> None:
        plan = Plan(hosts=4, racks=2, rate_bits_s=RATE_BITS_S, uplink_bits_s=RATE_BITS_S // 2)
        with cluster(plan) as found:
            found.put("h0", "x", CONTENTS)
            found.slow_down("h0")
            found.mark()
            gets = {"h2": found.start_get("h2", "x")}
            found.await_bytes(found.received_bytes, "rack1", MIDDLE_BYTES)
            found.lab.cut("rack1")
            found.speed_up("h0")
            gets |= {host: found.start_get(host, "x") for host in ("h1", "h3")}
            self.end(gets["h1"])
            self.assertEqual(found.got("h1", "x"), CONTENTS)
            self.assertIsNone(gets["h2"].poll())
            found.lab.repair("rack1")
            for host in ("h2", "h3"):
                self.end(gets[host])
                self.assertEqual(found.got(host, "x"), CONTENTS)
            self.assertLess(found.received_bytes("rack1"), 2 * SIZE_BYTES + MIDDLE_BYTES)


if __name__ == "__main__":
    unittest.main()
