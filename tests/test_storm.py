"""A small one; `make storm` is the whole."""

import pytest
from storm import kinds, storm, table


@pytest.mark.slow
def test_ten_kills(tmp_path):
    chosen = [kind for kind in kinds() if kind.name in ("online, memory", "recording itself")]
    assert storm(chosen, kills=10, seconds=300, seed=1, place=tmp_path), table(chosen)
    assert sum(kind.kills for kind in chosen) == 10, table(chosen)
    assert sum(kind.hit.total() for kind in chosen) > 0, "no file was being written when a process was killed"
    assert sum(kind.within for kind in chosen) > 0, "no run was gone on with amid an epoch"


def test_a_storm_covers_what_it_should():
    told = [" ".join((*kind.words, *kind.bindings)) for kind in kinds()]
    assert len(told) >= 6
    for part in ("--dataset", "pendulum-img", "num_envs=", "worker_processes=True", "--save_dataset", "collect",
                 "--algo sac", "--algo rsac", "num_envs=2", "num_envs=3",
                 *(f"updates_per_step={number}" for number in (0.05, 0.1, 0.3, 0.5, 2))):  # fmt: skip
        assert any(part in words for words in told), part
    # Within an epoch, statistics are under way; at its end, nothing is.
    assert sum("Checkpoints.every_steps=" in words for words in told) >= 4
