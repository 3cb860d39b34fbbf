from __future__ import annotations

import asyncio
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hoplite
import hoplite.aio
from hoplite import _html
from hoplite._reports import Link, Status, Topology
from stores import Cluster, await_that, retry

SCRIPT = '<script>alert("x")</script>'
ODD = [
    SCRIPT,
    "<img src=x onerror=alert(1)>",
    "</table><b>",
    "a&amp;b",
    "line\nbreak\ttab\0nul",
    "\u202eright to left",
    "Größe 日本語 🙂",
    b"\xff\xfe\x00<b>",
    "'\"`",
]
TAGS = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


class Shown(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open
        assert set(self.tags) <= TAGS

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        assert not attrs
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        assert self.open[-1] in ("td", "th", "caption")
        self.texts.append(data)


@pytest.fixture(scope="module")
def odd(client: hoplite.Client) -> Iterator[list[hoplite.Ref]]:
    names = [b"html/" + (name.encode() if isinstance(name, str) else name) for name in ODD]
    refs = [client.put(name, np.zeros((2, 3), np.float32), confirm=True) for name in names]
    yield refs
    client.delete(refs)


def test_objects(client: hoplite.Client, odd: list[hoplite.Ref]) -> None:
    listing = client.list("html/")
    shown = Shown(listing._repr_html_())
    assert f"{len(ODD)} objects" in shown.texts
    assert shown.tags.count("tr") == 1 + len(ODD)
    assert "html/" + SCRIPT in shown.texts
    assert "html/Größe 日本語 🙂" in shown.texts
    assert "html/line\\nbreak\\ttab\\x00nul" in shown.texts
    assert "html/\\u202eright to left" in shown.texts
    assert "html/\\xff\\xfe\\x00<b>" in shown.texts
    assert shown.texts.count("24 B") == len(ODD)
    assert shown.texts.count("node-0") == len(ODD), "the creators"
    assert len(list(listing)) == len(ODD), "the table has not moved the iterator"
    assert next(client.list("html/")).nbytes == 24
    assert "0 objects" in Shown(client.list("nothing has this name")._repr_html_()).texts
    assert repr(listing).startswith("<hoplite.Objects")


def test_one_object(client: hoplite.Client, odd: list[hoplite.Ref]) -> None:
    for ref in odd:
        info = retry(client.stat, ref)
        assert info is not None
        assert "float32" in Shown(info._repr_html_()).texts


def test_long_listings_are_cut(client: hoplite.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite._calls.PAGE", 2)
    refs = [client.put(f"html-many/{number}", 1, confirm=True) for number in range(5)]
    assert "The first 2 objects" in Shown(client.list("html-many/")._repr_html_()).texts
    assert len(list(client.list("html-many/"))) == 5
    client.delete(refs)


def test_ages() -> None:
    shown = [_html.age(seconds) for seconds in (0.9, 59.9, 60, 3599, 3600, 86_399, 86_400)]
    assert shown == ["0s", "59s", "1m", "59m", "1h", "23h", "1d"]


def test_status(client: hoplite.Client) -> None:
    status = client.status()
    assert isinstance(status, dict)
    shown = Shown(status._repr_html_())
    assert "Store of node node-0" in shown.texts
    assert "512.0 MiB" in shown.texts
    assert (status["max_lanes"], status["extra_lanes"]) == (1, 0)
    assert status["shards"][0]["address"] in shown.texts


def test_a_status_with_odd_names() -> None:
    status = Status(node=SCRIPT, version=SCRIPT, free_bytes=0, troubles=[SCRIPT], links=[])
    status["shards"] = [{"address": SCRIPT, "connected": True, "objects": 1, "nodes": 1}]
    assert Shown(status._repr_html_()).texts.count(SCRIPT) == 4


def test_topology(cluster: Cluster, client: hoplite.Client) -> None:
    def sent() -> bool:
        with cluster.connect(1) as other, client.put(None, np.zeros(4 << 20)) as ref:
            other.get(ref, copy=True)
        return bool(client.topology())

    await_that("a link is known", sent)

    def is_in_the_status() -> bool:
        return list(client.topology()) == [Link(**link) for link in client.status()["links"]]

    await_that("both show the same links", is_in_the_status)
    links = client.topology()
    assert isinstance(links, tuple)
    assert {link.node for link in links} <= {"node-1", "node-2"}
    assert all(link.round_trip_us > 0 and link.bytes_per_second > 0 for link in links)
    assert all(link.lanes is None for link in links), "each transfer keeps one connection"
    assert links[0].node in Shown(links._repr_html_()).texts


def test_a_topology_with_odd_names() -> None:
    links = Topology(
        [Link(SCRIPT, 12.5, 1.5 * (1 << 30), True, lanes=4), Link("\ud800", 1, 0, False)]
    )
    shown = Shown(links._repr_html_())
    cells = [text for text in shown.texts if text != "node"][4:9]
    assert cells == [SCRIPT, "12.5 us", "1.5 GiB/s", "4", "slow"]
    links._repr_html_().encode()


def test_the_asynchronous_client(cluster: Cluster) -> None:
    async def look() -> None:
        async with await hoplite.aio.connect(cluster.sockets[0]) as client:
            Shown((await client.status())._repr_html_())
            Shown((await client.topology())._repr_html_())

    asyncio.run(look())


@given(value=st.text() | st.binary() | st.from_regex(r"[<>&'\"/a-z]{0,20}", fullmatch=True))
def test_any_name_is_text(value: str | bytes) -> None:
    page = _html.table("title", ("id",), [(value,)])
    page.encode()
    assert Shown(page).tags == ["table", "caption", "thead", "tr", "th", "tbody", "tr", "td"]


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 72, "4096.0 EiB"),
    ],
)
def test_sizes(nbytes: int, shown: str) -> None:
    assert _html.size(nbytes) == shown
