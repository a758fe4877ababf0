"""Converts recorded Atari games: RL Unplugged (arXiv:2006.13888) and the DQN replay dataset (arXiv:1907.04543)."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from offpcc.data.convert.frame_writer import SIDE, STACK, FrameWriter, writing
from offpcc.data.convert.tfrecord import AGAIN, get_feature, open_packed, parse_example, records
from offpcc.data.datasets.columns import Array
from offpcc.data.datasets.frame_stacks import SHUFFLED
from offpcc.utils.errors import UserError, first_line

# Numbers of actions, from the Arcade Learning Environment's minimal sets. The second table is in DQN replay only.
_UNPLUGGED = """
Alien 18 Amidar 10 Assault 7 Asterix 9 Atlantis 4 BankHeist 18 BattleZone 18 BeamRider 9 Boxing 18 Breakout 4 Carnival 6
Centipede 18 ChopperCommand 18 CrazyClimber 9 DemonAttack 6 DoubleDunk 18 Enduro 9 FishingDerby 18 Freeway 3
Frostbite 18 Gopher 8 Gravitar 18 Hero 18 IceHockey 18 Jamesbond 18 Kangaroo 18 Krull 18 KungFuMaster 14 MsPacman 9
NameThisGame 6 Phoenix 8 Pong 6 Pooyan 6 Qbert 6 Riverraid 18 RoadRunner 18 Robotank 18 Seaquest 18 SpaceInvaders 6
StarGunner 18 TimePilot 10 UpNDown 6 VideoPinball 9 WizardOfWor 10 YarsRevenge 18 Zaxxon 18
"""
_ONLY_REPLAY = """
AirRaid 6 Asteroids 14 Berzerk 18 Bowling 6 ElevatorAction 18 JourneyEscape 16 MontezumaRevenge 18 Pitfall 18
PrivateEye 18 Skiing 3 Solaris 18 Tennis 18 Tutankham 8 Venture 18
"""


def _table(text: str) -> dict[str, int]:
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


UNPLUGGED_GAMES = _table(_UNPLUGGED)
REPLAY_GAMES = UNPLUGGED_GAMES | _table(_ONLY_REPLAY)
FEWER_SHARDS = ("Carnival", "Gravitar", "StarGunner")  # have 49 ordered shards, the others 50
SHARDS, ORDERED_SHARDS = 100, 50

GRAY_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + SIDE.to_bytes(4, "big") * 2 + b"\x08\0"  # 84 x 84, 8 bits, gray
REPLAY_ARRAYS = {"observation": "u", "action": "iu", "reward": "f", "terminal": "iub"}  # their kinds of numbers
MOST_STEPS = 2 * 10**6  # in a file of DQN replay, which has 1,000,000
ROWS = 1_000  # frames of DQN replay that are read at a time

Progress = Callable[[int, int], None]  # compressed bytes that were read, and all of them


class Converted(NamedTuple):
    """What a conversion found.

    Attributes:
        num_steps: number of transitions.
        num_episodes: number of episodes; in shuffled transitions, of those that they are from.
        action_counts: (number of actions,), how often each action was taken.
        mean_return: mean return of the episodes, of the rewards that were written.
        mean_clipped_return: mean return of the clipped rewards, if the recording has both.
    """

    num_steps: int
    num_episodes: int
    action_counts: Array
    mean_return: float
    mean_clipped_return: float | None = None


def check_game(task: str, games: dict[str, int]) -> int:
    """Return the number of actions of a game."""
    if task not in games:
        alike = {name.lower(): name for name in games}
        near = alike.get(task.lower().removesuffix("-v5").removeprefix("ale/").removesuffix("noframeskip-v4"))
        advice = f"did you mean {near}?" if near else f"there are {', '.join(games)}"
        raise UserError(f"--task is {task}, but there are no recordings of this game; {advice}")
    return games[task]


# RL Unplugged ---------------------------------------------------------------------------------------------------------


def convert_unplugged(shard: Path, out: Path, task: str, ordered: bool, progress: Progress) -> Converted:
    """Convert a shard of RL Unplugged: shuffled transitions, or with `ordered` whole episodes; nothing if damaged."""
    num_actions, size = UNPLUGGED_GAMES[task], shard.stat().st_size
    facts = {"env": f"ALE/{task}-v5", SHUFFLED: int(not ordered), "source": f"RL Unplugged, {shard.name}"}
    returns: dict[int, float] = {}
    clipped_returns: list[float] = []
    number = -1
    with writing(out, num_actions, **facts) as writer:
        for number, (record, read) in enumerate(records(shard)):
            place = f"{shard}: record {number:,}"
            try:
                features = parse_example(record)
                if ordered:
                    if sums := _add_episode(writer, features, task, place):
                        returns[number] = sums[0]
                        clipped_returns.append(sums[1])
                else:
                    key, clipped = _add_transition(writer, features, task, place)
                    returns[key] = clipped
            except ValueError as error:
                other = "leave --ordered out" if ordered else "give --ordered"
                kind = "observations" if ordered else "o_t"
                remedy = f"if it is of the other kind, {other}" if str(error).startswith(kind) else "remove it"
                raise UserError(f"{place}: {error}; {remedy}") from None
            progress(read, size)
        _check_any(writer, shard)
        writer.num_cut = 0 if ordered else len(writer.actions)
        result = _summary(writer, num_actions, list(returns.values()))
    return result._replace(mean_clipped_return=float(np.mean(clipped_returns)) if clipped_returns else None)


def _check_any(writer: FrameWriter, source: Path) -> None:
    if not writer.actions:
        raise UserError(f"{source}: it holds no transition; remove it, and fetch it again")


def _summary(writer: FrameWriter, num_actions: int, returns: list[float]) -> Converted:
    counts = np.bincount(np.array(writer.actions), minlength=num_actions)
    return Converted(len(writer.actions), len(returns), counts, float(np.mean(returns)))


def _check_actions(actions: Any, task: str, place: str) -> None:
    num_actions = REPLAY_GAMES[task]
    if len(actions) and not (actions.min() >= 0 and actions.max() < num_actions):
        wrong = int(actions.min() if actions.min() < 0 else actions.max())
        raise UserError(
            f"{place}: there is the action {wrong}, but the game has {num_actions}, from 0 on; is the recording from "
            f"another game than {task}?"
        )


def _add_transition(writer: FrameWriter, features: dict[str, Any], task: str, place: str) -> tuple[int, float]:
    """Write a transition: 5 frames, and a step that is an episode. Return the id and the return of its own episode."""
    before, after = (get_feature(features, key, "bytes") for key in ("o_t", "o_tp1"))
    action, episode = (_one(features, key, "i") for key in ("a_t", "episode_id"))
    reward, discount, clipped = (_one(features, key, "f") for key in ("r_t", "d_t", "episode_return"))
    if len(before) != STACK or len(after) != STACK:
        raise ValueError(f"o_t has {len(before)} frames and o_tp1 {len(after)}, not {STACK} each")
    _check_actions(np.array([action]), task, place)
    if not 0.0 <= discount <= 1.0 or not np.isfinite(reward):
        raise ValueError(f"d_t is {discount:g} and r_t {reward:g}, which cannot be a discount and a reward")
    is_terminal = discount == 0.0
    if after[:-1] != before[1:] and not is_terminal:
        seen = [_decoded(png) for png in (*before[1:], *after[:-1])]
        if any((one != other).any() for one, other in zip(seen[: STACK - 1], seen[STACK - 1 :], strict=True)):
            raise ValueError("the older frames of o_tp1 are not the newer ones of o_t")
    for png in (*before, after[-1]):
        writer.add_frame(_decoded(png))
    writer.add_step(int(action), float(reward), is_terminal, True)
    return int(episode), float(clipped)


def _one(features: dict[str, Any], key: str, kind: str) -> Any:
    numbers = get_feature(features, key, kind)
    if len(numbers) != 1:
        raise ValueError(f"{key} has {len(numbers)} numbers, not one")
    return numbers[0]


def _add_episode(writer: FrameWriter, features: dict[str, Any], task: str, place: str) -> tuple[float, float] | None:
    """Write an episode; return the sums of the unclipped and clipped rewards that were written, None without any.

    The last row has the last observation: it is no step, as TensorFlow Datasets and Dopamine read these shards. It is
    a step if the recorded return of a terminated episode has its reward, too; then its observation is repeated.
    """
    pngs, actions = get_feature(features, "observations", "bytes"), get_feature(features, "actions", "i")
    clipped, unclipped, discounts = (
        get_feature(features, key, "f") for key in ("clipped_rewards", "unclipped_rewards", "discounts")
    )
    lengths = [len(each) for each in (pngs, actions, clipped, unclipped, discounts)]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise ValueError(f"observations, actions, both rewards and discounts have the lengths {lengths}")
    if not (np.isfinite(clipped).all() and np.isfinite(unclipped).all()):
        raise ValueError("a reward is not finite")
    is_over = bool(discounts[-1] == 0)
    is_step = is_over and _counts_last_reward(features, clipped)
    num = len(actions) - (not is_step)
    _check_actions(actions[:num], task, place)
    if not num:
        return None
    for _ in range(STACK - 1):
        writer.add_frame(np.zeros((SIDE, SIDE), np.uint8))
    for step, frame in enumerate(map(_decoded, pngs)):
        writer.add_frame(frame)
        if step < num:
            is_last = step == num - 1
            writer.add_step(int(actions[step]), float(unclipped[step]), is_last and is_over, is_last and not is_over)
    if is_step:
        writer.add_frame(frame)
    return float(unclipped[:num].sum(dtype=np.float64)), float(clipped[:num].sum(dtype=np.float64))


def _counts_last_reward(features: dict[str, Any], clipped: Array) -> bool:
    """Check whether the recorded return of an episode has the last row's reward."""
    if "clipped_episode_return" not in features or not clipped[-1]:
        return False
    told = _one(features, "clipped_episode_return", "f")
    return bool(np.isclose(clipped.sum(dtype=np.float64), told, atol=1e-3))


