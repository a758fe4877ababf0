"""The numbers of results/README.md and README.md are those of the published runs and benchmarks."""

import csv
import functools
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
CRITICS = {"history": "history", "history and state": "history+state", "state": "state"}


@functools.cache
def returns(folder):
    """Test returns of each run of a folder, by the order of ids."""
    found = []
    for run in sorted((RESULTS / folder).iterdir(), key=lambda run: int(run.name)):
        with (run / "progress.csv").open(newline="", encoding="utf-8") as stream:
            found.append([float(row["test/return"]) for row in csv.DictReader(stream) if row["test/return"]])
    assert found
    return found


def spread(values, digits=1):
    """The mean and standard deviation over ids, or the value of one id."""
    text = f"{np.mean(values):,.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {np.std(values):,.{digits}f}"


@functools.cache
def tables():
    """(header, rows) of each table of the page; cells without bold letters."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8").replace("**", "")
    blocks = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    cells = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in block] for block in blocks]
    return [(header, rows) for header, _, *rows in cells]


def rows_of(*header):
    """The rows of the tables with exactly this header."""
    found = [row for head, rows in tables() if tuple(head) == header for row in rows]
    assert found, header
    return found


def last_tests(folder):
    return [tests[-1] for tests in returns(folder)]


def written(text):
    """The numbers as the page writes them, some with thousands separators."""
    return text.replace(",", "")


def each_id(values, digits=1):
    return ", ".join(f"{value:.{digits}f}" for value in values)


def test_online():
    for env, algo, _, _, mean, ids in rows_of("environment", "algorithm", "config", "steps", "return", "each id"):
        found = last_tests(f"published/{env}/{algo.strip('`')}")
        assert (written(mean), ids) == (written(spread(found)), each_id(found)), (env, algo)


def test_the_twelve_tasks():
    rows = rows_of("task", "algorithm", "config", "steps", "last test", "best test", "with all numbers")
    assert len(rows) == 12
    for task, algo, _, _, last, best, _ in rows:
        name = f"{task}/{algo.strip('`')}"
        folders = [folder for folder in ("published_paper", "published") if (RESULTS / folder / name).is_dir()]
        if not folders:  # of the memories' table
            continue
        found, digits = returns(f"{folders[0]}/{name}"), 2 if "bumps" in task else 1
        assert last == spread([run[-1] for run in found], digits), task
        assert best == (f"{max(found[0]):.{digits}f}" if len(found) == 1 else ""), task


def test_the_papers_own_settings():
    header = ("task", "config", "steps", "updates", "hours", "the last three tests", "1,000 other episodes")
    for task, _, steps, updates, hours, last, _ in rows_of(*header):
        folder = RESULTS / "published_paper_settings" / task / "rsac" / "1"
        with (folder / "progress.csv").open(newline="", encoding="utf-8") as stream:
            tests = [row for row in csv.DictReader(stream) if row["test/return"]]
        end = tests[-1]
        assert (steps, updates) == (f"{int(end['step']):,}", f"{int(end['update']):,}"), task
        assert hours == f"{float(end['time/hours']):.1f}", task
        assert last == each_id([float(row["test/return"]) for row in tests[-3:]]), task


def test_hidden_velocities():
    header = ("task", "steps", "last test, each id", "last five tests, each id", "best test, each id", "hours")
    for task, steps, *numbers, hours, _, _ in rows_of(*header, "Ni et al.", "RESeL"):
        folders = [f"{name}/{task}/rsac" for name in ("published_velocities", "published_critics/state")]
        folder = next(folder for folder in folders if (RESULTS / folder).is_dir())
        found = returns(folder)
        columns = ([of(tests) for tests in found] for of in (lambda x: x[-1], lambda x: np.mean(x[-5:]), max))
        assert numbers == [", ".join(f"{value:,.0f}" for value in column) for column in columns], task
        ends = []
        for run in sorted((RESULTS / folder).iterdir()):
            with (run / "progress.csv").open(newline="", encoding="utf-8") as stream:
                ends.append([*csv.DictReader(stream)][-1])
        assert {f"{int(end['step']):,}" for end in ends} == {steps}, task
        assert hours == ", ".join(f"{float(end['time/hours']):.1f}" for end in ends), task


def test_heads():
    header = ("heads", "config", "return after 15,000 steps", "steps to -200, each id", "mean of all 15 tests")
    for heads, _, last, _, whole in rows_of(*header):
        folder = f"published_heads/{heads}/pendulum-p-v0/rsac"
        means = [np.mean(tests) for tests in returns(folder)]
        assert (last, whole) == (spread(last_tests(folder)), spread(means)), heads
    header = ("environment", "heads", "last test", "each id", "mean of all 10 tests", "minutes of training")
    for env, heads, last, ids, whole, _ in rows_of(*header):
        folder = f"published_heads/{heads}/{env}/sac"
        found, means = last_tests(folder), [np.mean(tests) for tests in returns(folder)]
        assert (last, ids, whole) == (spread(found), each_id(found), spread(means)), (env, heads)


def test_quantile_critics():
    header = ("environment", "algorithm", "last test", "each id", "mean of all 10 tests", "minutes of training")
    for env, algo, last, ids, whole, _ in rows_of(*header):
        name = algo.strip("`")
        folder = f"published_tqc/{env}/tqc" if name == "tqc" else f"published_heads/plain/{env}/sac"
        found, means = last_tests(folder), [np.mean(tests) for tests in returns(folder)]
        assert (last, ids, whole) == (spread(found), each_id(found), spread(means)), (env, algo)


def test_pong():
    for steps, algo, weight, _, last, best in rows_of(
        "steps", "algorithm", "weight of CQL's term", "Tianshou", "offpcc, last test", "best test"
    ):
        name, number = algo.strip("`"), written(steps)
        folder = f"{number}-weight-{weight}" if weight not in ("", "10") else number
        folder += f"/PongNoFrameskip-v4_from_expert/{name}"
        folder = "PongNoFrameskip-v4/cqrdqn" if name == "cqrdqn" else folder
        [tests] = returns(f"published_pong/{folder}")
        assert (last, best) == (f"{tests[-1]:.1f}", f"{max(tests):.1f}"), (steps, algo)


def test_critics():
    header = ("environment", "algorithm", "the critics see", "steps to the level, each id", "last test")
    for env, algo, seen, _, last in rows_of(*header):
        if seen in CRITICS:
            folder = f"published_critics/{CRITICS[seen]}/{env}/{algo.strip('`')}"
            assert last == spread(last_tests(folder)), (env, algo, seen)


def test_models():
    header = ("environment", "algorithm", "last test", "steps to -200, each id")
    for env, algo, last, *_ in rows_of(*header, "without a model, one update in two steps"):
        assert last == spread(last_tests(f"published_models/{env.split(',')[0]}/{algo.strip('`')}")), (env, algo)
    header = ("environment, data", "algorithm", "ids", "last test", "mean of the last five tests", "best test")
    for env, algo, number, *numbers in rows_of(*header):
        place = env.replace(" (velocities hidden)", "").replace(", ", "_from_")
        found = returns(f"published_models/{place}/{algo.strip('`')}")
        last, five, best = ([of(tests) for tests in found] for of in (lambda x: x[-1], lambda x: np.mean(x[-5:]), max))
        assert (int(number), numbers) == (len(found), [*map(spread, (last, five, best))]), (env, algo)


@pytest.mark.parametrize("score", [(), ("D4RL score, last",)], ids=["returns", "scores"])
def test_last_and_best(score):
    for env, algo, number, last, best, *_ in rows_of(
        "environment and data", "algorithm", "ids", "last", "best", *score
    ):
        name = f"{env.replace(', ', '_from_')}/{algo.strip('`')}"
        [folder] = [place for place in FOLDERS if (RESULTS / place / name).is_dir()]
        found = returns(f"{folder}/{name}")
        bests = [max(tests) for tests in found]
        assert (int(number), last, best) == (len(found), spread(last_tests(f"{folder}/{name}")), spread(bests)), name


FOLDERS = ("published_discrete", "published_discrete_peers", "published_offline", "published_peers")


def test_peers():
    header = ("algorithm", "ids", "last test, offpcc", "last test, peer", "best test, offpcc", "best test, peer")
    peers = {"d3rlpy": "d3rlpy", "CORL": "corl", "fql": "seohongpark", "rlpd": "ikostrikov"}
    for algo, number, *numbers in rows_of(*header):
        name = algo.split("`")[1]
        peer = peers.get(algo.split(", ")[-1]) or peers[name]
        folders = [f"published_peers/hopper-mujoco-v0_from_hopper_zoo_medium/{one}" for one in (name, f"{peer}-{name}")]
        lasts = [spread(last_tests(folder)) for folder in folders]
        bests = [spread([max(tests) for tests in returns(folder)]) for folder in folders]
        assert numbers == [*lasts, *bests], algo
        assert all(len(returns(folder)) == int(number) for folder in folders), algo


def test_beside_d3rlpy():
    header = ("data, algorithm", "tests of each id, offpcc", "tests of each id, d3rlpy")
    header += ("last test, offpcc", "last test, d3rlpy")
    for place, *numbers in rows_of(*header):
        data, name = place.replace("`", "").split(", ")
        folders = [f"published_d3rlpy/{data}/{one}" for one in (name, f"d3rlpy-{name}")]
        each = ["; ".join(", ".join(f"{value:.0f}" for value in run) for run in returns(folder)) for folder in folders]
        assert numbers == [*each, *(written(spread(last_tests(folder))) for folder in folders)], place


def test_imitation_that_is_asked_for_a_return():
    kinds = {"all episodes": "all", "all, asked": "asked", "all, asked, `gpt`": "gpt"}
    for place, algo, imitated, *numbers in rows_of(
        "environment, data", "algorithm", "imitates", "last test", "best test"
    ):
        kind = kinds.get(imitated, "best")
        found = returns(f"published_returns/{kind}/{place.replace(', ', '_from_')}/{algo.strip('`')}")
        assert len(found) == 3
        assert numbers == [spread([of(tests) for tests in found]) for of in (lambda x: x[-1], max)], (place, algo, kind)


def test_ray():
    text = " ".join((RESULTS / "README.md").read_text(encoding="utf-8").split())
    workers, actors = (spread(last_tests(f"published_ray/{kind}/pendulum-v0/sac")) for kind in ("workers", "actors"))
    assert f"The last tests have {workers} with worker processes and {actors} with actors" in text


def test_speeds():
    """The row of README.md: offpcc, stable-baselines3, d3rlpy; on a CPU and on a GPU."""
    speeds = {}
    for name in ("throughput", "gpu"):
        text = (RESULTS / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")
        found = re.findall(r"^\| SAC \| (\S+) \| (\S+) updates/s", text.split("\n## ")[1], re.MULTILINE)
        speeds[name] = {library: f"{float(speed.replace(',', '')):,.0f}" for library, speed in found}
    libraries = ("offpcc", "stable-baselines3", "d3rlpy")
    row = " | ".join(f"{speeds['throughput'][library]}; {speeds['gpu'][library]}" for library in libraries)
    assert f"| SAC, updates/s, CPU; H100 | {row} |" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_grid():
    """Steps from which on all tests stay above 0.9, and the last test."""
    folder = "published_discrete/MiniGrid-MemoryS7-v0"
    for algo, number, steps, last in rows_of("algorithm", "ids", "tests stay above 0.9 from", "last test"):
        name = f"{folder}/{algo.split('`')[1]}"
        found, solved = returns(name), []
        for tests in found:
            above = [test > 0.9 for test in tests]
            first = next((place for place in range(len(tests)) if all(above[place:])), None)
            solved.append("never" if first is None else f"{5_000 * (first + 1):,}")
        assert (int(number), steps) == (len(found), "; ".join(solved)), algo
        assert last == spread([tests[-1] for tests in found], 2), algo
