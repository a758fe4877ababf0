"""The numbers of results/README.md and README.md are those of the published runs and benchmarks."""

import csv
import functools
import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest

from benchmarks import memory_returns, results
from benchmarks.cases import OURS
from offpcc.training.analysis import run_statistics
from offpcc.training.analysis.run_tables import loss_at_switch, read_progress

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
CRITICS = {"history": "history", "history and state": "history+state", "state": "state"}


@functools.cache
def progress(folder):
    """The rows of each run of a folder that have a test, by the order of seeds."""
    found = []
    for run in sorted((RESULTS / folder).iterdir(), key=lambda run: int(run.name)):
        with (run / "progress.csv").open(newline="", encoding="utf-8") as stream:
            found.append([row for row in csv.DictReader(stream) if row["test/return"]])
    assert found
    return found


def returns(folder):
    """Test returns of each run of a folder, by the order of seeds."""
    return [[float(row["test/return"]) for row in run] for run in progress(folder)]


def steps_to(folder, level, number=3):
    """Of each run, the steps until the first of some tests in a row that are at a level or above, or "never"."""
    found = []
    for rows, tests in zip(progress(folder), returns(folder), strict=True):
        above = [test >= level for test in tests]
        starts = range(len(tests) - number + 1)
        first = next((place for place in starts if all(above[place : place + number])), None)
        found.append("never" if first is None else f"{int(rows[first]['step']):,}")
    return found


def spread(values, digits=1):
    """The mean and standard deviation over seeds, or the value of one seed."""
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


def minutes(folder):
    """The minutes of the quickest and of the slowest run."""
    found = sorted({f"{60.0 * float(rows[-1]['time/hours']):.0f}" for rows in progress(folder)}, key=int)
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def written(text):
    """The numbers as the page writes them, some with thousands separators."""
    return text.replace(",", "")


def each_id(values, digits=1):
    return ", ".join(f"{value:.{digits}f}" for value in values)


def test_online():
    for env, algo, _, steps, mean, ids in rows_of("environment", "algorithm", "config", "steps", "return", "each seed"):
        folder = f"published/{env}/{algo.strip('`')}"
        found = last_tests(folder)
        assert (written(mean), ids) == (written(spread(found)), each_id(found)), (env, algo)
        assert {steps} == {f"{int(rows[-1]['step']):,}" for rows in progress(folder)}, (env, algo)


def test_the_twelve_tasks():
    def runs(task, algo):
        name = f"{task}/{algo}"
        folders = [folder for folder in ("published_paper", "published") if (RESULTS / folder / name).is_dir()]
        return returns(f"{folders[0]}/{name}") if folders else []

    columns = ("task", "algorithm", "config", "steps", "last test", "best test", "without memory", "with all numbers")
    rows = rows_of(*columns)
    assert len(rows) == 12
    for task, algo, _, _, last, best, without, whole in rows:
        digits = 2 if "bumps" in task else 1
        if found := runs(task, algo.strip("`")):  # the others are of the memories' table
            assert last == spread([run[-1] for run in found], digits), task
            assert best == (f"{max(found[0]):.{digits}f}" if len(found) == 1 else ""), task
        if without not in ("", "not run"):
            assert without == spread([run[-1] for run in runs(task, "sac")]), task
        if whole not in ("", "not run"):
            shown = re.sub("-p(omdp)?-v|-va-v", lambda hidden: "-mdp-v" if "omdp" in hidden[0] else "-v", task)
            assert whole == spread([run[-1] for run in runs(shown, "sac")]), task


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
    header = ("task", "steps", "last test, each seed", "last five tests, each seed", "best test, each seed", "hours")
    for task, steps, *numbers, hours, _, _ in rows_of(*header, "Ni et al.", "RESeL"):
        runs = []
        for run in sorted((RESULTS / f"published_velocities/{task}/rsac").iterdir()):
            with (run / "progress.csv").open(newline="", encoding="utf-8") as stream:
                runs.append([row for row in csv.DictReader(stream) if int(row["step"]) <= int(written(steps))])
        found = [[float(row["test/return"]) for row in run] for run in runs]
        columns = ([of(tests) for tests in found] for of in (lambda x: x[-1], lambda x: np.mean(x[-5:]), max))
        assert numbers == [", ".join(f"{value:,.0f}" for value in column) for column in columns], task
        assert {f"{int(run[-1]['step']):,}" for run in runs} == {steps}, task
        assert hours == ", ".join(f"{float(run[-1]['time/hours']):.1f}" for run in runs), task


