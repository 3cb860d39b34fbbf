"""A worker that answers commands without moving bytes: fake_worker.py SOCKET RANK FAULT."""

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
                benchmark.sendall(
                    f"done {arguments[0]} {int(arguments[0]) + 1000 * (int(rank) + 1)}\n".encode()
                )
            else:
                benchmark.sendall(b"ok\n")


if __name__ == "__main__":
    main()
