"""The examples of docs/your_data.md for recordings of other tools, on small files in the layouts of these tools."""

import re
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "your_data.md"
SECTION = PAGE.read_text(encoding="utf-8").split("## Recordings of other tools")[1].split("\n## ")[0]
EXAMPLES = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
LENGTHS, ENDED = (7, 4, 5), (True, False, True)


def recorded():
    """Observations, actions, rewards of three episodes; the second one was cut."""
    random = np.random.default_rng(0)
    for length in LENGTHS:
        rewards = np.zeros(length, np.float32)
        rewards[-1] = ENDED[LENGTHS.index(length)]
        yield random.normal(size=(length + 1, 2)).astype("f"), random.uniform(-1, 1, (length, 1)).astype("f"), rewards


def robomimic(monkeypatch):
    with h5py.File("robomimic.hdf5", "w") as file:
        for number, (seen, actions, rewards) in enumerate(recorded()):
            again = [-1] * (2 * ENDED[number])  # the recorder goes on for two steps after a success
            demo, rows = file.create_group(f"data/demo_{number}"), [*range(len(actions)), *again]
            demo["actions"], demo["rewards"] = actions[rows], rewards[rows]
            demo["dones"] = np.append(rewards[rows][:-1], 1).astype(np.int64)
            demo["obs/arm"], demo["obs/hand"] = np.split(seen[:-1][rows], 2, axis=1)
            demo["next_obs/arm"], demo["next_obs/hand"] = np.split(seen[1:][rows], 2, axis=1)
    return {}


def lerobot(monkeypatch):
    pandas = pytest.importorskip("pandas")
    Path("lerobot/data/chunk-000").mkdir(parents=True)
    for number, (seen, actions, rewards) in enumerate(recorded()):
        table = {"observation.state": [*seen[:-1]], "action": [*actions], "next.reward": rewards}
        table |= {"next.success": rewards > 0, "next.done": np.arange(len(rewards)) == len(rewards) - 1}
        table |= {"episode_index": np.full(len(rewards), number), "frame_index": np.arange(len(rewards))}
        pandas.DataFrame(table).to_pickle(f"lerobot/data/chunk-000/episode_{number:06d}.parquet")
    monkeypatch.setattr(pandas, "read_parquet", pandas.read_pickle)  # pyarrow is not needed here
    return {}


def rlds(monkeypatch):
    episodes = []
    for number, (seen, actions, rewards) in enumerate(recorded()):
        columns = seen, np.append(actions, [[0]], 0), np.append(rewards, 0)
        rows = zip(*columns, strict=True)
        steps = [dict(zip(("observation", "action", "reward"), row, strict=True), is_terminal=False) for row in rows]
        steps[-1]["is_terminal"] = ENDED[number]
        episodes.append({"steps": iter(steps)})
    return {"recording": episodes}


def imitation(monkeypatch):
    found = zip(recorded(), ENDED, strict=True)
    return {
        "trajectories": [
            SimpleNamespace(obs=seen, acts=actions, rews=rewards, terminal=ended)
            for (seen, actions, rewards), ended in found
        ]
    }


@pytest.mark.parametrize("number, write", [*enumerate((robomimic, lerobot, rlds, imitation))])
def test_an_example_reads_what_the_tool_wrote(number, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = write(monkeypatch)
    exec(EXAMPLES[number], names)
    data, (seen, actions, rewards) = names["data"], (list(part) for part in zip(*recorded(), strict=True))
    np.testing.assert_array_equal(data.lengths, LENGTHS)
    np.testing.assert_array_equal(data.actions, np.concatenate(actions))
    np.testing.assert_array_equal(data.rewards, np.concatenate(rewards))
    np.testing.assert_array_equal(data.terminations[data.stops - 1], ENDED)
    np.testing.assert_array_equal(data.as_numbers().observations, np.concatenate([one[:-1] for one in seen]))
    last = data.as_numbers().final_observations[data.last_is_transition]
    if write is not lerobot:  # which has no observation after the last step
        np.testing.assert_array_equal(last, [one[-1] for one in seen])
    np.testing.assert_array_equal(data.last_is_transition, ENDED if write is lerobot else [True] * 3)


def test_every_example_is_run():
    assert len(EXAMPLES) == 4