def test_hidden_velocities_without_memory():
    for task, algo, steps, *numbers, hours in rows_of(
        "task", "algorithm", "steps", "last test", "last five tests", "best test", "hours"
    ):
        folder = f"published_velocities/{task}/{algo.strip('`')}"
        (rows,), (tests,) = progress(folder), returns(folder)
        assert numbers == [f"{value:,.0f}" for value in (tests[-1], np.mean(tests[-5:]), max(tests))], task
        assert (steps, hours) == (f"{int(rows[-1]['step']):,}", f"{float(rows[-1]['time/hours']):.1f}"), task


def test_a_million_steps():
    header = ("environment", "algorithm", "steps", "last test", "last five tests", "hours")
    for env, algo, steps, *numbers, hours, _, _ in rows_of(*header, "TD3's authors, same steps", "last five of theirs"):
        (rows,) = progress(f"published_million/{env}/{algo.strip('`')}")
        rows = [row for row in rows if int(row["step"]) <= int(written(steps))]
        tests = [float(row["test/return"]) for row in rows]
        assert numbers == [f"{value:,.0f}" for value in (tests[-1], np.mean(tests[-5:]))], (env, algo, steps)
        assert (steps, hours) == (f"{int(rows[-1]['step']):,}", f"{float(rows[-1]['time/hours']):.1f}"), (env, algo)


def test_heads():
    header = ("heads", "config", "return after 15,000 steps", "steps to -200, each seed", "mean of all 15 tests")
    for heads, _, last, steps, whole in rows_of(*header):
        folder = f"published_heads/{heads}/pendulum-p-v0/rsac"
        means = [np.mean(tests) for tests in returns(folder)]
        assert (last, whole) == (spread(last_tests(folder)), spread(means)), heads
        assert steps == ", ".join(steps_to(folder, -200.0)), heads
    header = ("environment", "heads", "last test", "each seed", "mean of all 10 tests", "minutes of training")
    for env, heads, last, ids, whole, took in rows_of(*header):
        folder = f"published_heads/{heads}/{env}/sac"
        found, means = last_tests(folder), [np.mean(tests) for tests in returns(folder)]
        assert (last, ids, whole, took) == (spread(found), each_id(found), spread(means), minutes(folder)), (env, heads)


def test_quantile_critics():
    header = ("environment", "algorithm", "last test", "each seed", "mean of all 10 tests", "minutes of training")
    for env, algo, last, ids, whole, took in rows_of(*header):
        name = algo.strip("`")
        folder = f"published_tqc/{env}/tqc" if name == "tqc" else f"published_heads/plain/{env}/sac"
        found, means = last_tests(folder), [np.mean(tests) for tests in returns(folder)]
        assert (last, ids, whole, took) == (spread(found), each_id(found), spread(means), minutes(folder)), (env, algo)


def test_pong():
    for steps, algo, weight, _, last, best in rows_of(
        "steps", "algorithm", "weight of CQL's term", "Tianshou", "offpcc, last test", "best test"
    ):
        name, number = algo.split("`")[1], written(steps)
        folder = f"{number}-weight-{weight}" if weight not in ("", "10") else number
        part = "" if number == "1000000" else f"_{number}_steps"
        folder += f"/PongNoFrameskip-v4_from_expert{part}/{name}"
        folder = "PongNoFrameskip-v4/cqrdqn" if name == "cqrdqn" else folder
        [tests] = returns(f"published_pong/{folder}")
        assert (last, best) == (f"{tests[-1]:.1f}", f"{max(tests):.1f}"), (steps, algo)


