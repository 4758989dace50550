"""The files of Gradio's frontend that a document names before its scripts ask for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.ui.frame import needed_files
from apps.ui.frame.needed_files import list_needed_files

ENTRY = '<script type="module" crossorigin src="./assets/index-1.js"></script>'
DEPENDENCIES = "const __vite__mapDeps=(i,m=__vite__mapDeps,d=(m.f||(m.f=%s)))=>i.map(i=>d[i]);"


@pytest.fixture
def frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of Gradio's frontend."""
    (tmp_path / "assets").mkdir()
    monkeypatch.setattr(needed_files, "_FRONTEND", tmp_path)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    needed_files._find_frontend_files.cache_clear()


def test_files_of_components_are_found_in_the_installed_frontend() -> None:
    common, _ = list_needed_files([])
    scripts, styles = list_needed_files(["dropdown", "textbox", "no-component"])
    assert set(common) < set(scripts)
    assert any("/Blocks-" in name for name in common)
    assert len(scripts) == len(set(scripts)) <= len(common) + 6
    folder = needed_files._FRONTEND
    assert [name for name in (*scripts, *styles) if not (folder / name).is_file()] == []
    assert all(name.startswith("assets/") for name in (*scripts, *styles))


def test_scripts_are_read_as_vite_writes_them(frontend: Path) -> None:
    (frontend / "index.html").write_text(ENTRY)
    assets = frontend / "assets"
    (assets / "index-1.js").write_text(
        DEPENDENCIES % '["./core-1.js","./core-1.css"]'
        + "v(()=>import(`./core-1.js`),__vite__mapDeps([0,1]),import.meta.url);import(`./other.js`)"
    )
    (assets / "core-1.js").write_text(
        DEPENDENCIES % '["./A-1.js","./A-1.css","./B-1.js"]'
        + "x={aa:{component:()=>v(()=>import(`./A-1.js`).then(e=>e.t),__vite__mapDeps([0,1]),u)},"
        + "bb:{example:()=>v(()=>import(`./A-1.js`),__vite__mapDeps([0]),u),"
        + "component:()=>v(()=>import(`./B-1.js`),__vite__mapDeps([2]),u)}}"
    )
    assert list_needed_files([]) == (["assets/core-1.js"], ["assets/core-1.css"])
    assert list_needed_files(["bb"]) == (
        ["assets/core-1.js", "assets/B-1.js"],
        ["assets/core-1.css"],
    )
    assert list_needed_files(["aa"])[1] == ["assets/core-1.css", "assets/A-1.css"]


@pytest.mark.parametrize(
    "script",
    [
        None,
        "",
        "import(`./core-1.js`)",
        "import(`./core-1.js`),__vite__mapDeps([0])",
        DEPENDENCIES % '["./core-1.js"]' + "import(`./core-1.js`),__vite__mapDeps([7])",
        DEPENDENCIES % '["./core-1.js"]' + "import(`./core-1.js`),__vite__mapDeps([0])",
        DEPENDENCIES % "[`./core-1.js`]" + "import(`./core-1.js`),__vite__mapDeps([0])",
        DEPENDENCIES % '["./core-1.js"]' + "import(`./core-1.js`),__vite__mapDeps([,])",
    ],
)
def test_other_frontends_have_no_needed_files(frontend: Path, script: str | None) -> None:
    (frontend / "index.html").write_text("<html></html>" if script is None else ENTRY)
    (frontend / "assets" / "index-1.js").write_text(script or "")
    assert list_needed_files(["textbox"]) == ([], [])
