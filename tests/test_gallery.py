"""One picture of all families."""

import importlib.util
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from matplotlib.image import imread

from offpcc.envs.registration import Environment
from offpcc.utils.errors import UserError

FILE = Path(__file__).parents[1] / "docs" / "gallery.py"
if not FILE.exists():
    pytest.skip("the package is installed without its pages", allow_module_level=True)
SPEC = importlib.util.spec_from_file_location("gallery", FILE)
module = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(module)
gallery = module.gallery
RED, BLUE = (200, 0, 0), (0, 0, 200)


class Painted(gymnasium.Env):
    """Draws itself in one colour; the agent sees grey images, the newest one brighter."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self, color=RED, shape=(2,), size=(30, 40), render_mode=None):
        self.color, self.size, self.render_mode = color, size, render_mode
        self.observation_space = Box(0, 255, shape, np.uint8 if len(shape) == 3 else np.float32)
        self.closed = False

    def _observe(self):
        observation = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        observation[-1] = 99
        return observation

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        return self._observe(), 0.0, False, False, {}

    def render(self):
        if self.color is None:
            raise RuntimeError("no paint\nat all")
        return np.full((*self.size, 3), self.color, np.uint8)


@pytest.fixture
def row():
    """A row of the table, registered for the length of a test."""
    names = []

    def function(name, family, package=None, **kwargs):
        gymnasium.register(name, entry_point=Painted, max_episode_steps=7, kwargs=kwargs)
        names.append(name)
        return Environment(name, family, "nothing", "", 7, kwargs.get("shape", (2,)), 1, package=package)

    yield function
    for name in names:
        gymnasium.registry.pop(name)


@pytest.fixture
def drawn(monkeypatch):
    """The pictures that would be written."""
    pictures = []
    monkeypatch.setattr(module, "_save", lambda found, file: pictures.extend(found))
    return pictures


def colors(file):
    picture = (imread(file)[..., :3] * 255).round().astype(np.uint8)
    return {tuple(int(part) for part in color) for color in np.unique(picture.reshape(-1, 3), axis=0)}


def test_the_first_row_of_each_family_is_in_the_picture(row, tmp_path):
    rows = [row("painted-a-v0", "a"), row("painted-b-v0", "b", color=BLUE), row("painted-c-v0", "a", color=(0, 200, 0))]
    file = tmp_path / "gallery.png"
    assert gallery(file, rows) == []
    assert {RED, BLUE} <= colors(file)
    assert (0, 200, 0) not in colors(file)


@pytest.mark.parametrize("num", [1, 3, 5, 6, 7, 14, 16])
def test_cells_are_uniform_and_all_are_there(num, row, tmp_path):
    shades = [(200, 10 * number, 0) for number in range(num)]
    sizes = [(30, 30), (30, 40), (40, 30), (30, 90)]
    rows = [
        row(f"painted-{number}-v0", f"family {number}", color=shade, size=sizes[number % 4])
        for number, shade in enumerate(shades)
    ]
    file = tmp_path / "gallery.png"
    gallery(file, rows)
    picture = (imread(file)[..., :3] * 255).round().astype(int)
    areas = [int((picture == shade).all(axis=-1).sum()) for shade in shades]
    assert min(areas) > 0.9 * max(areas) > 10_000


def test_what_the_agent_sees_is_beside_an_image_task(row, drawn, tmp_path):
    gallery(tmp_path / "none.png", [row("painted-img-v0", "a", shape=(3, 8, 8)), row("painted-v0", "b")])
    assert drawn[0].seen.tolist() == [[99] * 8] * 8
    assert drawn[1].seen is None


def test_the_agents_image_is_drawn(row, tmp_path):
    file = tmp_path / "gallery.png"
    gallery(file, [row("painted-img-v0", "a", shape=(3, 8, 8))])
    assert (99, 99, 99) in colors(file)


@pytest.mark.parametrize("size", [(30, 30), (30, 40), (40, 30), (30, 90), (31, 64)])
def test_frames_are_square_and_long_ones_are_whole(size, row, drawn, tmp_path):
    gallery(tmp_path / "none.png", [row("painted-v0", "a", size=size)])
    height, width, _ = drawn[0].frame.shape
    assert height == width == (max(size) if max(size) > 40 else 30)


def test_what_cannot_be_drawn_is_left_out_with_a_line(row, drawn, tmp_path):
    left_out = gallery(
        tmp_path / "none.png",
        [
            row("painted-a-v0", "a", package="no-such-package"),
            row("painted-b-v0", "b", color=None),
            row("painted-c-v0", "c"),
            Environment("painted-d-v0", "d", "nothing", "", 7, (2,), 1),
        ],
    )
    assert [picture.family for picture in drawn] == ["c"]
    assert left_out[0] == "a is left out: no-such-package is not installed; run `pip install no-such-package`"
    assert left_out[1] == "b is left out: no paint"
    assert left_out[2].startswith("d is left out: painted-d-v0: there is no such environment")
    assert len(left_out) == 3


def test_where_nothing_can_be_drawn_nothing_is_written(row, tmp_path):
    with pytest.raises(UserError, match="no paint"):
        gallery(tmp_path / "gallery.png", [row("painted-v0", "a", color=None)])
    assert not list(tmp_path.iterdir())


def test_the_same_seed_is_the_same_picture(tmp_path):
    from offpcc.envs.tasks.pendulum import ENVIRONMENTS

    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        gallery(file, ENVIRONMENTS, seed)
    first, second, other = (file.read_bytes() for file in files)
    assert first == second != other
