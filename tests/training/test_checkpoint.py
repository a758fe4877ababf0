import itertools
import os
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offpcc.config.loading import plain_values
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.data.buffers import replay, sequence_replay
from offpcc.training.checkpoint import (
    CHECKPOINT_FORMAT,
    load_buffer,
    parts_folder,
    previous,
    read_checkpoint,
    read_latest,
    resume,
    save_checkpoint,
)
from offpcc.training.comparison import check_unchanged
from offpcc.training.experiment import Experiment
from offpcc.training.metrics import Loop
from offpcc.utils.errors import UserError
from offpcc.utils.tensor_files import FileError, write_tensors

ACTIONS = Box(-1, 1, (2,), np.float32)
SPACES = {
    "vectors": Box(-1, 1, (3,), np.float32),
    "images": Box(0, 255, (2, 8, 9), np.uint8),
    "wide": Box(-1, 1, (2_000,), np.float32),
}
BUFFERS = {"rows": ReplayBuffer, "episodes": RecurrentReplayBuffer}


class Counting:
    """In an algorithm's place, which these tests do not need."""

    device = torch.device("cpu")

    def __init__(self):
        self.count = torch.zeros(())

    def state_dict(self):
        return {"count": self.count.clone()}

    def load_state_dict(self, state):
        self.count = state["count"].clone()


