"""Measures gets of a 160 MB table of pandas, Arrow and polars from another process.

    python python/benchmarks/tables.py
    python python/benchmarks/tables.py --rows 1000 --rounds 3 --json

See README.md.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter
from typing import Any

import hoplite

#: A row has four numbers of 8 bytes, and a word of up to 8 bytes.
ROW_BYTES = 40
TABLE_BYTES = 160_000_000
WAIT_LIMIT = 120.0
LIBRARIES = (
    "numpy",
    "pandas, numbers",
    "pandas",
    "arrow",
    "arrow, sliced",
    "polars",
    "polars, words",
)


def main() -> int:
    from contestants import HopliteStore, NotThere

    args = _parser().parse_args()
    try:
        with HopliteStore.running(
            len(LIBRARIES) * 2 * max(args.rows * ROW_BYTES, 1 << 20)
        ) as store:
            times = measure(store._client, args.rows, args.rounds)
    except NotThere as error:
        print(f"tables.py: {error}", file=sys.stderr)
        return 1
    seconds = {
        name: {what: {"median": median(of), "minimum": min(of)} for what, of in found.items()}
        for name, found in times.items()
    }
    if args.json:
        print(json.dumps({"rows": args.rows, "rounds": args.rounds, "seconds": seconds}))
        return 0
    print(
        f"{args.rows} rows of {ROW_BYTES} bytes, medians of {args.rounds} rounds (and the least), in ms"
    )
    for name, found in seconds.items():
        figures = (
            f"{what} {of['median'] * 1e3:.3f} ({of['minimum'] * 1e3:.3f})"
            for what, of in found.items()
        )
        print(f"{name:16} {', '.join(figures)}")
    return 0


def measure(client: hoplite.Client, rows: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    reader = context.Process(target=read, args=(theirs, client.socket))
    reader.start()
    theirs.close()
    times: dict[str, dict[str, list[float]]] = {name: {"put": [], "get": []} for name in LIBRARIES}
    try:
        tables = {name: make(name, rows) for name in LIBRARIES}
        for round in range(-1, rounds):
            for name, table in tables.items():
                started = perf_counter()
                ref = client.put(None, table, WAIT_LIMIT)
                put = perf_counter() - started
                ours.send(ref)
                got = ours.recv()
                client.delete(ref)
                if round >= 0:
                    times[name]["put"].append(put)
                    times[name]["get"].append(got)
        ours.send(None)
    finally:
        ours.close()
        reader.join()
    return times


def read(connection: Connection, socket: str) -> None:
    with connection, hoplite.connect(socket) as client:
        while (ref := connection.recv()) is not None:
            started = perf_counter()
            table = client.get(ref, WAIT_LIMIT)
            connection.send(perf_counter() - started)
            del table


def make(name: str, rows: int) -> Any:
    import numpy as np
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    numbers = np.arange(rows * ROW_BYTES // 8, dtype=np.float64)
    if name == "numpy":
        return numbers
    if name == "pandas, numbers":
        return pd.DataFrame(numbers.reshape(-1, 5), columns=list("abcde"))
    words = pa.array([f"word {row % 1000:03}" for row in range(rows)])
    columns = {
        column: pa.array(numbers[:rows], mask=numbers[:rows] == row)
        for row, column in enumerate("abcd")
    }
    table = pa.table({**columns, "words": words})
    if name == "arrow, sliced":
        return pa.concat_tables([table[1:], table[:1]])
    if name == "pandas":
        return table.to_pandas()
    if name == "polars":
        return pl.DataFrame(pl.from_arrow(table))
    if name == "polars, words":
        return pl.DataFrame({"words": [f"a word that has more bytes {row}" for row in range(rows)]})
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rows", type=int, default=TABLE_BYTES // ROW_BYTES, help="rows of each table"
    )
    parser.add_argument("--rounds", type=int, default=9, help="rounds that count")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
