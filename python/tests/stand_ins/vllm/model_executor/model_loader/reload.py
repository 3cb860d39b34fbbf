from __future__ import annotations

from typing import Any


def initialize_layerwise_reload(model: Any) -> None:
    model.is_reloading = True


def finalize_layerwise_reload(model: Any, config: Any) -> None:
    model.is_reloading = False
