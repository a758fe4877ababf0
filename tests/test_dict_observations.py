"""Dict observations: packing, networks, environments, buffers, actors, resuming and learning."""

from __future__ import annotations

import copy
import functools
import pickle

import dict_task
import gymnasium
import numpy as np
import pytest
import torch
from exact_resume import assert_resumes_exactly
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import offpcc
from offpcc.algorithms.agent import load_actor
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.config.registry import from_specification, specification
from offpcc.core import DictShape, PackedDict
from offpcc.data.checks.check import examine_dataset
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import guarded
from offpcc.envs.make import UnsuitableEnvironment, make
from offpcc.envs.wrappers import Concatenate, DropIndices, Flicker, ObservationNoise
from offpcc.networks import Convolutional, InputShape, Recurrent
from offpcc.networks.encoders import Inputs
from offpcc.training.spec import RunSpec
from offpcc.utils.errors import UserError
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING

# Packing --------------------------------------------------------------------------------------------------------------

ENTRIES = st.one_of(
    st.builds(spaces.Box, st.just(-5.0), st.just(5.0), st.sampled_from([(), (3,), (2, 2)]), st.just(np.float32)),
    st.builds(spaces.Box, st.just(0), st.just(255), st.sampled_from([(8, 9, 3), (1, 8, 8), (4,)]), st.just(np.uint8)),
    st.builds(spaces.Box, st.just(-7), st.just(7), st.just((2,)), st.just(np.int64)),
    st.builds(spaces.Discrete, st.integers(1, 4), start=st.integers(-2, 2)),
    st.builds(spaces.MultiBinary, st.integers(1, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 3), min_size=1, max_size=3)),
)
DICTS = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), ENTRIES, min_size=1, max_size=4).map(spaces.Dict),
    lambda inner: st.builds(lambda one, two: spaces.Dict({"in": one, **dict(two)}), inner, inner),
    max_leaves=2,
)


def flat(observation, prefix=""):
    for key, value in observation.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def plain(space, value):
    """An entry as the networks should see it: numbers, one-hot choices, pixels in [0, 1] with channels first."""
    value = np.asarray(value)
    if isinstance(space, spaces.Discrete):
        return [float(place == value - space.start) for place in range(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [float(place == one) for one, n in zip(value, space.nvec, strict=True) for place in range(n)]
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3:
        value = value if space.shape[0] == 1 else np.moveaxis(value, -1, 0)
        return (value / np.float32(255)).astype(np.float32).ravel().tolist()
    return value.astype(np.float32).ravel().tolist()


@settings(max_examples=60, deadline=None)
@given(DICTS, st.integers(0, 2**31))
def test_packed_observations_hold_every_entry(space, seed):
    space.seed(seed)
    packed, samples = PackedDict(space), [space.sample() for _ in range(3)]
    rows = np.stack([packed.pack(sample) for sample in samples])
    assert rows.dtype == np.uint8 and rows.shape == (3, *packed.shape) and all(packed.contains(row) for row in rows)
    unpacked = packed.unpack(rows)
    torch.testing.assert_close(packed.unpack(torch.from_numpy(rows)), torch.from_numpy(unpacked))
    assert unpacked.dtype == np.float32 and unpacked.shape[1:] == packed.unpacked_shape
    shape, kinds = packed.unpacked_shape, kinds_of(space)
    for sample, row in zip(samples, unpacked, strict=True):
        entries = dict(flat(sample))
        for part in (*shape.vectors, *shape.images):
            np.testing.assert_allclose(row[part.columns], plain(kinds[part.key], entries[part.key]), rtol=1e-6)
    assert {part.key for part in (*shape.vectors, *shape.images)} == set(kinds)
    many = {key: np.stack([dict(flat(sample))[key] for sample in samples]) for key in kinds}
    np.testing.assert_array_equal(packed.pack(many, (3,)), rows)


def kinds_of(space, prefix=""):
    found = {}
    for key, entry in space.items():
        found |= kinds_of(entry, f"{prefix}{key}/") if isinstance(entry, spaces.Dict) else {f"{prefix}{key}": entry}
    return found


def test_the_parts_can_be_split_and_packed_again():
    packed = PackedDict(dict_task.DictTarget.observation_space)
    env = dict_task.DictTarget()
    observation, _ = env.reset(seed=1)
    parts = packed.split(packed.pack(observation)[None])
    assert parts["camera"].shape == (1, 3, 16, 16) and parts["camera"].dtype == np.uint8
    np.testing.assert_array_equal(parts["camera"][0], np.moveaxis(observation["camera"], -1, 0))
    np.testing.assert_array_equal(parts["place"][0], observation["place"].astype(np.float32))
    np.testing.assert_array_equal(parts["mirrored"][0], np.eye(2)[observation["mirrored"] - 1])


def test_spaces_and_shapes_can_be_copied_and_written():
    space = PackedDict(dict_task.DictTarget.observation_space)
    for again in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert again == space and again.unpacked_shape == space.unpacked_shape
        assert again.unpacked_shape.images == space.unpacked_shape.images
    assert isinstance(copy.deepcopy(space.unpacked_shape), DictShape)
    assert PackedDict(from_specification(specification(space))) == space
    assert space != PackedDict(spaces.Dict(place=spaces.Box(-1, 1, (space.shape[0],))))


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict(name=spaces.Text(5)), "entry 'name' of a Dict observation is a text"),
        (spaces.Dict(), "no numbers"),
        (spaces.Dict(x=spaces.Box(-1, 1, (0,))), "no numbers"),
        (spaces.Dict(x=spaces.MultiBinary(2**27)), "more than 67,108,864"),
    ],
)
def test_a_dict_that_cannot_be_packed_is_refused(space, words):
    with pytest.raises(UserError, match=words):
        PackedDict(space)


# Environments ---------------------------------------------------------------------------------------------------------


def test_make_gives_the_dict_and_packs_it_for_training():
    observation, _ = make(dict_task.NAME).reset(seed=3)
    env = make(dict_task.NAME, scale_actions=True)
    packed, _ = env.reset(seed=3)
    assert set(observation) == {"camera", "place", "mirrored"}
    np.testing.assert_array_equal(packed, env.observation_space.pack(observation))


