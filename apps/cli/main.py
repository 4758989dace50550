"""Tuneserve: start the application in any folder, or use a running one from anywhere."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer
from rich.console import Console

from apps.bundled import find_bundled
from apps.cli import preflight
from apps.cli.backup import backup, restore
from apps.cli.chat import chat
from apps.cli.classify import classify
from apps.cli.cluster import cluster
from apps.cli.doctor import doctor
from apps.cli.evaluate import evaluate
from apps.cli.files import files
from apps.cli.jobs import jobs
from apps.cli.keys import keys
from apps.cli.models import models
from apps.drain import DRAIN_FOLDER_VARIABLE, DrainSignal
from apps.server.server_log import ServerLog
from apps.server.server_process import (
    build_command,
    drain_server,
    keep_token_private,
    start_server,
    stop_server,
)
from apps.server.stop_signals import StopRequested, StopSignals
from storage.privacy import keep_files_private

_POLL_S = 0.5
_DEPLOY_NAME = "deploy.yaml"
_VLLM_DEPLOY_NAME = "deploy.vllm.yaml"

cli = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
cli.command()(chat)
cli.command()(classify)
cli.command()(cluster)
cli.command()(doctor)
cli.command()(evaluate)
cli.command()(backup)
cli.command()(restore)
cli.add_typer(jobs, name="jobs")
cli.add_typer(files, name="files")
cli.add_typer(models, name="models")
cli.add_typer(keys, name="keys")
DeployFile = Annotated[Path, typer.Argument(help="Settings of the application.")]


@cli.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the new deploy file.")] = Path(),
    vllm: Annotated[bool, typer.Option("--vllm", help="Serve models on GPUs with vLLM.")] = False,
) -> None:
    """Write a deploy file to start from; `tuneserve run FILE` or `serve run FILE` starts it."""
    name = _VLLM_DEPLOY_NAME if vllm else _DEPLOY_NAME
    target = folder / name
    if target.exists():
        _fail(f"{str(target)!r} already exists; it was not changed")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(find_bundled(name), target)
    Console().print(f"wrote {target}; now run: tuneserve run {target}", highlight=False)


@cli.command()
def run(
    deploy: DeployFile = Path(_DEPLOY_NAME),
    drain_timeout_s: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            min=0.0,
            envvar="TUNESERVE_DRAIN_TIMEOUT_S",
            help="Seconds that requests may take to finish, and fine-tunes to save a checkpoint, "
            "after SIGTERM, SIGHUP or Ctrl-C.",
        ),
    ] = 60.0,
    log_bytes: Annotated[
        int,
        typer.Option("--log-bytes", min=1000, help="Size in bytes at which the log is rotated."),
    ] = 10_000_000,
    log_files: Annotated[
        int, typer.Option("--log-files", min=1, help="Number of rotated logs that are kept.")
    ] = 5,
) -> None:
    """Start the application, print the address of the page, and stop on Ctrl-C or SIGTERM."""
    if not deploy.is_file():
        _fail(f"{str(deploy)!r} does not exist; 'tuneserve init' creates it")
    if faults := list(preflight.find_faults(None, deploy)):
        _fail("; ".join(faults))
    keep_files_private()
    keep_token_private()
    path = Path(f"{deploy.stem}.log").resolve()
    log = ServerLog(path, max_bytes=log_bytes, num_old_files=log_files)
    with tempfile.TemporaryDirectory(prefix="tuneserve-run-") as folder:
        sys.exit(_supervise(deploy, log, Path(folder), drain_timeout_s))


def _supervise(deploy: Path, log: ServerLog, folder: Path, drain_timeout_s: float) -> int:
    """Run the server until it ends or a signal arrives; return the exit status."""
    address = f"http://127.0.0.1:{preflight.read_port(deploy)}"
    console = Console()
    stop = StopSignals()
    is_up = False
    server = start_server(build_command(deploy), **{DRAIN_FOLDER_VARIABLE: str(folder)})
    try:
        stop.arm()
        assert server.stdout is not None
        log.follow(server.stdout)
        with console.status("Starting Ray, the API, the model and the page"):
            has_page = "apps.ui:" in deploy.read_text()
            _wait_until_up(server, f"{address}/healthz", log)
            is_up = True  # the queue may train from here on
            if has_page:
                _wait_until_up(server, f"{address}/ui/", log)
        if has_page:
            console.print(f"\n  The page:  [bold]{address}/ui/[/bold]")
        console.print(f"  The API:   {address}/v1")
        console.print(f"  The log:   {log.path}\n\n  Ctrl-C stops it.", highlight=False)
        return server.wait()
    except StopRequested as exc:
        console.print(f"{exc}: finishing requests and pausing fine-tunes; repeat to stop at once")
        if is_up and not preflight.joins_cluster():
            left = drain_server(
                address,
                DrainSignal(folder),
                drain_timeout_s,
                is_over=lambda: stop.is_repeated or server.poll() is not None,
            )
            if not left.is_done:
                runs = "paused" if left.are_runs_paused else "not paused"
                num_requests = "unknown" if left.num_requests is None else left.num_requests
                message = f"unfinished requests: {num_requests}, fine-tunes: {runs}"
                console.print(f"Not drained: {message}", highlight=False)
        return 0
    finally:
        stop.disarm()
        stop_server(server, is_urgent=lambda: stop.is_repeated)
        log.close()


def main() -> None:
    """Run the command line."""
    cli()


def _wait_until_up(server: "subprocess.Popen[bytes]", url: str, log: ServerLog) -> None:
    """Wait until `url` responds or the server ends; a download from the hub may take long."""
    while not _answers(url):
        if server.poll() is not None:
            _fail(f"the application did not start:\n{log.read_last_lines()}")
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code in {200, 401}
    except httpx.HTTPError:
        return False


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", markup=False, highlight=False)
    raise typer.Exit(1)
