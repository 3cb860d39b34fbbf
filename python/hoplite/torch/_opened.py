"""Connection and versions of a call."""

from __future__ import annotations

import hoplite
from hoplite._group import link as links
from hoplite.torch._versions import Versions


class opened:
    def __init__(self, name: str, client: hoplite.Client | None, kind: str = "weights") -> None:
        self._name, self._client, self._kind = name, client, kind
        self._link: links.Link | None = None

    def __enter__(self) -> tuple[links.Link, Versions]:
        client = hoplite.init() if self._client is None else self._client
        self._link = links.acquire(client.socket, "hoplite.weights")
        try:
            return self._link, Versions(
                self._link.client, self._name, self._kind, client.allow_pickle
            )
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.release()
