from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_SECONDS = 10.0


def options(doc: str | None, workers: int = 4) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    run = parser.add_argument_group("how much")
    run.add_argument(
        "--workers", type=positive, default=workers, metavar="N", help=f"how many [{workers}]"
    )
    run.add_argument("--steps", type=positive, metavar="N", help="end after so many steps")
    run.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help=f"end after so long [{DEFAULT_SECONDS:.0f}, unless --steps]",
    )
    run.add_argument("--seed", type=int, default=0, help="of all that is random [0]")
    run.add_argument(
        "--kill-after", type=positive, metavar="N", help="kill the last worker after so many steps"
    )

    where = parser.add_argument_group("where")
    where.add_argument(
        "--backend",
        choices=("hoplite", "ray"),
        default="hoplite",
        help="what moves the data [hoplite]",
    )
    where.add_argument(
        "--nodes",
        type=positive,
        metavar="N",
        help="how many nodes to play on this machine, each with a store [one for each worker, one for this program]",
    )
    where.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help='run the workers on this Ray cluster, such as "auto"; "local" plays one on this machine',
    )
    where.add_argument(
        "--insecure",
        action="store_true",
        help="on a Ray cluster of several machines: I trust everybody who can reach them (see docs/reference/ray.md)",
    )

    result = parser.add_argument_group("what comes out")
    result.add_argument("--plot", metavar="FILE.png", help="plot how it went")
    result.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    result.add_argument(
        "--compare",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="run it with both backends, and compare how fast they are",
    )
    result.add_argument(
        "--compare-workers",
        type=positive,
        nargs="+",
        default=[3, 7],
        metavar="N",
        help="with so many [3 7]",
    )
    return parser


def checked(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    args = parser.parse_args(arguments)
    if args.steps is None and args.seconds is None:
        args.seconds = DEFAULT_SECONDS
    if args.plot and Path(args.plot).suffix != ".png":
        parser.error("--plot makes a PNG: give it a name that ends with .png")
    if args.nodes is None:
        args.nodes = args.workers + 1
    return args


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time in seconds")
    return value
