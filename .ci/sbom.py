"""Write the software bill of materials of a wheel: its runtime dependencies, as installed here.

`cyclonedx-py environment` lists everything that is installed, tools for tests included; this
keeps what the project needs to run. The result is CycloneDX JSON.
"""

import argparse
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "tuneserve"
ROOT = Path(__file__).parent.parent


def main() -> None:
    """Write `tuneserve-<version>.cdx.json` into a folder, and print its path."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cyclonedx", required=True, help="the command cyclonedx-py")
    parser.add_argument("--output", type=Path, required=True, help="the folder to write to")
    options = parser.parse_args()
    command = [options.cyclonedx, "environment", "--pyproject", ROOT / "pyproject.toml"]
    listed = subprocess.run(  # noqa: S603 - our own command
        [*command, "--output-reproducible", sys.executable], capture_output=True, check=True
    )
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / f"{PROJECT}-{version(PROJECT)}.cdx.json"
    target.write_text(json.dumps(keep_runtime(json.loads(listed.stdout)), indent=2) + "\n")
    print(target)  # noqa: T201 - a command


def keep_runtime(bom: dict) -> dict:
    """Remove all components but the runtime dependencies, and set the version of the project."""
    names = find_runtime_dependencies()
    components = [one for one in bom["components"] if canonicalize_name(one["name"]) in names]
    root = bom["metadata"]["component"]
    kept = {root["bom-ref"], *(one["bom-ref"] for one in components)}
    direct = {canonicalize_name(name) for name, _ in list_requirements(PROJECT, frozenset())}
    refs = {one["bom-ref"] for one in components if canonicalize_name(one["name"]) in direct}
    dependencies = []
    for one in bom["dependencies"]:
        if one["ref"] in kept:
            needed = refs if one["ref"] == root["bom-ref"] else kept & set(one.get("dependsOn", ()))
            dependencies.append({"ref": one["ref"], "dependsOn": sorted(needed)})
    root = {**root, "version": version(PROJECT)}
    metadata = {**bom["metadata"], "component": root}
    return {**bom, "metadata": metadata, "components": components, "dependencies": dependencies}


def find_runtime_dependencies() -> set[str]:
    """Follow the requirements of the installed project, and those extras that they name."""
    waiting = list_requirements(PROJECT, frozenset())
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        new = [found for found in list_requirements(name, extras) if found not in seen]
        seen.update(new)
        waiting += new
    return {name for name, _ in seen}


def list_requirements(name: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """List what a distribution requires on this machine: names, and their extras."""
    try:
        requires = distribution(name).requires or []
    except PackageNotFoundError:
        sys.exit(f"{name} is required and not installed; run 'make setup'")
    found = map(Requirement, requires)
    return [
        (canonicalize_name(one.name), frozenset(one.extras))
        for one in found
        if one.marker is None
        or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
    ]


if __name__ == "__main__":
    main()
