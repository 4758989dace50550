"""Finding processes by their command lines; a process may end while it is looked at."""

from contextlib import suppress

import psutil


def read_command(process: psutil.Process) -> str:
    """Return the command line of a process; empty once it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def find_descendants(word: str, root: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the descendants of a process, by default this one, whose command contains `word`."""
    root = root or psutil.Process()
    return [one for one in root.children(recursive=True) if word in read_command(one)]


def find_fork_servers(module: str) -> list[psutil.Process]:
    """Return the fork servers that this process has started for a module."""
    return [one for one in psutil.Process().children() if module in read_command(one)]


def find_forked(module: str) -> list[psutil.Process]:
    """Return the processes that the fork servers of this process have forked for a module."""
    servers = find_fork_servers(module)
    forked = []
    for server in servers:
        with suppress(psutil.Error):
            forked += find_descendants(module, server)
    return forked


def list_forked_workers() -> list[psutil.Process]:
    """Return the workers of Ray that the server of `tests.forked_workers` has forked."""
    found = []
    for server in find_fork_servers("tests.forked_workers"):
        with suppress(psutil.Error):
            found += server.children(recursive=True)
    return found
