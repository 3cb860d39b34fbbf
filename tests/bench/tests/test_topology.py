import unittest
from collections import Counter

from bench.topology import PAGE, _biased_rows, _ranks, _replace, _spearman
from bench.topology_lab import Measured
from bench.topology_worker import PROGRAMS, Phase

SIZE = 1 << 20


def moved(model: str, ranks: int) -> Counter[tuple[int, int]]:
    programs = [PROGRAMS[model](ranks, rank, SIZE) for rank in range(ranks)]
    total: Counter[tuple[int, int]] = Counter()
    for channel in range(len(programs[0])):
        sent: Counter[tuple[int, int]] = Counter()
        received: Counter[tuple[int, int]] = Counter()
        waiting: list[list[Phase]] = [list(program[channel]) for program in programs]
        begun = [False] * ranks
        while any(waiting):
            progressed = False
            for rank, phases in enumerate(waiting):
                if not phases:
                    continue
                sends, receives = phases[0]
                if not begun[rank]:
                    sent.update({(rank, peer): length for peer, length in sends})
                    begun[rank] = progressed = True
                if all(
                    sent[peer, rank] - received[peer, rank] >= length for peer, length in receives
                ):
                    received.update({(peer, rank): length for peer, length in receives})
                    phases.pop(0)
                    begun[rank], progressed = False, True
            assert progressed, "somebody waits for ever"
        assert sent == received
        total += sent
    return total


class Programs(unittest.TestCase):
    def test_every_rank_of_a_ring_and_of_halving_doubling_sends_what_is_least(self) -> None:
        for model in ("ring", "halving-doubling"):
            for ranks in (2, 4, 8, 16):
                total = moved(model, ranks)
                for rank in range(ranks):
                    sent = sum(length for (sender, _), length in total.items() if sender == rank)
                    self.assertEqual(sent, 2 * SIZE * (ranks - 1) // ranks, (model, ranks))

    def test_both_trees_reach_every_rank(self) -> None:
        for ranks in range(2, 18):
            total = moved("double-binary-tree", ranks)
            self.assertEqual(sum(total.values()), 2 * (ranks - 1) * 2 * (SIZE // 2))

    def test_rings_have_only_neighbours(self) -> None:
        self.assertEqual(set(moved("ring", 5)), {(rank, (rank + 1) % 5) for rank in range(5)})


class Statistics(unittest.TestCase):
    def test_ranks_of_equal_values_are_shared(self) -> None:
        self.assertEqual(_ranks([3.0, 1.0, 3.0, 9.0]), [1.5, 0.0, 1.5, 3.0])

    def test_correlation_is_of_ranks(self) -> None:
        self.assertAlmostEqual(_spearman([1, 2, 3], [10, 20, 10_000]), 1)
        self.assertAlmostEqual(_spearman([1, 2, 3], [3, 2, 1]), -1)
        self.assertEqual(_spearman([1, 1, 1], [1, 2, 3]), 0)

    def test_only_the_marked_part_of_a_page_is_replaced(self) -> None:
        page = "a\n<!-- x: make topology-report -->\nold\n<!-- end -->\nb\n"
        self.assertEqual(_replace(page, "x", "new\n"), page.replace("old", "new"))
        with self.assertRaises(ValueError):
            _replace(page, "y", "new")


class Racks(unittest.TestCase):
    def test_each_collective_has_a_row_without_labels_and_one_with(self) -> None:
        found = Measured()
        for seconds, objects in ((3.0, [1.0, 0.5]), (2.0, [2.0, 0.0]), (2.5, [1.0, 1.0])):
            found.add(seconds, objects)
        cells = ["2.50 (2.00 to 3.00)", "2.00", "1.00"]
        rows = _biased_rows(2, {"reduce": found}, {"reduce": found})
        self.assertEqual(
            rows, [["2", "reduce", "without", *cells], ["2", "reduce", "with", *cells]]
        )

    def test_the_page_has_marks_for_what_is_measured(self) -> None:
        for name in ("racks", "blueconnect-lab"):
            self.assertIn("| new |", _replace(PAGE.read_text(), name, "| new |"))


if __name__ == "__main__":
    unittest.main()