def broken(change):
    class Broken(dict_task.DictTarget):
        def _observation(self):
            return change(super()._observation())

    return Broken


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: {**seen, "place": [np.nan]}, "returned an observation in which 'place' holds nan"),
        (lambda seen: {**seen, "place": np.zeros(2)}, r"'place' is float64 of shape \(2,\), but its space is Box"),
        (lambda seen: {**seen, "camera": seen["camera"] / 255}, r"'camera' is float64 of shape \(16, 16, 3\), but"),
        (lambda seen: {**seen, "mirrored": 0}, "'mirrored' holds a choice outside of its space, Discrete"),
        (lambda seen: {**seen, "mirrored": 1.0}, "'mirrored' is float64, but its space, Discrete.* has integers"),
        (lambda seen: {"camera": seen["camera"], "place": seen["place"]}, "'mirrored' is missing"),
        (lambda seen: seen["place"], "returned .* for an observation, but its space is a Dict"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(change, words):
    name = "BrokenDict-v0"
    gymnasium.register(name, entry_point=broken(change), max_episode_steps=10, disable_env_checker=True)
    try:
        env = guarded(make(name, scale_actions=True))
        with pytest.raises(EnvironmentFault, match=words):
            env.reset(seed=1)
    finally:
        del gymnasium.registry[name]


def test_a_dict_without_an_info_is_named():
    class Alone(dict_task.DictTarget):
        observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (2,)))

        def reset(self, *, seed=None, options=None):
            return {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}

    env = guarded(make(Alone, scale_actions=True))
    with pytest.raises(EnvironmentFault, match=r"returned a Dict alone, .*return .*\(observation, info\) from reset"):
        env.reset(seed=1)


def test_an_unsuitable_entry_is_named():
    class Texts(dict_task.DictTarget):
        observation_space = spaces.Dict(name=spaces.Text(5))

    gymnasium.register("Texts-v0", entry_point=Texts)
    try:
        with pytest.raises(UnsuitableEnvironment, match="Texts-v0: the entry 'name' of a Dict observation"):
            make("Texts-v0")
    finally:
        del gymnasium.registry["Texts-v0"]


# Networks -------------------------------------------------------------------------------------------------------------


def test_the_convolutional_encoder_joins_images_and_vectors():
    packed = PackedDict(dict_task.DictTarget.observation_space)
    encoder = Convolutional(InputShape(packed.unpacked_shape, 2), use_previous_action=True)
    alone = Convolutional(InputShape((3, 16, 16), 2))
    alone.convolutions, alone.features = encoder.images[0]
    env = dict_task.DictTarget()
    seen = [env.reset(seed=seed)[0] for seed in range(6)]
    rows = torch.from_numpy(np.stack([packed.pack(one) for one in seen])).view(2, 3, -1)
    frames = torch.from_numpy(np.stack([one["camera"] for one in seen])).movedim(-1, 1).view(2, 3, 3, 16, 16)
    actions, rewards = torch.randn(2, 3, 2), torch.zeros(2, 3, 1)
    h, _ = encoder(Inputs(packed.unpack(rows), actions, rewards))
    assert h.shape == (2, 3, encoder.dim) and encoder.dim == 50 + 3 + 2
    torch.testing.assert_close(h[..., :50], alone(Inputs(frames, actions, rewards))[0])
    torch.testing.assert_close(h[..., 50:53], packed.unpack(rows)[..., :3])
    torch.testing.assert_close(h[..., 53:], actions)


@pytest.mark.parametrize(
    ("algo", "space", "words"),
    [
        (
            "sac",
            dict_task.DictTarget.observation_space,
            "entries that are images.*choose the convolutional algorithm, with a c",
        ),
        (
            "csac",
            spaces.Dict(x=spaces.Box(-1, 1, (3,))),
            "a Dict without images.*choose an algorithm without convolutions",
        ),
    ],
)
def test_an_encoder_that_does_not_suit_is_refused(algo, space, words):
    with pytest.raises(UserError, match=words):
        offpcc.algorithms.find_algorithm(algo)(space, spaces.Box(-1, 1, (1,)))


VECTORS = spaces.Dict(x=spaces.Box(-1, 1, (3,)))


@pytest.mark.parametrize(
    ("algo", "other"),
    [("rcql", "crcql"), ("rsac_s", "crsac_s"), ("rdpg", "crdpg"), ("cql", "ccql"), ("ccql", "cql"), ("crcql", "rcql")],
)
def test_the_algorithm_that_suits_is_named(algo, other):
    actions = spaces.Box(-1, 1, (1,))
    space = dict_task.DictTarget.observation_space if other == f"c{algo}" else VECTORS
    with pytest.raises(UserError, match=f"in place of {algo}, choose {other}$"):
        offpcc.algorithms.find_algorithm(algo)(space, actions)
    offpcc.algorithms.find_algorithm(other)(space, actions)


IMAGES = spaces.Box(0, 255, (24, 24, 3), np.uint8)


@pytest.mark.parametrize(
    "space", [IMAGES, dict_task.DictTarget.observation_space, VECTORS], ids=["image", "both", "no"]
)
@pytest.mark.parametrize("algo", ["bc", "cbc", "dbc", "cdbc", "rbc", "crbc_s", "rdqn", "crdqn", "r2d2", "rdpg", "mopo"])
def test_the_algorithm_for_other_actions_suits_the_observations_too(algo, space):
    cls = offpcc.algorithms.find_algorithm(algo)
    actions = spaces.Box(-1, 1, (1,)) if cls.is_discrete else spaces.Discrete(3)
    with pytest.raises(UserError, match="actions; choose") as caught:
        cls(space, actions)
    proposed = caught.value.message.partition("actions; choose ")[2].partition(",")[0]
    built = offpcc.algorithms.find_algorithm(proposed)(space, actions)
    assert built.memoryless is (TABLE[algo].memory is None)


def test_an_algorithm_with_a_model_names_no_convolutions():
    with pytest.raises(UserError, match=r"MOPO learns in a model, which needs vectors, .* such as ccql$"):
        offpcc.algorithms.MOPO(dict_task.DictTarget.observation_space, spaces.Box(-1, 1, (1,)))


def test_no_other_algorithm_is_named_where_an_encoder_is_bound():
    with pytest.raises(UserError, match="needs images") as caught:
        offpcc.algorithms.find_algorithm("rsac")(VECTORS, spaces.Box(-1, 1, (1,)), encoder=Convolutional)
    assert "in place of" not in caught.value.message


