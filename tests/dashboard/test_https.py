"""Dashboard with TLS: for users with the token or, without a token, for holders of a
certificate."""

import http.client
import ssl
import subprocess
import tempfile
import unittest
from pathlib import Path

from dashboard.cluster import BINARIES, TOKEN, directory, environment, token_file


class Https(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        command = [BINARIES / "hoplite", "certs", self.place, "127.0.0.1"]
        subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
        self.files = [
            self.place / name for name in ("127.0.0.1.pem", "127.0.0.1-key.pem", "ca.pem")
        ]
        cert, key, ca = self.files
        self.settings = ("--tls-cert", cert, "--tls-key", key, "--tls-ca", ca)

    def ask(
        self,
        address: str,
        path: str,
        *,
        member: bool = False,
        method: str = "GET",
        body: str | None = None,
    ) -> http.client.HTTPResponse:
        cert, key, ca = self.files
        context = ssl.create_default_context(cafile=str(ca))
        if member:
            context.load_cert_chain(cert, key)
        connection = http.client.HTTPSConnection(address, context=context, timeout=300)
        self.addCleanup(connection.close)
        connection.request(method, path, body)
        return connection.getresponse()

    def test_with_a_token_no_certificate_is_asked_for(self) -> None:
        with token_file() as path, directory(*self.settings, "--token-file", path) as addresses:
            address = addresses["dashboard"]
            self.assertEqual(self.ask(address, "/api/overview").status, 401)
            answer = self.ask(
                address, "/login", method="POST", body=f"token={TOKEN.replace(' ', '+')}"
            )
            self.assertEqual(answer.status, 303)
            self.assertIn("Secure", answer.headers["Set-Cookie"])

    def test_without_a_token_only_members_get_in(self) -> None:
        with directory(*self.settings) as addresses:
            self.assertEqual(
                self.ask(addresses["dashboard"], "/api/overview", member=True).status, 200
            )
            with self.assertRaises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                self.ask(addresses["dashboard"], "/api/overview")
