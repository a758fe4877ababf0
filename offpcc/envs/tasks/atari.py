"""Atari 2600 games of the Arcade Learning Environment (Bellemare et al. 2013), preprocessed as in DQN.

`offpcc.make` makes these environments from the ids of ale-py: ``PongNoFrameskip-v4`` and ``ALE/Pong-v5``.
"""

import copy
import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete

from offpcc.config.bindings import refuse_unknown
from offpcc.config.validation import MOST_PARTS
from offpcc.envs.aliases import LIFE_LOST, Array, Info
from offpcc.envs.registration import concatenate, is_installed, require
from offpcc.utils.errors import UserError

PACKAGE = "ale-py"
ALE_ENTRY_POINT = "ale_py.env:AtariEnv"
ENTRY_POINT = "offpcc.envs.tasks.atari:Atari"
IDS = "PongNoFrameskip-v4 (no sticky actions), ALE/Pong-v5 (sticky with probability 0.25)"
FRAMES_PER_SECOND = 60  # of the console


class Atari(gym.Env[Array, Any]):
    """A game, with the preprocessing of DQN (Mnih et al. 2015) and Machado et al. 2018 (arXiv:1709.06009).

    Observation, uint8 (1, size, size): the largest of the last two screens, grey, and averaged over areas.
    Action: an index of the actions that the game has.
    Reward: the change of the score, in points.

    An action lasts `frame_skip` frames. At the start of a game, up to `noop_max` frames pass without an action; then
    follows the fire button, if the game has one that starts it. A game is terminated when all lives are lost. After
    `max_num_frames_per_episode` frames it is truncated.

    When a life is lost, `info` has ``life_lost = True``. The game goes on. Agents without memory learn that a state is
    worth nothing then; scores and recordings contain whole games.

    All random draws use `np_random`, also those of the sticky actions: with its state restored, `reset()` repeats them.

    Differs from ale-py's and Gymnasium's preprocessing: it needs no OpenCV, it draws, and a lost life does not start
    another game.

    Args:
        game: The name of the game's ROM, such as "space_invaders".
        repeat_action_probability: Probability that a frame repeats the action of the frame before it ("sticky").
        frame_skip: Frames that an action lasts.
        noop_max: Largest number of frames without an action at the start.
        fire_reset: Whether to press the fire button at the start.
        terminal_on_life_loss: Whether `info` reports lost lives.
        size: Height and width of an observation, in pixels.
        full_action_space: Whether to have all 18 actions in each game.
        mode: The game's mode; None for its default.
        difficulty: The game's difficulty; None for its default.
        max_num_frames_per_episode: Frames after which a game is truncated; 0 for no limit.
        render_mode: None, "rgb_array" or "human".

    Raises:
        gymnasium.error.DependencyNotInstalled: ale-py is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "human"]}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(
        self,
        game: str,
        *,
        repeat_action_probability: float = 0.25,
        frame_skip: int = 4,
        noop_max: int = 30,
        fire_reset: bool = True,
        terminal_on_life_loss: bool = True,
        size: int = 84,
        full_action_space: bool = False,
        mode: int | None = None,
        difficulty: int | None = None,
        max_num_frames_per_episode: int = 108_000,
        render_mode: str | None = None,
    ) -> None:
        require(PACKAGE, game)
        import ale_py
        from ale_py import roms

        for name, value, least in (
            ("frame_skip", frame_skip, 1),
            ("noop_max", noop_max, 0),
            ("size", size, 1),
            ("max_num_frames_per_episode", max_num_frames_per_episode, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise UserError(f"make.kwargs has {name} = {value!r}; it has to be a whole number, {least} or more")
        share = repeat_action_probability
        if not isinstance(share, int | float) or not 0 <= share < 1:
            raise UserError(
                f"make.kwargs has repeat_action_probability = {share!r}; it has to be a number from 0 to below 1"
            )
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale = ale_py.ALEInterface()
        ale.setInt("random_seed", 0)  # of its sticky actions, which are off: `step` draws them
        ale.setFloat("repeat_action_probability", 0.0)
        ale.setInt("max_num_frames_per_episode", max_num_frames_per_episode)
        if render_mode == "human":
            ale.setBool("display_screen", True)
            ale.setBool("sound", True)
        ale.loadROM(roms.get_rom_path(game))
        for what, chosen, allowed in (
            ("Mode", mode, ale.getAvailableModes()),
            ("Difficulty", difficulty, ale.getAvailableDifficulties()),
        ):
            if chosen is None:
                continue
            if chosen not in allowed:
                raise UserError(
                    f"make.kwargs has {what.lower()} = {chosen!r}; {game} has {[int(one) for one in allowed]}"
                )
            getattr(ale, f"set{what}")(chosen)
        ale.reset_game()
        self._begin = ale.cloneState()  # in some games, a reset alone keeps a part of the game before
        self._actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
        self._noop, fire = ale_py.Action.NOOP, ale_py.Action.FIRE
        self._start = fire if fire_reset and fire in self._actions else None
        self._frame_skip, self._noop_max, self._reports_lives = frame_skip, noop_max, terminal_on_life_loss
        self._sticky = repeat_action_probability
        height, width = ale.getScreenDims()
        self._screens, self._screen = np.zeros((2, height, width), np.uint8), np.zeros((height, width), np.uint8)
        self._rows, self._columns = Areas(height, size), Areas(width, size)
        largest = np.min_scalar_type(255 * self._rows.span * self._columns.span)
        for areas in (self._rows, self._columns):
            areas.weights = [weight.astype(largest) for weight in areas.weights]  # small numbers are fast
        self.observation_space = Box(0, 255, (1, size, size), np.uint8)
        self.action_space = Discrete(len(self._actions))
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": FRAMES_PER_SECOND // frame_skip}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start a game; see `gymnasium.Env.reset`. `options` is ignored."""
        super().reset(seed=seed)
        self._restart()
        self._last = self._noop
        if self._noop_max:
            for _ in range(int(self.np_random.integers(1, self._noop_max + 1))):
                self._act(self._noop)
        if self._start is not None:
            for _ in range(self._frame_skip):
                self._act(self._start)
        ale = self._ale
        if ale.game_over():
            self._restart()
        self._lives = ale.lives()
        ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = 0
        return self._observe(), {"lives": self._lives}

    def step(self, action: int) -> tuple[Array, float, bool, bool, Info]:
        """Take an action for `frame_skip` frames, or until the game is over."""
        ale, reward, chosen = self._ale, 0.0, self._actions[action]
        for left in reversed(range(self._frame_skip)):
            reward += self._act(chosen)
            is_over = ale.game_over()
            if left < 2 or is_over:
                ale.getScreenGrayscale(self._screens[min(left, 1)])
            if is_over:
                self._screens[0] = self._screens[min(left, 1)]
                break
        lives = ale.lives()
        info: Info = {"lives": lives}
        if self._reports_lives and lives < self._lives:
            info[LIFE_LOST] = True
        self._lives = lives
        return self._observe(), reward, ale.game_over(with_truncation=False), ale.game_truncated(), info

    def render(self) -> Array | None:
        """Return the screen in colours, (height, width, 3), or None without a render mode or with a window."""
        return self._ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    def _restart(self) -> None:
        self._ale.reset_game()
        self._ale.restoreState(self._begin)

    def _act(self, action: Any) -> float:
        """Take an action for a frame, or with `repeat_action_probability` the last one; return the reward."""
        if not self._sticky or self.np_random.random() >= self._sticky:
            self._last = action
        return float(self._ale.act(self._last))

    def _observe(self) -> Array:
        np.maximum(self._screens[0], self._screens[1], out=self._screen)
        totals = self._columns.totals(self._rows.totals(self._screen).T).T
        return np.rint(totals / (self._rows.span * self._columns.span)).astype(np.uint8)[np.newaxis]


