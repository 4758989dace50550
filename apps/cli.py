"""Tuneserve: start the application in any folder, and use one wherever it is."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer
from rich.console import Console

from apps import preflight
from apps.bundled import find_bundled
from apps.commands.chat import chat
from apps.commands.doctor import doctor
from apps.commands.files import files
from apps.commands.jobs import jobs
from apps.commands.models import models

_POLL_S = 0.5
_RAY_SETTINGS = {
    # A streamed token takes a third of the time on its way from the model to the client.
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    # Large uploads come no faster than they are written down.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "apps.middleware.flow_control:build_middlewares",
    # A window of an upload goes in a message, not by shared memory, of which pages stay: a third
    # faster, and 45 MB less in the replica.
    "RAY_max_direct_call_object_size": "1000000",
    # Looking after three deployments ten times a second takes 5 % of a core.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Ray keeps a file of each process's log and so many older ones; by default 0.5 GB and five.
    "RAY_ROTATION_MAX_BYTES": "20000000",
    "RAY_ROTATION_BACKUP_COUNT": "2",
    # Answers go first; by default everything that computes is as nice as a training should be.
    "RAY_worker_niceness": "0",
}
# Whoever reaches a port of Ray's and has its token can have it run code. By default it listens to
# the whole network; by this its node, as on those systems, is 127.0.0.1.
_ONLY_THIS_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_TOKEN_VARIABLES = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
_DEPLOY_NAME = "deploy.yaml"
_VLLM_DEPLOY_NAME = "deploy.vllm.yaml"

cli = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)
cli.command()(chat)
cli.command()(doctor)
cli.add_typer(jobs, name="jobs")
cli.add_typer(files, name="files")
cli.add_typer(models, name="models")
DeployFile = Annotated[Path, typer.Argument(help="Settings of the application.")]


@cli.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path(),
    vllm: Annotated[bool, typer.Option("--vllm", help="Models on GPUs, by vLLM.")] = False,
) -> None:
    """Write a deploy file to start from; `tuneserve run FILE` or `serve run FILE` starts it."""
    name = _VLLM_DEPLOY_NAME if vllm else _DEPLOY_NAME
    target = folder / name
    if target.exists():
        _fail(f"{str(target)!r} is there already; it is left as it is")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(find_bundled(name), target)
    Console().print(f"wrote {target}; now run: tuneserve run {target}", highlight=False)


@cli.command()
def run(deploy: DeployFile = Path(_DEPLOY_NAME)) -> None:
    """Start everything, say when the page answers, and stop it all on Ctrl-C."""
    if not deploy.is_file():
        _fail(f"there is no {str(deploy)!r} here; 'tuneserve init' writes one")
    if faults := list(preflight.find_faults(None, deploy)):
        _fail("; ".join(faults))
    keep_token_private()
    address = f"http://127.0.0.1:{preflight.read_port(deploy)}"
    log = Path(f"{deploy.stem}.log").resolve()
    console = Console()
    with log.open("w") as output:
        server = _start_server(deploy, output.fileno())
        for ending in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(ending, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with console.status("Starting Ray, the API, the model and the page"):
                has_page = "apps.ui:" in deploy.read_text()
                paths = ("/healthz", "/ui/") if has_page else ("/healthz",)
                _wait_until_up(server, [address + path for path in paths], log)
            if has_page:
                console.print(f"\n  The page:  [bold]{address}/ui/[/bold]")
            console.print(f"  The API:   {address}/v1")
            console.print(f"  The log:   {log}\n\n  Ctrl-C stops it.", highlight=False)
            sys.exit(server.wait())
        except KeyboardInterrupt:
            console.print("Stopping")
        finally:
            stop_server(server)


def main() -> None:
    """Run the command line."""
    cli()


def stop_server(server: "subprocess.Popen[bytes]", timeout_s: float = 30.0) -> None:
    """End `serve run` and with it the whole application."""
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(timeout_s)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def build_environment(python: Path = Path(sys.executable)) -> dict[str, str]:
    """Build the environment for `serve run`; what the user has set of it stays."""
    # The environment's own `serve` and `ninja`, whether it is activated or not.
    path = f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    binding = {} if preflight.joins_cluster() else _ONLY_THIS_MACHINE
    return {**_RAY_SETTINGS, **binding, **os.environ, "PATH": path}


def keep_token_private() -> None:
    """Make Ray's token a file that nobody else can read; Ray leaves that to the umask.

    One that the user has named is the user's own matter.
    """
    if not _TOKEN_VARIABLES.isdisjoint(os.environ):
        return
    token = Path.home() / ".ray" / "auth_token"
    token.parent.mkdir(parents=True, exist_ok=True)
    token.touch(mode=0o600)
    token.chmod(0o600)
    if not token.stat().st_size:
        token.write_text(secrets.token_hex(32))


def _start_server(deploy: Path, output: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 - our own command
        [Path(sys.executable).parent / "serve", "run", deploy],
        stdout=output,
        stderr=subprocess.STDOUT,
        env=build_environment(),
        start_new_session=True,  # Ctrl-C is ours to handle: `serve run` may have it ignored
    )


def _wait_until_up(server: "subprocess.Popen[bytes]", urls: list[str], log: Path) -> None:
    """Wait for as long as the server lives: a base model from the hub may take its time."""
    while not all(_answers(url) for url in urls):
        if server.poll() is not None:
            lines = log.read_text(errors="replace").strip().splitlines()
            _fail("the application did not start:\n" + "\n".join(lines[-15:]))
        time.sleep(_POLL_S)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code in {200, 401}
    except httpx.HTTPError:
        return False


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print(f"error: {message}", markup=False, highlight=False)
    raise typer.Exit(1)
