from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster
from ray_cluster import PATIENCE, eventually, objects, on

import hoplite
import hoplite.ray

pytestmark = pytest.mark.usefixtures("stores", "nothing_left")


@ray.remote
def total(ref: hoplite.ray.Ref) -> tuple[str, float]:
    got = hoplite.ray.get(ref, timeout=PATIENCE)
    return hoplite.ray.client().node, float(got.sum())


@ray.remote
def make(value: float, count: int = 1000, ref: hoplite.ray.Ref | None = None) -> hoplite.ray.Ref:
    return hoplite.ray.put(np.full(count, value, np.float32), ref)


def test_tasks_on_all_nodes_get_what_the_driver_put(stores: list[hoplite.ray.Node]) -> None:
    array = np.arange(1 << 20, dtype=np.float32)
    with hoplite.ray.put(array) as ref:
        assert len(pickle.dumps(ref)) < 300
        tasks = [
            total.options(**on(node)).remote(ref) for node in ("first", "second") for _ in range(2)
        ]
        got = ray.get(tasks)
        assert {answer for _, answer in got} == {float(array.sum())}
        assert len({node for node, _ in got}) == 2


def test_the_driver_gets_what_tasks_put() -> None:
    refs = ray.get(
        [make.options(**on(node)).remote(value) for value, node in enumerate(("first", "second"))]
    )
    arrays = hoplite.ray.get(refs, timeout=PATIENCE)
    assert [array.tolist() for array in arrays] == [[0.0] * 1000, [1.0] * 1000]
    assert not arrays[0].flags.writeable
    assert hoplite.ray.get(refs[0], copy=True).flags.writeable
    assert hoplite.ray.delete(refs) == 2


def test_a_task_gets_what_is_put_later() -> None:
    ref = hoplite.ray.new_ref()
    waiting = total.options(**on("second")).remote(ref)
    made = ray.get(make.options(**on("first")).remote(3.0, ref=ref))
    assert made == ref
    assert made.shape == (1000,)
    assert ray.get(waiting)[1] == 3000.0
    ref.delete()


def test_what_tasks_put_is_reduced() -> None:
    refs = ray.get(
        [
            make.options(**on(node)).remote(value, 100_000)
            for value in (1.0, 2.0)
            for node in ("first", "second")
        ]
    )
    target, reduced = hoplite.ray.reduce(refs, timeout=PATIENCE)
    assert set(reduced) == set(refs)
    np.testing.assert_array_equal(target.get(), np.full(100_000, 6.0, np.float32))
    hoplite.ray.delete([target, *refs])


def test_the_first_of_several_are_reduced() -> None:
    late = hoplite.ray.new_ref()
    early = ray.get([make.remote(1.0) for _ in range(3)])
    target, reduced = hoplite.ray.reduce([late, *early], num_objects=3, timeout=PATIENCE)
    assert set(reduced) == set(early)
    assert target.get()[0] == 3.0
    ready, missing = hoplite.ray.wait([late, *early], num=3, timeout=PATIENCE)
    assert (set(ready), missing) == (set(early), [late])
    hoplite.ray.delete([target, *early])


def test_handles_find_the_store_inside_of_tasks() -> None:
    @ray.remote
    def look(refs: dict[str, list[hoplite.ray.Ref]]) -> tuple[type, float, bool]:
        (ref,) = refs["nested"]
        is_same = hoplite.init().node == hoplite.ray.client().node
        return type(ref), float(ref.get()[0]), is_same

    with hoplite.ray.put(np.ones(10)) as ref:
        assert ray.get(look.options(**on("second")).remote({"nested": [ref]})) == (
            hoplite.ray.Ref,
            1.0,
            True,
        )


def test_a_forked_child_connects_for_itself() -> None:
    @ray.remote
    def fork(ref: hoplite.ray.Ref) -> int:
        assert ref.get()[0] == 1.0
        child = os.fork()
        if child == 0:
            try:
                hoplite.connect(os.environ["HOPLITE_SOCKET"]).get(ref, timeout=PATIENCE)
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with hoplite.ray.put(np.ones(10)) as ref:
        assert ray.get(fork.remote(ref)) == 0


def test_what_went_wrong_in_a_task_has_its_own_class() -> None:
    @ray.remote
    def get(ref: hoplite.ray.Ref) -> object:
        return hoplite.ray.get(ref, timeout=0.1)

    absent = hoplite.ray.new_ref()
    with pytest.raises(hoplite.Timeout) as raised:
        ray.get(get.remote(absent))
    assert raised.value.cause.id == absent.id  # type: ignore[attr-defined]


def test_objects_with_names_of_ones_own(client: hoplite.Client) -> None:
    client.put("model/7", np.ones(3))
    assert hoplite.ray.get("model/7", timeout=PATIENCE).tolist() == [1.0] * 3
    assert [
        array.sum()
        for array in hoplite.ray.get(["model/7", hoplite.Ref("model/7")], timeout=PATIENCE)
    ] == [3.0] * 2
    assert hoplite.ray.delete("model/7") == 1


@pytest.mark.parametrize(
    "call",
    [hoplite.ray.get, hoplite.ray.delete, hoplite.ray.wait, hoplite.ray.reduce],
    ids=lambda call: call.__name__,
)
def test_a_reference_of_ray_is_no_handle(call: Callable[[object], object]) -> None:
    reference = make.remote(1.0)
    for given in (reference, [reference]):
        with pytest.raises(TypeError, match=r"ray\.get first"):
            call(given)
    ray.get(reference).delete()


def test_what_does_not_fit() -> None:
    with pytest.raises(hoplite.ObjectTooLarge):
        hoplite.ray.put(np.zeros(200 << 20, np.uint8))


DRIVER = """
import sys, time
import numpy as np, ray
import hoplite.ray

ray.init(address=sys.argv[1], log_to_driver=False, runtime_env={"worker_process_setup_hook": "hoplite.ray.register"})
hoplite.ray.register()

@ray.remote
def make():
    return hoplite.ray.put(np.ones(100_000))

print(ray.get(make.remote()).id, hoplite.ray.put(np.ones(3)).id, flush=True)
time.sleep(600)
"""


def test_what_is_left_of_a_job_is_deleted(two_nodes: Cluster, client: hoplite.Client) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, two_nodes.address], stdout=subprocess.PIPE
    ) as driver:
        try:
            assert driver.stdout is not None
            ids = set(driver.stdout.readline().decode().split())
            assert len(ids) == 2
            eventually(lambda: ids <= objects(client))
        finally:
            driver.send_signal(signal.SIGKILL)
    eventually(lambda: not ids & objects(client))
