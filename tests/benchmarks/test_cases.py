import pytest

from benchmarks.cases import CASES, LIBRARIES, PAPER, PLAIN, SMALL, CaseError, chosen
from benchmarks.libraries import SOURCES
from offpcc.algorithms import ALGORITHMS

ASKED_FOR = [
    "sac", "td3", "td3_bc", "cql", "bcq", "iql", "bc", "awac", "crr", "sac_n", "edac", "rebrac", "calql", "fql",
    "rlpd", "rsac", "rsac_s", "rsac_small", "rsac_s_small", "rtd3", "rdpg", "act_paper", "act_small", "sample",
    "sample_episodes", "sample_frames", "sample_frames_disk", "bytes", "steps_pendulum", "steps_hopper",
    "steps_pendulum_p", "steps_pong", "steps_pong_dqn", "model", "imagine", "imagine_one", "sac_residual_64",
    "sac_residual_128", "sac_residual_256",
]  # fmt: skip


def test_all_cases_are_there():
    assert sorted(CASES) == sorted(ASKED_FOR)
    assert {case.algorithm for case in CASES.values()} <= ALGORITHMS.keys() | {"model", "imagine", "imagine_one"}
    assert {name for case in CASES.values() for name in case.libraries} <= SOURCES.keys() == set(LIBRARIES)


def test_sizes():
    assert (PLAIN.num_steps, PAPER.num_steps, SMALL.num_steps) == (1, 200, 50)
    assert CASES["rsac_small"].sizes is SMALL and CASES["rtd3"].sizes is PAPER


@pytest.mark.parametrize("asked, found", [
    ("sac,td3,rsac_small", ["sac", "td3", "rsac_small"]),
    (" rsac_small , sac,", ["sac", "rsac_small"]),
    ("", list(CASES)),
])  # fmt: skip
def test_choosing(asked, found):
    assert chosen(asked, list(CASES), "case") == found


@pytest.mark.parametrize("asked, told", [
    ("sac,rsac_smal", "there is no case 'rsac_smal'; did you mean rsac_small"),
    ("9", "there is no case '9'; choose from sac, td3"),
])  # fmt: skip
def test_a_wrong_name_is_told(asked, told):
    with pytest.raises(CaseError) as fault:
        chosen(asked, list(CASES), "case")
    assert str(fault.value).startswith(told)


def test_units():
    assert CASES["sac"].unit == "updates/s" and CASES["sac"].higher_is_better
    assert CASES["act_paper"].unit == "us" and not CASES["act_paper"].higher_is_better