class Played:
    """A run without an agent: random episodes of several environments are pushed into a buffer."""

    def __init__(self, kind="rows", look="vectors", num_envs=1, capacity=40, frame_stack=1):
        arguments = {"num_envs": num_envs, "capacity": capacity, "frame_stack": frame_stack}
        self.buffer = BUFFERS[kind](SPACES[look], ACTIONS, **arguments)
        self.learner = Experiment(Counting(), self.buffer, None, None, Loop())
        self.space, self.random, self.num_envs = SPACES[look], np.random.default_rng(3), num_envs
        self.frame_stack = frame_stack
        self.stacks = [None] * num_envs

    def frame(self):
        frame = self.random.integers(0, 255, self.space.shape).astype(self.space.dtype)
        return frame[: len(frame) // self.frame_stack]

    def play(self, num_steps, end=0.2):
        for _ in range(num_steps):
            env, (terminated, truncated) = self.random.integers(self.num_envs), self.random.random(2) < end
            if self.stacks[env] is None:
                self.stacks[env] = [self.frame() for _ in range(self.frame_stack)]
            stack = self.stacks[env]
            following = [*stack[1:], self.frame()]
            action, reward = self.random.uniform(-1, 1, 2), self.random.normal()
            observation, next_observation = np.concatenate(stack), np.concatenate(following)
            self.buffer.push(observation, action, reward, next_observation, terminated, truncated, env=int(env))
            self.stacks[env] = None if terminated or truncated else following
            self.learner.loop.step += 1
            self.learner.algorithm.count += 1
        return self

    def save(self, file):
        save_checkpoint(file, self.learner, "", 1)

    def state(self):
        return flat((self.buffer.state_dict(), self.learner.algorithm.state_dict(), self.learner.loop.step))


def flat(value):
    """All that is in nested state, as something that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items()}
    return [flat(item) for item in value] if isinstance(value, list | tuple) else value


def restored(file, **looks):
    """Another process: what the latest checkpoint brings back, and what is told of it."""
    checkpoint, messages = read_latest(file)
    again = Played(**looks)
    assert resume(checkpoint, again.learner) == []
    return again, messages


@pytest.fixture
def small_pieces(monkeypatch):
    """So that a few steps are many pieces; and no waiting for the disk."""
    for module in (replay, sequence_replay):
        monkeypatch.setattr(module, "CHUNK_BYTES", 128)
    monkeypatch.setattr(os, "fsync", lambda opened: None)


@pytest.fixture
def file(tmp_path, small_pieces):
    return tmp_path / "checkpoint.pt"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


KINDS = pytest.mark.parametrize("kind", BUFFERS)


# What is written --------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("look, frame_stack", [("vectors", 1), ("images", 1), ("images", 2)])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_what_was_saved_piece_by_piece_comes_back_whole(file, kind, look, frame_stack, num_envs):
    looks = {"kind": kind, "look": look, "num_envs": num_envs, "frame_stack": frame_stack}
    run = Played(**looks)
    for num_steps in (0, 1, 7, 20, 40, 3, 90):
        run.play(num_steps).save(file)
        again, messages = restored(file, **looks)
        assert again.state() == run.state() and messages == []
        names = {part.name for checkpoint in (file, previous(file)) if checkpoint.exists()
                 for part in read_checkpoint(checkpoint).parts}  # fmt: skip
        assert {path.name for path in parts_folder(file).iterdir()} == names, "what nothing refers to is left"


@KINDS
def test_only_pieces_that_changed_are_written(file, kind):
    run = Played(kind, capacity=1_000 if kind == "rows" else 100).play(300)
    run.save(file)
    before = {path: path.stat().st_ino for path in parts_folder(file).iterdir()}
    assert len(before) > 30
    run.play(1).save(file)
    new = [path for path in parts_folder(file).iterdir() if before.get(path) != path.stat().st_ino]
    assert len(new) <= 2
    again, _ = restored(file, kind=kind, capacity=run.buffer.capacity)
    again.save(file)  # of which all is there already
    assert all(before.get(p, p.stat().st_ino) == p.stat().st_ino for p in parts_folder(file).iterdir())


@KINDS
def test_a_run_that_was_gone_on_with_writes_the_same_files_as_one_that_was_not(tmp_path, small_pieces, kind):
    whole, parts = (tmp_path / name / "checkpoint.pt" for name in ("whole", "parts"))
    for file in (whole, parts):
        file.parent.mkdir()
    run = Played(kind, capacity=20).play(150)
    run.save(whole)
    other = Played(kind, capacity=20).play(70)
    other.save(parts)
    again, _ = restored(parts, kind=kind, capacity=20)
    again.random, again.stacks = other.random, other.stacks
    again.play(80).save(parts)
    assert flat(read_checkpoint(whole)) == flat(read_checkpoint(parts))
    assert contents(parts_folder(whole)) == {
        parts_folder(whole) / part.name: (parts_folder(parts) / part.name).read_bytes()
        for part in read_checkpoint(parts).parts
    }


@KINDS
def test_a_buffer_that_was_loaded_anew_in_mid_run_is_written_anew(file, kind):
    run, other = Played(kind).play(30), Played(kind).play(5).play(25, end=0.9)
    run.save(file)
    run.buffer.load_state_dict(other.buffer.state_dict())
    run.save(file)
    assert flat(restored(file, kind=kind)[0].buffer.state_dict()) == flat(run.buffer.state_dict())


@KINDS
def test_neither_writing_nor_reading_copies_the_buffer(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(replay, "FIRST_BLOCK", 10)
    looks = {"kind": kind, "look": "wide", "capacity": 2_000}
    run, file = Played(**looks).play(1_700, end=0.01), tmp_path / "checkpoint.pt"
    stored = sum(array.nbytes for piece in run.buffer.chunks() for array in piece.arrays)
    assert stored > 1.3e7
    tracemalloc.start()
    run.save(file)
    writing = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tracemalloc.start()
    again, _ = restored(file, **looks)
    reading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert again.buffer.num_transitions == run.buffer.num_transitions
    assert writing < stored / 4 and reading < 1.5 * stored


def test_the_checkpoint_before_is_kept_with_its_parts(file):
    run, states = Played(), []
    for _ in range(4):
        run.play(30).save(file)
        states.append(run.state())
    file.unlink()
    again, messages = restored(file)
    assert again.state() == states[-2]
    assert messages == [f"{file} does not exist; the run continues from the checkpoint before it, at step 90"]


@KINDS
def test_the_checkpoint_before_is_kept_if_the_buffer_has_no_parts(file, kind):
    """As one of recorded data, or of an agent with memory within its first episode."""
    run = Played(kind)
    for step in (1, 2, 3):
        run.learner.loop.step = step
        run.save(file)
    file.unlink()
    assert restored(file, kind=kind)[0].learner.loop.step == 2


def test_a_checkpoint_that_nobody_vouches_for_is_not_kept(file):
    """Neither this learner wrote it, nor was it put back from it: it may be of another run, or damaged."""
    Played().play(20).save(file)
    run = Played().play(30)
    run.save(file)
    assert not previous(file).exists() and restored(file)[0].state() == run.state()


# What is read -----------------------------------------------------------------------------------------------------


def two_saved(file, kind="rows"):
    """A run with two checkpoints; where it stood at the first."""
    run = Played(kind).play(30)
    run.save(file)
    state = run.state()
    run.play(30).save(file)
    return run, state


def other_parts(file):
    """Parts of the checkpoint alone, which the one before does not need."""
    kept = {part.name for part in read_checkpoint(previous(file)).parts}
    return [parts_folder(file) / part.name for part in read_checkpoint(file).parts if part.name not in kept]


@KINDS
def test_a_changed_byte_is_named_and_the_checkpoint_before_is_used(file, kind):
    _, state = two_saved(file, kind)
    for path in (file, *other_parts(file)):
        data = path.read_bytes()
        for place in {*range(0, len(data), max(len(data) // 6, 1)), len(data) - 1}:
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
            again, (message,) = restored(file, kind=kind)
            assert again.state() == state
            assert str(path) in message and message.endswith(
                "; the run continues from the checkpoint before it, at step 30"
            )
        path.write_bytes(data)
    assert restored(file, kind=kind)[1] == []


def _rewrite(**changes):
    return lambda file, part: write_tensors(file, {**read_checkpoint(file), **changes})


DAMAGE = {
    "empty": (lambda file, part: file.write_bytes(b""), "is no checkpoint of offpcc, or is damaged"),
    "foreign": (lambda file, part: file.write_bytes(b"nonsense"), "is no checkpoint of offpcc, or is damaged"),
    "noise": (lambda file, part: file.write_bytes(bytes(range(256))), "is no checkpoint of offpcc, or is damaged"),
    "cut": (lambda file, part: file.write_bytes(file.read_bytes()[:-500]), "or is damaged"),
    "an actor": (_rewrite(kind="actor"), "not of the kind 'checkpoint' but 'actor'"),
    "newer": (_rewrite(format=99), f"has format 99, but this offpcc reads {CHECKPOINT_FORMAT}"),
    "older": (lambda file, part: torch.save({"kind": "checkpoint", "format": 4}, file), "has format 4"),
    "without its seal": (lambda file, part: torch.save(dict(read_checkpoint(file)), file), "lost its checksum"),
    "of other parts": (_rewrite(buffer={"parts": [["../../secret", 3]]}), "does not list the parts of a replay buffer"),
    "a folder": (lambda file, part: (file.unlink(), file.mkdir()), "not a regular file"),
    "without a part": (lambda file, part: part.unlink(), "is missing"),
    "with a part of another": (lambda file, part: part.write_bytes(bytes(part.stat().st_size)), "is damaged"),
    "with a link": (
        lambda file, part: (part.rename(part.with_suffix(".x")), part.symlink_to(part.with_suffix(".x"))),
        "is not a regular file",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_cannot_be_used_is_named_and_the_checkpoint_before_is(file, name):
    damage, words = DAMAGE[name]
    _, state = two_saved(file)
    damage(file, other_parts(file)[0])
    again, (message,) = restored(file)
    assert words in message and "the run continues from the checkpoint before it, at step 30" in message
    assert again.state() == state
    if file.is_dir():
        return
    again.play(5).save(file)  # it takes the damaged one's place; the good one before stays
    assert restored(file)[0].state() == again.state() and restored(file)[1] == []
    file.unlink()
    assert restored(file)[0].state() == state


@pytest.mark.parametrize("name", DAMAGE)
def test_where_none_can_be_used_one_message_names_both_and_nothing_changes(file, name):
    damage, words = DAMAGE[name]
    two_saved(file)
    damage(file, other_parts(file)[0])
    previous(file).write_bytes(previous(file).read_bytes()[:-1])
    before = contents(file.parent)
    with pytest.raises(UserError) as raised:
        read_latest(file)
    assert all(part in raised.value.message for part in (words, f"{previous(file)}", "start another run"))
    assert contents(file.parent) == before
    previous(file).unlink()
    with pytest.raises(UserError, match="there is no checkpoint before it"):
        read_latest(file)


def test_a_checkpoint_of_another_kind_of_run_is_refused(file):
    Played("rows").play(30).save(file)
    with pytest.raises(UserError, match="does not fit the run"):
        restored(file, kind="episodes")
    with pytest.raises(UserError, match="would be"):
        restored(file, look="images")


def test_a_buffer_that_declares_what_is_not_there_is_refused_before_it_is_allocated(file):
    Played("episodes").play(60).save(file)
    content = dict(read_checkpoint(file))
    content["buffer"]["lengths"][0] = 10**12
    write_tensors(file, content)
    with pytest.raises(UserError, match=r"would be .* bytes, but .* were saved"):
        restored(file, kind="episodes")


def test_a_part_that_changes_between_proof_and_use_is_refused(file):
    run = Played().play(30)
    run.save(file)
    checkpoint = read_checkpoint(file)
    (parts_folder(file) / checkpoint.parts[0].name).write_bytes(bytes(checkpoint.parts[0].num_bytes))
    with pytest.raises(FileError, match="has changed since it was checked"):
        load_buffer(checkpoint, Played().learner)


# Kills ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """In the place of SIGKILL: what comes after it does not happen, clean-up included."""


class Death:
    """Comes at the n-th thing that is done to the disk, half-way through if that is a write."""

    def __init__(self, patch, at):
        self.left, self.is_dead = at, False
        for owner, name in (
            (Path, "replace"), (Path, "unlink"), (Path, "mkdir"), (Path, "open"), (Path, "write_bytes"), (os, "fsync")
        ):  # fmt: skip
            patch.setattr(owner, name, self._deadly(name, getattr(owner, name)))

    def _deadly(self, name, original):
        def call(*arguments, **named):
            self.is_dead = self.is_dead or self.left == 0
            self.left -= 1
            if self.is_dead and self.left == -1 and name == "write_bytes":
                original(arguments[0], arguments[1][: len(arguments[1]) // 2])
            if self.is_dead and self.left == -1 and name == "open":
                original(*arguments, **named).close()
            if self.is_dead:
                raise Killed
            return original(*arguments, **named)

        return call


def save_and_die(run, file, at):
    """Whether the process died while it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        Death(patch, at)
        try:
            run.save(file)
        except Killed:
            return True
    return False


@KINDS
def test_killed_at_any_step_of_writing_a_run_goes_on_from_the_latest_or_the_one_before(tmp_path, small_pieces, kind):
    told = set()
    for at in itertools.count():
        file = tmp_path / str(at) / "checkpoint.pt"
        file.parent.mkdir()
        run, _ = two_saved(file, kind)
        before = run.state()
        died = save_and_die(run.play(9), file, at)
        again, messages = restored(file, kind=kind)
        assert again.state() in (before, run.state()), at
        told |= set(messages)
        again.play(11).save(file)
        assert restored(file, kind=kind)[0].state() == again.state()
        assert not list(parts_folder(file).glob(".*"))
        shutil.rmtree(file.parent)
        if not died:
            break
    assert at > 15 and again.state() != before
    assert len(told) == 1, "killed between the two renames, the one before is used"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(BUFFERS)),
    look=st.sampled_from([("vectors", 1), ("images", 1), ("images", 2)]),
    num_envs=st.integers(1, 3),
    capacity=st.integers(9, 40),
    acts=st.lists(st.tuples(st.integers(0, 25), st.none() | st.integers(0, 30)), min_size=1, max_size=6),
)
def test_whatever_is_pushed_and_whenever_it_dies_there_is_a_whole_checkpoint(
    tmp_path_factory, small_pieces, kind, look, num_envs, capacity, acts
):
    """Pushes, wraps and environments; each act pushes, then saves, and may die in it and go on from what is there."""
    looks = {"kind": kind, "look": look[0], "frame_stack": look[1], "num_envs": num_envs, "capacity": capacity}
    file = tmp_path_factory.mktemp("run") / "checkpoint.pt"
    run, latest = Played(**looks), None
    for num_steps, dies_at in acts:
        run.play(num_steps)
        here = run.state()
        if dies_at is None or not save_and_die(run, file, dies_at):
            if dies_at is None:
                run.save(file)
            latest = here
            assert restored(file, **looks)[0].state() == latest
        elif latest is None and not os.path.lexists(file):
            run = Played(**looks)
        else:
            random = run.random
            run, _ = restored(file, **looks)
            assert run.state() in (latest, here)
            latest, run.random = run.state(), random
    shutil.rmtree(file.parent)


