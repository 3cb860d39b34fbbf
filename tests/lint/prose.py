"""Measures the English of comments, docstrings and pages, and keeps its level.

* opener: a doc comment that begins with a question word, such as Whether.
* riddle: a sentence with a pronoun or question word for an unnamed thing.
* coined: a word with a usual equivalent in the field; `COINED` names the equivalent.
* wide: a line of more than 100 columns; not in Python, tables and code.

A file beyond the limits must be listed in prose.txt, which only shrinks (`--update`). Lower a
limit when a change makes room.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = "tests/lint/prose.txt"
QUESTIONS = frozenset("whether what how which who why whom whose where when".split())
RIDDLES = re.compile(
    r"\b(?:"
    + "|".join(
        (
            r"those (?:of|that|which|who)",
            r"that of (?:an?|the|which|whom)",
            r"(?:as|so) (?:are|did|do|does|had|has|have|is) (?:an?|it|that|the|these|they|this|those)",
            r"what (?:are|had|has|is|it|one|others?|that|there|they|this|was|were)",
            r"of (?:what|which|whom)",
            r"such (?:a one|ones?)",
            r"(?:some(?:body)? else|nobody)",
            r"is (?:no|none) \w+ of",
            r"the other ones?",
            r"(?:are|has|is) to be",
            r"and (?:no|not) other",
            r"by (?:itself|themselves)",
            r"as (?:it|they) (?:are|comes?|is)",
            r"of (?:its|their) own",
            r"who(?:ever)? (?:are|asks?|has|have|is|knows?|needs?|reads?|takes?|waits?)",
        )
    )
    + r")\b",
    re.IGNORECASE,
)
COINED = {
    r"Asks": "request",
    r"vicinity": "locality",
    r"passable": "forwardable",
    r"bypass(?:es)?": "direct channel",
    r"divert(?:ed|s)?": "switch",
    r"collecting": "collectives",
    r"audience": "participants",
    r"denials?": "rejection",
    r"roster": "members",
    r"detours?": "rerouting",
    r"mend(?:ed|ing|s)?": "repair",
    r"patien(?:ce|t)": "wait limit",
    r"farewell|goodbye": "leave",
    r"anew": "again",
    r"wish(?:ed)?": "request",
    r"meanwhile": "at the same time",
}
WORDS_COINED = re.compile(rf"\b(?:{'|'.join(COINED)})\b", re.IGNORECASE)
MOST_OPENERS, MOST_RIDDLES, MOST_COINED = 3, 25, 1
MOST_COLUMNS = 100
LEFT_OUT = re.compile(
    r"(^|/)CHANGELOG\.md$|^docs/dev/(log|benchmarks|python-benchmarks|suites)\.md$"
)


@dataclass(frozen=True)
class Limit:
    """Openers in 100 comments, riddles in 1,000 sentences, coined words, words."""

    openers: float
    riddles: float
    coined: int
    words: int


LIMITS = {
    "Rust": Limit(1, 8, 20, 90_460),
    "Python": Limit(1, 8, 5, 20_340),
    "pages for users": Limit(0, 1, 0, 21_800),
    "pages for maintainers": Limit(0, 4, 2, 12_200),
}


def kind_of(file: str) -> str | None:
    if LEFT_OUT.search(file):
        return None
    if file.endswith((".rs", ".py")):
        return "Rust" if file.endswith(".rs") else "Python"
    if not file.endswith(".md"):
        return None
    is_for_users = file in (
        "README.md",
        "python/README.md",
        "python/examples/README.md",
    ) or file.startswith("docs/")
    return (
        "pages for users"
        if is_for_users and not file.startswith("docs/dev/")
        else "pages for maintainers"
    )


def texts(file: str, text: str) -> tuple[list[str], list[str]]:
    if file.endswith(".rs"):
        return of_rust(text)
    return of_python(text) if file.endswith(".py") else ([], of_markdown(text))


def of_rust(text: str) -> tuple[list[str], list[str]]:
    found: list[tuple[str, list[str]]] = []
    last = ""
    for line in text.splitlines():
        match = re.match(r"\s*(//[/!]?)(?!/) ?(.*)", line)
        mark = match[1] if match else ""
        if match:
            if mark != last:
                found.append((mark, []))
            found[-1][1].append(match[2])
        last = mark
    paragraphs = [(mark, " ".join(lines)) for mark, lines in found]
    return [text for mark, text in paragraphs if mark == "///"], [text for _, text in paragraphs]


def of_python(text: str) -> tuple[list[str], list[str]]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docs = [(node, _without_examples(ast.get_docstring(node) or "")) for node in nodes]
    paragraphs = [" ".join(doc.split()) for _, doc in docs if doc]
    paragraphs += re.findall(r"^\s*#:? (.*)$", text, re.MULTILINE)
    return [doc for node, doc in docs if doc and not isinstance(node, ast.Module)], paragraphs


def _without_examples(doc: str) -> str:
    return re.sub(r"^\s*>>> .*\n(?:.*\S.*\n?)*", "", doc, flags=re.MULTILINE)


def of_markdown(text: str) -> list[str]:
    """Omits code and generated tables."""
    text = re.sub(
        r"^```.*?^```|<!-- [^>]*-->(?=\n\|).*?<!-- end -->|<!--.*?-->",
        "",
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    return [
        " ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=[|*] )", text) if part.strip()
    ]


def wide_lines(file: str, text: str) -> Iterator[str]:
    """Yields `FILE:LINE: N columns`."""
    comment = r"\s*//[/!]? (.*)" if file.endswith(".rs") else "(.*)"
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        match = re.fullmatch(comment, line)
        content = match[1] if match else ""
        in_code ^= content.lstrip().startswith("```")
        is_prose = not in_code and not content.startswith(("|", "    ")) and " " in content.strip()
        if is_prose and len(line) > MOST_COLUMNS:
            yield f"{file}:{number}: {len(line)} columns, where {MOST_COLUMNS} is the most"


def measured(file: str, text: str) -> Counter[str]:
    docs, paragraphs = texts(file, text)
    counts = Counter(docs=len(docs))
    counts["openers"] = sum(
        bool(doc.split()) and doc.split()[0].strip("`,:").lower() in QUESTIONS for doc in docs
    )
    for paragraph in paragraphs:
        plain = re.sub(r"`[^`]*`", "X", paragraph)
        counts["words"] += len(plain.split())
        counts["coined"] += len(WORDS_COINED.findall(plain))
        sentences = [part for part in re.split(r"(?<=[.:;!?]) ", plain) if len(part.split()) > 2]
        counts["sentences"] += len(sentences)
        counts["riddles"] += sum(bool(RIDDLES.search(sentence)) for sentence in sentences)
    return counts


def rate(counts: Counter[str], what: str) -> float:
    among, factor = ("docs", 100) if what == "openers" else ("sentences", 1000)
    return factor * counts[what] / max(1, counts[among])


def is_beyond(counts: Counter[str]) -> bool:
    return (
        (counts["openers"] > 1 and rate(counts, "openers") > MOST_OPENERS)
        or (counts["riddles"] > 1 and rate(counts, "riddles") > MOST_RIDDLES)
        or counts["coined"] > MOST_COINED
    )


def files(root: Path) -> Iterator[tuple[str, str]]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for file in subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, check=True, text=True
    ).stdout.split("\0"):
        if file and kind_of(file) and (root / file).is_file():
            yield file, (root / file).read_text()


def complaints(
    found: dict[str, Counter[str]], listed: list[str], limits: dict[str, Limit]
) -> list[str]:
    wrong = []
    for kind, limit in limits.items():
        total = sum_of(found, kind)
        for what in ("openers", "riddles", "coined", "words"):
            value = rate(total, what) if what in ("openers", "riddles") else total[what]
            most = getattr(limit, what)
            if value > most:
                wrong.append(
                    f"{kind}: {what} are {value:.1f}, where {most} is the most; `--worst 10` names files"
                )
    for file, counts in sorted(found.items()):
        if is_beyond(counts) and file not in listed:
            wrong.append(f"{file}: {described(counts)}: beyond the targets of tests/lint/prose.py")
    for file in listed:
        if file not in found or not is_beyond(found[file]):
            wrong.append(
                f"{file} meets the targets, or is gone: remove it from {LIST} (`--update` does)"
            )
    return wrong


def sum_of(found: dict[str, Counter[str]], kind: str) -> Counter[str]:
    return sum((counts for file, counts in found.items() if kind_of(file) == kind), Counter())


def described(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[what]} {what}" for what in ("openers", "riddles", "coined", "words"))


def main(root: Path = ROOT, arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="list the worst files")
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="print the files beyond the targets, as for the list, and end",
    )
    parser.add_argument(
        "--update", action="store_true", help="remove files from the list that meet the targets"
    )
    options = parser.parse_args(arguments)
    found, wide = {}, []
    for file, text in files(root):
        found[file] = measured(file, text)
        if not file.endswith(".py"):
            wide += wide_lines(file, text)
    if options.beyond:
        print("\n".join(sorted(file for file, counts in found.items() if is_beyond(counts))))
        return 0
    listed = (root / LIST).read_text().split()
    if options.update:
        listed = [file for file in listed if file in found and is_beyond(found[file])]
        (root / LIST).write_text("".join(f"{file}\n" for file in listed))
    worst = sorted(
        found.items(),
        key=lambda item: -(2 * item[1]["openers"] + item[1]["riddles"] + item[1]["coined"]),
    )
    for file, counts in worst[: options.worst]:
        print(f"{file}: {described(counts)}")
    wrong = complaints(found, listed, LIMITS) + wide
    for line in wrong:
        print(line, file=sys.stderr)
    for kind in LIMITS:
        total = sum_of(found, kind)
        print(
            f"{kind}: openers {rate(total, 'openers'):.1f}%, riddles {rate(total, 'riddles'):.0f} in 1,000, {described(total)}"
        )
    print(f"{len(listed)} files are listed as beyond the targets")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
