"""The settings of a fine-tune as text for programs, and read back from a spec.

The YAML is a spec of `python -m training`, with the model's and the file's names in place of paths.
"""

import json
import pprint
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

DEFAULT_ORIGIN = "http://127.0.0.1:8000"
MAX_SPEC_CHARACTERS = 50_000
_ORIGIN = re.compile(r"https?://[\w.-]+(:\d{1,5})?|https?://\[[0-9a-fA-F:]+\](:\d{1,5})?")
_SOURCES = ("base_model", "train_file", "train_files", "train_dataset", "task")
_KEY = "TUNESERVE_API_KEY"


@dataclass(frozen=True)
class PlannedJob:
    """A job as it would be created; `training` has what differs from the model's defaults."""

    model: str
    training_file: str
    filename: str
    suffix: str
    training: Mapping[str, Any]

    def to_body(self) -> dict[str, Any]:
        """Return the body of the request that creates the job."""
        body: dict[str, Any] = {"model": self.model, "training_file": self.training_file}
        if self.suffix:
            body["suffix"] = self.suffix
        return {**body, "training": dict(self.training)} if self.training else body


def write_spec(
    job: PlannedJob, values: Mapping[str, Any], schemas: Mapping[str, Mapping[str, Any]]
) -> str:
    """Write a spec: every value that differs from the default of the spec or of the model."""
    spec: dict[str, Any] = {"base_model": job.model, "train_file": job.filename}
    if "task" in job.training:
        spec["task"] = job.training["task"]
    for name, value in values.items():
        default = schemas.get(name, {}).get("default")
        is_unset = value is None or value in ({}, [], ())
        if name in job.training or (value != default and not (is_unset and not default)):
            spec[name] = job.training.get(name, value)
    note = (
        "# python -m training SPEC.yaml --output DIR\n"
        "# base_model is a folder with this model, or an id on the hub; train_file has the rows\n"
    )
    return note + yaml.safe_dump(_make_plain(spec), sort_keys=False, allow_unicode=True)


def write_curl(job: PlannedJob, origin: str) -> str:
    """Write the request as a command for curl."""
    body = shlex.quote(json.dumps(job.to_body(), ensure_ascii=False))
    return (
        f"curl {clean_origin(origin)}/v1/fine_tuning/jobs \\\n"
        f'  -H "Authorization: Bearer ${_KEY}" \\\n'
        "  -H 'content-type: application/json' \\\n"
        f"  -d {body}\n"
    )


def write_python(job: PlannedJob, origin: str) -> str:
    """Write a program with the package `openai`."""
    body = job.to_body()
    training = body.pop("training", None)
    arguments = [f"    {name}={value!r}," for name, value in body.items()]
    if training:
        text = pprint.pformat({"training": training}, sort_dicts=False, width=84)
        indented = text.replace("\n", "\n    ")
        arguments.append(f"    extra_body={indented},")
    lines = "\n".join(arguments)
    return (
        "import os\n\n"
        "from openai import OpenAI\n\n"
        f'key = os.environ.get("{_KEY}", "unused")\n'
        f'client = OpenAI(base_url="{clean_origin(origin)}/v1", api_key=key)\n'
        f"job = client.fine_tuning.jobs.create(\n{lines}\n)\n"
        "print(job.id)\n"
    )


def write_command(job: PlannedJob, origin: str) -> str:
    """Write a command of `tuneserve`."""
    words = ["tuneserve", "jobs", "create", job.training_file, "--model", job.model]
    if job.suffix:
        words += ["--suffix", job.suffix]
    for name, value in job.training.items():
        words += ["--set", f"{name}={_write_value(value)}"]
    if (address := clean_origin(origin)) != DEFAULT_ORIGIN:
        words += ["--url", address]
    return f"{shlex.join(words)}\n"


def read_spec(text: str, known: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return the settings in a spec; sources of rows and the model are left out.

    `known` has the settings that can be set for `task`. Raises `ValueError` for text that is no
    mapping in YAML or JSON, for another task, and for settings that cannot be set here.
    """
    if len(text) > MAX_SPEC_CHARACTERS:
        raise ValueError(
            f"The text has {len(text):,} characters, expected at most {MAX_SPEC_CHARACTERS:,}."
        )
    try:
        content = yaml.load(text, Loader=_SpecLoader)  # noqa: S506 - a safe loader without aliases
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise ValueError(f"The text is not YAML: {_describe_yaml_error(exc)}") from exc
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError("Expected settings, one in each line, as in: epochs: 3")
    if (named := content.get("task", task)) != task:
        raise ValueError(f"These settings are for the task {str(named)[:60]!r}: choose it first.")
    settings = {name: value for name, value in content.items() if name not in _SOURCES}
    try:
        json.dumps(settings, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"A value is not JSON: {exc}.") from exc
    if unknown := [name for name in settings if name not in known]:
        names = ", ".join(repr(name[:60]) for name in unknown[:5])
        raise ValueError(f"These are no settings of this model and task here: {names}.")
    return settings


class _SpecLoader(yaml.SafeLoader):
    """A loader without aliases, by which a short text could describe a huge value."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not accepted")
        return super().compose_node(parent, index)


def clean_origin(origin: str) -> str:
    """Return the address of the page without a path; the default one if it is not an address."""
    return origin if _ORIGIN.fullmatch(origin) else DEFAULT_ORIGIN


def _write_value(value: Any) -> str:
    """Write a value as `--set` reads it: JSON, or else a string."""
    if isinstance(value, str) and value:
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, ensure_ascii=False)


def _describe_yaml_error(exc: Exception) -> str:
    mark = getattr(exc, "problem_mark", None)
    problem = getattr(exc, "problem", None) or str(exc)
    return f"{problem} in line {mark.line + 1}." if mark else f"{problem}."


def _make_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _make_plain(part) for name, part in value.items()}
    return [_make_plain(part) for part in value] if isinstance(value, list | tuple) else value