def unchanged(before, now):
    """Compare two configs that bind all their values."""
    old, new = plain_values(before), plain_values(now)
    return check_unchanged(old, new, old, new)


@pytest.mark.parametrize("owner", ["ReplayBuffer", "RecurrentReplayBuffer"])
@pytest.mark.parametrize("before", ["", "\n{}.on_device = True"])
def test_where_a_buffer_is_copied_to_may_change(owner, before):
    """It moves no number, and a run may have been begun before there was a choice."""
    known = f"{owner}.batch_size = 5"
    assert unchanged(known + before.format(owner), f"{known}\n{owner}.on_device = None") == []
    with pytest.raises(UserError, match="batch_size is 6"):
        unchanged(known, f"{owner}.batch_size = 6")


def test_another_memory_is_refused_by_its_choice_and_not_by_its_parameters():
    of_lstm = "LSTM.forget_bias = 0.0\nRecurrent.cell = 'lstm'"
    for now in ("Recurrent.cell = 'gru'", "GPT.num_heads = 4\nRecurrent.cell = 'gpt'"):
        with pytest.raises(UserError, match=r"Recurrent.cell is 'g\w+', but the run was made with 'lstm'"):
            unchanged(of_lstm, now)


def test_a_binding_by_a_macro_counts_by_the_macros_value():
    known = "lr = 0.001\nSAC.lr = %lr"
    assert unchanged(known, "rate = 1e-3\nSAC.lr = %rate") == []
    with pytest.raises(UserError, match=r"SAC.lr is 0.1, but the run was made with 0.001"):
        unchanged(known, "lr = 0.1\nSAC.lr = %lr")
