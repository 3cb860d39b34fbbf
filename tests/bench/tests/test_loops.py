import unittest

from bench.loops import Loop
from bench.workloads import WORKLOADS

LOOPS = {name: workload.loop for name, workload in WORKLOADS.items() if workload.loop}


class Loops(unittest.TestCase):
    def test_computing_takes_its_mean(self) -> None:
        loop = Loop(model_bytes=8, steps=9, compute_s=0.8)
        for rank in range(1, 16):
            times = [loop.computing_s(rank, step) for step in range(9)]
            self.assertGreaterEqual(min(times), 0.4 - 1e-9)
            self.assertLessEqual(max(times), 1.2 + 1e-9)
            self.assertAlmostEqual(sum(times) / 9, 0.8)

    def test_a_synchronous_step_waits_for_the_slowest(self) -> None:
        loop = Loop(model_bytes=8, steps=1, compute_s=0.8, is_synchronous=True)
        # Ranks 1, 2 and 3 compute for 9/8, 5/8 and 10/8 of the mean. An allreduce moves 1.5
        # objects.
        self.assertAlmostEqual(loop.limit_s(4, 10, 100), 1.0 + 0.1)
        self.assertAlmostEqual(loop.limit_s(4, 200, 100), 0.5 + 1.5 * 2)
        self.assertEqual(loop.chosen(4), 3)

    def test_an_asynchronous_step_waits_for_the_first_half(self) -> None:
        loop = Loop(model_bytes=8, steps=1, compute_s=0.8)
        self.assertEqual(loop.chosen(4), 2)
        self.assertAlmostEqual(loop.limit_s(4, 0, 100), 0.9)
        self.assertAlmostEqual(loop.limit_s(4, 1000, 100), 0.9 + 10)

    def test_a_worker_gets_a_model_before_it_computes_again(self) -> None:
        loop = Loop(model_bytes=8, steps=2, compute_s=0.8)
        # Ready after 0.5 s, 0.9 s and 1 s.
        self.assertAlmostEqual(loop.limit_s(4, 10, 100), 0.5 + 0.7 + 0.1 + 0.1)

    def test_the_trainer_receives_rollouts(self) -> None:
        loop = Loop(model_bytes=400, steps=3, compute_s=0.8, rollout_part=4)
        self.assertEqual(loop.needs(400, 8), {0: (3 * 4 * 100, 2 * 400)})

    def test_models_are_whole_elements(self) -> None:
        for name, loop in LOOPS.items():
            with self.subTest(name):
                assert loop is not None
                self.assertEqual(loop.model_bytes % (4 * (loop.rollout_part or 1)), 0)


if __name__ == "__main__":
    unittest.main()