def batch_of(agent, seed=0):
    """A batch of two sequences of three steps from the task."""
    env, rows = dict_task.DictTarget(), []
    for number in range(8):
        rows.append(agent.packed.pack(env.reset(seed=seed + number)[0]))
    observations = torch.from_numpy(np.stack(rows)).view(2, 4, -1)
    one = torch.ones(2, 4, 1)
    from offpcc.core import Batch

    actions = torch.rand(2, 3, 2) * 2 - 1
    return Batch(
        observations, actions, torch.rand(2, 3, 1), torch.zeros(2, 3, 1), one, one[:, 1:], actions[:, 0], one[:, 0]
    )


def test_normalisation_is_for_the_vectors_and_shifts_are_for_the_images():
    space, actions = dict_task.DictTarget.observation_space, dict_task.DictTarget.action_space
    agent = offpcc.algorithms.find_algorithm("crsac")(space, actions, normalize_observations=True, seed=1)
    batch = batch_of(agent)
    raw, prepared = agent.packed.unpack(batch.observations), agent.prepare(batch).observations
    counted = raw[:, :-1, :3].flatten(0, 1)
    expected = (raw[..., :3] - counted.mean(0)) / (counted.var(0, unbiased=False) + 1e-8).sqrt()
    torch.testing.assert_close(prepared[..., :3], expected.clamp(-10, 10), rtol=1e-3, atol=1e-3)
    images, shifted = (x[..., 3:].view(2, 4, 3, 16, 16) for x in (raw, prepared))
    assert not torch.equal(images, shifted)
    # The stripe is vertical, so a shift moves its column only; the pixels' values stay.
    assert set(shifted.unique().tolist()) <= set(images.unique().tolist())
    calm = agent.prepare(batch, learns=False).observations
    torch.testing.assert_close(calm[..., 3:], raw[..., 3:])


@pytest.mark.parametrize("algo", ["csac", "crtd3", "crsac_s", "cddpg", "cbc", "ccql", "criql", "cbcq", "ctd3_bc"])
def test_every_algorithm_updates_from_dict_observations(algo):
    space, actions = dict_task.DictTarget.observation_space, dict_task.DictTarget.action_space
    agent = offpcc.algorithms.find_algorithm(algo)(space, actions, hidden_dims=(16, 16), seed=1)
    batch = batch_of(agent)
    if agent.memoryless:
        batch = batch._replace(
            observations=batch.observations[:, :2], actions=batch.actions[:, :1], rewards=batch.rewards[:, :1],
            terminations=batch.terminations[:, :1], valid=batch.valid[:, :2], loss_mask=batch.loss_mask[:, :1],
        )  # fmt: skip
    before = [p.clone() for p in agent.actor.parameters()]
    for _ in range(3):
        stats = agent.update_networks(batch)
    assert all(torch.isfinite(value).all() for value in stats.values())
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.actor.parameters(), strict=True))


def test_vectors_alone_need_no_convolutions():
    space = spaces.Dict(x=spaces.Box(-1, 1, (3,)), choice=spaces.Discrete(3))
    agent = offpcc.algorithms.find_algorithm("rsac")(space, spaces.Box(-1, 1, (1,)), seed=1)
    assert agent.observation_shape == (6,)
    acting = offpcc.Agent(agent)
    first = acting.act({"x": np.zeros(3), "choice": 0})
    acting.reset()
    assert not np.array_equal(acting.act({"x": np.zeros(3), "choice": 1}), first)


# Buffers, actors and runs ---------------------------------------------------------------------------------------------

QUICK = {
    "num_epochs": 2, "num_steps_per_epoch": 60, "update_after": 30, "updates_per_step": 0.2,
    "num_test_episodes_per_epoch": 1,
}  # fmt: skip


@pytest.mark.parametrize("algo", ["csac", "crsac"])
def test_storage_takes_what_the_entries_take(algo):
    experiment = offpcc.build(dict_task.NAME, algo, seed=1)
    entries = 16 * 16 * 3 + 4 * (1 + 2)
    assert experiment.buffer.bytes_per_frame == entries
    assert experiment.buffer.bytes_per_step <= 1.05 * (entries + 4 * 2 + 4 + 4)


@pytest.mark.parametrize("algo", ["csac", "crsac"])
def test_what_a_buffer_holds_is_what_its_entries_take(algo):
    """The arrays themselves, with the last observation of each episode."""
    buffer = offpcc.build(dict_task.NAME, algo, seed=1).buffer
    env = make(dict_task.NAME, scale_actions=True)
    before, num_episodes = sum(array.nbytes for chunk in buffer.chunks() for array in chunk.arrays), 60
    for _ in range(num_episodes):
        (observation, _), over, is_first = env.reset(seed=3), False, True
        while not over:
            following, reward, _, over, _ = env.step(np.zeros(2, np.float32))
            buffer.push(observation, np.zeros(2), reward, following, False, over, is_first=is_first)
            observation, is_first = following, False
    held = sum(array.nbytes for chunk in buffer.chunks() for array in chunk.arrays) - before
    entries, of_step = 16 * 16 * 3 + 4 * (1 + 2), 4 * 2 + 4
    assert held <= 1.05 * num_episodes * (11 * entries + 10 * of_step)
    data = offpcc.Dataset.from_episodes(played(60), observation_space=dict_task.DictTarget.observation_space)
    assert data.num_bytes <= 1.05 * num_episodes * (11 * entries + 10 * of_step)


@pytest.mark.parametrize("algo", ["csac", "crsac"])
def test_a_run_resumes_exactly_and_its_actor_acts_alike(algo, tmp_path):
    def spec(epochs):
        bindings = [f"train.{key} = {value}" for key, value in {**QUICK, "num_epochs": epochs}.items()]
        buffer = {"csac": "ReplayBuffer", "crsac": "RecurrentReplayBuffer"}[algo]
        loading.load_gin_config(None, [*bindings, f"{buffer}.batch_size = 4"])
        return RunSpec.make(dict_task.NAME, algo, seed=2, algorithm={"hidden_dims": (16, 16)})

    whole = assert_resumes_exactly(spec, tmp_path)

    env = gymnasium.make(dict_task.NAME)
    agent, again = offpcc.Agent.load(whole / "actor_last.pt"), load_actor(whole / "actor_last.pt")
    observation, _ = env.reset(seed=4)
    action = agent.act(observation)
    assert env.action_space.contains(action.astype(np.float32))
    agent.reset()
    np.testing.assert_array_equal(agent.act(again.packed.pack(observation)), action)


