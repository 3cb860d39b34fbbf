import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from chaos.preload import Preload

SENT = b"x" * 1000
PROGRAM = """
import socket, sys, time
if sys.argv[1] == "tcp":
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver = listener.accept()[0]
else:
    sender, receiver = socket.socketpair()
sender.send(b"x" * 1000)
sender.close()
received = b"".join(iter(lambda: receiver.recv(4096), b""))
print(received.hex(), time.time(), time.monotonic())
"""


@unittest.skipUnless(shutil.which("cc"), "needs cc")
class Preloaded(unittest.TestCase):
    def setUp(self) -> None:
        directory = self.enterContext(tempfile.TemporaryDirectory())
        self.preload = Preload(Path(directory), ["here"])
        self.faults = self.preload.faults["here"]

    def run_program(self, protocol: str) -> tuple[bytes, float, float]:
        output = subprocess.run(
            [sys.executable, "-c", PROGRAM, protocol],
            env={**os.environ, **self.preload.environment("here")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        received, wall, monotonic = output.split()
        return bytes.fromhex(received), float(wall), float(monotonic)

    def test_one_bit_of_a_send_flips(self) -> None:
        self.faults.set("flip-bytes", 1)
        received, *_ = self.run_program("tcp")
        wrong = [one ^ other for one, other in zip(received, SENT, strict=True) if one != other]
        self.assertEqual([bits.bit_count() for bits in wrong], [1])
        self.assertEqual(self.faults.count("flip-bytes"), 1)

    def test_a_truncated_send_ends_its_connection(self) -> None:
        self.faults.set("truncate-bytes", 1)
        received, *_ = self.run_program("tcp")
        self.assertEqual(received, SENT[:500])
        self.assertEqual(self.faults.count("truncate-bytes"), 1)

    def test_unix_sockets_stay_whole(self) -> None:
        self.faults.set("flip-bytes", 1)
        self.faults.set("truncate-bytes", 1)
        self.assertEqual(self.run_program("unix")[0], SENT)
        self.assertEqual(self.faults.count("flip-bytes"), 0)

    def test_only_the_wall_clock_jumps(self) -> None:
        self.faults.set("clock-jump", 3600)
        _, wall, monotonic = self.run_program("tcp")
        self.assertAlmostEqual(wall - time.time(), 3600, delta=60)
        self.assertAlmostEqual(monotonic, time.monotonic(), delta=60)
        self.assertGreater(self.faults.count("clock-jump"), 0)


if __name__ == "__main__":
    unittest.main()
