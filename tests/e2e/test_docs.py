"""The examples of docs/http.md, run from top to bottom against the real application."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Application
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.long]

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DOCUMENTED = "http://127.0.0.1:8000"


def test_http_examples_work(
    application: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (ROOT / "examples" / "handbook" / "train.jsonl").read_text().splitlines()
    Path(".curlrc").write_text('write-out = "\\n"\n')
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    Path("rows.jsonl").write_text("\n".join(rows[:200]) + "\n")
    Path("more.jsonl").write_text("\n".join(rows[200:220]) + "\n")
    blocks = _BLOCK.findall((ROOT / "docs" / "http.md").read_text())
    assert len(blocks) > 20
    names: dict[str, Any] = {}
    answers = ""
    for language, text in blocks:
        code = text.replace(_DOCUMENTED, application.url)
        if language == "python":
            exec(compile(code, "docs/http.md", "exec"), names)
        else:
            answers += run_shell(code, {**find_ids(names), **find_other(answers, names)})
    names["client"].close()


def find_ids(names: dict[str, Any]) -> dict[str, str]:
    """Return the ids from earlier examples, by the names of their shell variables."""
    made = {"FILE": "file", "JOB": "job", "CHECKPOINT": "checkpoint"}
    return {shell: names[name].id for shell, name in made.items() if name in names}


def find_other(answers: str, names: dict[str, Any]) -> dict[str, str]:
    """Return the last job that a shell example created."""
    shown = re.findall(r'^{"id":"(ftjob-[^"]+)","object":"fine_tuning.job"', answers, re.MULTILINE)
    made = [job_id for job_id in shown if job_id != names["job"].id]
    return {"OTHER": made[-1]} if made else {}


def run_shell(code: str, ids: dict[str, str]) -> str:
    answered = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", code],
        env={**os.environ, **ids},
        capture_output=True,
        text=True,
        timeout=300 * PATIENCE,
    )
    assert answered.returncode == 0, f"{code}\n{answered.stdout[-3000:]}\n{answered.stderr[-500:]}"
    return answered.stdout
