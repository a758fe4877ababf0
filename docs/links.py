"""Follow the links of all pages that lead out of the repository: `make links`.

    python docs/links.py [--timeout SECONDS] [PAGE.md ...]

Prints each address that fails, with its pages and the reason. The exit code is then 1. Needs a network, but no package.
"""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

from stage import ROOT, addresses, pages

AGENT = "Mozilla/5.0 (compatible; offpcc's check of links)"  # some servers refuse Python's own name


def failure(address: str, timeout: float) -> str:
    """Return why an address fails, or "". If the server refuses HEAD, GET decides."""
    reason = ""
    for method in ("HEAD", "GET"):
        request = urllib.request.Request(address, method=method, headers={"User-Agent": AGENT})
        try:
            with urllib.request.urlopen(request, timeout=timeout):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            reason = str(error)
        except (OSError, HTTPException, ValueError) as error:
            return f"{error}" or type(error).__name__
    return reason


def main() -> int:
    """Check the pages that are named, else all, and return the exit code."""
    parser = argparse.ArgumentParser(description="Follow the links of pages that lead out of the repository.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE.md")
    parser.add_argument("--timeout", type=float, default=20.0, metavar="SECONDS")
    options = parser.parse_args()
    found: dict[str, list[str]] = {}
    for page in options.pages or pages():
        name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else str(page)
        for address in {one.partition("#")[0] for one in addresses(page) if one.startswith(("http:", "https:"))}:
            found.setdefault(address, []).append(name)
    with ThreadPoolExecutor(8) as executor:
        reasons = dict(zip(found, executor.map(lambda one: failure(one, options.timeout), found), strict=True))
    failed = {address: reason for address, reason in reasons.items() if reason}
    for address, reason in failed.items():
        print(f"{address}: {reason} (in {', '.join(found[address])})")
    print(f"{len(found)} addresses, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