def test_a_run_from_data_resumes_exactly(tmp_path):
    data = offpcc.Dataset.from_episodes(played(20), observation_space=dict_task.DictTarget.observation_space)

    def spec(epochs):
        settings = {"num_epochs": epochs, "num_steps_per_epoch": 4, "num_test_episodes_per_epoch": 1}
        bindings = [f"train.{key} = {value}" for key, value in settings.items()]
        loading.load_gin_config(None, [*bindings, "RecurrentReplayBuffer.batch_size = 4"])
        return RunSpec.make(dict_task.NAME, "crcql", dataset=data, seed=2, algorithm={"hidden_dims": (16, 16)})

    assert_resumes_exactly(spec, tmp_path)


def test_an_agent_of_arrays_refuses_a_dict():
    agent = offpcc.Agent(offpcc.algorithms.find_algorithm("sac")(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,))))
    with pytest.raises(ValueError, match=r"act got a Dict observation, but this agent needs arrays of shape \(2,\)"):
        agent.act({"x": np.zeros(2)})


@pytest.mark.parametrize(
    ("hidden", "lowest", "highest"), [(None, -0.5, 0), ("camera", -6, -4.5), ("place", -6, -4.5), ("mirrored", -12, -8)]
)
def test_the_task_needs_every_entry(hidden, lowest, highest):
    """The best policy without an entry takes the median, 0, of each coordinate that it does not know."""
    env, returns = gymnasium.make(dict_task.NAME), []
    for seed in range(100):
        (seen, _), over, total = env.reset(seed=seed), False, 0.0
        while not over:
            column = float(seen["camera"][0, :, 0].argmax())
            target = np.array([(column + 0.5) / 7.0 - 1.0, float(seen["place"][0])])
            target *= {"camera": (0, 1), "place": (1, 0), "mirrored": (0, 0)}.get(hidden, (1, 1))
            seen, reward, _, over, _ = env.step(3.0 * target * (1 if seen["mirrored"] == 1 else -1))
            total += float(reward)
        returns.append(total)
    assert lowest < np.mean(returns) < highest


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.parametrize("algo", ["csac", "crsac"])
def test_a_task_that_needs_image_vector_and_flag_is_learned(algo):
    """Blind agents lose 1 a step: 0.5 for each coordinate they do not know."""
    experiment = offpcc.build(dict_task.NAME, algo, seed=1, algorithm={"hidden_dims": (64, 64)})
    experiment.train(
        num_epochs=6, num_steps_per_epoch=500, update_after=500, updates_per_step=1, num_test_episodes_per_epoch=20
    )
    returns = [row["test/return"] for row in experiment.loop.rows]
    assert max(returns) > -4.0, returns


# Recorded data --------------------------------------------------------------------------------------------------------


def recorded(tmp_path, name="target.hdf5", steps=300):
    """A recording of random actions in the task, and the arrays that a user would have of it."""
    from offpcc.cli.main import main

    file = tmp_path / name
    arguments = ["collect", "--env", dict_task.NAME, "--actor", "random", "--steps", str(steps), "--out", str(file)]
    assert main([*arguments, "--import", "dict_task"]) == 0
    return file


def played(num_episodes=30, seed=0):
    """Episodes of random actions, with observations by key, as a user's own loop makes them."""
    env, generator, episodes = gymnasium.make(dict_task.NAME), np.random.default_rng(seed), []
    for number in range(num_episodes):
        seen, actions, rewards, over = [env.reset(seed=seed + number)[0]], [], [], False
        while not over:
            actions.append(generator.uniform(-3, 3, 2).astype(np.float32))
            observation, reward, _, over, _ = env.step(actions[-1])
            seen.append(observation)
            rewards.append(reward)
        observations = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
        episodes.append({"observations": observations, "actions": actions, "rewards": rewards, "terminated": False})
    return episodes


def test_a_recording_has_an_array_for_each_entry_and_is_read_again(tmp_path):
    import h5py

    file = recorded(tmp_path)
    space = PackedDict(dict_task.DictTarget.observation_space)
    with h5py.File(file) as content:
        assert content["observations/camera"].shape == (300, 3, 16, 16)
        assert content["observations/mirrored"].shape == (300, 2) and content["observations/place"].shape == (300, 1)
        parts = {key: content[f"observations/{key}"][:] for key in content["observations"]}
    data = offpcc.data.load_dataset(file)
    assert data.observation_space.is_like(space) and data.num_transitions == 300
    for key, part in space.split(data.observations).items():
        np.testing.assert_array_equal(part, parts[key])
    whole = offpcc.qlearning_dataset(data)
    np.testing.assert_array_equal(whole["observations"]["camera"], parts["camera"])


def test_a_recording_can_be_gone_on_with(tmp_path):
    from offpcc.cli.main import main

    arguments = ["collect", "--env", dict_task.NAME, "--actor", "random", "--import", "dict_task", "--out"]
    whole, parts = tmp_path / "whole.hdf5", tmp_path / "parts.hdf5"
    assert main([*arguments, str(whole), "--steps", "120"]) == 0
    for extra in (["--steps", "55"], ["--steps", "120", "--resume"]):
        assert main([*arguments, str(parts), *extra]) == 0
    assert whole.read_bytes() == parts.read_bytes()


