from __future__ import annotations

import torch


class Model(torch.nn.Linear):  # type: ignore[misc]
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(600, 1000)

    def load_weights(self, weights: object) -> None:
        parameters = dict(self.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:  # type: ignore[attr-defined]
                parameters[name].copy_(tensor)
