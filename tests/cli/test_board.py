"""`offpcc board`: TensorBoard's page shows curves, settings that differ, videos and faults, and changes no run."""

import http.server
import json
import math
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import offpcc
from offpcc.cli.board import HOST, Board, faults, table_of_settings
from offpcc.utils.video import video

LAUNCH = Path(offpcc.__file__).with_name("launch.py")
NUM_RUNS = 200
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def write_run(results, number, gamma=0.99, status="finished"):
    algo = ("sac", "td3")[number % 2]
    run = results / "pendulum-p-v0" / algo / str(number)
    run.mkdir(parents=True)
    rows = [f"{100 * epoch},{epoch},{number + epoch}" for epoch in range(1, 6)]
    (run / "progress.csv").write_text("\n".join(["step,epoch,test/return", *rows, ""]))
    (run / "config.gin").write_text(f"ActorCritic.gamma = {gamma}\nActorCritic.polyak = 0.995\n")
    facts = {"env": "pendulum-p-v0", "algo": algo, "seed": number, "status": status}
    (run / "run.json").write_text(json.dumps(facts))
    return run


def contents(folder):
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


def test_the_table_has_only_the_settings_that_differ(tmp_path):
    one, other = write_run(tmp_path, 1, 0.9), write_run(tmp_path, 3, 0.95)
    table = table_of_settings([one, other])
    assert table[one] == {"ActorCritic.gamma": 0.9, "seed": 1.0}
    assert table[other] == {"ActorCritic.gamma": 0.95, "seed": 3.0}


def test_faults_are_told(tmp_path):
    fine, stopped = write_run(tmp_path, 1), write_run(tmp_path, 3, status="stopped")
    (stopped / "bad_batch.pt").touch()
    (stopped / "environment_faults.txt").write_text("Traceback: the robot fell\n")
    assert faults(fine, "finished", {}) == ""
    told = faults(stopped, "stopped", {"train/dropped_episodes": [math.nan, 0.0, 2.0]})
    assert (
        "stopped before its end" in told
        and "NaN" in told
        and "    Traceback: the robot fell" in told
        and "2 unfinished episodes were" in told
    )
    assert "status: running" in faults(fine, "running", {})
    assert "The run finished. Before that, its environment failed:" in faults(stopped, "finished", {})


def test_new_rows_of_a_run_are_written_once(tmp_path, monkeypatch):
    run = write_run(tmp_path / "results", 1)
    written = []
    board = Board([tmp_path / "results"], tmp_path / "events")
    monkeypatch.setattr(board, "add", lambda run, events: written.extend(e["step"] for e in events if e.get("step")))
    assert board.update() == 1
    with (run / "progress.csv").open("a") as file:
        file.write("600,6,7\n700,7")  # the second line is not complete yet
    board.update()
    board.update()
    assert written == [100, 200, 300, 400, 500, 600]


