"""The site of `make docs` in a real browser, and the links of its pages that lead to other sites."""

import contextlib
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import offpcc

ROOT = Path(offpcc.__file__).parents[1]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MKDOCS = shutil.which("mkdocs", path=f"{ROOT / '.venv-docs' / 'bin'}:{os.environ['PATH']}")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the package is installed without its pages"),
]

WIDTH = 390  # of a phone
PAGES = [
    "index.html",
    "docs/algorithms/cql.html",
    "docs/coming_from.html",
    "docs/memories.html",
    "docs/reference/command_line.html",
    "docs/reference/python_api.html",
    "examples/memory_on_a_pendulum.html",
    "offpcc/algorithms/sac.html",
    "results/index.html",
]
WORDS = {"lr": "algorithms/common", "resume": "guarantees", "LSTM": "memories", "own data": "your_data"}
# Opens pages in frames as wide as a phone, and lists what is wider and pictures that are missing. Then it searches.
CHECKS = """<!doctype html><body><script>
const [pages, words, width] = JSON_HERE
async function open(address, width) {
  const frame = document.createElement("iframe")
  frame.width = width; frame.height = 844; frame.src = address
  document.body.append(frame)
  await new Promise(resolve => frame.onload = resolve)
  return frame.contentDocument
}
function scrolls(element, view) {
  for (let one = element.parentElement; one && one !== view.document.body; one = one.parentElement)
    if (["auto", "scroll"].includes(view.getComputedStyle(one).overflowX)) return true
  return false
}
async function main() {
  const result = {wide: {}, pictures: [], found: {}}
  for (const page of pages) {
    const opened = await open(page, width)
    result.wide[page] = [...opened.querySelectorAll("article, article *")]
      .filter(one => one.getBoundingClientRect().right > width + 1 && !scrolls(one, opened.defaultView))
      .map(one => one.outerHTML.slice(0, 80))
    result.pictures.push(...[...opened.images].filter(one => !one.naturalWidth).map(one => page + " " + one.src))
  }
  for (const word of words) {
    const opened = await open("index.html?q=" + encodeURIComponent(word), 1200)
    for (let turn = 0; turn < 300 && !opened.querySelector(".md-search-result__link"); turn++)
      await new Promise(resolve => setTimeout(resolve, 100))
    result.found[word] = [...opened.querySelectorAll(".md-search-result__link")].map(one => one.href)
  }
  return result
}
main().catch(error => ({error: String(error.stack)})).then(
  result => fetch("/result", {method: "POST", body: JSON.stringify(result)}))
</script></body>"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and the page with the checks, and takes their result."""

    def __init__(self, *args, checks, results, **kwargs):
        self.checks, self.results = checks, results
        super().__init__(*args, **kwargs)

    def do_GET(self):
        if self.path != "/checks.html":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.checks.encode())

    def do_POST(self):
        self.results.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(handler):
    """The address of a server that runs within the context."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def browse(site, folder, pages=PAGES, words=WORDS):
    """What the checks find on pages of a site, and what the browser writes to its console."""
    checks = CHECKS.replace("JSON_HERE", json.dumps([list(pages), list(words), WIDTH]))
    results = queue.Queue()
    with serving(partial(Handler, directory=str(site), checks=checks, results=results)) as address:
        log = folder / "browser.log"
        with log.open("w") as file:
            options = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
                "--window-size=1400,900",
            ]
            process = subprocess.Popen(
                [BROWSER, *options, f"--user-data-dir={folder / 'browser'}", f"{address}/checks.html"],
                stdout=subprocess.DEVNULL, stderr=file,
            )  # fmt: skip
            try:
                result = results.get(timeout=300)
            finally:
                process.terminate()
                process.wait()
    return result, [line for line in log.read_text(errors="replace").splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built anew."""
    if MKDOCS is None:
        pytest.skip("mkdocs is not installed (make docs installs it)")
    folder = tmp_path_factory.mktemp("docs")
    subprocess.run([sys.executable, ROOT / "docs" / "stage.py", folder / "pages"], check=True, timeout=60)
    config = folder / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {folder}/pages\nsite_dir: {folder}/site\n")
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--config-file", config], capture_output=True, text=True, timeout=600,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder / "site"


def test_links_of_the_site_lead_somewhere(site):
    pages = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    anchors = {page: {"", *re.findall(r'\bid="([^"]+)"', text)} for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="(?!\w+:)([^"]*)"', text):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or anchor not in anchors.get(target, {anchor}):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert len(pages) > 50 and broken == []


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed (Debian: chromium)")
def test_the_site_works_in_a_browser(site, tmp_path):
    result, console = browse(site, tmp_path)
    assert "error" not in result, result
    assert console == [] and result["pictures"] == []
    assert {page: wide for page, wide in result["wide"].items() if wide} == {}
    assert {
        word: links for word, links in result["found"].items() if not any(WORDS[word] in one for one in links)
    } == {}


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed (Debian: chromium)")
def test_a_faulty_site_is_found(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text(
        "<article><p style='width: 900px'>wide</p><img src='no.png'></article><script>throw Error('bad')</script>"
    )
    result, console = browse(site, tmp_path, pages=["index.html"], words=[])
    assert result["wide"]["index.html"] and result["pictures"] and any("bad" in line for line in console)


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another site: a page, one that refuses HEAD, one that is missing, one that never answers."""

    over = threading.Event()

    def do_GET(self):
        if self.path == "/hangs":
            self.over.wait(60)
        is_found = self.path == "/there" or (self.path == "/no_head" and self.command == "GET")
        self.send_response(200 if is_found else 404)
        self.end_headers()

    def do_HEAD(self):
        self.do_GET()

    def log_message(self, *args):
        pass


def test_links_to_other_sites_are_followed(tmp_path):
    page, good = tmp_path / "page.md", tmp_path / "good.md"
    with serving(Elsewhere) as address:
        good.write_text(f"[a]({address}/there#part) <{address}/no_head> `[b]({address}/code)` [c](good.md)")
        page.write_text(f"[a]({address}/there) [b]({address}/missing) [c](<{address}/hangs>) [d](http://127.0.0.1:1/)")
        command = [sys.executable, ROOT / "docs" / "links.py", "--timeout", "3"]
        done = [subprocess.run([*command, *pages], capture_output=True, text=True) for pages in ([good], [good, page])]
        Elsewhere.over.set()
    assert (done[0].returncode, done[0].stdout) == (0, "2 addresses, 0 failed\n")
    lines = done[1].stdout.splitlines()
    assert done[1].returncode == 1 and lines[-1] == "5 addresses, 3 failed"
    for one in (f"{address}/missing: HTTP Error 404", f"{address}/hangs: ", "http://127.0.0.1:1/: "):
        assert any(line.startswith(one) and line.endswith(f"(in {page})") for line in lines), done[1].stdout
