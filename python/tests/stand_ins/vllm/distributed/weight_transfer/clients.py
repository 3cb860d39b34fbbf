from __future__ import annotations

import json
import urllib.request
from typing import Any


class HTTPVLLMWeightSyncClient:
    def __init__(self, base_url: str, timeout: float = 300) -> None:
        self.base_url, self.timeout = base_url.rstrip("/"), timeout

    def _post(self, path: str, about: Any = None) -> None:
        request = urllib.request.Request(
            f"{self.base_url}/{path}", json.dumps(about).encode(), method="POST"
        )
        urllib.request.urlopen(request, timeout=self.timeout).close()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._post("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post(
            "finish_weight_update",
            None if weight_version is None else {"weight_version": weight_version},
        )