def _add_recorded(
    writer: FrameWriter, frames: Iterator[Array], actions: Array, rewards: Array, terminals: Array
) -> None:
    """Write steps of Dopamine's buffer in order of time.

    The observation after a termination was not recorded. Its value is not used, so the last frame is repeated. The
    last step of a recording that goes on is left out, because it is unknown what it led to. Up to STACK - 1 rows of
    zeros before each episode are no steps: the buffer puts them there.
    """
    blank, last, is_first, num_padded = np.zeros((SIDE, SIDE), np.uint8), len(actions) - 1, True, 0
    for step, frame in enumerate(frames):
        is_zero = not (actions[step] or rewards[step] or terminals[step] or frame.any())
        if is_first and is_zero and num_padded < STACK - 1:
            num_padded += 1
            continue
        num_padded = 0
        if is_first:
            if step == last and not terminals[step]:
                return  # an episode without a transition
            for _ in range(STACK - 1):
                writer.add_frame(blank)
        is_first = bool(terminals[step])
        writer.add_frame(frame)
        if is_first:
            writer.add_frame(frame)
        if is_first or step < last:
            writer.add_step(
                int(actions[step]), float(rewards[step]), is_first, step == last - 1 and not terminals[last]
            )


def _decoded(png: bytes) -> Array:
    if not png.startswith(GRAY_PNG):
        raise ValueError(f"a frame is no gray PNG picture of {SIDE} x {SIDE} pixels")
    try:
        with Image.open(io.BytesIO(png), formats=("PNG",)) as picture:
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, zlib.error) as error:
        raise ValueError(f"a frame is a damaged PNG picture ({first_line(error)})") from None


