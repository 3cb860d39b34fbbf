"""A worker that does nothing, as it is told to: fake_worker.py SOCKET RANK FAULT.

FAULT is where it goes wrong: `never`, or one of the words of the protocol and what then happens, as in `run-silent`,
`run-die` or `check-wrong`.
"""

import socket
import sys
import time


def main() -> None:
    path, rank, fault = sys.argv[1:]
    where, _, how = fault.partition("-")
    with socket.socket(socket.AF_UNIX) as benchmark:
        benchmark.connect(path)
        benchmark.sendall(f"hello {rank}\n".encode())
        for line in benchmark.makefile():
            word, *arguments = line.split()
            if word == where and how == "silent":
                continue
            if word == where and how == "die":
                return
            if word == where and how == "wrong":
                benchmark.sendall(b"error wrong result\n")
            elif word == "run":
                time.sleep(max(0, int(arguments[0]) - time.monotonic_ns()) / 1e9)
                benchmark.sendall(f"done {arguments[0]} {int(arguments[0]) + 1000 * (int(rank) + 1)}\n".encode())
            else:
                benchmark.sendall(b"ok\n")


if __name__ == "__main__":
    main()