@pytest.mark.parametrize("kind", ["hdf5", "npz", "arrays", "episodes"])
def test_data_of_the_users_are_read_alike(kind, tmp_path):
    import h5py

    episodes, space = played(), dict_task.DictTarget.observation_space
    hot = [
        {**one, "observations": {**one["observations"], "mirrored": np.eye(2)[one["observations"]["mirrored"] - 1]}}
        for one in episodes
    ]
    columns = {
        f"observations/{key}": np.concatenate([one["observations"][key][:-1] for one in hot]) for key in space
    } | {f"next_observations/{key}": np.concatenate([one["observations"][key][1:] for one in hot]) for key in space}
    columns |= {key: np.concatenate([one[key] for one in hot]) for key in ("actions", "rewards")}
    columns["terminals"], columns["timeouts"] = np.zeros((2, 300), bool)
    columns["timeouts"][9::10] = True
    expected = offpcc.Dataset.from_episodes(episodes, observation_space=space)
    if kind == "episodes":
        data = offpcc.Dataset.from_episodes(hot)
    elif kind == "arrays":
        given = {key: value for key, value in columns.items() if "/" not in key}
        for name in ("observations", "next_observations"):
            given[name] = {key: columns[f"{name}/{key}"] for key in space}
        data = offpcc.Dataset.from_arrays(**given)
    elif kind == "npz":
        np.savez(tmp_path / "data.npz", **columns)
        data = offpcc.data.load_dataset(tmp_path / "data.npz")
    else:
        with h5py.File(tmp_path / "data.hdf5", "w") as file:
            for key, value in columns.items():
                file[key] = value
        data = offpcc.data.load_dataset(tmp_path / "data.hdf5")
    np.testing.assert_array_equal(data.observations, expected.observations)
    np.testing.assert_array_equal(data.final_observations, expected.final_observations)
    assert data.num_transitions == expected.num_transitions == 300


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda seen: {
                **seen,
                "place": np.where(np.arange(len(seen["place"]))[:, None] == 3, np.nan, seen["place"]),
            },
            r"episode 0: observations: 'place'\[3, 0\] is nan \(as float32\); leave its episode out",
        ),
        (lambda seen: {**seen, "place": seen["place"][:-1]}, "all entries are to be of one length"),
        (lambda seen: {key: value for key, value in seen.items() if key != "camera"}, "'camera' is missing"),
        (lambda seen: {**seen, "mirrored": seen["mirrored"] + 5}, "'mirrored' holds a choice outside of its space"),
        (
            lambda seen: {**seen, "camera": seen["camera"] / 255.0},
            r"'camera' is float64 .* but its space is .*uint8\); correct the recording, or observation_space",
        ),
        (lambda seen: {**seen, "place": seen["place"].astype(str)}, "holds <U.*no numbers"),
        (lambda seen: seen["place"], "one array, but the observation space is a Dict"),
    ],
)
def test_unfit_data_are_refused_in_one_message(change, words):
    episodes = played(2)
    episodes[0]["observations"] = change(episodes[0]["observations"])
    with pytest.raises(UserError, match=words):
        offpcc.Dataset.from_episodes(episodes, observation_space=dict_task.DictTarget.observation_space)


def test_data_and_environment_must_have_the_same_entries():
    space = dict_task.DictTarget.observation_space
    data = offpcc.Dataset.from_episodes(played(12), observation_space=space)
    with pytest.raises(UserError, match=r"Dict observations \(mirrored \(2,\), .*\), but those of pendulum-p"):
        offpcc.build("pendulum-p-v0", "cbc", dataset=replace_actions(data))
    fewer = [{**one, "observations": {"place": one["observations"]["place"]}} for one in played(12)]
    with pytest.raises(UserError, match=r"observations \(place \(1,\)\), but DictTarget-v0 has a Dict.*these keys"):
        offpcc.build(dict_task.NAME, "cbc", dataset=offpcc.Dataset.from_episodes(fewer))


def test_wrappers_of_recorded_dict_observations_are_refused_with_the_remedy():
    data = offpcc.Dataset.from_episodes(played(12), observation_space=dict_task.DictTarget.observation_space)
    kept = functools.partial(gymnasium.wrappers.FilterObservation, filter_keys=["place"])
    with pytest.raises(UserError, match="wrappers are not applied to recorded Dict observations: record through"):
        offpcc.build(dict_task.NAME, "bc", dataset=data, make={"wrappers": [kept]})


def replace_actions(data):
    import dataclasses

    return dataclasses.replace(data, actions=data.actions[:, :1])


@pytest.mark.parametrize("algo", ["cbc", "crcql"])
def test_agents_learn_from_data_with_and_without_the_environment(algo, tmp_path):
    file = recorded(tmp_path)
    small = {"algorithm": {"hidden_dims": (16, 16)}, "buffer": {"batch_size": 8}}
    settings = {"num_epochs": 1, "num_steps_per_epoch": 3, "num_test_episodes_per_epoch": 1}
    for env in (dict_task.NAME, None):
        experiment = offpcc.build(env, algo, dataset=file, seed=1, **small)
        normalization = experiment.algorithm.normalization
        assert normalization is not None and normalization.mean.shape == (3,)
        numbers = experiment.recording.rows.observations[experiment.recording.rows.is_start][:, :12].copy()
        expected = numbers.view(np.float32).astype(np.float64).mean(0)
        np.testing.assert_allclose(normalization.mean.numpy(), expected, rtol=1e-5, atol=1e-6)
        agent = experiment.train(**settings)
        observation, _ = gymnasium.make(dict_task.NAME).reset(seed=3)
        if env is None:  # then choices are known as they are recorded, one-hot
            observation["mirrored"] = np.eye(2)[observation["mirrored"] - 1]
            observation["camera"] = np.moveaxis(observation["camera"], -1, 0)
        assert np.isfinite(agent.act(observation)).all()


def test_agents_without_convolutions_learn_from_a_dict_of_vectors():
    class Numbers(dict_task.DictTarget):
        observation_space = spaces.Dict({**dict_task.DictTarget.observation_space})
        del observation_space.spaces["camera"]

        def _observation(self):
            return {key: value for key, value in super()._observation().items() if key != "camera"}

    gymnasium.register("Numbers-v0", entry_point=Numbers, max_episode_steps=10)
    try:
        kept = [
            {**one, "observations": {key: one["observations"][key] for key in ("place", "mirrored")}}
            for one in played()
        ]
        data = offpcc.Dataset.from_episodes(kept, observation_space=Numbers.observation_space)
        small = {"algorithm": {"hidden_dims": (16, 16)}, "buffer": {"batch_size": 8}}
        experiment = offpcc.build("Numbers-v0", "rcql", dataset=data, seed=1, **small)
        before = [p.clone() for p in experiment.algorithm.actor.parameters()]
        agent = experiment.train(num_epochs=1, num_steps_per_epoch=3, num_test_episodes_per_epoch=1)
        after = experiment.algorithm.actor.parameters()
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert np.isfinite(agent.act(gymnasium.make("Numbers-v0").reset(seed=3)[0])).all()
    finally:
        del gymnasium.registry["Numbers-v0"]


def test_the_doctors_read_dict_observations(tmp_path, capsys):
    from offpcc.cli.main import main

    file = recorded(tmp_path, steps=3_000)
    capsys.readouterr()
    assert main(["check", "--dataset", str(file), "--env", dict_task.NAME, "--import", "dict_task"]) == 0
    assert "the agent in DictTarget-v0 sees the Dict that was recorded (" in capsys.readouterr().out
    assert main(["check", "--env", dict_task.NAME, "--import", "dict_task"]) == 0
    assert "no fault" in capsys.readouterr().out


