"""Training loops: the communication of the paper's figures 8 and 9, without the training.

Instead of computing, workers sleep for times equal for all systems. Models are smaller than the
paper's by as much as the links are slower.
"""

from dataclasses import dataclass
from itertools import accumulate

# Computation takes 4 to 12 parts, on average 8.
_PARTS = 8
_LEAST_PARTS = 4
_KINDS = 9
_RANK_STRIDE = 5
_STEP_STRIDE = 2


@dataclass(frozen=True)
class Loop:
    """Attributes:
        compute_s: the mean time to compute a gradient or a rollout.
        is_synchronous: `True` if each step waits for all workers, `False` if for the first half.
        rollout_part: a model's size as a multiple of a rollout's; None for gradients.
    """

    model_bytes: int
    steps: int
    compute_s: float
    is_synchronous: bool = False
    rollout_part: int | None = None

    def describe(self) -> str:
        return (
            f"A model has {self.model_bytes >> 20} MiB; computing takes {self.compute_s:g} s on average, half as long to "
            f"half as long again. {self.steps} steps a round."
        )

    def chosen(self, hosts: int) -> int:
        return hosts - 1 if self.is_synchronous else hosts // 2

    def computing_s(self, rank: int, step: int) -> float:
        parts = _LEAST_PARTS + (_RANK_STRIDE * rank + _STEP_STRIDE * step) % _KINDS
        return self.compute_s * parts / _PARTS

    def limit_s(self, hosts: int, size_bytes: int, payload_bytes_s: float) -> float:
        """The least time for all steps.

        The longer of two times counts. Synchronous, per step: the slowest worker computes and
        sends; the fastest computes, and an allreduce runs. Asynchronous: the last needed result
        arrives; the link of h0 carries all its bytes.
        """
        workers = range(1, hosts)
        model_s = size_bytes / payload_bytes_s
        if self.is_synchronous:
            times = [
                [self.computing_s(rank, step) for rank in workers] for step in range(self.steps)
            ]
            allreduce_s = 2 * (hosts - 1) / hosts * model_s
            return sum(max(max(step) + model_s, min(step) + allreduce_s) for step in times)
        ready = sorted(
            moment
            for rank in workers
            for moment in accumulate(
                self.computing_s(rank, step) + (model_s if step > 0 else 0)
                for step in range(self.steps)
            )
        )
        gift_s = model_s / (self.rollout_part or 1)
        received, sent = self._root_bytes(size_bytes, hosts)
        return max(
            ready[self.steps * self.chosen(hosts) - 1] + gift_s,
            max(received, sent) / payload_bytes_s,
        )

    def needs(self, size_bytes: int, hosts: int) -> dict[int, tuple[int, int]]:
        if self.is_synchronous:
            least = self.steps * (size_bytes * (hosts - 1) // hosts)
            return dict.fromkeys(range(hosts), (least, least))
        return {0: self._root_bytes(size_bytes, hosts)}

    def _root_bytes(self, size_bytes: int, hosts: int) -> tuple[int, int]:
        """The bytes that h0 receives, and sends before its last send, which no round awaits."""
        each = size_bytes
        if self.rollout_part is not None:
            each = self.chosen(hosts) * (size_bytes // self.rollout_part)
        return self.steps * each, (self.steps - 1) * size_bytes