class Areas:
    """Shrinks the first axis of an image to areas of equal size, which may end within a row.

    There are at most as many areas as rows.

    Attributes:
        span: Sum of the weights of an area.
        weights: Weights of the first row of each area, of the second, and so on; (areas, 1) each.
    """

    def __init__(self, num_rows: int, num_areas: int) -> None:
        divisor = math.gcd(num_rows, num_areas)
        row, self.span = num_areas // divisor, num_rows // divisor  # an area has `span` parts, and a row has `row`
        first = np.arange(num_areas) * self.span
        most = -(-self.span // row) + 1  # rows that an area may touch
        self._rows = [np.minimum(first // row + nth, num_rows - 1) for nth in range(most)]
        begins = [(first // row + nth) * row for nth in range(most)]
        shared = [np.minimum(first + self.span, begin + row) - np.maximum(first, begin) for begin in begins]
        self.weights = [np.maximum(weight, 0).astype(np.uint32)[:, np.newaxis] for weight in shared]

    def totals(self, image: Array) -> Array:
        """Return the weighted sums (areas, ...) of an image's rows, (rows, ...)."""
        parts = [image[rows] * weights for rows, weights in zip(self._rows, self.weights, strict=True)]
        totals: Array = np.sum(parts, 0, parts[0].dtype)
        return totals


def register(name: str) -> None:
    """Register the ids of ale-py if `name` is one of them and the package is installed."""
    if is_atari(name) and is_installed(PACKAGE):
        import ale_py  # noqa: F401 (it registers its ids)


def is_atari(name: str) -> bool:
    """Return whether an id has the form of those of ale-py that offpcc makes."""
    return name.startswith("ALE/") or "NoFrameskip-v" in name


def similar_game(name: str) -> str | None:
    """Return the ids that offpcc makes of a game whose name has another form: pong, Pong-v4; None if it is no game."""
    found = re.fullmatch(r"(?:ALE/)?([A-Za-z]\w*?)(?:Deterministic|NoFrameskip)?(?:-ram\w*)?(?:-v\d+)?", name)
    if found is None or not is_installed(PACKAGE):
        return None
    import ale_py  # noqa: F401 (it registers its ids)

    same = [spec for name, spec in gym.registry.items() if re.fullmatch(rf"{found[1]}-v\d+", name, re.IGNORECASE)]
    if any(not str(spec.entry_point).startswith("ale_py") for spec in same):  # such as Gymnasium's Blackjack
        return None
    wanted = [f"{found[1]}NoFrameskip-v4".lower(), f"ALE/{found[1]}-v5".lower()]
    return " or ".join(sorted((name for name in gym.registry if name.lower() in wanted), reverse=True)) or None


def preprocessed_spec(spec: EnvSpec, arguments: Mapping[str, Any]) -> tuple[EnvSpec, dict[str, Any]]:
    """Return the spec of the preprocessed game instead of ale-py's, and its arguments.

    `arguments` are those of `Atari`; and ``frame_stack``, the number of observations to show together.
    """
    known, given = {**spec.kwargs}, {**arguments}
    if not isinstance(known.pop("frameskip"), int):
        name = f"{spec.id.removesuffix('-v0').removesuffix('-v4')}NoFrameskip{spec.id[-3:]}"
        raise UserError(f"{spec.id} skips a random number of frames; choose {name}, which skips 4")
    of_gymnasium = {*inspect.signature(gym.make).parameters, "render_mode"}
    own = ["frame_stack", *inspect.signature(Atari).parameters]
    names = [name for name in own if name != "game" and name not in of_gymnasium]
    refuse_unknown(f"make.kwargs of {spec.id}", [name for name in given if name not in of_gymnasium], names)
    num = given.pop("frame_stack", 4)
    if isinstance(num, bool) or not isinstance(num, int) or not 1 <= num <= MOST_PARTS:
        raise UserError(f"make.kwargs has frame_stack = {num!r}; it has to be a whole number from 1 to {MOST_PARTS:,}")
    made = copy.copy(spec)
    made.entry_point, made.kwargs = ENTRY_POINT, known
    made.additional_wrappers = (concatenate(num),) if num != 1 else ()
    return made, given