# DQN replay -----------------------------------------------------------------------------------------------------------


def replay_files(folder: Path, number: int) -> dict[str, Path]:
    """Return the files of a part of DQN replay, by the names of their arrays."""
    return {name: folder / f"$store$_{name}_ckpt.{number}.gz" for name in REPLAY_ARRAYS}


def convert_replay(files: dict[str, Path], out: Path, task: str, progress: Progress) -> Converted:
    """Convert a part of DQN replay: single frames in order of time, of a million steps; nothing if damaged."""
    num_actions, frames_file = REPLAY_GAMES[task], files["observation"]
    arrays = {name: _small_array(files[name], REPLAY_ARRAYS[name]) for name in ("action", "reward", "terminal")}
    actions, rewards, terminals = (arrays[name] for name in ("action", "reward", "terminal"))
    _check_actions(actions, task, str(files["action"]))
    if not np.isfinite(rewards).all() or not np.isin(terminals, (0, 1)).all():
        both = f"{files['reward']} or {files['terminal']}"
        raise UserError(f"{both}: a reward is not finite, or a terminal not 0 or 1; fetch both again")
    ends = terminals.astype(np.bool_)
    stops = np.flatnonzero(ends) + 1
    finished = int(stops[-1]) if len(stops) else 0  # number of steps in whole episodes
    rest = [float(rewards[:-1].sum())] if not finished else []  # without any, the mean is of the one that was cut
    returns = [float(one.sum(dtype=np.float64)) for one in np.split(rewards[:finished], stops[:-1]) if len(one)] + rest
    facts = {"env": f"ALE/{task}-v5", "source": f"DQN replay, {frames_file.name}"}
    with writing(out, num_actions, **facts) as writer:
        lengths = {name: len(array) for name, array in arrays.items()}
        _add_recorded(writer, _frames(frames_file, lengths, progress), actions, rewards, ends)
        _check_any(writer, frames_file)
        writer.num_cut = int(writer.timeouts[-1])
        return _summary(writer, num_actions, returns)


