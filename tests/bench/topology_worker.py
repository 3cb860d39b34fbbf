"""A rank of a collective over plain sockets: `topology_worker.py INDEX ADDRESS...`.

Each line of input is a collective: `{"model", "order", "size"}`. The worker moves its bytes,
without adding them, and prints the seconds.
"""

import json
import socket
import sys
import threading
import time

PORT = 7500
CHANNELS = 2
CHUNK = bytes(64 << 10)
CONNECT_TIMEOUT_S = 20

Peers = dict[tuple[int, int], socket.socket]
# Concurrent sends and receives, each a rank and a number of bytes.
Phase = tuple[list[tuple[int, int]], list[tuple[int, int]]]


def connect(own: int, addresses: list[str]) -> Peers:
    """Connects all pairs of ranks; the larger index opens the connection."""
    peers: Peers = {}
    listener = socket.create_server((addresses[own], PORT), backlog=4 * len(addresses))
    for peer in range(own):
        for channel in range(CHANNELS):
            peers[peer, channel] = attempt(addresses[peer])
            peers[peer, channel].sendall(bytes([own, channel]))
    while len(peers) < CHANNELS * (len(addresses) - 1):
        connection, _ = listener.accept()
        peer, channel = receive(connection, 2)
        peers[peer, channel] = connection
    for connection in peers.values():
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def attempt(address: str) -> socket.socket:
    end = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("a peer is gone")
        data += more
    return data


def drain(connection: socket.socket, length: int) -> None:
    buffer = bytearray(len(CHUNK))
    while length > 0:
        received = connection.recv_into(buffer, min(length, len(buffer)))
        if received == 0:
            raise ConnectionError("a peer is gone")
        length -= received


def send(connection: socket.socket, length: int) -> None:
    while length > 0:
        connection.sendall(CHUNK[: min(length, len(CHUNK))])
        length -= len(CHUNK)


def ring(ranks: int, rank: int, size: int) -> list[list[Phase]]:
    part = size // ranks
    return [[([((rank + 1) % ranks, part)], [((rank - 1) % ranks, part)])] * (2 * (ranks - 1))]


def halving_doubling(ranks: int, rank: int, size: int) -> list[list[Phase]]:
    """In step i, rank j exchanges S / 2^(i+1) bytes with rank j xor 2^i."""
    steps = [(rank ^ (1 << i), size >> (i + 1)) for i in range(ranks.bit_length() - 1)]
    phases: list[Phase] = [([step], [step]) for step in steps]
    return [phases + phases[::-1]]


def double_binary_tree(ranks: int, rank: int, size: int) -> list[list[Phase]]:
    return [tree(ranks, rank, shift, size // 2) for shift in (0, 1)]


def tree(ranks: int, rank: int, shift: int, size: int) -> list[Phase]:
    """Returns a rank's steps in a tree, in which the root of ranks i to j is (i + j) / 2. With
    `shift` 1, rank r has the place of rank r + 1.
    """
    place = (rank + shift) % ranks
    low, high = 0, ranks - 1
    parent = None
    while True:
        root = (low + high) // 2
        if root == place:
            break
        parent = root
        low, high = (low, root - 1) if place < root else (root + 1, high)
    children = [(a + b) // 2 for a, b in ((low, place - 1), (place + 1, high)) if a <= b]
    down = [((child - shift) % ranks, size) for child in children]
    up = [] if parent is None else [((parent - shift) % ranks, size)]
    return [([], down), (up, []), ([], up), (down, [])]


PROGRAMS = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "double-binary-tree": double_binary_tree,
}


def run(peers: Peers, order: list[int], channel: int, phases: list[Phase]) -> None:
    for sends, receives in phases:
        sending = [
            threading.Thread(target=send, args=(peers[order[peer], channel], length))
            for peer, length in sends
        ]
        receiving = [
            threading.Thread(target=drain, args=(peers[order[peer], channel], length))
            for peer, length in receives
        ]
        for thread in sending + receiving:
            thread.start()
        for thread in sending + receiving:
            thread.join()


def main() -> None:
    own, addresses = int(sys.argv[1]), sys.argv[2:]
    peers = connect(own, addresses)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        order = request["order"]
        programs = PROGRAMS[request["model"]](len(order), order.index(own), request["size"])
        begun = time.monotonic()
        threads = [
            threading.Thread(target=run, args=(peers, order, channel, phases))
            for channel, phases in enumerate(programs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(time.monotonic() - begun, flush=True)


if __name__ == "__main__":
    main()
