"""The texts of the page, read from its sources, as far as they are written there.

A value that is inserted into a text is `HOLE`.
"""

import ast
import re
from collections.abc import Collection, Iterator
from html.parser import HTMLParser
from pathlib import Path

UI = Path(__file__).parents[3] / "apps" / "ui"
HOLE = "\0"
ATTRIBUTES = ("placeholder", "title", "aria-label", "alt", "data-label", "data-busy", "data-empty")
_KEPT_TAGS = ("code", "pre", "script", "style", "time", "textarea")
_VOID_TAGS = ("input", "br", "hr", "img", "link", "meta", "i")
_SHOWN_ARGUMENTS = ("label", "info", "placeholder", "title")
_SHOWING = (
    *("Button", "UploadButton", "Accordion", "Tab", "Warning", "Info", "Error", "Verdict"),
    *("show_notice", "render_notice", "_render_part", "_render_button", "_fold", "_render_list"),
    *("_render_space", "_render_unknown", "_render_meter", "_render_reserved", "_render_table"),
    *("render_confirmation", "render_sparkline", "Box", "_Field", "ModelNote", "FormerRun"),
)
"""Calls whose texts are shown."""
NOT_TRANSLATED = {
    "What is the capital of France?": "a question to a model that knows English only",
    "What is two plus three?": "the same",
    "When does the workshop open?": "the same",
    "Whom do I ask for holiday?": "the same",
    "epochs: 3 learning_rate: 0.0001": "YAML",
    f"{HOLE} in line {HOLE}.": "the words of a library follow it",
    "openapi.json": "a file",
    f"{HOLE} · Tuneserve": "the name of the product",
    f"{HOLE}Tuneserve": "the same",
    "Tuneserve": "the same",
    "http://127.0.0.1:8000": "an address",
    f"curl -OJ{HOLE} '": "a command",
    "Steps and tokens": "always followed by more text",
    "Time": "the same",
    f"The texts in the language {HOLE} cannot be read: {HOLE}": "in the browser's console",
}
"""Texts of the sources that stay English, and why."""
_HIDDEN_MODULES = (
    *("settings.py", "runs/view_request.py", "evaluate/evaluate_request.py"),
    "fine_tune/fine_tune_request.py",
)
"""Modules without texts for visitors: descriptions of settings and of what scripts send."""
_TAG = re.compile(r"</?[a-z]")
_SENTENCE = re.compile(r"[A-Z\0][^\n]*\s[^\n]*[.!?…]")
_HEADING = re.compile(r"[A-Z][a-z]+[\w ,()/\0-]*")
_IGNORED_CALLS = ("warning", "info", "exception", "debug", "compile", "getLogger", "filterwarnings")


class _Texts(HTMLParser):
    """The texts and attributes of a piece of HTML that are translated."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_marked = given.get("translate") == "no"
        if not is_marked:
            self.found += [given[name] or "" for name in ATTRIBUTES if name in given]
        if tag not in _VOID_TAGS:
            self._open.append((tag, is_marked or tag in _KEPT_TAGS))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(is_kept for _, is_kept in self._open):
            self.found.append(data)


def list_sources() -> list[Path]:
    """List the modules of the page, and its scripts apart from the library that draws curves."""
    scripts = (path for path in (UI / "assets").glob("*.js") if path.name != "uplot.js")
    modules = (
        path for path in UI.rglob("*.py") if f"{path.relative_to(UI)}" not in _HIDDEN_MODULES
    )
    return sorted([*modules, *scripts])


def is_known(text: str, keys: Collection[str]) -> bool:
    """Return whether a text, or each sentence or item of it, is among the English texts `keys`.

    A hole matches anything, also an element that separates two texts.
    """
    text = text.strip()
    if text in keys or not re.search(r"[^\W\d_]{2}", text):
        return True
    pattern = re.compile(".*?".join(map(re.escape, text.split(HOLE))))
    if any(pattern.fullmatch(key) for key in keys):
        return True
    general = re.sub(r"(?<![\w.-])\d+(?:[.,]\d+)*(?!\w)", HOLE, text)  # a number is {} in a key
    if general != text and is_known(general, keys):
        return True
    for separator in (" · ", r"(?<=[.!?…]) (?=[A-Z\0])"):
        parts = re.split(separator, text)
        if len(parts) > 1 and all(is_known(part, keys) for part in parts):
            return True
    return any(
        is_known(text[:place], keys) and is_known(text[place + 1 :], keys)
        for place, letter in enumerate(text)
        if letter == HOLE
    )


def read_texts(source: Path) -> set[str]:
    """Return the texts in a source, with white space as one space."""
    content = source.read_text("utf-8")
    found = _read_module(content) if source.suffix == ".py" else _read_script(content)
    texts = {re.sub(r"\s+", " ", text).strip() for text in found}
    shown = {text for text in texts if re.search(r"[^\W\d_]{2}", text) and "data-" not in text}
    return shown - NOT_TRANSLATED.keys()


def _read_module(content: str) -> Iterator[str]:
    tree = ast.parse(content)
    hidden = _list_hidden(tree)
    shown = _list_shown(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(part) for part in node.values if isinstance(part, ast.Constant)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        text = _join(node)
        if text is None:
            continue
        if _TAG.search(text):
            parser = _Texts()
            parser.feed(re.sub(rf"(<\w+){HOLE}", r"\1 ", text))
            parser.close()
            yield from parser.found
        elif id(node) in shown or _SENTENCE.fullmatch(text):
            yield text


def _join(node: ast.AST) -> str | None:
    """Return the text of a string, with holes for the values inserted."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\{[^{}\"]*\}", HOLE, node.value)  # of `str.format`
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values
        )
    return None


def _list_hidden(tree: ast.AST) -> set[int]:
    """Return the strings that are never shown: documentation, log lines, patterns."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
        if not isinstance(node, ast.Call) or _is_gradio(node.func):
            continue
        if _name_call(node) in _IGNORED_CALLS:
            found |= {id(one) for one in ast.walk(node)}
    return found


def _list_shown(tree: ast.AST) -> set[int]:
    """Return the strings that are shown whatever they look like."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts: list[ast.AST] = [
                one.value for one in node.keywords if one.arg in _SHOWN_ARGUMENTS
            ]
            if _name_call(node) in _SHOWING:
                parts += node.args
            found |= {id(one) for part in parts for one in _list_strings(part)}
    return found


def _list_strings(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a string, or both of a condition, but none inside of a call."""
    if isinstance(node, ast.IfExp):
        yield from _list_strings(node.body)
        yield from _list_strings(node.orelse)
    elif isinstance(node, ast.Constant | ast.JoinedStr):
        text = _join(node)
        if text is not None and (_HEADING.fullmatch(text) or " " in text):
            yield node


def _name_call(node: ast.Call) -> str:
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _is_gradio(func: ast.expr) -> bool:
    owner = func.value if isinstance(func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == "gr"


def _read_script(content: str) -> Iterator[str]:
    """Yield the strings of a script that look like words for people."""
    code = re.sub(r"^\s*//.*$", "", content, flags=re.MULTILINE)
    for found in re.finditer(r'"((?:[^"\\\n])*)"|`((?:[^`\\])*)`', code):
        text = re.sub(r"\$\{[^{}]*\}", HOLE, found[1] if found[1] is not None else found[2])
        if re.fullmatch(r"[A-Z][a-z]+(?: [\w\0',:;%-]+)*[.…]?", text) and " " in text:
            yield text
