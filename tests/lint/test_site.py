import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs"))
import hooks


class LinksTest(unittest.TestCase):
    def test_links_within_the_site_stay(self) -> None:
        text = "[a](../reference/b.md#c), ![d](../images/e.png), [f](https://g.example/h), [i](#j)"
        self.assertEqual(hooks.rewritten(text, "start/k.md", "https://r.example"), text)

    def test_links_to_other_files_lead_to_the_repository(self) -> None:
        text = "[a](../../python/b.py#c)"
        self.assertEqual(
            hooks.rewritten(text, "start/k.md", "https://r.example"),
            "[a](https://r.example/blob/HEAD/python/b.py#c)",
        )
        self.assertEqual(hooks.rewritten(text, "start/k.md", ""), "a")
        self.assertEqual(hooks.rewritten("[a](../README.md)", "README.md", ""), "a")


if __name__ == "__main__":
    unittest.main()