def _small_array(path: Path, kinds: str) -> Array:
    """Read an array of one number per step."""
    with _opened(path) as (_, file):
        shape, by_columns, dtype = _header(file)
        if len(shape) != 1 or shape[0] > MOST_STEPS or by_columns or dtype.kind not in kinds:
            raise UserError(f"{path}: it holds {dtype} of shape {shape}, not a number for each step; fetch it again")
        numbers = np.frombuffer(_read(file, shape[0] * dtype.itemsize), dtype)
        _check_end(file)
        return numbers


def _frames(path: Path, lengths: dict[str, int], progress: Progress) -> Iterator[Array]:
    size = path.stat().st_size
    with _opened(path) as (raw, file):
        shape, by_columns, dtype = _header(file)
        if shape[1:] != (SIDE, SIDE) or by_columns or dtype != np.uint8:
            raise UserError(f"{path}: it holds {dtype} of shape {shape}, not (steps, {SIDE}, {SIDE}) of bytes")
        if set(lengths.values()) != {shape[0]}:
            others = ", ".join(f"{number:,} {name}s" for name, number in lengths.items())
            raise UserError(f"{path}: {shape[0]:,} observations, but {others}; fetch the four files again")
        for start in range(0, shape[0], ROWS):
            number = min(ROWS, shape[0] - start)
            block = _read(file, number * SIDE * SIDE)
            if start + number == shape[0]:
                _check_end(file)
            yield from np.frombuffer(block, np.uint8).reshape(number, SIDE, SIDE)
            progress(raw.tell(), size)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open an array file, compressed by GZIP or not, and yield it as it is stored, and its content."""
    try:
        with open_packed(path, lambda start: start.startswith(np.lib.format.MAGIC_PREFIX), "an array file") as files:
            yield files
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise UserError(f"{path} is cut or damaged ({first_line(error)}); {AGAIN}") from None


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array file: the shape, whether it is in Fortran order, and the dtype."""
    np.lib.format.read_magic(file)
    return np.lib.format.read_array_header_1_0(file)


def _check_end(file: Any) -> None:
    """Raise if a GZIP file does not end here. Reading its end also compares its checksum and its length."""
    if file.read(1):
        raise ValueError("there is more data than its header declares")


def _read(file: Any, num_bytes: int) -> bytes:
    content: bytes = file.read(num_bytes)
    if len(content) < num_bytes:
        raise EOFError("it ends too early")
    return content
