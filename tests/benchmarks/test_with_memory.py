"""The table and the picture of algorithms with and without memory."""

import json

import pytest
from PIL import Image

from benchmarks.with_memory import corridors, main, pairs


@pytest.fixture
def folder(tmp_path):
    """Runs of two pairs, and of an algorithm without a partner."""
    place = tmp_path / "pendulum-p-v0_from_swings"
    for algo, returns in {"iql": [-9, -7], "riql": [-3, -1], "bc": [-8], "rbc": [-6], "sac": [-5]}.items():
        for run_id, value in enumerate(returns, 1):
            run = place / algo / str(run_id)
            run.mkdir(parents=True)
            (run / "progress.csv").write_text(f"step,test/return\n1,0\n2,{value}\n")
    return place


@pytest.fixture
def solved(tmp_path):
    file = tmp_path / "solved.json"
    names = [("corridor_10_lru", True), ("corridor_10_lru", False), ("corridor_30_concat", False), ("quickstart", True)]
    file.write_text(json.dumps({"rows": [{"config": name, "solved": value} for name, value in names]}))
    return file


def test_pairs_have_the_last_returns_best_memory_last(folder):
    assert list(pairs(folder).items()) == [("bc", ([-8.0], [-6.0])), ("iql", ([-9.0, -7.0], [-3.0, -1.0]))]


def test_corridors_are_counted_by_memory_and_length(solved):
    assert corridors(solved) == {"lru": {10: (1, 2)}, "concat": {30: (0, 1)}}


def test_the_table_and_the_picture(folder, solved, tmp_path, capsys):
    picture = tmp_path / "new" / "memory.png"
    assert main([str(folder), "--corridors", str(solved), "--title", "Pendulum", "--output", str(picture)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "| environment and data | algorithm | without memory | with memory |",
        "|---|---|---|---|",
        "| pendulum-p-v0, swings | `iql` | -8.0 ± 1.0 | -2.0 ± 1.0 |",
        "| pendulum-p-v0, swings | `bc` | -8.0 | -6.0 |",
    ]
    with Image.open(picture) as image:
        assert image.width > 1.5 * image.height and len(image.convert("RGB").getcolors(1 << 24)) > 10


def test_a_folder_without_pairs_is_refused(folder, tmp_path):
    with pytest.raises(SystemExit, match="has runs with and without memory"):
        pairs(tmp_path)
    with pytest.raises(SystemExit, match="2 titles for 1 folders"):
        main([str(folder), "--title", "one", "two", "--output", str(tmp_path / "a.png")])
