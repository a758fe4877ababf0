import json
import mmap
from dataclasses import asdict

import pytest

from benchmarks import worker
from benchmarks.cases import CASES, SMALL
from benchmarks.libraries import SOURCES, UnavailableError, Work, load, offpcc_agents
from benchmarks.recorded import transitions

SIZE = 20_000


def test_a_rate_counts_units():
    made = []
    found = worker.rate(Work(lambda: made.append(1), units=10), 0.01)
    assert found > 10 * 1 / 0.02 and made


def test_a_call_is_always_made():
    made = []
    worker.rate(Work(lambda: made.append(1)), 1e-9)
    assert made == [1]


def test_warming_up():
    made = []
    worker.warm_up(Work(lambda: made.append(1)), 0.0)
    assert len(made) == worker.WARM_UP


def test_sizes_survive_json():
    assert worker._sizes(json.loads(json.dumps(asdict(SMALL)))) == SMALL


@pytest.mark.skipif(not worker.STATUS.exists(), reason="the system does not tell a process's memory")
def test_bytes_of_a_store():
    def store(capacity):
        memory = mmap.mmap(-1, 2_000 * capacity, mmap.MAP_PRIVATE)  # its own, which no allocator hands out again
        return lambda *transition: memory.write(b"x" * 2_000)

    assert 1_900 < worker.stored_bytes(store, SIZE) < 2_100


@pytest.mark.parametrize("name", ["sac", "td3_bc", "rebrac", "rsac_s_small", "act_small", "sample", "sample_episodes"])
def test_offpcc_does_what_is_measured(name):
    work = offpcc_agents.prepare(CASES[name], 400)
    if name != "act_small":
        assert work.units == 1
    work.run()


def test_an_option_that_is_not_there_is_told():
    with pytest.raises(UnavailableError, match="no sac with no_such_option=True"):
        offpcc_agents.algorithm("sac", CASES["sac"].sizes, no_such_option=True)


@pytest.mark.parametrize("library, package", [
    ("stable-baselines3", "stable_baselines3"), ("d3rlpy", "d3rlpy"), ("tianshou", "tianshou"), ("torchrl", "torchrl"),
])  # fmt: skip
def test_peers_do_what_is_measured(library, package):
    pytest.importorskip(package)
    module, _ = load(library)
    for case in CASES.values():
        if library in case.libraries and case.kind in ("update", "sample"):
            module.prepare(case, 400).run()
    push = module.store(400)
    observation, action, reward, following, *_ = (column[0] for column in transitions(200))
    push(observation, action, float(reward), following, False, True)
    assert SOURCES[library].package == library


def test_a_clone_that_is_no_file_is_told(tmp_path):
    with pytest.raises(UnavailableError, match=r"clone\.py is no file; --clone wants NAME=FILE.py"):
        load("other", str(tmp_path / "clone.py"))
