"""Real labs. Needs root, `ip` and `tc`, and is skipped without them."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from lab import Host, Lab, LabError, NotAvailable, Plan, registry, system

PATIENCE_S = 300
TESTS = Path(__file__).resolve().parents[2]

SERVE = """
import socket
server = socket.create_server(("", 7000))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(socket.gethostname().encode())
    connection.close()
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])) as connection:
    print(connection.recv(100).decode())
"""
SINK = """
import socket
server = socket.create_server(("", 7001))
print("ready", flush=True)
connection, _ = server.accept()
while connection.recv(1 << 20): pass
connection.sendall(b"!")
"""
SEND = """
import socket, sys, time
started = time.monotonic()
with socket.create_connection((sys.argv[1], 7001)) as connection:
    connection.sendall(bytes(1 << 20))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
print(time.monotonic() - started)
"""
SOURCE = """
import socket, threading
server = socket.create_server(("", 7002), backlog=64)
print("ready", flush=True)
def serve(connection):
    with connection: connection.sendall(bytes(1 << 20))
while True: threading.Thread(target=serve, args=(server.accept()[0],)).start()
"""
FETCH = """
import socket, sys, threading, time
def fetch():
    with socket.create_connection((sys.argv[1], 7002)) as connection:
        while connection.recv(1 << 20): pass