def test_critics():
    header = ("environment", "algorithm", "the critics see", "steps to the level, each seed", "last test")
    for env, algo, seen, steps, last in rows_of(*header):
        folders = [f"published_critics/{CRITICS.get(seen, kind)}/{env}/{algo.strip('`')}" for kind in CRITICS.values()]
        level = -200.0 if env.startswith("pendulum") else 0.9
        reached = [steps_to(folder, level) for folder in folders]
        if seen in CRITICS:
            assert (steps, last) == (", ".join(reached[0]), spread(last_tests(folders[0]))), (env, algo, seen)
        else:
            best = max(max(last_tests(folder)) for folder in folders)
            assert {one for each in reached for one in each} == {"never"}
            assert (seen, last) == ("all three", f"best last test {best:.2f}"), (env, algo)
    header = ("algorithm", "the critics see", "seeds", "steps to the level, each seed", "last test", "best test")
    for algo, seen, _, steps, *numbers in rows_of(*header):
        folder = f"published_critics/{CRITICS[seen]}/hopper-bullet-p-v0/{algo.strip('`')}"
        assert steps == ", ".join(steps_to(folder, 1_500.0)), (algo, seen)
        columns = ([of(tests) for tests in returns(folder)] for of in (lambda x: x[-1], max))
        assert numbers == [", ".join(f"{value:,.0f}" for value in column) for column in columns], (algo, seen)


def test_models():
    header = ("environment", "algorithm", "last test", "steps to -200, each seed")
    for env, algo, last, steps, without in rows_of(*header, "without a model, one update in two steps"):
        folder = f"published_models/{env.split(',')[0]}/{algo.strip('`')}"
        assert last == spread(last_tests(folder)), (env, algo)
        if steps:
            assert re.sub(r" \([^)]*\)", "", steps) == ", ".join(steps_to(folder, -200.0, 1)), (env, algo)
        if without:
            other, steps = without.split(": ")
            assert steps == ", ".join(steps_to(f"published/{env}/{other.strip('`')}", -200.0, 1)), (env, algo)
    header = ("environment, data", "algorithm", "seeds", "last test", "mean of the last five tests", "best test")
    for env, algo, number, *numbers in rows_of(*header):
        place = env.replace(" (velocities hidden)", "").replace(", ", "_from_")
        found = returns(f"published_models/{place}/{algo.strip('`')}")
        last, five, best = ([of(tests) for tests in found] for of in (lambda x: x[-1], lambda x: np.mean(x[-5:]), max))
        assert (int(number), numbers) == (len(found), [*map(spread, (last, five, best))]), (env, algo)


@pytest.mark.parametrize("score", [(), ("D4RL score, last",)], ids=["returns", "scores"])
def test_last_and_best(score):
    for env, algo, number, last, best, *told in rows_of(
        "environment and data", "algorithm", "seeds", "last", "best", *score
    ):
        name = f"{env.replace(', ', '_from_')}/{algo.strip('`')}"
        [folder] = [place for place in FOLDERS if (RESULTS / place / name).is_dir()]
        found = returns(f"{folder}/{name}")
        bests = [max(tests) for tests in found]
        assert (int(number), last, best) == (len(found), spread(last_tests(f"{folder}/{name}")), spread(bests)), name
        if told and told[0]:
            scores = [float(rows[-1]["test/normalized_score"]) for rows in progress(f"{folder}/{name}")]
            assert told == [spread(scores)], name


FOLDERS = ("published_discrete", "published_discrete_peers", "published_offline", "published_peers")


def test_peers():
    header = ("algorithm", "seeds", "last test, offpcc", "last test, peer", "best test, offpcc", "best test, peer")
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
    header = ("data, algorithm", "tests of each seed, offpcc", "tests of each seed, d3rlpy")
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
    for algo, number, steps, last in rows_of("algorithm", "seeds", "tests stay above 0.9 from", "last test"):
        name = f"{folder}/{algo.split('`')[1]}"
        found, solved = returns(name), []
        for tests in found:
            above = [test > 0.9 for test in tests]
            first = next((place for place in range(len(tests)) if all(above[place:])), None)
            solved.append("never" if first is None else f"{5_000 * (first + 1):,}")
        assert (int(number), steps) == (len(found), "; ".join(solved)), algo
        assert last == spread([tests[-1] for tests in found], 2), algo


def test_an_hour():
    header = ("environment", "algorithm", "config", "steps", "hours", "last test", "best actor")
    for env, algo, _, steps, hours, last, _ in rows_of(*header):
        [rows] = progress(f"published/{env}/{algo.strip('`')}")
        assert (steps, hours) == (f"{int(rows[-1]['step']):,}", f"{float(rows[-1]['time/hours']):.2f}"), (env, algo)
        digits = 2 if "bumps" in env else 1
        assert last.startswith(f"{float(rows[-1]['test/return']):.{digits}f} over "), (env, algo)


