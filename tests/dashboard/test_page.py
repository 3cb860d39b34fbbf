"""Page in a browser. HOPLITE_WRITE_DOCS=1 renews the screenshots in the documentation."""

import os
import tempfile
import time
import unittest
from contextlib import ExitStack
from pathlib import Path

from dashboard import browser
from dashboard.browser import Browser
from dashboard.cluster import BINARIES, TOKEN, Process, crowd, directory, store, token_file

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/images"
ROWS = "return document.querySelectorAll(arguments[0]).length"
NARROW = 380
CARDS = "127.0.0.1:0,127.0.0.2:0"


@unittest.skipIf(browser.missing() is not None, browser.missing() or "")
class Page(unittest.TestCase):
    def setUp(self) -> None:
        self.stack = ExitStack()
        self.addCleanup(self.stack.close)

    def open(self, addresses: dict[str, str], view: str = "", **window: object) -> Browser:
        window_ = self.stack.enter_context(Browser(**window))  # type: ignore[arg-type]
        window_.open(f"http://{addresses['dashboard']}/{view}")
        return window_

    @staticmethod
    def document(page: Browser, name: str) -> None:
        if "HOPLITE_WRITE_DOCS" in os.environ:
            page.photograph(IMAGES / f"dashboard-{name}.png")

    def test_a_running_broadcast_of_real_stores_is_a_tree(self) -> None:
        addresses = self.stack.enter_context(directory())
        place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        sockets = [
            self.stack.enter_context(
                store(addresses["directory"], place, f"node-{n}", "--labels", f"rack={n}")
            )
            for n in range(4)
        ]
        workers = [
            self.stack.enter_context(Process("hoplite-test-worker", socket)) for socket in sockets
        ]
        size = 32 << 20
        evil = "<img/src=x/onerror=window.hacked=1>"
        workers[0].do(f"put {evil} 100")
        workers[0].do(f"create weights {size}")
        workers[0].do(f"write {size // 2}")
        page = self.open(addresses, "#transfers")
        for receiver in workers[1:]:
            receiver.say("get weights")
        page.wait_for_text("the longest chain has 3 hops")
        page.wait_for(
            "return [...document.querySelectorAll('.number')].filter((cell) => cell.innerText === '50%').length >= 3"
        )
        self.assertIn("first of group", page.text("main"))
        self.assertEqual(
            page.run(ROWS, ".branch svg .edge.live"), 6, "both halves of each link are drawn"
        )
        self.document(page, "stores")
        page.open(f"http://{addresses['dashboard']}/#nodes")
        page.wait_for_text("rack=3", "table")
        page.wait_for_text("64.0 MiB", "table")
        page.open(f"http://{addresses['dashboard']}/#objects")
        page.wait_for_text(evil, "table")
        page.type("#prefix", "<img")
        page.press("\ue007")
        page.wait_for("return document.querySelectorAll('tbody tr').length === 1")
        page.run("document.querySelector('tbody a').click()")
        page.wait_for_text(evil, "h1")
        page.wait_for_text("ago by node-0")
        self.assertEqual(page.run(ROWS, "main img"), 0)
        self.assertFalse(page.run("return 'hacked' in window"))
        workers[0].do(f"write {size - size // 2}")
        workers[0].do("seal")
        for receiver in workers[1:]:
            self.assertEqual(receiver.line(), "done")
        page.open(f"http://{addresses['dashboard']}/#object/{b'weights'.hex()}")
        page.wait_for_text("0 on their way, 4 complete")
        self.assertEqual(page.log(), [])

    def test_a_node_has_a_page_with_its_clients_its_log_and_its_past(self) -> None:
        addresses = self.stack.enter_context(directory())
        place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        sockets = [
            self.stack.enter_context(
                store(addresses["directory"], place, f"node-{n}", "--listen", CARDS)
            )
            for n in range(2)
        ]
        writer, reader = (
            self.stack.enter_context(Process("hoplite-test-worker", socket)) for socket in sockets
        )
        evil = "<img/src=x/onerror=window.hacked=1>\u202e\u0645\u0631\u062d\u0628\u0627"
        writer.do(f"put {evil} {8 << 20}")
        reader.do(f"get {evil}")
        page = self.open(addresses, "#nodes", height=1400)
        page.wait_for_text("node-1", "table")
        page.run(
            "[...document.querySelectorAll('tbody a')].find((link) => link.innerText === 'node-1').click()"
        )
        page.wait_for_text("node-1", "h1")
        page.wait_for(
            "return [...document.querySelectorAll('tbody tr')].some((row) => row.innerText.includes('process') && row.innerText.includes('8.0 MiB'))"
        )
        page.wait_for("return document.querySelector('.log')?.innerText.length > 20")
        page.wait_for(
            "return [...document.querySelectorAll('tbody tr')].some((row) => row.innerText.startsWith('127.0.0.2'))"
        )
        page.wait_for(
            "return [...document.querySelectorAll('.track')].some((bar) => bar.title.startsWith('node-0 to node-1'))"
        )
        page.wait_for(
            "return document.querySelector('.chart path.used')?.getAttribute('d').length > 0"
        )
        self.assertEqual(page.run(ROWS, ".chart"), 5)
        page.run("document.querySelector('.chart summary').click()")
        points = page.run(
            "return document.querySelectorAll('.chart details')[1].querySelectorAll('tbody tr').length"
        )
        page.wait_for(
            "return document.querySelector('.chart path.used').getAttribute('d').split('L').length > 2"
        )
        self.assertTrue(page.run("return document.querySelector('.chart details').open"))
        self.assertGreaterEqual(points, 1)
        self.assertEqual(page.run(ROWS, "main img"), 0)
        self.assertFalse(page.run("return 'hacked' in window"))
        self.document(page, "node")
        page.open(f"http://{addresses['dashboard']}/#transfers")
        page.wait_for_text("The last 100 objects that were sent")
        page.wait_for("return document.querySelectorAll('.track').length === 1")
        page.run("document.querySelector('td a, th a').click()")
        page.wait_for_text("as a schedule of hops")
        page.wait_for("return document.querySelectorAll('#grants .track').length === 1")
        self.assertEqual(page.log(), [])

    def test_problems_come_first_with_their_cures(self) -> None:
        addresses = self.stack.enter_context(directory())
        place = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        socket = self.stack.enter_context(store(addresses["directory"], place, "node-0"))
        worker, waiter = (
            self.stack.enter_context(Process("hoplite-test-worker", socket)) for _ in range(2)
        )
        page = self.open(addresses, height=1000)
        page.wait_for_text("No problem is known")
        worker.do(f"put kept {50 << 20}")
        waiter.say(f"put waits {30 << 20}")
        page.wait_for_text("A store is full", "#main")
        page.wait_for_text("a store is full", "#problems")
        self.assertIn("Cure:", page.text(".problems"))
        self.assertEqual(page.run("return document.querySelector('.places a').innerText"), "node-0")
        page.wait_for(
            "return document.querySelector('.chart path.used')?.getAttribute('d').length > 0"
        )
        self.document(page, "problems")
        page.run("location.hash = '#objects'")
        page.wait_for_text("a store is full", "#problems")
        worker.do("delete kept")
        self.assertEqual(waiter.line(), "done")
        page.wait_for("return document.getElementById('problems').hidden")
        self.assertEqual(page.log(), [])

    def test_a_thousand_nodes_are_painted(self) -> None:
        addresses = self.stack.enter_context(directory())
        self.stack.enter_context(crowd(addresses["directory"], 1000, 25_000, 60))
        first = self.open(addresses, "#overview", width=1280, height=860)
        first.wait_for_text("nodes have slow links", "#main")
        first.wait_for(
            "return document.querySelector('.chart path.received')?.getAttribute('d').length > 0"
        )
        page = self.open(addresses, "#nodes", width=1280, height=860)
        page.wait_for("return document.querySelectorAll('.map .cell').length === 1000")
        painted = page.run(
            "return performance.getEntriesByType('paint').find((paint) => paint.name === 'first-contentful-paint').startTime"
        )
        print(f"first paint with 1,000 nodes after {painted:.0f} ms")
        page.wait_for("return document.querySelectorAll('.map .cell[class*=full]').length === 1000")
        page.wait_for_text("1–100 of 1,000", ".pages")
        page.run("document.getElementById('later').click()")
        page.wait_for_text("gpu-0150", "table")
        page.run(
            "const group = document.getElementById('group'); group.value = 'rack'; group.dispatchEvent(new Event('change'))"
        )
        self.assertEqual(page.run(ROWS, ".group"), 32)
        page.type("#filter", "rack=07")
        page.wait_for_text("1–32 of 32", ".pages")

        page.open(f"http://{addresses['dashboard']}/#objects")
        page.wait_for_text("objects/000099")
        page.run("document.getElementById('later').click()")
        page.wait_for_text("objects/000100")
        page.type("#copies", "2")
        page.press("\ue007")
        page.wait_for_text("20,000 searched")
        page.run("document.getElementById('later').click()")
        page.wait_for_text("weights/step-1200")

        # All objects by prefix, then the steps of one prefix, and the objects of one step.
        page.open(f"http://{addresses['dashboard']}/#prefixes")
        page.wait_for_text("objects/", "tbody")
        page.wait_for_text("25,000", "tbody")
        self.document(page, "prefixes")
        page.run(
            "[...document.querySelectorAll('tbody a')].find((link) => link.innerText === 'weights/').click()"
        )
        page.wait_for_text("weights/", "h1")
        page.wait_for_text("and no further /", "tbody")
        page.run("document.querySelector('tbody a').click()")
        page.wait_for_text("weights/step-1200", "tbody")
        self.assertEqual(page.run("return document.getElementById('prefix').value"), "weights/")
        self.assertEqual(page.run("return document.querySelectorAll('tbody tr').length"), 1)

        page.open(f"http://{addresses['dashboard']}/#transfers")
        page.wait_for_text("complete before partial")
        page.wait_for("return document.querySelectorAll('.branch svg').length === 61")
        self.document(page, "broadcast")
        page.open(f"http://{addresses['dashboard']}/#reduces")
        page.wait_for_text("chain of 2 dimensions")
        page.wait_for_text("gradients/sum-87")
        page.run(
            "[...document.querySelectorAll('tbody a')].find((link) => link.innerText === 'gradients/sum-87').click()"
        )
        page.wait_for_text("gradients/sum-87", "h1")
        page.wait_for_text("chain, estimated to take 39.2s")
        page.wait_for("return document.querySelectorAll('tbody tr').length === 8")
        nodes = page.run(
            "return [...document.querySelectorAll('tbody th')].map((cell) => cell.innerText)"
        )
        self.assertEqual(nodes, [f"gpu-{number:04}" for number in range(1, 9)])
        self.document(page, "reduce")

        page.open(f"http://{addresses['dashboard']}/#links")
        page.wait_for_text("more nodes with fewer slow links are not shown")
        self.assertEqual(page.run(ROWS, ".heat tbody tr"), 32)
        self.assertEqual(page.run(ROWS, ".heat tbody td"), 32 * 32)
        slow = "return [...document.querySelectorAll('.heat td.slow')].map((cell) => cell.title)"
        stories = page.run(slow)
        self.assertEqual(
            len(stories),
            62,
            "both directions of the links of the broken port that are in the picture",
        )
        self.assertTrue(
            all("gpu-0007" in story and "round trip, slow" in story for story in stories), stories
        )
        self.document(page, "links")
        page.run(
            "const group = document.getElementById('group'); group.value = 'rack'; group.dispatchEvent(new Event('change'))"
        )
        page.wait_for("return document.querySelector('.heat tbody th')?.innerText === '00'")
        self.assertIn(
            "the worst of", page.run("return document.querySelector('.heat td.slow').innerText")
        )
        page.open(f"http://{addresses['dashboard']}/#node/gpu-0007")
        page.wait_for(
            "return [...document.querySelectorAll('thead th')].some((cell) => cell.innerText === 'Connections')"
        )
        page.wait_for(
            "return [...document.querySelectorAll('tbody tr')].some((row) => row.innerText.includes('slow') && row.cells[3]?.innerText === '4')"
        )
        self.assertEqual(page.log(), [])

    def test_errors_are_shown_and_old_numbers_stay(self) -> None:
        with ExitStack() as shard:
            addresses = shard.enter_context(directory())
            shard.enter_context(crowd(addresses["directory"], 3))
            page = self.open(addresses, "#events")
            page.wait_for_text("connected", "table")
        page.wait_for_text("No answer", "#trouble")
        self.document(page, "error")
        self.assertIn("gpu-0001", page.text("table"))

    def test_the_token_is_the_login(self) -> None:
        path = self.stack.enter_context(token_file())
        addresses = self.stack.enter_context(directory("--token-file", path))
        page = self.open(addresses, "#health")
        page.type("#token", "another token of these tests\ue007")
        page.wait_for_text("not the token")
        page.type("#token", f"{TOKEN}\ue007")
        page.wait_for_text("No problem is known")
        self.assertEqual(page.run("return document.cookie"), "", "scripts do not see the cookie")
        page.run("location.hash = '#events'")
        page.wait_for_text("wrong token at the dashboard")
        page.wait_for("return !document.getElementById('leave').hidden")
        page.click("#leave button")
        page.wait_for_text("Token of the cluster")

    def test_it_is_dark_narrow_and_without_a_mouse(self) -> None:
        addresses = self.stack.enter_context(directory())
        self.stack.enter_context(crowd(addresses["directory"], 40, 5, 10))
        light = self.open(addresses)
        dark = self.open(addresses, dark=True, width=NARROW, height=700)
        luminance = "const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number); return (r + g + b) / 765"
        for view in (
            "overview",
            "nodes",
            "objects",
            "transfers",
            "reduces",
            "links",
            "events",
            "health",
        ):
            dark.run("location.hash = arguments[0]", f"#{view}")
            dark.wait_for(
                "return document.querySelector('nav a[aria-current]')?.hash === `#${arguments[0]}` && document.querySelector('table')",
                view,
            )
            self.assertLessEqual(
                dark.run("return document.documentElement.scrollWidth"), NARROW, view
            )
        dark.run("location.hash = '#prefixes'")
        dark.wait_for_text("weights/", "tbody")
        self.assertLessEqual(dark.run("return document.documentElement.scrollWidth"), NARROW)
        self.assertGreater(light.run(luminance), 0.9)
        self.assertLess(dark.run(luminance), 0.2)
        tab = "\ue004"
        light.run("document.activeElement.blur()")
        light.press(tab * 5)
        self.assertEqual(light.run("return document.activeElement.hash"), "#transfers")
        light.press("\ue007")
        light.wait_for_text("spreads", "h2")
        light.press(tab * 7)
        focused = light.run(
            "return document.activeElement.getAttribute('href') ?? document.activeElement.getAttribute('aria-label')"
        )
        time.sleep(2.5)  # longer than the interval of queries
        self.assertEqual(
            light.run(
                "return document.activeElement.getAttribute('href') ?? document.activeElement.getAttribute('aria-label')"
            ),
            focused,
        )
        self.assertEqual(light.run(ROWS, "h1"), 1)
        self.assertEqual(
            light.run(
                "return [...document.querySelectorAll('table')].every((table) => table.caption.textContent)"
            ),
            True,
        )
        self.assertEqual(light.run(ROWS, "thead th:not([scope=col]), tbody th:not([scope=row])"), 0)
        light.run("location.hash = '#objects'")
        light.wait_for("return document.querySelector('#prefix')")
        self.assertEqual(
            light.run(
                "return [...document.querySelectorAll('input, select')].every((control) => control.labels.length > 0)"
            ),
            True,
        )


if not BINARIES.joinpath("hoplite-test-crowd").exists():
    raise unittest.SkipTest("build the workspace first: cargo build --workspace --all-targets")
