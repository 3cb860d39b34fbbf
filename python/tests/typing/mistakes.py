"""A type checker must find these: see `tests/test_typing.py`."""

from __future__ import annotations

import hoplite


def mistakes(client: hoplite.Client, ref: hoplite.Ref[bytes]) -> None:
    number: int = client.get(ref)  # expected: assignment
    wrong: hoplite.Ref[int] = ref  # expected: assignment
    client.get(ref, progress=lambda done: None)  # expected: call-overload, arg-type, misc
    client.get(7)  # expected: call-overload
    client.get(ref, framework="tensorflow")  # expected: call-overload
    print(number, wrong)