def test_beside_stable_baselines():
    header = ("", "last test: mean and 95 % interval", "each seed", "first test of -200 or better, after steps")
    for name, mean, ids, steps, seconds in rows_of(*header, "seconds"):
        folder = f"published_sb3/pendulum-v0/{of_stable_baselines(name)}"
        found = last_tests(folder)
        assert mean == with_interval(found), name
        assert (ids, steps) == (each_id(found, 0), ", ".join(steps_to(folder, -200.0, 1))), name
        assert seconds == f"{np.mean([3_600.0 * float(rows[-1]['time/hours']) for rows in progress(folder)]):.0f}", name
    for env, name, mean, ids, of_five, taken in rows_of(
        "environment", *header[:3], "mean of the last five tests", "minutes"
    ):
        folder = f"published_sb3/{env}/{of_stable_baselines(name)}"
        found = last_tests(folder)
        assert mean == with_interval(found), (env, name)
        assert (ids, taken) == (each_id(found, 0), minutes(folder)), (env, name)
        assert of_five == f"{np.mean([tests[-5:] for tests in returns(folder)]):.1f}", (env, name)


def with_interval(values):
    """The mean of a value of each seed, and its interval as of `offpcc report`."""
    low, high = run_statistics.interval(run_statistics.mean, [np.array(values)])
    return f"{np.mean(values):,.1f} [{low:,.1f}, {high:,.1f}]"


def of_stable_baselines(name):
    return name.strip("`") if name.startswith("`") else f"sb3-{name.split()[-1].lower()}"


def test_hopper_with_memory():
    header = ("algorithm", "without memory, last test", "with memory, last test", "best test without, with")
    for algo, *numbers in rows_of(*header):
        place = "published_offline/hopper-mujoco-p-v0_from_hopper_zoo_expert"
        folders = [f"{place}/{memory}{algo.strip('`')}" for memory in ("", "r")]
        bests = [spread([max(tests) for tests in returns(folder)]) for folder in folders]
        assert numbers == [*(spread(last_tests(folder)) for folder in folders), ", ".join(bests)], algo


def test_normalised_observations():
    header = ("normalised, 5,000 updates", "raw, 5,000 updates", "normalised, 20,000 updates (seed 1)")
    for data, algo, *numbers in rows_of("environment and data", "algorithm", *header):
        name = f"{data.replace(', ', '_from_')}/{algo.strip('`')}"
        kinds = ("normalized", "raw", "normalized_20000")
        assert numbers == [spread(last_tests(f"published_normalization/{kind}/{name}")) for kind in kinds], name


def test_tests_beside_d3rlpy():
    places = ["Walker2d-v4_from_walker2d-opolo-medium"] * 4 + ["hopper-mujoco-v0_from_hopper_zoo_expert"] * 2
    places += ["hopper-mujoco-v0_from_hopper_medium"] * 2
    rows = rows_of("", "tests of each seed", "last test", "mean of the tests")
    for place, (name, *numbers) in zip(places, rows, strict=True):
        algo = name.strip("`") if name.startswith("`") else f"d3rlpy-{name.split()[-1].lower()}"
        found = returns(f"published_d3rlpy/{place}/{algo}")
        each = "; ".join(each_id(tests, 0) for tests in found)
        last, whole = ([of(tests) for tests in found] for of in (lambda x: x[-1], np.mean))
        assert numbers == [each, written(spread(last)), written(spread(whole))], (place, name)


def test_from_offline_to_online():
    header = ("algorithm", "return after the data", "worst test")
    ids = "last test, each seed"
    rows = rows_of(*header, "last test", ids, "drop", "regret")
    rows += [[*row[:3], "", *row[3:]] for row in rows_of(*header, ids, "drop", "regret")]
    places = ["pendulum-p-v0_from_pendulum_replay"] * 6 + ["hopper-mujoco-v0_from_medium-replay"] * 4
    places += ["hopper-mujoco-p-v0_from_medium-replay"] * 4
    for place, (algo, after, worst, last, ids, drop, regret) in zip(places, rows, strict=True):
        kind = "wsrl/" if "WSRL" in algo else ""
        folder = f"published_offline_to_online/{kind}{place}_then_online/{algo.split('`')[1]}"
        switches = [max(i for i, row in enumerate(run) if not row["env_step"]) for run in progress(folder)]
        tests = [run[switch:] for run, switch in zip(returns(folder), switches, strict=True)]
        columns = ([of(run) for run in tests] for of in (lambda x: x[0], min, lambda x: x[-1]))
        expected = [spread(column) for column in columns]
        runs = sorted((RESULTS / folder).iterdir(), key=lambda run: int(run.name))
        losses = [loss_at_switch(read_progress(run / "progress.csv")) for run in runs]
        expected += [spread([loss.drop for loss in losses]), f"{np.mean([loss.regret for loss in losses]):.3f}"]
        assert [after, worst, last or expected[2], drop, regret] == expected, (place, algo)
        assert ids == each_id([run[-1] for run in tests], 0), (place, algo)