threads = [threading.Thread(target=fetch) for _ in range(int((sys.argv + ["1"])[2]))]
started = time.monotonic()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.monotonic() - started)
"""


def missing() -> str:
    try:
        system.require()
    except NotAvailable as error:
        return str(error)
    return ""


def await_that(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


def interfaces() -> str:
    return subprocess.run(
        ["ip", "-json", "address"], capture_output=True, text=True, check=True
    ).stdout


def start(host: Host, program: str, stdin: int | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program]
    process = host.popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def ask(host: Host, other: str, timeout_s: float = PATIENCE_S) -> str:
    command = [sys.executable, "-c", ASK, other, str(timeout_s)]
    return str(host.run(command, capture_output=True, text=True, check=False).stdout).strip()


@unittest.skipIf(missing(), missing())
class Labs(unittest.TestCase):
    def start(self, host: Host, program: str, stdin: int | None = None) -> "subprocess.Popen[str]":
        process = start(host, program, stdin)
        self.addCleanup(self.collect, process)
        return process

    @staticmethod
    def collect(process: "subprocess.Popen[str]") -> None:
        process.kill()
        process.communicate()

    def test_hosts_know_each_other_by_name(self) -> None:
        with Lab(Plan(hosts=3)) as lab:
            self.start(lab.host("h2"), SERVE)
            self.assertEqual(ask(lab.host("h0"), "h2"), "h2")
            self.assertEqual(ask(lab.host("h2"), "h2"), "h2")

    def test_the_rest_of_the_machine_is_left_alone(self) -> None:
        name, before = os.uname().nodename, interfaces()
        allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
        hosts = Path("/etc/hosts").read_text()
        allowed_before = allowed.read_text()
        with Lab(Plan(hosts=2, racks=2)) as lab:
            lab.host("h0").run(["true"], check=True)
            self.assertEqual(interfaces(), before)
            self.assertEqual(os.uname().nodename, name)
            self.assertEqual(Path("/etc/hosts").read_text(), hosts)
        self.assertEqual(interfaces(), before)
        self.assertEqual(allowed.read_text(), allowed_before)
        self.assertNotIn(lab.name, registry.names())

    def test_links_are_no_faster_than_their_rate(self) -> None:
        # A MiB at 10 Mbit/s takes 0.84 s.
        with Lab(Plan(hosts=2, rate_bits_s=10_000_000)) as lab:
            for sender, receiver in [("h0", "h1"), ("h1", "h0")]:
                self.start(lab.host(receiver), SINK)
                command = [sys.executable, "-c", SEND, receiver]
                took = (
                    lab.host(sender).run(command, capture_output=True, text=True, check=True).stdout
                )
                self.assertGreater(float(took), 0.8)

    def test_uplinks_are_no_faster_than_their_rate(self) -> None:
        plan = Plan(hosts=2, racks=2, rate_bits_s=1_000_000_000, uplink_bits_s=10_000_000)
        with Lab(plan) as lab:
            self.start(lab.host("h0"), SINK)
            command = [sys.executable, "-c", SEND, "h0"]
            took = lab.host("h1").run(command, capture_output=True, text=True, check=True).stdout
            self.assertGreater(float(took), 0.8)

    def test_a_connection_is_no_faster_than_the_cap_of_flows(self) -> None:
        plan = Plan(hosts=2, rate_bits_s=1_000_000_000, flow_cap_bits_s=10_000_000)
        with Lab(plan) as lab:
            self.start(lab.host("h1"), SINK)
            command = [sys.executable, "-c", SEND, "h1"]
            took = lab.host("h0").run(command, capture_output=True, text=True, check=True).stdout
            self.assertGreater(float(took), 0.8)
            self.start(lab.host("h1"), SOURCE)
            command = [sys.executable, "-c", FETCH, "h1"]
            took = lab.host("h0").run(command, capture_output=True, text=True, check=True).stdout
            self.assertGreater(float(took), 0.8)

    def test_several_connections_share_the_link(self) -> None:
        plan = Plan(hosts=2, rate_bits_s=1_000_000_000, flow_cap_bits_s=10_000_000)
        with Lab(plan) as lab:
            self.start(lab.host("h1"), SOURCE)
            command = [sys.executable, "-c", FETCH, "h1", "16"]
            took = lab.host("h0").run(command, capture_output=True, text=True, check=True).stdout
            self.assertLess(float(took), 16 * 0.84)

    def test_bytes_are_counted(self) -> None:
        with Lab(Plan(hosts=3)) as lab:
            self.start(lab.host("h1"), SINK)
            before = lab.traffic()
            lab.host("h0").run(
                [sys.executable, "-c", SEND, "h1"], stdout=subprocess.DEVNULL, check=True
            )
            after = lab.traffic()
            moved = {link: after[link] - before[link] for link in before}
            for count in (moved["h0"].sent_bytes, moved["h1"].received_bytes):
                self.assertGreater(count, 1 << 20)
                self.assertLess(count, 1.1 * (1 << 20))
            self.assertLess(moved["h2"].received_bytes, 10_000)

    def test_packets_over_a_cut_link_vanish(self) -> None:
        with Lab(Plan(hosts=3)) as lab:
            self.start(lab.host("h1"), SERVE)
            lab.cut("h1")
            self.assertEqual(ask(lab.host("h0"), "h1", timeout_s=0.3), "")
            lab.repair("h1")
            # The kernel's search for the address may fail after 3 s.
            await_that("an answer", lambda: ask(lab.host("h0"), "h1") == "h1")

    def test_a_rail_reaches_only_the_same_rail_and_can_be_cut(self) -> None:
        with Lab(Plan(hosts=2, rails=2)) as lab:
            self.start(lab.host("h1"), SERVE)
            source = lab.host("h0").addresses[0]
            program = ASK.replace("timeout=", f"source_address=({source!r}, 0), timeout=")
            for other, answer in [("h1.eth0", "h1"), ("h1.eth1", "")]:
                command = [sys.executable, "-c", program, other, "0.5"]
                found = lab.host("h0").run(command, capture_output=True, text=True, check=False)
                self.assertEqual(found.stdout.strip(), answer)
            self.assertEqual(ask(lab.host("h0"), "h1.eth1"), "h1")
            lab.cut("h1.eth1")
            self.assertEqual(ask(lab.host("h0"), "h1.eth1", timeout_s=0.3), "")
            self.assertEqual(ask(lab.host("h0"), "h1"), "h1")
            lab.repair("h1.eth1")
            await_that("an answer", lambda: ask(lab.host("h0"), "h1.eth1") == "h1")
            lab.cut("h1")
            for other in ("h1.eth0", "h1.eth1"):
                self.assertEqual(ask(lab.host("h0"), other, timeout_s=0.3), "")

    def test_a_rail_has_a_rate_and_a_count_of_its_own(self) -> None:
        with Lab(Plan(hosts=2, rails=2)) as lab:
            lab.set_rate("h1.eth1", 10_000_000)
            for other, least_s, most_s in [("h1.eth0", 0, 0.8), ("h1.eth1", 0.8, PATIENCE_S)]:
                self.start(lab.host("h1"), SINK)
                before = lab.traffic()
                command = [sys.executable, "-c", SEND, other]
                sent = lab.host("h0").run(command, capture_output=True, text=True, check=True)
                self.assertGreater(float(sent.stdout), least_s)
                self.assertLess(float(sent.stdout), most_s)
                after = lab.traffic()
                moved = {link: (after[link] - before[link]).received_bytes for link in after}
                self.assertGreater(moved[other], 1 << 20)
                self.assertEqual(moved["h1"], moved["h1.eth0"] + moved["h1.eth1"])

    def test_a_cut_uplink_parts_the_racks(self) -> None:
        with Lab(Plan(hosts=4, racks=2)) as lab:
            self.start(lab.host("h1"), SERVE)
            self.assertEqual(ask(lab.host("h3"), "h1"), "h1")
            lab.cut("rack1")
            self.assertEqual(ask(lab.host("h3"), "h1", timeout_s=0.3), "")
            self.assertEqual(ask(lab.host("h0"), "h1"), "h1")
            lab.repair("rack1")
            self.assertEqual(ask(lab.host("h3"), "h1"), "h1")

    def test_nobody_hears_of_the_end_of_a_killed_host(self) -> None:
        with Lab(Plan(hosts=2)) as lab:
            server = self.start(lab.host("h1"), SINK)
            program = (
                'import socket; s = socket.create_connection(("h1", 7001)); s.settimeout(0.3)\n'
                'print("ready", flush=True)\n'
                "input()\n"
                'try: print("heard", s.recv(1))\n'
                'except TimeoutError: print("silence")\n'
            )
            client = self.start(lab.host("h0"), program, stdin=subprocess.PIPE)
            lab.kill("h1")
            self.assertEqual(server.wait(PATIENCE_S), -signal.SIGKILL)
            # A client that ends before the kill would end the server.
            self.assertEqual(client.communicate("\n", timeout=PATIENCE_S)[0], "silence\n")

    def test_what_runs_on_a_host_ends_with_the_lab(self) -> None:
        with Lab(Plan(hosts=1)) as lab:
            process = self.start(lab.host("h0"), SERVE)
        self.assertEqual(process.wait(PATIENCE_S), -signal.SIGKILL)

    def test_unknown_names_are_refused(self) -> None:
        with Lab(Plan(hosts=2)) as lab:
            with self.assertRaisesRegex(LabError, "no host 'h9'; there are h0, h1"):
                lab.host("h9")
            with self.assertRaisesRegex(LabError, "no link 'rack0'"):
                lab.cut("rack0")

    def test_an_unknown_congestion_control_is_refused_and_nothing_is_left(self) -> None:
        with (
            self.assertRaisesRegex(LabError, "no congestion control called 'pigeon'"),
            Lab(Plan(hosts=1, congestion_control="pigeon")),
        ):
            self.fail("it was built")
        self.assertFalse(
            [name for name in registry.names() if name.startswith(f"hoplite-{os.getpid()}-")]
        )

    def test_a_process_can_own_several(self) -> None:
        with Lab(Plan(hosts=1)) as first, Lab(Plan(hosts=1)) as second:
            self.assertNotEqual(first.name, second.name)
            self.assertIn(first.name, registry.names())
            with self.assertRaisesRegex(LabError, "several labs"):
                Lab.existing()
            self.assertEqual(Lab.existing(second.name).plan, second.plan)


@unittest.skipIf(missing(), missing())
class Crashes(unittest.TestCase):
    def start(self) -> tuple["subprocess.Popen[str]", str]:
        command = [sys.executable, "-m", "lab", "up", "--hosts", "1"]
        owner = subprocess.Popen(
            command, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.addCleanup(Labs.collect, owner)
        assert owner.stdout
        name = owner.stdout.readline().split()[0]
        run = subprocess.Popen(
            [sys.executable, "-m", "lab", "run", "--lab", name, "h0", "sleep", "600"], cwd=TESTS
        )
        self.addCleanup(run.communicate)
        self.addCleanup(run.kill)
        await_that("the process", lambda: bool(system.processes(f"{name}-h0")))
        return owner, name

    def test_the_watcher_removes_the_lab_of_a_killed_owner(self) -> None:
        owner, name = self.start()
        owner.kill()
        owner.wait()
        await_that("the end of the lab", lambda: name not in registry.names())

    def test_an_owner_that_is_asked_to_end_removes_its_lab(self) -> None:
        ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, ignored)
        for number in (signal.SIGTERM, signal.SIGINT):
            owner, name = self.start()
            owner.send_signal(number)
            owner.wait(PATIENCE_S)
            self.assertNotIn(name, registry.names())

    def test_the_next_lab_removes_leftovers_and_nothing_else(self) -> None:
        crashed, leftover = self.start()
        running, living = self.start()
        watcher = self.watcher(leftover)
        os.kill(watcher, signal.SIGKILL)
        crashed.kill()
        crashed.wait()
        self.assertIn(leftover, registry.names())
        self.assertFalse(registry.is_owned(leftover))
        with Lab(Plan(hosts=1)):
            self.assertNotIn(leftover, registry.names())
            self.assertTrue(registry.is_owned(living))
            self.assertIn(f"{living}-h0", system.network_namespaces())
        running.terminate()
        running.wait(PATIENCE_S)

    def test_a_reused_process_id_is_not_taken_for_the_owner(self) -> None:
        with Lab(Plan(hosts=1)) as lab:
            file = registry.STATE / lab.name / "lab.json"
            facts = json.loads(file.read_text())
            self.assertTrue(registry.is_owned(lab.name))
            file.write_text(json.dumps({**facts, "owner_started": facts["owner_started"] - 1}))
            self.assertFalse(registry.is_owned(lab.name))

    @staticmethod
    def watcher(name: str) -> int:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[-3:-1] == [b"watch", name.encode()]:
                    return int(entry.name)
        raise AssertionError("there is no watcher")


@unittest.skipIf(missing(), missing())
class CommandLine(unittest.TestCase):
    def run_lab(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "lab", *arguments]
        return subprocess.run(
            command, cwd=TESTS, capture_output=True, text=True, timeout=60, check=False
        )

    def test_commands_are_run_outside_and_inside(self) -> None:
        inside = f"{sys.executable} -m lab"
        script = f"{inside} run h1 hostname && {inside} cut h0 h1 && {inside} repair h0 && {inside} traffic --json; exit 7"
        result = self.run_lab("up", "--hosts", "2", "--", "sh", "-c", script)
        name, traffic = result.stdout.splitlines()
        self.assertEqual((result.returncode, name), (7, "h1"), result.stderr)
        self.assertEqual(set(json.loads(traffic)), {"h0", "h1"})

    def test_mistakes_are_told_in_one_line(self) -> None:
        for arguments, message in [
            (["up", "--rate", "fast"], "'fast' is no rate"),
            (["up", "--hosts", "0"], "1 to 1000 hosts"),
            (["run", "h0", "true"], "there is no such lab"),
            (["cut", "--lab", "hoplite-1-0", "h0"], "there is no such lab"),
        ]:
            with self.subTest(arguments):
                result = self.run_lab(*arguments)
                self.assertEqual(result.returncode, 1)
                self.assertRegex(result.stderr, f"^lab: .*{message}.*\n$")


class Requirements(unittest.TestCase):
    def test_without_root_it_says_so(self) -> None:
        with (
            mock.patch("os.geteuid", return_value=65534),
            self.assertRaisesRegex(NotAvailable, "a lab needs root"),
        ):
            system.require()

    def test_a_missing_program_is_named(self) -> None:
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        with (
            mock.patch("os.geteuid", return_value=0),
            mock.patch(
                "shutil.which", side_effect=lambda program: None if program == "tc" else program
            ),
            self.assertRaisesRegex(NotAvailable, "needs `tc`: install the package iproute2"),
        ):
            system.require()


if __name__ == "__main__":
    unittest.main()
