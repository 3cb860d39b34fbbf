"""A server with the routes of vLLM's weight transfer."""

from __future__ import annotations

import importlib
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.model_executor.models import Model


class Worker:
    def __init__(self) -> None:
        self.model = Model()
        self.engine = WeightTransferEngineFactory.create_engine(
            None, None, torch.device("cpu"), self.model
        )

    def init_weight_transfer_engine(self, about: dict[str, Any]) -> None:
        self.engine.init_transfer_engine(self.engine.init_info_cls(**about["init_info"]))

    def start_weight_update(self, about: Any) -> None:
        self.engine.start_weight_update()
        assert self.model.is_reloading

    def update_weights(self, about: dict[str, Any]) -> None:
        self.engine.receive_weights(self.engine.update_info_cls(**about["update_info"]))

    def finish_weight_update(self, about: Any) -> None:
        self.engine.finish_weight_update()
        print(
            json.dumps([float(p.detach().double().sum()) for p in self.model.parameters()]),
            flush=True,
        )


def main() -> None:
    module, _, name = sys.argv[1].rpartition(".")
    extension = getattr(importlib.import_module(module), name)
    worker = type("Extended", (Worker, extension), {})()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            getattr(worker, self.path[1:])(json.loads(self.rfile.read(length) or b"null"))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