def test_the_water_maze():
    task = "water-maze-simple-pomdp-v0_from_water_maze_replay_then_online/rcalql"
    [first] = rows_of("algorithm", "tests during the data (every 625 updates)", "last 10 tests online", "drop")
    [second] = rows_of("tests during the data", "worst test online", "last 10 tests online", "drop")
    for place, data, online in (("", first[1], first[2]), ("weight_1/", second[0], second[2])):
        [rows] = progress(f"published_offline_to_online/{place}{task}")
        before = [float(row["test/return"]) for row in rows if not row["env_step"]]
        after = [float(row["test/return"]) for row in rows if row["env_step"]]
        assert (data, online) == (each_id(before), each_id(after[-10:])), place


def test_policy_evaluation():
    tasks = ("pendulum-v0", "pendulum-p-v0")
    files = [RESULTS / "published_policy_evaluation" / f"{task}.json" for task in tasks]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    steps = [f"{policy['step']:,}" for policy in found[0]["policies"]]
    rows = rows_of("task", "steps of training", *steps)
    keys = [(one, key) for one in found for key in ("value", "discounted")]
    for (one, key), (_, _, *numbers) in zip(keys, rows, strict=True):
        assert ", ".join(numbers) == each_id([policy[key] for policy in one["policies"]]), (one["env"], key)
    header = ("task", "Spearman's rank correlation", "regret@1", "mean absolute error", "width of an interval")
    for one, (_, *numbers) in zip(found, rows_of(*header), strict=True):
        width = np.mean([policy["high"] - policy["low"] for policy in one["policies"]])
        errors = (f"{one['rank_correlation']:.2f}", f"{one['regret@1']:.0f}", f"{one['mean_absolute_error']:.1f}")
        assert numbers == [*errors, f"{width:.0f}"], one["env"]


def test_memories():
    rows = rows_of("", "pendulum-p-v0", "pendulum-va-v0", "dmc-cartpole-balance-p-v0")
    lines = memory_returns.table(RESULTS / "published_memories")
    assert rows == [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]


def solved(config):
    """Rows of time_to_solve.json of one config, by ids."""
    rows = json.loads((RESULTS / "benchmarks" / "time_to_solve.json").read_text(encoding="utf-8"))["rows"]
    return sorted((row for row in rows if row["config"] == config), key=lambda row: row["run_id"])


def test_time_to_equal_return():
    memories = ("lstm", "mingru", "lru")
    for task, *cells in rows_of("", "LSTM", "minGRU", "LRU"):
        name = {"pendulum-p": "pendulum"}.get(task.split(",")[0], task.split(",")[0].replace("-", "_"))
        for memory, cell in zip(memories, cells, strict=True):
            if found := solved(f"{name}_{memory}"):  # the others are in no file, as the text says
                seconds = [f"{row['seconds']:.0f}" if row["solved"] else "not solved" for row in found]
                assert cell.removesuffix(" s") == ", ".join(seconds), (task, memory)


def test_a_learning_rate_of_the_memory():
    for memory, other, slow in rows_of("", "the rate of the other networks, 2e-3 to 2e-4", "1e-5"):
        name = memory.lower()
        for cell, place in ((other, f"memories/{name}"), (slow, f"encoder_lr/{name}_1e-5")):
            folder = f"published_{place}/pendulum-p-v0/rsac"
            assert cell.split(" (")[0] == written(spread(last_tests(folder), 0)), (memory, place)


def test_corridors():
    for memory, *cells in rows_of("", "N = 10", "N = 30", "N = 100", "N = 300", "N = 1,000"):
        for length, cell in zip((10, 30, 100, 300, 1_000), cells, strict=True):
            rows = solved(f"corridor_{length}_{memory.strip('`')}")
            done = [row for row in rows if row["solved"]]
            best = f"{max(row['best_test_return'] for row in rows):.2f}"
            if done:
                steps, seconds = (statistics.median_high(row[key] for row in done) for key in ("step", "seconds"))
                assert cell == f"{len(done)} of {len(rows)} after {steps:,}, {seconds:.0f} s", (memory, length)
            else:
                assert cell.replace("best test ", "") == f"0 of {len(rows)} ({best})", (memory, length)


