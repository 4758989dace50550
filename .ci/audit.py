"""Look for known vulnerabilities in the pinned dependencies, where the advisories can be reached.

Exits with 1 if there are any, and with 0 if the advisories cannot be reached: an audit that is
impossible offline is reported as not done, not as a failure.
"""

import argparse
import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parent.parent
INDEX = "https://pypi.org"
# A release with advisories since 2021: an index that lists none for it has no advisories at all.
KNOWN_VULNERABLE = "pillow/8.0.0"
TIMEOUT_S = 10.0


def main() -> int:
    """Audit constraints.txt; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pip-audit", required=True, help="the command pip-audit")
    parser.add_argument("--index", default=INDEX, help="where the advisories are")
    options = parser.parse_args()
    if reason := find_obstacle(options.index):
        print(f"audit: NOT DONE, the advisories cannot be reached: {reason}")  # noqa: T201
        return 0
    command = [options.pip_audit, "--no-deps", "--disable-pip", "--requirement"]
    done = subprocess.run([*command, ROOT / "constraints.txt"], check=False)  # noqa: S603
    return done.returncode


def find_obstacle(index: str) -> str | None:
    """Say why the index gives no advisories, or return None if it does."""
    url = f"{index}/pypi/{KNOWN_VULNERABLE}/json"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - a constant
            found = json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        return f"{url}: {exc}"
    return None if found.get("vulnerabilities") else f"{url} lists no vulnerabilities"


if __name__ == "__main__":
    sys.exit(main())