def columns(**changes):
    """Arrays of 300 steps in episodes of 10, with an entry of each kind, as a user has them; some of them changed."""
    random = np.random.default_rng(0)
    observations = {
        "camera": random.integers(0, 256, (300, 8, 9, 3), np.uint8),
        "place": random.normal(size=(300, 2)).astype(np.float32),
        "hot": np.eye(3, dtype=np.float32)[random.integers(0, 3, 300)],
        **changes,
    }
    ends = np.arange(300) % 10 == 9
    return {
        "observations": {key: value for key, value in observations.items() if value is not None},
        "actions": random.uniform(-1, 1, (300, 1)), "rewards": random.normal(size=300),
        "terminations": ends & (np.arange(300) % 20 == 9), "truncations": ends & (np.arange(300) % 20 == 19),
    }  # fmt: skip


def observed(data):
    return [finding for finding in examine_dataset(data).findings if finding.check == "observed"]


def test_the_check_of_data_looks_at_every_entry():
    data = offpcc.Dataset.from_arrays(**columns())
    (finding,) = observed(data)
    assert finding.level == OK
    assert "'camera' is uint8 of shape (3, 8, 9), from 0 to 255" in finding.found
    assert "'hot' is float32 of shape (3,), from 0 to 1; 'place' is float32 of shape (2,), from -" in finding.found
    names = [spread.what for spread in examine_dataset(data).spreads]
    assert names[3:] == ["'hot' 0", "'hot' 1", "'hot' 2", "'place' 0", "'place' 1", "'camera'", "action 0"]
    sizes = {finding.check: finding.found for finding in examine_dataset(data).findings}["size"]
    assert f"{data.num_bytes:,} bytes" in sizes


STILL = np.broadcast_to(np.arange(8 * 9 * 3, dtype=np.uint8).reshape(8, 9, 3), (300, 8, 9, 3))


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"camera": STILL}, WARNING, ["'camera': no pixel ever changes", "remove them from the data"]),
        ({"camera": STILL % 2}, WARNING, ["'camera': no pixel ever changes"]),
        ({"camera": columns()["observations"]["camera"] // 128}, WARNING, ["'camera': no pixel is above 1", "by 255"]),
        ({"place": np.ones((300, 2))}, WARNING, ["'place': 2 of 2 numbers never change (0 to 1)"]),
        ({"hot": np.eye(3)[np.arange(300) % 2]}, WARNING, ["'hot': 1 of 3 numbers never changes (2)"]),
        ({"place": np.arange(600).reshape(300, 2) * 1.0}, NOTE, ["'place' ", "spreads by", "but 'hot' "]),
        ({"gear": np.arange(300) % 4 + 1}, NOTE, ["'gear' holds whole numbers from 1 to 4", "Discrete(4, start=1)"]),
    ],
)  # fmt: skip
def test_an_entry_of_data_that_is_odd_is_named(changes, level, words):
    (finding,) = observed(offpcc.Dataset.from_arrays(**columns(**changes)))
    assert finding.level == level
    for word in words:
        assert word in f"{finding.found}; {finding.remedy}"


def test_episodes_that_differ_in_their_images_only_are_no_copies():
    given = columns(place=None, hot=None, x=np.tile(np.arange(10.0), 30)[:, None])
    given["actions"][:] = 0.5
    copies = {finding.check: finding for finding in examine_dataset(offpcc.Dataset.from_arrays(**given)).findings}[
        "copies"
    ]
    assert copies.level == OK, copies


AMBIGUOUS = {
    "whole numbers": (lambda image: image.astype(np.int64), (8, 9, 3), "spaces.Box(0, 255, (8, 9, 3), np.uint8)"),
    "fractions": (lambda image: image / 255.0, (8, 9, 3), "spaces.Box(-np.inf, np.inf, (8, 9, 3), np.float32)"),
    "grey": (lambda image: image[..., 0], (8, 9), "spaces.Box(-np.inf, np.inf, (8, 9), np.float32)"),
}


def said_space(text):
    """The space in the call that a message names."""
    code = text.partition("observation_space=")[2].partition("), where spaces is")[0]
    return eval(code, {"spaces": spaces, "np": np})


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_an_array_that_may_be_an_image_is_refused_with_a_call_that_says_what_it_is(kind):
    change, shape, code = AMBIGUOUS[kind]
    given = columns(camera=change(columns()["observations"]["camera"]))
    dtype = given["observations"]["camera"].dtype
    with pytest.raises(UserError, match=f"'camera' is {dtype} of shape .* an image is uint8 of three axes") as caught:
        offpcc.Dataset.from_arrays(**given)
    assert f"{shape} a step" in caught.value.message and code in caught.value.message
    data = offpcc.Dataset.from_arrays(**given, observation_space=said_space(caught.value.message))
    is_image = "uint8" in code
    assert bool(data.observation_space.unpacked_shape.images) is is_image
    if is_image:
        np.testing.assert_array_equal(data.observations, offpcc.Dataset.from_arrays(**columns()).observations)
    with pytest.raises(UserError, match="'camera' is int64"):
        given["observations"]["camera"] = np.full((300, 8, 9, 3), 256)
        offpcc.Dataset.from_arrays(
            **given, observation_space=spaces.Dict(camera=spaces.Box(0, 255, (8, 9, 3), np.uint8))
        )


@pytest.mark.parametrize("by", ["arrays", "episodes"])
def test_whole_numbers_that_may_be_choices_are_told_with_the_call_that_makes_them_so(by):
    if by == "arrays":
        random = np.random.default_rng(0)
        given = columns(two=random.integers(-1, 4, (300, 2)), flags=random.integers(0, 2, (300, 2)))
        data = offpcc.Dataset.from_arrays(**given)
        key, count = "two", 10
    else:
        data, key, count = offpcc.Dataset.from_episodes(played()), "mirrored", 2
    (notice,) = [notice.text for notice in data.notices if "whole numbers" in notice.text]
    assert f"{key!r} holds whole numbers from " in notice
    space = said_space(notice)
    if by == "arrays":
        again = offpcc.Dataset.from_arrays(**given, observation_space=space)
    else:
        again = offpcc.Dataset.from_episodes(played(), observation_space=space)
        assert again.observation_space.is_like(PackedDict(dict_task.DictTarget.observation_space))
    sizes = {part.key: part.shape for part in again.observation_space.unpacked_shape.vectors}
    assert sizes[key] == (count,)
    assert not [notice for notice in again.notices if "whole numbers" in notice.text]
    # As numbers, they do not fit the environment, in training and in the check.
    if by == "episodes":
        words = r"'mirrored' is a choice, .*observation_space=gymnasium.make\('DictTarget-v0'\).observation_space"
        with pytest.raises(UserError, match=words):
            offpcc.build(dict_task.NAME, "cbc", dataset=data)
        env = make(dict_task.NAME, scale_actions=True)
        fault = {finding.check: finding for finding in examine_dataset(data, env=env).findings}["env"]
        assert fault.level == FAULT and "'mirrored' is a choice" in fault.found