def test_time_to_solve():
    for _, config, seconds, steps in rows_of("", "config", "seconds", "steps"):
        rows = solved("quickstart" if config == "quickstart.gin" else "pendulum_state_critics")
        assert seconds == each_id([row["seconds"] for row in rows], 0), config
        assert steps == ", ".join(f"{row['step']:,}" for row in rows), config


def medians(name="throughput"):
    """The median of each library in each case of a table of speeds, as the table writes it."""
    text = (RESULTS / "benchmarks" / f"{name}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| (\S+) (?:updates/s|steps/s|us|bytes) ", text, re.MULTILINE)
    return {(case, library): speed for case, library, speed in rows}


def test_speeds_of_the_guide():
    """Each row of docs/performance.md: the floor, offpcc, compiled, and then the peers."""
    cases = {
        "SAC": "SAC, 256-256, batch 256",
        "CQL, 3 x 10 sampled actions": "",
        "BCQ, 10 sampled actions": "",
        "TD3": "",
        "TD3+BC": "",
        "IQL": "",
        "BC": "",
        "AWAC, 3 x 256": "",
        "ReBRAC, 3 x 256": "ReBRAC, 3 x 256, batch 1,024",
        "FQL, 10 steps of the flow": "FQL",
        "RLPD, 10 critics, actor every 20th": "RLPD, 10 critics",
        "RSAC, LSTM 2 x 256": "`rsac` of the paper, 10 episodes of 200",
        "RSAC, LSTM 1 x 64": "`rsac`, LSTM 1 x 64, 32 segments of 50",
        "whole steps of SAC, pendulum": "",
        "whole steps of SAC, hopper": "whole steps of SAC, Hopper",
        "whole steps of QR-DQN, Pong": "whole steps of `cqrdqn`, Pong",
        "whole steps of DQN, Pong": "whole steps of `cdqn`, Pong",
    }
    guide = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split("\n## ")
    [part] = [part for part in guide if part.startswith("Updates per second")]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| ")]
    rows, speeds = {line[0]: line[1:] for line in lines[1:]}, medians()
    assert rows.keys() == {title or case for case, title in cases.items()}
    for case, title in cases.items():
        floor, ours, compiled, peers = rows[title or case]
        of = {library: speed for (name, library), speed in speeds.items() if name == case}
        assert (floor, compiled) == (of.pop("floor", ""), of.pop("offpcc-compiled", "")), case
        half = of.pop("offpcc-bf16", "")
        expected = of.pop("offpcc")
        assert ours in (expected, f"{expected}; {half} with bfloat16"), case
        found = re.findall(r"[\d.]+(?=,|$)", re.sub(r"(?<=\d),(?=\d{3})", "", peers))
        assert sorted(found, key=float) == sorted(map(written, of.values()), key=float), case


def ratios(cases, name="throughput"):
    """Medians over rounds: how many times as fast offpcc is as each peer, and its time over the floor's."""
    rows = results.read(RESULTS / "benchmarks" / f"{name}.json")
    found = set()
    for case in cases:
        group = [row for row in rows if row["case"] == case]
        ours, peers = ([row for row in group if (row["library"] in OURS) == is_ours] for is_ours in (True, False))
        found |= {results.speed_ratio(row, other) for row in ours for other in peers if other["library"] != "floor"}
        found |= {results.to_floor(row, group) for row in ours} - {None}
    return {f"{ratio:.2f}" for ratio in found}


