import contextlib
import io
import subprocess
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

import prose

LENIENT = {kind: prose.Limit(100, 1000, 100, 10_000) for kind in prose.LIMITS}
PUZZLING = "Those that have it are to be told. Nobody knows what it is.\n"
CLEAR = "The store sends the object to the receiver. The receiver checks each block.\n"


class CountsTest(unittest.TestCase):
    def counted(self, file: str, text: str) -> dict[str, int]:
        return {what: count for what, count in prose.measured(file, text).items() if count}

    def test_rust(self) -> None:
        text = "//! Reads objects.\n\n/// Whether the copy\n/// is complete.\nfn f() {} // a note of it\n// Nobody waits here.\n// anew.\n"
        found = self.counted("a.rs", text)
        self.assertEqual(
            found, {"docs": 1, "openers": 1, "sentences": 2, "riddles": 1, "coined": 1, "words": 11}
        )

    def test_python_without_examples(self) -> None:
        text = '"""Module."""\n\ndef f():\n    """Returns it.\n\n    >>> what is it\n    what is it\n    """\n    #: How many.\n    x = 1\n'
        self.assertEqual(self.counted("a.py", text), {"docs": 1, "words": 5})

    def test_a_docstring_that_opens_with_a_question(self) -> None:
        self.assertEqual(self.counted("a.py", 'class A:\n    """`Which` one."""\n')["docs"], 1)
        self.assertEqual(
            self.counted("a.py", 'class A:\n    """Which one, of several."""\n')["openers"], 1
        )

    def test_markdown_without_code_and_written_tables(self) -> None:
        text = "One clear sentence.\n\n```sh\nwhat is it\n```\n<!-- t: x -->\n| what is it |\n<!-- end -->\n\n* as `it` is said\n"
        self.assertEqual(self.counted("a.md", text), {"sentences": 2, "words": 8})

    def test_a_block_of_code_in_a_sentence_is_one_word(self) -> None:
        self.assertEqual(
            self.counted("a.md", "Use `what is it` here.\n"), {"sentences": 1, "words": 3}
        )

    def test_kinds(self) -> None:
        kinds = [
            prose.kind_of(file)
            for file in (
                "a/b.rs",
                "a.py",
                "docs/start/a.md",
                "docs/dev/a.md",
                "CHANGELOG.md",
                "a.toml",
            )
        ]
        self.assertEqual(
            kinds, ["Rust", "Python", "pages for users", "pages for maintainers", None, None]
        )


class WidthTest(unittest.TestCase):
    def test_prose_is_narrow_but_not_tables_links_and_code(self) -> None:
        text = "word " * 24
        for file, mark in (("a.rs", "/// "), ("a.rs", "    // "), ("a.md", ""), ("a.md", "* ")):
            found = list(prose.wide_lines(file, f"{mark}Short.\n{mark}{text}\n"))
            columns = len(mark) + len(text)
            self.assertEqual(found, [f"{file}:2: {columns} columns, where 100 is the most"])
        for other in (f"| {text}", f"    {text}", f"```\n{text}\n```", "a" * 120):
            self.assertEqual(list(prose.wide_lines("a.md", other)), [])
            comment = "".join(f"//! {line}\n" for line in other.splitlines())
            self.assertEqual(list(prose.wide_lines("a.rs", comment)), [])
        self.assertEqual(list(prose.wide_lines("a.rs", f"let x = {text}; // short")), [])

    def test_a_wide_line_fails(self) -> None:
        code, said, _ = ListTest().check({"a.rs": f"// {CLEAR.strip()}{CLEAR}"})
        self.assertEqual(code, 1)
        self.assertIn("a.rs:1: ", said)


class ListTest(unittest.TestCase):
    def check(
        self, files: dict[str, str], listed: str = "", *arguments: str
    ) -> tuple[int, str, str]:
        with tempfile.TemporaryDirectory() as place:
            root = Path(place)
            subprocess.run(["git", "init", "--quiet", place], check=True)
            for name, text in {**files, prose.LIST: listed}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            said = io.StringIO()
            with (
                mock.patch.object(prose, "LIMITS", LENIENT),
                contextlib.redirect_stderr(said),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                code = prose.main(root, list(arguments))
            return code, said.getvalue(), (root / prose.LIST).read_text()

    def test_a_clear_file_passes(self) -> None:
        self.assertEqual(self.check({"a.md": CLEAR}), (0, "", ""))

    def test_a_puzzling_file_has_to_be_listed(self) -> None:
        code, said, _ = self.check({"a.md": PUZZLING})
        self.assertEqual(code, 1)
        self.assertIn("a.md: 0 openers, 2 riddles", said)
        self.assertEqual(self.check({"a.md": PUZZLING}, "a.md\n")[0], 0)

    def test_the_list_can_only_shrink(self) -> None:
        code, said, _ = self.check({"a.md": CLEAR}, "a.md\nb.md\n")
        self.assertEqual(code, 1)
        self.assertIn("a.md meets the targets", said)
        self.assertIn("b.md meets the targets, or is gone", said)
        self.assertEqual(
            self.check({"a.md": CLEAR, "c.md": PUZZLING}, "a.md\nc.md\n", "--update"),
            (0, "", "c.md\n"),
        )
        self.assertEqual(
            self.check({"c.md": PUZZLING}, "", "--update")[0], 1, "an update adds no file"
        )

    def test_limits_of_a_kind(self) -> None:
        found = {"a.md": Counter(words=11, sentences=10, riddles=1)}
        limits = {"pages for maintainers": prose.Limit(0, 99, 0, 10)}
        self.assertEqual(len(prose.complaints(found, [], limits)), 2)
        limits = {"pages for maintainers": prose.Limit(0, 100, 0, 11)}
        self.assertEqual(prose.complaints(found, [], limits), [])


if __name__ == "__main__":
    unittest.main()
