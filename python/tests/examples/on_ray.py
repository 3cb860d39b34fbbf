from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import ray
from ray.cluster_utils import Cluster

import hoplite.ray

NODE = {
    "num_cpus": 8,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as directory:
        os.environ["RAY_TMPDIR"] = directory
        nodes = Cluster(initialize_head=True, head_node_args=NODE)
        try:
            nodes.add_node(**NODE)
            nodes.wait_for_nodes()
            ray.init(address=nodes.address, log_to_driver=False)
            hoplite.ray.start_on_all_nodes(memory="128MiB", store_options=["--no-prefault"])
            environment = {**os.environ, "RAY_ADDRESS": nodes.address}
            try:
                return subprocess.run([sys.executable, *sys.argv[1:]], env=environment).returncode
            finally:
                hoplite.ray.stop_on_all_nodes()
                ray.shutdown()
        finally:
            nodes.shutdown()


if __name__ == "__main__":
    sys.exit(main())
