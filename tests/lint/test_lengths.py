import contextlib
import io
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import lengths

CODE = "fn f() {}\n"
TESTS = "#[cfg(test)]\nmod tests {\n    use super::f;\n\n    fn g() {}\n}\n"


class LengthsTest(unittest.TestCase):
    def check(self, files: dict[str, str], longer: dict[str, int] | None = None) -> str:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            subprocess.run(["git", "init", "--quiet", place], check=True)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            said = io.StringIO()
            with (
                mock.patch.object(lengths, "LONGER", longer or {}),
                contextlib.redirect_stderr(said),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                code = lengths.main(root)
            self.assertEqual(code, 1 if said.getvalue() else 0)
            return said.getvalue()

    def test_a_long_file_is_named_with_its_lines(self) -> None:
        self.assertEqual(self.check({"a/b.rs": 500 * CODE, "c.py": 500 * "x = 1\n"}), "")
        said = self.check({"a/b.rs": 501 * CODE, "c.py": 502 * "x = 1\n", "d.md": 999 * "x\n"})
        self.assertEqual(
            said,
            "a/b.rs has 501 lines, where 500 is the most\n"
            "c.py has 502 lines, where 500 is the most\n",
        )

    def test_files_of_tests_may_be_long(self) -> None:
        names = ("tests/a.rs", "a/tests/b.py", "a/tests.rs", "a/test_b.py", "a/conftest.py")
        self.assertEqual(self.check({name: 501 * CODE for name in names}), "")
        for name in ("contests/a.rs", "latests.rs", "contest_b.py"):
            self.assertIn(f"{name} has 501 lines", self.check({name: 501 * CODE}))

    def test_only_the_last_module_of_tests_is_not_counted(self) -> None:
        self.assertEqual(self.check({"a.rs": 500 * CODE + TESTS}), "")
        self.assertIn("a.rs has 501 lines", self.check({"a.rs": 501 * CODE + TESTS}))
        self.assertIn("a.rs has 507 lines", self.check({"a.rs": 500 * CODE + TESTS + CODE}))
        self.assertIn("a.rs has 501 lines", self.check({"a.rs": 495 * CODE + 2 * TESTS}))

    def test_an_exception_is_a_limit_too(self) -> None:
        self.assertEqual(self.check({"a.rs": 501 * CODE}, {"a.rs": 501}), "")
        said = self.check({"a.rs": 502 * CODE}, {"a.rs": 501})
        self.assertEqual(said, "a.rs has 502 lines, where 501 is the most\n")

    def test_an_exception_that_is_not_needed_must_leave_the_table(self) -> None:
        said = self.check({"a.rs": 500 * CODE}, {"a.rs": 501, "b.rs": 501})
        self.assertIn("a.rs has 500 lines: remove it", said)
        self.assertIn("b.rs has 0 lines: remove it", said)


if __name__ == "__main__":
    unittest.main()
