"""`hoplite top` in a real pseudo-terminal."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest
from contextlib import ExitStack
from pathlib import Path

from dashboard.cluster import BINARIES, Process, directory, environment, store

PATIENCE_SECONDS = 300.0
LEAVE = b"\x1b[?1049l"
"""The escape sequence that leaves the alternate screen."""


class Terminal:
    def __init__(self, socket: Path, **variables: str) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            [BINARIES / "hoplite", "top", "--interval", "250ms", "--socket", socket],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=environment() | {"TERM": "xterm-256color"} | variables,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def read(self) -> bool:
        if not select.select([self.master], [], [], 0.05)[0]:
            return False
        self.output += os.read(self.master, 1 << 16)
        return True

    def text(self) -> str:
        """The output without control sequences and spaces."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\s", "", self.output.decode(errors="replace"))

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while text.replace(" ", "") not in self.text():
            self.read()
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain for {text!r}: {self.text()}")

    def press(self, keys: str) -> None:
        self.output = b""
        os.write(self.master, keys.encode())

    def end(self) -> int:
        end = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            self.read()
            assert time.monotonic() < end, "it does not end"
        while self.read():
            pass
        assert LEAVE in self.output, "the alternate screen is left"
        assert b"\x1b[?25h" in self.output, "the cursor is shown again"
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is as it was"
        return self.process.returncode


class Top(unittest.TestCase):
    def setUp(self) -> None:
        self.stack = ExitStack()
        self.addCleanup(self.stack.close)
        addresses = self.stack.enter_context(directory())
        self.place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        shard = addresses["directory"]
        self.sockets = [
            self.stack.enter_context(store(shard, self.place, f"node-{n}")) for n in range(2)
        ]

    def test_it_shows_the_cluster_and_follows_keys(self) -> None:
        worker = self.stack.enter_context(Process("hoplite-test-worker", self.sockets[0]))
        worker.do("put weights/7 1000000")
        worker.do("put other 1000")
        with Terminal(self.sockets[0]) as top:
            for text in ["node-0", "node-1", "64.0 MiB", "2 nodes, 2 objects"]:
                top.wait_for(text)
            top.press("2")
            top.wait_for("weights/7")
            top.press("/weig\r")
            top.wait_for("Esc clears it")
            top.press("\r")
            top.wait_for("complete")
            top.press("q")
            self.assertEqual(top.end(), 0)

    def test_the_terminal_is_given_back_however_it_ends(self) -> None:
        for end in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, "\x03"):
            with Terminal(self.sockets[0]) as top:
                top.wait_for("node-1")
                if isinstance(end, str):
                    top.press(end)
                else:
                    top.output = b""
                    top.process.send_signal(end)
                self.assertEqual(top.end(), 0, end)

    def test_there_is_no_colour_if_none_is_wanted(self) -> None:
        colour = re.compile(rb"\x1b\[[0-9;]*(3[1-8]|9[0-7]|4[1-8])[0-9;]*m")
        for variables, is_coloured in [({}, True), ({"NO_COLOR": "1"}, False)]:
            with ExitStack() as stack:
                addresses = stack.enter_context(directory())
                with Terminal(
                    stack.enter_context(store(addresses["directory"], self.place, "alone")),
                    **variables,
                ) as top:
                    top.wait_for("alone")
                    stack.close()
                    # The complaint is red, or only bold.
                    top.wait_for("the connection to the store at")
                    output = top.output
                    top.press("q")
                    top.end()
            self.assertEqual(colour.search(output) is not None, is_coloured, variables)

    def test_what_is_no_terminal_is_told_what_to_use(self) -> None:
        command = [BINARIES / "hoplite", "top", "--socket", self.sockets[0]]
        options = {
            "capture_output": True,
            "text": True,
            "env": environment(),
            "timeout": PATIENCE_SECONDS,
        }
        done = subprocess.run(command, stdin=subprocess.DEVNULL, **options)
        self.assertEqual(done.returncode, 1)
        self.assertIn("hoplite status --watch", done.stderr)
        self.assertEqual(done.stdout, "")