def test_minari_keeps_the_entries(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    from offpcc.cli.main import main

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    arguments = ["collect", "--env", dict_task.NAME, "--actor", "random", "--steps", "40", "--import", "dict_task"]
    assert main([*arguments, "--out", str(tmp_path / "a.hdf5"), "--minari", "dicts/target-v0"]) == 0
    data, own = offpcc.data.load_dataset("minari:dicts/target-v0"), offpcc.data.load_dataset(tmp_path / "a.hdf5")
    assert data.observation_space.is_like(own.observation_space)
    np.testing.assert_array_equal(data.observations, own.observations)


def test_wrappers_see_the_dict():
    gymnasium_filter = gymnasium.wrappers.FilterObservation
    env = make(dict_task.NAME, wrappers=[lambda env: gymnasium_filter(env, ["camera", "place"])], scale_actions=True)
    assert set(env.observation_space.entries) == {"camera", "place"}


def test_flicker_hides_all_entries_together():
    env = Flicker(gymnasium.wrappers.FilterObservation(dict_task.DictTarget(), ["camera", "place"]), 0.5)
    env.reset(seed=1)
    hidden = []
    for _ in range(40):
        seen, *_ = env.step(np.zeros(2, np.float32))
        assert env.observation_space.contains(seen)
        hidden.append([not part.any() for part in seen.values()])
    assert sorted(set(map(tuple, hidden))) == [(False, False), (True, True)]
    with pytest.raises(UserError, match=r"Flicker needs a Box, not Discrete"):
        make(dict_task.NAME, wrappers=[lambda env: Flicker(env, 0.5)])
    with pytest.raises(
        UserError, match=r"DropIndices needs a Box .*gymnasium.ObservationWrapper of your own, or choose"
    ):
        make(dict_task.NAME, wrappers=[lambda env: DropIndices(env, [0])])


def test_frames_of_entries_are_stacked():
    env = Concatenate(gymnasium.wrappers.FilterObservation(dict_task.DictTarget(), ["camera", "place"]), 3)
    assert {key: part.shape for key, part in env.observation_space.items()} == {"camera": (9, 16, 16), "place": (3,)}
    frames = [env.reset(seed=1)[0], *(env.step(np.zeros(2, np.float32))[0] for _ in range(3))]
    assert all(env.observation_space.contains(frame) for frame in frames)
    assert not frames[0]["place"][:2].any() and not frames[0]["camera"][:6].any() and frames[0]["camera"][6:].any()
    np.testing.assert_array_equal(frames[3]["place"][:2], frames[2]["place"][1:])
    np.testing.assert_array_equal(frames[3]["camera"][:6], frames[2]["camera"][3:])
    with pytest.raises(UserError, match=r"Concatenate needs a Box with an axis for each entry; '\w+' is Discrete"):
        make(dict_task.NAME, wrappers=[functools.partial(Concatenate, num=2)])
    filtered = functools.partial(gymnasium.wrappers.FilterObservation, filter_keys=["camera", "place"])
    options = {"wrappers": [filtered, functools.partial(Concatenate, num=2)]}
    assert offpcc.CSAC(dict_task.DictTarget, make=options).algorithm.packed.unpacked_shape.images[0].shape == (
        6,
        16,
        16,
    )


@pytest.mark.parametrize("std", [0.5, {"place": 0.5}, {"place": [0.5]}])
def test_noise_is_added_to_entries_of_floats(std):
    env = ObservationNoise(dict_task.DictTarget(), std)
    env.reset(seed=1)
    noise = []
    for _ in range(400):
        seen, bare = env.step(np.zeros(2, np.float32))[0], env.unwrapped._observation()
        assert env.observation_space.contains(seen) and seen["mirrored"] == bare["mirrored"]
        np.testing.assert_array_equal(seen["camera"], bare["camera"])
        noise.append(seen["place"] - bare["place"])
    assert np.std(noise) == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize(
    "std", [{}, {"camera": 1.0}, {"nowhere": 1.0}, {"place": -1.0}, {"place": {"x": 1.0}}, [0.1, 0.2]]
)
def test_noise_of_entries_that_makes_no_sense_is_refused(std):
    with pytest.raises(UserError, match="std must be"):
        make(dict_task.NAME, wrappers=[functools.partial(ObservationNoise, std=std)])


def test_the_space_of_a_file_can_be_given(tmp_path):
    space = dict_task.DictTarget.observation_space
    data = offpcc.Dataset.from_episodes(played(), observation_space=space)
    columns = {
        f"observations/{key}": np.concatenate([one["observations"][key][:-1] for one in played()]) for key in space
    }
    facts = {key: np.concatenate([one[key] for one in played()]) for key in ("actions", "rewards")}
    ends = {"terminals": np.zeros(300, bool), "timeouts": np.arange(300) % 10 == 9}
    np.savez(tmp_path / "own.npz", **columns, **facts, **ends)
    read = offpcc.data.load_dataset(tmp_path / "own.npz", observation_space=space)
    np.testing.assert_array_equal(read.observations, data.observations)
    assert not [notice for notice in read.notices if notice.kind == "whole numbers"]
    read.save(tmp_path / "whole.hdf5")
    again = offpcc.data.load_dataset(tmp_path / "whole.hdf5")
    assert again.observation_space.is_like(data.observation_space)
    np.savez(tmp_path / "flat.npz", observations=np.zeros((300, 2)), **facts, **ends)
    with pytest.raises(
        UserError, match=r"flat.npz: observations are not a group of entries; leave observation_space out"
    ):
        offpcc.data.load_dataset(tmp_path / "flat.npz", observation_space=space)


@pytest.mark.slow
@pytest.mark.learning
def test_a_task_that_needs_image_vector_and_flag_is_learned_from_data():
    """Actions are random, so CQL needs little conservatism. Without image or vector, no agent has more than -5."""
    data = offpcc.Dataset.from_episodes(played(400), observation_space=dict_task.DictTarget.observation_space)
    small = {"hidden_dims": (64, 64), "encoder": functools.partial(Recurrent, hidden_dim=64, num_layers=1)}
    algorithm = {**small, "lr": 1e-3, "gamma": 0.5, "conservative_weight": 0.5}
    experiment = offpcc.build(dict_task.NAME, "crcql", dataset=data, seed=1, algorithm=algorithm)
    experiment.train(num_epochs=4, num_steps_per_epoch=1_000, num_test_episodes_per_epoch=20)
    returns = [row["test/return"] for row in experiment.loop.rows]
    assert max(returns) > -4.0, returns


# What reviewers found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a/b": spaces.Discrete(3)}), "cannot name an entry"),
        (spaces.Dict({"a": spaces.Discrete(2), "a/b": spaces.Discrete(3)}), "begins with another entry's key"),
        (spaces.Dict({"": spaces.Discrete(2)}), "cannot name an entry"),
        (spaces.Dict({"frames": spaces.Box(0, 255, (4, 16, 16, 3), np.uint8)}), "put stacked images into the channels"),
        (spaces.Dict({"many": spaces.MultiDiscrete([2**62] * 4 + [5])}), "numbers, more than"),
    ],
)
def test_keys_and_sizes_that_would_go_wrong_are_refused(space, words):
    with pytest.raises(UserError, match=words):
        PackedDict(space)


