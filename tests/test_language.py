"""Counts idioms in docstrings, comments, messages and documentation that have a standard term.

`pytest -s tests/test_language.py` prints each text that has one.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.test_code_shape import FOLDERS, ROOT

MAX_SHARE = 0.02
IDIOMS = re.compile(
    r"""\b(
      go(es)?\ on | going\ on | went\ on | taken\ up | tak(es?|ing)\ up\b(?!\ to)
    | (is|are|be|was)\ told | told\ (of|that|by|to) | tells?\ (of|it|them|the|a|whether|how|what)
    | looks?\ after | looked\ after | (a|one|two|each|every|another|last|next)\ looks?\b(?!\ like)
    | those\ that\ wait | waits?\ (for\ )?(its|his|their)\ turn | wait(s|ed|ing)?\ in\ line
    | what\ (answers|trains|computes|comes|serves|waits) | puts?\ out | put\ aside
    | passed\ over | nobody('s)? | whoever | somebody | as\ (it|they)\ comes?
    | otherwise\ than | well\ or\ not | stands?\ (in|for|there)\b(?!\ line)
    | said\ of | asks?\ (it|them|again) | wants?\ to\ be | (is|are)\ to\ be
    | hand(s|ed)?\ it\ on | lives?\ (in|on|under) | knows?\ (of|nothing)
    | of\ its\ own\ accord | after\ validation,\ not | at\ most\ \d+\ items?\ after
    | made\ up\ its\ mind | in\ good\ time | the\ like
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
TECHNICAL = re.compile(r"stands for|a look-?up|look(s|ed)? like", re.IGNORECASE)


class Text(NamedTuple):
    """One docstring, comment, message or paragraph."""

    where: str
    text: str


def list_texts(file: Path) -> Iterator[Text]:
    """Yield every docstring, comment and string of at least three words of a module."""
    name, source = str(file.relative_to(ROOT)), file.read_text()
    tree = ast.parse(source)
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                part.value
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                else "…"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in inner:
                continue
            text = node.value
        else:
            continue
        if len(text.split()) >= 3:
            yield Text(f"{name}:{node.lineno}", text)
    yield from list_comments(name, source)


def list_comments(name: str, source: str) -> Iterator[Text]:
    """Yield comments; comments on consecutive lines are one text."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        row = token.start[0]
        if lines and row != last + 1:
            yield Text(f"{name}:{first}", " ".join(lines))
            lines = []
        if not lines:
            first = row
        lines.append(token.string.lstrip("#: "))
        last = row
    if lines:
        yield Text(f"{name}:{first}", " ".join(lines))


def list_paragraphs(file: Path) -> Iterator[Text]:
    """Yield the paragraphs of a document, without its blocks of code."""
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*|] )", text):
        if paragraph.strip():
            yield Text(f"{file.relative_to(ROOT)}", " ".join(paragraph.split()))


def has_idiom(text: str) -> bool:
    return IDIOMS.search(TECHNICAL.sub(" ", " ".join(text.split()))) is not None


def test_texts_use_standard_terms() -> None:
    modules = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [
        *(text for file in modules for text in list_texts(file)),
        *(text for file in documents for text in list_paragraphs(file)),
    ]
    found = [text for text in texts if has_idiom(text.text)]
    print(f"\n{len(found)} of {len(texts)} texts have an idiom")
    for where, text in found:
        print(f"{where}: {' '.join(text.split())[:160]}")
    assert len(texts) > 5000
    assert len(found) <= MAX_SHARE * len(texts)


def test_has_idiom_finds_idioms() -> None:
    assert has_idiom("The run goes on from\nits last checkpoint")
    assert has_idiom("Nobody's lock")
    assert not has_idiom("The run resumes from its last checkpoint")
    assert not has_idiom("a pattern stands for its files")
