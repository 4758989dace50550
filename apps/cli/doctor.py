"""`tuneserve doctor`: checks whether this machine meets the application's requirements."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer
from rich.table import Table
from rich.text import Text

from apps.access.keys import KeyStore
from apps.cli import preflight
from apps.cli.connection import AsJson
from apps.cli.output import console, escape_controls, print_json
from apps.server.deploy_file import DeployFileError, find_storage
from storage.layout import StorageLayout

Verdict = Literal["good", "note", "fault"]

_MARKS = {"good": ("✓", "green"), "note": ("·", "yellow"), "fault": ("✗", "red")}
_PACKAGES = ("ray", "deepspeed", "torch", "transformers", "gradio")


@dataclass(frozen=True)
class Finding:
    """The result of one check; a `fault` prevents the application from starting."""

    subject: str
    verdict: Verdict
    text: str


def doctor(
    deploy: Annotated[Path, typer.Argument(help="Settings of the application.")] = Path(
        "deploy.yaml"
    ),
    as_json: AsJson = False,
) -> None:
    """Check this machine before the application is started; exit with 1 if there is a fault."""
    findings = list(examine(deploy))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        table = Table(show_header=False, box=None, padding=(0, 1))
        for finding in findings:
            cells = (finding.subject, escape_controls(finding.text))
            table.add_row(Text(*_MARKS[finding.verdict]), *map(Text, cells))
        console.print(table)
    raise typer.Exit(any(finding.verdict == "fault" for finding in findings))


def examine(deploy: Path) -> Iterator[Finding]:
    """Run all checks one after the other, and yield their findings."""
    yield Finding("Python", "good", f"{platform.python_version()} on {platform.platform()}")
    yield from _examine_packages()
    yield _examine_processor()
    yield from _examine_gpus()
    yield from _list_findings(
        "compiler", preflight.check_compiler(), "found, with Python's headers"
    )
    try:
        root = find_storage(deploy)
    except DeployFileError as exc:
        yield Finding("settings", "fault", str(exc))
    else:
        yield from _examine_storage(root)
        yield _examine_key(root)
    if deploy.is_file():
        port = preflight.read_port(deploy)
        if preflight.is_application_running(port):
            yield Finding(f"port {port}", "good", "in use by Tuneserve, which is running")
        else:
            yield from _list_findings(f"port {port}", preflight.check_port(port), "free")
    else:
        text = f"{str(deploy)!r} does not exist; 'tuneserve init' creates it"
        yield Finding("settings", "note", text)
    yield from _list_findings("cluster", preflight.check_cluster(), _describe_cluster())


def _examine_packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        try:
            yield Finding(name, "good", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "fault", "is not installed; install Tuneserve again")


def _examine_processor() -> Finding:
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory()
    text = f"{num_cores} cores, {memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"
    return Finding("processor", "good", text)


def _examine_gpus() -> Iterator[Finding]:
    if not preflight.has_gpu_driver():
        yield Finding("GPUs", "note", "none; training and serving use the CPU")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603
    if asked.returncode:
        reason = (asked.stderr or asked.stdout).strip().splitlines()[-1:]
        yield Finding("GPUs", "fault", f"the driver does not answer: {''.join(reason)}")
        return
    for line in asked.stdout.splitlines():
        name, total, free = (part.strip() for part in line.split(","))
        yield Finding("GPU", "good", f"{name}, {free} of {total} free")


def _examine_storage(root: Path) -> Iterator[Finding]:
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as exc:
        text = f"{str(existing)!r} cannot be written: {exc.strerror}; choose another 'storage'"
        yield Finding("storage", "fault", text)
        return
    free = shutil.disk_usage(existing).free
    faults = preflight.check_disk(existing, preflight.RUN_BYTES)
    yield from _list_findings("storage", faults, f"{root}, {free / 1e9:.0f} GB free")


def _describe_cluster() -> str:
    if preflight.joins_cluster():
        return "Ray joins the cluster that is running"
    return "Ray starts a cluster on this machine"


def _examine_key(root: Path) -> Finding:
    if root.is_dir() and KeyStore(StorageLayout(root)).has_keys():
        return Finding("access", "good", "clients with a key; 'tuneserve keys list' shows the keys")
    if os.environ.get("TUNESERVE_API_KEY", "").strip():
        return Finding("access", "good", "clients that send TUNESERVE_API_KEY as their key")
    return Finding(
        "access", "note", "this machine only; create a key for others: tuneserve keys create"
    )


def _list_findings(subject: str, faults: Iterator[str], good: str) -> Iterator[Finding]:
    found = list(faults)
    for fault in found:
        yield Finding(subject, "fault", fault)
    if not found:
        yield Finding(subject, "good", good)
