from __future__ import annotations

import os
import pickle
import subprocess

import numpy as np
import pytest

import hoplite
from hoplite._programs import program
from stores import PATIENCE, SHORT, Cluster


def quota(node: Cluster, *arguments: str) -> str:
    command = [program("hoplite"), "--socket", node.sockets[0], "quota", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_put_over_a_quota_of_its_user_says_so(node: Cluster) -> None:
    quota(node, "set", "--user", str(os.getuid()), "--objects", "1")
    with node.connect() as client:
        client.put("a", np.zeros(100_000, np.uint8))
        with pytest.raises(hoplite.QuotaExceeded) as caught:
            client.put("b", np.zeros(100_000, np.uint8), timeout=SHORT)
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.user, error.prefix, error.resource) == (os.getuid(), None, "objects")
        assert (error.needed, error.used, error.limit) == (1, 1, 1)
        assert error.retryable
        assert f"the quota of user {os.getuid()} is exceeded: 1 of 1 objects used" in str(error)
        client.delete("a")
        client.put("b", np.zeros(100_000, np.uint8), timeout=PATIENCE)


def test_a_put_larger_than_a_quota_of_its_prefix_fails_at_once(node: Cluster) -> None:
    quota(node, "set", "--prefix", "x/", "--memory", "10KiB")
    with node.connect() as client:
        with pytest.raises(hoplite.QuotaExceeded) as caught:
            client.put("x/large", np.zeros(20_000, np.uint8), timeout=PATIENCE)
        assert (caught.value.user, caught.value.prefix) == (None, "x/")
        assert (caught.value.resource, caught.value.limit) == ("memory", 10 << 10)
        assert not caught.value.retryable
        client.put("y/large", np.zeros(20_000, np.uint8))
    assert "prefix x/" in quota(node)
