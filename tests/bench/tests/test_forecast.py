import unittest
from unittest import mock

from bench.forecast import Forecast
from bench.results import Measurement


class Forecasts(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.enterContext(mock.patch("time.monotonic", lambda: self.now))

    def cells(self, system: str, count: int) -> list[Measurement]:
        return [Measurement(system, "broadcast", 4, 1024, 0, limit_s=10.0) for _ in range(count)]

    def test_it_learns_how_slow_each_system_is(self) -> None:
        forecast = Forecast(rounds=1, cell_s=5)
        slow, fast = self.cells("slow", 100), self.cells("fast", 100)
        forecast.add([*slow, *fast])
        guess_s = forecast.left_s()
        for cell in slow[:50]:
            self.now += 80
            forecast.done(cell)
        self.assertGreater(forecast.left_s(), guess_s)
        for cell in fast:
            self.now += 10
            forecast.done(cell)
        self.assertAlmostEqual(forecast.left_s(), 50 * 80, delta=400)

    def test_nothing_is_left_at_the_end(self) -> None:
        forecast = Forecast(rounds=1, cell_s=5)
        (cell,) = self.cells("x", 1)
        forecast.add([cell])
        self.assertEqual(forecast.left(), "under 1 min left")
        forecast.done(cell)
        self.assertAlmostEqual(forecast.left_s(), 0)

    def test_minutes_are_whole(self) -> None:
        forecast = Forecast(rounds=1, cell_s=5)
        forecast.add(self.cells("x", 60))
        self.assertEqual(forecast.left(), "16 min left")


if __name__ == "__main__":
    unittest.main()
