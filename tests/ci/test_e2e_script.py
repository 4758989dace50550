"""The script that runs the end-to-end tests finds all of them."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_end_to_end_tests_are_in_the_folders_of_the_script() -> None:
    script = (ROOT / ".ci" / "e2e.sh").read_text()
    (command,) = (line for line in script.splitlines() if "-m pytest" in line)
    folders = {ROOT / word for word in command.split() if word.startswith("tests/")}
    assert folders
    files = {
        file
        for file in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.e2e" in file.read_text() and file != Path(__file__)
    }
    assert files
    assert [file for file in files if file.parent not in folders] == []