def test_ratios_of_speed():
    cases = ["sac", "td3", "td3_bc", "iql", "bc", "cql", "cql", "bcq", "awac crr calql", "sac_n edac", "rebrac"]
    cases += ["fql rlpd", "rsac", "rsac", "rsac_s", "rsac_small rsac_s_small", "steps_pendulum", "steps_hopper"]
    cases += ["steps_pong", "steps_pong_dqn"]
    cases += ["act_paper act_small", "sample", "sample_frames sample_frames_disk", "bytes", "model"]
    cases += ["imagine imagine_one"]
    for place, name in enumerate(("throughput", "throughput_epyc")):
        rows = results.read(RESULTS / "benchmarks" / f"{name}.json")
        for names, (title, *columns) in zip(cases, rows_of("", "Intel Xeon", "AMD EPYC", "aim"), strict=True):
            group = [row for row in rows if row["case"] in names.split()]
            reached, medians_of = columns[place].replace("stable-baselines3", ""), {*map(median_of, group)}
            told = set(re.findall(r"(\d+\.\d+)(?: x| with bfloat16)", reached))
            assert told <= ratios(names.split(), name), (title, name)
            if group[0]["unit"] == "steps/s":
                assert set(re.findall(r"(?<![\d.])\d+(?= and|\)| steps/s)", reached)) <= medians_of, (title, name)
            elif " x " not in reached:
                told = set(re.findall(r"\d[\d.]*", reached))
                assert told <= medians_of, (title, name)
            assert told, title


def median_of(row):
    return results.number(row["median"])


def test_speeds_beside_torchrl():
    rows = results.read(RESULTS / "benchmarks" / "throughput_torchrl.json")
    forms = ("offpcc", "offpcc-compiled", "torchrl", "torchrl-compiled")
    header = ("", "offpcc", "offpcc compiled", "TorchRL", "TorchRL compiled", "the faster of each")
    for case, (title, *numbers, told) in zip(
        ("sac", "td3", "td3_bc", "cql", "iql", "bc"), rows_of(*header), strict=True
    ):
        found = {row["library"]: row for row in rows if row["case"] == case}
        assert numbers == [median_of(found[form]) for form in forms], title
        ours, theirs = (
            max((found[form] for form in pair), key=lambda row: row["median"]) for pair in (forms[:2], forms[2:])
        )
        assert told == f"{results.speed_ratio(ours, theirs):.2f} x", title


def test_speeds_on_a_gpu():
    speeds = medians("gpu")
    rows = rows_of("", "offpcc", "eager", "stable-baselines3", "d3rlpy")
    cases = ("SAC", "TD3", "IQL", "CQL, 3 x 10 sampled actions", "RSAC, LSTM 1 x 64", "RSAC, LSTM 2 x 256")
    for case, (_, *numbers) in zip(cases, rows, strict=True):
        libraries = ("offpcc", "offpcc-eager", "stable-baselines3", "d3rlpy")
        found = [speeds.get((case, library), "") for library in libraries]
        expected = [f"{float(written(speed)):,.0f}" if speed else "" for speed in found]
        assert [number.split("; ")[0] for number in numbers] == expected, case


def test_residual_heads_cost():
    speeds = medians()
    widths = [speeds[f"SAC, residual heads of width {width}", "offpcc"] for width in (64, 128, 256)]
    text = " ".join((ROOT / "docs" / "heads.md").read_text(encoding="utf-8").split())
    assert f"were {speeds['SAC', 'offpcc']} updates per second for the MLPs" in text
    assert f"64, 128 and 256 had {widths[0]}, {widths[1]} and {widths[2]}" in text


def spreads(file):
    """Each mean and standard deviation that a page has, without thousands separators."""
    text = " ".join(file.read_text(encoding="utf-8").replace("**", "").split())
    number = r"\d+(?:\.\d+)?"
    return set(re.findall(rf"(-?{number}) ± ({number})", re.sub(r"(?<=\d),(?=\d{3})", "", text)))


def test_pages_agree_with_the_results():
    """A mean of another page is one of the results, as it is there or with fewer digits."""
    known = spreads(RESULTS / "README.md")
    known |= {(f"{float(mean):.0f}", f"{float(deviation):.0f}") for mean, deviation in known}
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        if page.name != "zoo.md":  # of its own runs
            assert not spreads(page) - known, page


def test_each_run_tells_its_origin():
    """Our runs have seed, commit, machine and command; those of other libraries have at least their tests."""
    peers = re.compile(r"^(d3rlpy|corl|tianshou|sb3|seohongpark|ikostrikov)-")
    for file in RESULTS.glob("published*/**/progress.csv"):
        if not peers.match(file.parts[-3]):
            assert (file.parent / "config.gin").is_file(), file
            told = json.loads((file.parent / "run.json").read_text(encoding="utf-8"))
            assert all(told.get(key) for key in ("command", "git_commit", "machine", "versions")), file
            assert str(told["seed"]) == file.parts[-2], file
