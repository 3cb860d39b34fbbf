"""A stand-in for the Kubernetes API server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KINDS = {
    "v1": {
        "nodes": "Node",
        "pods": "Pod",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"daemonsets": "DaemonSet", "statefulsets": "StatefulSet"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {
        "clusterroles": "ClusterRole",
        "clusterrolebindings": "ClusterRoleBinding",
    },
}
WITHOUT_NAMESPACE = {"nodes", "clusterroles", "clusterrolebindings"}


def discovery() -> dict[str, Any]:
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
    }
    groups = []
    for version, kinds in KINDS.items():
        resources = [
            {
                "name": name,
                "singularName": "",
                "namespaced": name not in WITHOUT_NAMESPACE,
                "kind": kind,
                "verbs": ["get"],
            }
            for name, kind in kinds.items()
        ]
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        answers[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        if "/" in version:
            named = {"groupVersion": version, "version": version.split("/")[1]}
            groups.append(
                {"name": version.split("/")[0], "versions": [named], "preferredVersion": named}
            )
    answers["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return answers


@contextmanager
def api_server(objects: dict[str, dict[str, Any]]) -> Iterator[str]:
    answers = discovery() | objects

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.split("?")[0])
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