def test_data_without_its_wrappers_are_refused_where_the_environment_has_some():
    data = offpcc.Dataset.from_episodes(played(12), observation_space=dict_task.DictTarget.observation_space)
    loading.load_gin_config(
        None,
        [
            "make.wrappers = [@gymnasium.FilterObservation]",
            "gymnasium.FilterObservation.filter_keys = ['camera', 'place', 'mirrored']",
        ],
    )
    with pytest.raises(UserError, match="does not say with which wrappers"):
        offpcc.build(dict_task.NAME, "cbc", dataset=data)


def test_mappings_are_for_observations_and_for_both_of_them():
    steps = {"rewards": np.zeros(4), "terminations": np.zeros(4, bool), "truncations": np.zeros(4, bool)}
    vectors, entries = np.zeros((4, 12), np.float32), {"x": np.zeros((4, 3), np.float32)}
    from_arrays = offpcc.Dataset.from_arrays
    with pytest.raises(UserError, match="actions is a mapping"):
        from_arrays(observations=vectors, actions={"arm": np.zeros((4, 2))}, **steps)
    with pytest.raises(UserError, match="only one of observations and next_observations"):
        from_arrays(observations=vectors, next_observations=entries, actions=np.zeros((4, 2)), **steps)
    with pytest.raises(UserError, match="one array, but the observation space is a Dict"):
        space = spaces.Dict(x=spaces.Box(-1, 1, (12,)))
        from_arrays(observations=vectors, actions=np.zeros((4, 2)), observation_space=space, **steps)


def test_an_actor_of_other_entries_is_refused_though_their_bytes_are_as_many():
    from offpcc.training.evaluation import open_environment

    class Other(dict_task.DictTarget):
        observation_space = spaces.Dict(a=spaces.Box(-1, 1, (192,)), b=spaces.Box(-1, 1, (3,)))

    gymnasium.register("Other-v0", entry_point=Other)
    try:
        agent = offpcc.algorithms.find_algorithm("csac")(dict_task.DictTarget.observation_space, Other.action_space)
        assert agent.space_shape == PackedDict(Other.observation_space).shape
        with pytest.raises(UserError, match=r"has observations a \(192,\), b \(3,\) and 2 .*, but the actor was"):
            open_environment(lambda **given: make("Other-v0", **given), agent)
    finally:
        del gymnasium.registry["Other-v0"]


def test_an_agent_acts_in_several_environments():
    agent = offpcc.Agent(
        offpcc.algorithms.find_algorithm("crsac")(
            dict_task.DictTarget.observation_space, dict_task.DictTarget.action_space
        )
    )
    seen = [dict_task.DictTarget().reset(seed=seed)[0] for seed in range(3)]
    agent.reset(num_envs=3)
    together = agent.act({key: np.stack([one[key] for one in seen]) for key in seen[0]})
    for observation, action in zip(seen, together, strict=True):
        agent.reset()
        np.testing.assert_allclose(agent.act(observation), action, rtol=1e-4, atol=1e-5)
    agent.reset(num_envs=3)
    with pytest.raises(
        ValueError, match=r"act got a wrong observation: .*; give those of 3 environments, or call reset"
    ):
        agent.act(seen[0])
    agent.reset()
    for rows in (1, 3):
        batch = {key: np.stack([one[key] for one in seen[:rows]]) for key in seen[0]}
        with pytest.raises(
            ValueError, match=rf"wrong observation: .*; for {rows} environments?, call reset\(num_envs={rows}\) first"
        ):
            agent.act(batch)
    with pytest.raises(ValueError, match=r"act got a wrong observation: .* is missing$"):
        agent.act({})
    with pytest.raises(UserError, match=r"observations of shape \(3,\) and 1 .* trained with observations mirrored"):
        offpcc.evaluate(agent, "pendulum-v0", episodes=1)
    with pytest.raises(ValueError, match="act got a wrong observation: 'camera' is missing"):
        agent.act({"place": seen[0]["place"], "mirrored": 1})
    for entry, told in (({"place": [np.nan]}, "'place' holds nan"), ({"mirrored": 5}, "'mirrored' holds a choice .*")):
        with pytest.raises(ValueError, match=f"{told}; correct the environment, or the argument of `act`$"):
            agent.act({**seen[0], **entry})
    with pytest.raises(ValueError, match=r"needs a Dict: 'camera' of shape \(16, 16, 3\), 'mirrored'"):
        agent.act(np.zeros(3))


@pytest.mark.parametrize("num_envs", [1, 2])
def test_collected_observations_are_learned_from(tmp_path, num_envs):
    data = offpcc.collect(dict_task.NAME, None, steps=60, num_envs=num_envs)
    assert data.observation_space == PackedDict(dict_task.DictTarget.observation_space)
    data.save(tmp_path / "target.hdf5")
    for recorded_data in (data, tmp_path / "target.hdf5"):
        learner = offpcc.CREBRAC(dict_task.NAME, dataset=recorded_data, hidden_dims=(8,), buffer={"batch_size": 4})
        learner.train(num_epochs=1, num_steps_per_epoch=2, num_test_episodes_per_epoch=1)
        assert learner.loop.num_updates == 2