def test_a_run_that_begins_again_has_its_new_curve_alone(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_run(tmp_path / "results", 1)
    board = Board([tmp_path / "results"], tmp_path / "events")
    board.update()
    (run / "progress.csv").write_text("step,epoch,test/return\n100,1,2\n150,2,70\n250,3,80\n")
    board.update()
    (file,) = (tmp_path / "events").rglob("events.out*")
    curve = EventAccumulator(str(file)).Reload().Scalars("test/return")
    assert [(one.step, one.value) for one in curve] == [(100, 2.0), (150, 70.0), (250, 80.0)]


def test_a_fault_that_is_over_is_told(tmp_path, monkeypatch):
    run = write_run(tmp_path / "results", 1, status="stopped")
    board, written = Board([tmp_path / "results"], tmp_path / "events"), []
    monkeypatch.setattr(board, "add", lambda run, events: written.append(str(events)))
    board.update()
    assert "stopped before its end" in "".join(written)
    (run / "run.json").write_text(json.dumps({"env": "pendulum-p-v0", "status": "finished"}))
    written.clear()
    board.update()
    assert "There are no faults any more" in "".join(written)
    written.clear()
    board.update()
    assert not written


def test_a_run_that_begins_later_stays_in_the_temporary_folder(tmp_path):
    results, place = tmp_path / "results", tmp_path / "a" / "b" / "events"
    run = write_run(results / "first", 1)
    board = Board([results], place)
    board.update()
    write_run(results / "second", 3)
    assert board.update() == 2
    assert {file.relative_to(place).parts[0] for file in place.rglob("events.out*")} == {"1", "results"}
    assert len(list(tmp_path.rglob("events.out*"))) == 2
    assert (place / "results" / "second" / "pendulum-p-v0" / "td3" / "3").is_dir()
    Board([run], tmp_path / "alone").update()
    assert [file.parent.name for file in (tmp_path / "alone").rglob("events.out*")] == ["1"]


def test_a_video_that_is_being_written_is_shown_later(tmp_path, monkeypatch):
    run, shown = write_run(tmp_path, 1), []
    (run / "videos").mkdir()
    (run / "videos" / ".best_actor_1.mp4.tmp-7.mp4").write_bytes(b"half of it")
    board = Board([tmp_path], tmp_path / "events")
    monkeypatch.setattr(board, "add", lambda run, events: shown.append(str(events)))
    board.update()
    shown.clear()
    board.add_videos()
    assert not shown
    with video(run / "videos" / "best_actor_1.mp4", 10) as add:
        add(np.zeros((32, 48, 3), np.uint8))
    board.add_videos()
    assert len(shown) == 1 and "cannot be shown" not in shown[0]


def test_no_runs_and_a_taken_port_are_one_message(launch, tmp_path):
    code, _, err = launch("board", tmp_path)
    assert code == 2 and "no runs in" in err
    write_run(tmp_path, 1)
    server = http.server.HTTPServer((HOST, 0), http.server.BaseHTTPRequestHandler)
    with server:
        code, _, err = launch("board", tmp_path, "--port", server.server_port)
    assert code == 2 and "give another --port" in err


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The address of a page of many runs, and their folder."""
    results = tmp_path_factory.mktemp("board") / "results"
    for number in range(NUM_RUNS):
        run = write_run(results, number, 0.9 if number % 3 else 0.99, "stopped" if number == 7 else "finished")
    (run / "videos").mkdir()
    with video(run / "videos" / "best_actor_1.mp4", 10) as add:
        for frame in range(20):
            add(np.full((32, 48, 3), 10 * frame, np.uint8))
    before = contents(results)
    command = [sys.executable, LAUNCH, "board", results]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(300, process.kill)
        timer.start()
        told = process.stdout.readline()
        try:
            yield told, re.search(r"http\S+", told)[0]
        finally:
            timer.cancel()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in err
    assert contents(results) == before


def ask(address, route, body=None, **query):
    words = urllib.parse.urlencode(query)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}data/{route}?{words}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def until(question, is_answered, tries=60):
    for _ in range(tries):
        if is_answered(answer := question()):
            return answer
        threading.Event().wait(1.0)
    raise AssertionError(f"no answer but {str(answer)[:1000]}")


@pytest.mark.slow
def test_two_hundred_runs_over_http(page):
    told, address = page
    assert told.startswith(f"{NUM_RUNS} runs at http://{HOST}:")
    tags = until(lambda: json.loads(ask(address, "plugin/scalars/tags")), lambda found: len(found) == NUM_RUNS)
    assert set(tags["td3/7"]) == {"test/return"}
    points = json.loads(ask(address, "plugin/scalars/scalars", run="td3/7", tag="test/return"))
    assert [point[1:] for point in points] == [[100 * epoch, 7.0 + epoch] for epoch in range(1, 6)]
    assert json.loads(ask(address, "plugin/text/tags")) == {"td3/7": ["faults/text_summary"]}
    [fault] = json.loads(ask(address, "plugin/text/text", run="td3/7", tag="faults/text_summary"))
    assert "stopped before its end" in fault["text"]
    settings = json.loads(ask(address, "plugin/hparams/experiment", {}))["hparamInfos"]
    assert {one["name"] for one in settings} == {"ActorCritic.gamma", "algo", "seed", "status"}
    images = until(lambda: json.loads(ask(address, "plugin/images/tags")), bool)
    [name] = images
    [picture] = json.loads(ask(address, "plugin/images/images", run=name, tag="video", sample=0))
    gif = ask(address, f"plugin/images/individualImage?{picture['query']}&x")
    assert gif[:10] == b"GIF89a" + struct.pack("<HH", 48, 32) and gif.count(b"\x21\xf9\x04") == 20


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_two_hundred_runs_in_a_browser(page, tmp_path):
    _, address = page
    until(lambda: json.loads(ask(address, "plugin/scalars/tags")), lambda found: len(found) == NUM_RUNS)
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=30000",
        f"--user-data-dir={tmp_path}",
    ]
    done = subprocess.run(
        [BROWSER, *flags, "--dump-dom", f"{address}#timeseries"], capture_output=True, text=True, timeout=180
    )
    for name in ("sac/0", "sac/100", "test/return", "HParams"):
        assert name.lower() in done.stdout.lower()
    assert len(set(re.findall(r"\b(?:sac|td3)/\d+", done.stdout))) == NUM_RUNS
