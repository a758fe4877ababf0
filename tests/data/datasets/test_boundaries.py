"""Where recorded episodes end: flags, jumps, time limits, and recorders that look after the reset."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from recordings import flags, following, real_recording, recorded, texts

import offpcc
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer, load_dataset, qlearning_dataset
from offpcc.data.datasets.dataset import Dataset, DatasetInfo
from offpcc.data.offline import DatasetOptions, read
from offpcc.data.recording.recorder import Recorder
from offpcc.envs.wrappers import Flicker
from offpcc.utils.errors import UserError

# Ends -------------------------------------------------------------------------------------------------------------


def test_no_next_observation_lies_across_an_end():
    given = recorded(9, terminations=flags(9, 2), truncations=flags(9, 5))
    given["observations"][3:] += 1000
    given["observations"][6:] += 1000
    data = Dataset.from_arrays(**given)
    step = np.abs(data.next_observations - data.observations)[data.is_transition, 0]
    assert step.max() == 1.0
    assert data.num_transitions == 7  # neither the one that timed out nor the last
    assert "2 of 3 episodes" in texts(data, "no next observations")[0]


def test_a_time_limit_is_no_termination_and_a_step_that_is_both_is_one():
    data = Dataset.from_arrays(**recorded(6, terminations=flags(6, 1), truncations=flags(6, 1, 3)))
    assert data.terminations.tolist() == flags(6, 1).tolist()
    assert data.last_is_transition.tolist() == [True, False, False]
    assert data.rows().terminations[:, 0].sum() == 1


def test_returns_count_the_last_step_which_is_no_transition():
    data = Dataset.from_arrays(**recorded(6, truncations=flags(6, 2)))
    assert data.num_transitions == 4
    assert data.returns.tolist() == [1 + 2 + 3, 4 + 5 + 6]
    assert data.lengths.tolist() == [3, 3]


def test_where_nothing_follows_a_terminal_its_own_observation_stands():
    data = Dataset.from_arrays(**recorded(4, terminations=flags(4, 1)))
    assert data.final_observations.tolist() == [[1, 10], [3, 30]]
    assert data.rows().observations[:, 0].tolist() == [0, 1, 1, 2, 3]


def test_next_observations_at_ends_are_the_recorded_ones():
    given = recorded(4, truncations=flags(4, 1))
    given["next_observations"] = following(given["observations"])
    given["next_observations"][1] = [77, 78]
    data = Dataset.from_arrays(**given)
    assert data.final_observations.tolist() == [[77, 78], [4, 31]]
    assert data.num_transitions == 4
    assert not data.notices


@pytest.mark.parametrize(
    "size, relative, jumps", [(1.0, 1e-6, 0), (1.0, 1e-3, 1), (1e-6, 1e-6, 0), (1e-6, 1e-3, 1), (1e6, 1e-6, 0)]
)
def test_a_jump_is_told_from_rounding_at_every_scale(size, relative, jumps):
    observations = np.random.default_rng(0).uniform(1.0, 2.0, (50, 3)).astype(np.float32) * np.float32(size)
    after = following(observations)
    after[20] += np.float32(relative * size)
    data = Dataset.from_arrays(**recorded(50, observations=observations, next_observations=after))
    assert data.truncations.sum() == jumps
    assert data.num_episodes == 1 + jumps
    assert len([text for text in texts(data, "jumps") if "first at step 20:" in text]) == jumps


def test_one_value_of_an_image_makes_a_jump():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    after = np.concatenate([images[1:], images[:1]])
    after[2, 0, 0, 0] += 1
    data = Dataset.from_arrays(**recorded(6, observations=images, next_observations=after))
    assert data.observations.dtype == data.final_observations.dtype == data.rows().observations.dtype == np.uint8
    assert data.stops.tolist() == [3, 6]


def test_without_truncations_a_time_limit_can_be_given():
    given = recorded(9, terminations=flags(9, 1))
    del given["truncations"]
    data = Dataset.from_arrays(**given, max_episode_steps=3)
    assert data.lengths.tolist() == [2, 3, 3, 1]
    assert data.truncations.tolist() == flags(9, 4, 7).tolist()
    assert "3 steps" in texts(data, "time limit")[0]
    ended = Dataset.from_arrays(**{**given, "terminations": flags(9, 2)}, max_episode_steps=3)
    assert ended.truncations.tolist() == flags(9, 5, 8).tolist()
    joined = Dataset.from_arrays(**given)
    assert joined.lengths.tolist() == [2, 7]
    assert "max_episode_steps" in texts(joined, "no time limits")[0]


@pytest.mark.parametrize("looks_late", [False, True])
def test_ends_that_next_observations_show_are_not_said_to_be_missing(looks_late):
    """Without flags of time limits, the ends are found unless the recorder looked after its resets."""
    given = episodes(5, 4, 6, 3, terminated=[1], looks_late=looks_late)
    del given["timeouts"]
    data = Dataset.from_arrays(**given)
    assert data.lengths.tolist() == ([9, 9] if looks_late else [5, 4, 6, 3])
    assert [notice.kind for notice in data.notices] == (["no time limits"] if looks_late else ["jumps"])


def test_where_every_episode_terminated_none_is_said_to_go_on_in_the_next():
    given = episodes(5, 4, 6, terminated=[0, 1, 2], looks_late=False)
    del given["timeouts"]
    assert not Dataset.from_arrays(**given).notices


def test_a_time_limit_is_not_counted_where_truncations_are_given():
    data = Dataset.from_arrays(**recorded(6, truncations=flags(6, 4)), max_episode_steps=2)
    assert data.lengths.tolist() == [5, 1]


# After the reset --------------------------------------------------------------------------------------------------


def episodes(*lengths, terminated=(), looks_late=True):
    """Step t of episode i shows 1,000 i + t; all are cut but some. A late recorder saw the next one's start instead."""
    starts = 1000.0 * np.arange(len(lengths) + 1)
    boundaries = np.cumsum(lengths) - 1
    observations = np.concatenate([start + np.arange(length) for start, length in zip(starts, lengths, strict=False)])
    after = observations + 1
    if looks_late:
        after[boundaries] = starts[1:]
    terminals = np.isin(np.arange(len(observations)), boundaries[list(terminated)])
    return {
        "observations": observations[:, None].astype(np.float32),
        "actions": np.zeros((len(observations), 1), np.float32),
        "rewards": np.ones(len(observations), np.float32),
        "terminals": terminals,
        "timeouts": np.isin(np.arange(len(observations)), boundaries) & ~terminals,
        "next_observations": after[:, None].astype(np.float32),
    }


def test_the_last_step_of_a_cut_episode_is_no_transition_where_the_recorder_looked_after_the_reset():
    given = episodes(3, 2, 4)
    before = {name: column.copy() for name, column in given.items()}
    data = Dataset.from_arrays(**given)
    assert data.last_is_transition.tolist() == [False, False, False], "the last too, whose follower was not recorded"
    assert data.final_observations[:, 0].tolist() == [2, 1001, 2003]
    assert data.num_transitions == 6
    assert (data.lengths.tolist(), data.returns.tolist()) == ([3, 2, 4], [3, 2, 4])
    (notice,) = data.notices
    assert notice.kind == "resets"
    assert "2 of 2 episodes that another follows" in notice.text and "3 are no transitions" in notice.text
    assert all((given[name] == before[name]).all() for name in given)


def test_a_recorder_that_looks_before_the_reset_loses_nothing():
    data = Dataset.from_arrays(**episodes(3, 2, 4, looks_late=False))
    assert data.final_observations[:, 0].tolist() == [3, 1002, 2004]
    assert (data.num_transitions, data.notices) == (9, ())


@pytest.mark.parametrize("num_cut", [3, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_step_that_stays_where_the_next_episode_begins_tells_of_no_reset(num_cut, dtype):
    """Where observations are often zeros, or one of few states, ends and starts are alike."""
    given = episodes(*[3] * num_cut)
    shape = (3 * num_cut, 2) if dtype == np.float32 else (3 * num_cut, 8, 9, 1)
    for name in ("observations", "next_observations"):
        given[name] = np.zeros(shape, dtype)
    data = Dataset.from_arrays(**given)
    assert (data.num_transitions, texts(data, "resets")) == (3 * num_cut, [])


def test_a_late_recorder_is_known_by_the_other_episodes():
    given = episodes(3, 2, 4)
    begin = given["observations"][3]  # the first episode ends where the second one begins
    given["observations"][2] = given["next_observations"][1] = begin
    data = Dataset.from_arrays(**given)
    assert data.last_is_transition.tolist() == [False, False, False]
    assert "1 of 2 episodes that another follows" in texts(data, "resets")[0]


def test_nothing_has_to_be_known_of_what_follows_a_termination():
    given = episodes(3, 2, 4, 2, terminated=[0, 2])
    data = Dataset.from_arrays(**given)
    assert data.last_is_transition.tolist() == [True, False, True, False]
    given["timeouts"][2] = True  # both at once is a termination
    assert Dataset.from_arrays(**given).last_is_transition.tolist() == [True, False, True, False]
    data = Dataset.from_arrays(**episodes(3, 2, 4, terminated=[0, 1, 2]))
    assert (data.num_transitions, data.notices) == (9, ())


@pytest.mark.parametrize(("num_cut", "lost"), [(11, range(11)), (12, [3])])
def test_few_starts_among_last_observations_are_chance(num_cut, lost):
    """Of all but the last, which nothing follows, a tenth is a habit."""
    given = episodes(*[2] * num_cut, looks_late=False)
    given["next_observations"][7] = given["observations"][8]
    data = Dataset.from_arrays(**given)
    assert np.flatnonzero(~data.last_is_transition).tolist() == [*lost]
    assert f"1 of {num_cut - 1} episodes" in texts(data, "resets")[0]
    assert f"{len(lost)} are no transitions" in texts(data, "resets")[0]


def test_single_steps_in_any_order_keep_what_they_led_to():
    t = np.random.default_rng(0).permutation(100).astype(np.float32)
    data = Dataset.from_arrays(
        observations=t[:, None],
        next_observations=t[:, None] + 1,
        actions=np.zeros((100, 1)),
        rewards=t,
        terminals=np.zeros(100),
        timeouts=np.ones(100),
    )
    in_order = int((t[1:] == t[:-1] + 1).sum())
    assert 0 < in_order < 10
    assert data.num_transitions == 100 - in_order


def test_no_reset_follows_a_jump_or_the_end_of_the_recording():
    given = episodes(3, 4, 5)
    given["timeouts"][-1] = False
    given["next_observations"][4] += 0.5
    data = Dataset.from_arrays(**given)
    assert data.stops.tolist() == [3, 5, 7, 12]
    assert data.last_is_transition.tolist() == [False, True, False, True]
    assert data.final_observations[:, 0].tolist() == [2, 1002.5, 1003, 3000]


def test_where_the_recording_goes_on_after_a_time_limit_one_step_of_each_piece_is_lost():
    given = recorded(9, truncations=flags(9, 2, 5))
    data = Dataset.from_arrays(**given, next_observations=following(given["observations"]))
    assert np.flatnonzero(~data.is_transition).tolist() == [2, 5]
    assert data.next_observations[data.is_transition, 0].tolist() == [1, 2, 4, 5, 7, 8, 9]


def test_resets_in_images_and_at_time_limits_that_were_given():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    after = np.concatenate([images[1:], images[:1]])
    given = recorded(6, observations=images, next_observations=after)
    del given["truncations"]
    data = Dataset.from_arrays(**given, max_episode_steps=3)
    assert data.last_is_transition.tolist() == [False, False]
    assert data.final_observations.dtype == np.uint8
    assert (data.final_observations == images[[2, 5]]).all()


def test_where_no_step_is_left_the_data_is_refused():
    with pytest.raises(UserError, match=r"mine: every episode is cut after one step.* from before a reset"):
        Dataset.from_arrays(**episodes(1, 1, 1), name="mine")
    assert Dataset.from_arrays(**episodes(1, 2, 1)).rows().observations[:, 0].tolist() == [1000, 1001]


# What tells of the habit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [9, 4, 0])
def test_a_habit_that_terminations_show_counts_for_what_was_cut(cut):
    """Nine of ten episodes terminate, as hoppers do; of the one that was cut nothing may tell by itself."""
    given = episodes(*[3] * 10, terminated=[i for i in range(10) if i != cut])
    end = 3 * cut + 2
    given["next_observations"][end] = 7777.0  # the start of an episode that was left out
    data = Dataset.from_arrays(**given)
    assert np.flatnonzero(~data.last_is_transition).tolist() == [cut]
    assert data.final_observations[cut, 0] == 1000 * cut + 2
    assert "of 9 episodes" in texts(data, "resets")[0]
    buffer = ReplayBuffer(Box(-np.inf, np.inf, (1,)), Box(-1, 1, (1,)), batch_size=300)
    buffer.fill(data.rows(), "episodes")
    assert moves(buffer.sample()) == {1.0}


def test_many_cut_episodes_tell_by_themselves():
    """A recorder that keeps the last observation at time limits alone, where values go on."""
    given = episodes(*[3] * 40, terminated=range(0, 40, 2))
    last = np.flatnonzero(given["timeouts"])
    given["next_observations"][last] = given["observations"][last] + 1
    data = Dataset.from_arrays(**given)
    assert data.last_is_transition.all() and data.notices == ()
    assert data.final_observations[1::2, 0].tolist() == [1000.0 * i + 3 for i in range(1, 40, 2)]
    few = Dataset.from_arrays(**{name: column[: 3 * 20] for name, column in given.items()})
    assert (~few.last_is_transition).sum() == 10, "nine that another follows are too few to tell"


def test_a_start_that_is_always_the_same_tells_a_late_recorder():
    given = episodes(*[20] * 30)
    given["observations"][::20] = -5.0
    given["next_observations"][19::20] = -5.0
    assert not Dataset.from_arrays(**given).last_is_transition.any()


@pytest.mark.parametrize("own", [True, False])
def test_what_the_recorder_states_is_not_doubted(own):
    """Chance, in a world of a few places: by numbers alone nobody could tell it from a late recorder."""
    given = episodes(*[3] * 12)
    metadata = {"offpcc": "1.0", "whole_episodes": 12} if own else {"whole_episodes": 12}
    data = Dataset.from_columns(given, DatasetInfo("mine", metadata=metadata))
    assert data.last_is_transition.all() == own
    assert bool(texts(data, "resets")) == (not own)


def test_episodes_with_an_observation_more_than_actions_say_what_they_led_to():
    parts = [(1000.0 * i + np.array([[0.0], [1.0], [1000.0]]), np.zeros((2, 1)), np.ones(2), i == 1) for i in range(3)]
    data = Dataset.from_episodes(parts)
    assert data.last_is_transition.all() and data.notices == ()
    assert data.final_observations[:, 0].tolist() == [1000, 2000, 3000]


@pytest.mark.parametrize("wrapped", ["Flicker", "nothing to see"])
def test_own_recordings_of_what_flickers_or_stands_still_lose_no_step(tmp_path, wrapped):
    class Hidden(gymnasium.ObservationWrapper):
        def observation(self, observation):
            return np.zeros_like(observation)

    def make_one():
        env = offpcc.make("pendulum-v0", kwargs={"max_episode_steps": 10})
        return Flicker(env, 0.5) if wrapped == "Flicker" else Hidden(env)

    env, generator = make_one(), np.random.default_rng(0)
    recorder = Recorder(tmp_path / "own.hdf5", env, metadata={})
    for number in range(12):
        before, over = env.reset(seed=number)[0], False
        while not over:
            action = generator.uniform(-1, 1, 1).astype(np.float32)
            after, reward, terminated, truncated, _ = env.step(action)
            recorder.push(before, action, float(reward), after, terminated, truncated)
            before, over = after, terminated or truncated
    recorder.merge()
    data = load_dataset(tmp_path / "own.hdf5")
    assert (data.num_transitions, data.notices) == (120, ())


def moves(batch):
    """How far the steps of a batch lead that count and do not terminate."""
    goes_on = (batch.loss_mask[..., 0] > 0) & (batch.terminations[..., 0] == 0)
    return set((batch.observations[:, 1:, 0] - batch.observations[:, :-1, 0])[goes_on].tolist())


def test_no_value_is_bootstrapped_across_a_reset():
    data = Dataset.from_arrays(**episodes(6, 1, 4, 5, 3, terminated=[2]))
    rows = data.rows()
    counts = rows.is_start[:-1]
    steps = np.diff(rows.observations[:, 0])
    assert set(steps[counts & (rows.terminations[:-1, 0] == 0)].tolist()) == {1.0}
    assert rows.is_start.sum() == data.num_transitions == 15
    spaces = Box(-np.inf, np.inf, (1,)), Box(-1, 1, (1,))
    buffers = [
        ReplayBuffer(*spaces, batch_size=300),
        ReplayBuffer(*spaces, batch_size=300, num_steps=3),
        RecurrentReplayBuffer(*spaces, batch_size=100),
        RecurrentReplayBuffer(*spaces, batch_size=100, segment_len=2),
    ]
    for buffer in buffers:
        buffer.fill(rows, "episodes")
        assert moves(buffer.sample()) == {1.0}
    taken = qlearning_dataset(data)
    goes_on = ~taken["terminals"]
    assert set((taken["next_observations"] - taken["observations"])[goes_on, 0].tolist()) == {1.0}


@pytest.mark.parametrize("name", ["hopper-opolo-expert", "halfcheetah-opolo-medium", "walker2d-opolo-medium"])
def test_no_cut_episode_of_real_recordings_leads_to_a_start(name):
    data = load_dataset(real_recording(name))
    starts = data.observations[data.starts]
    cut = data.final_observations[data.truncations[data.stops - 1]]
    assert len(cut) >= 7
    spread = np.abs(starts - starts.mean(0)).max()
    assert np.abs(cut - starts.mean(0)).max(axis=1).min() > 10 * spread


def test_few_distinct_observations_are_no_recorder_that_reads_after_resets():
    """In a corridor, the last observation is often the first one of any episode."""
    draw, parts = np.random.default_rng(0), []
    for _ in range(50):
        seen = np.eye(2, dtype=np.float32)[draw.integers(0, 2, 11)]
        rewards, ends = np.zeros(10), flags(10, 9)
        rewards[-1] = 1.0
        parts.append(
            {"observations": seen[:-1], "next_observations": seen[1:], "rewards": rewards, "truncations": ends}
        )
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    data = Dataset.from_arrays(**joined, actions=np.zeros((500, 1)), terminations=np.zeros(500, bool))
    assert data.is_transition.all() and len(data.lengths) == 50


def test_episodes_that_jumps_alone_show_are_whole():
    """Without timeouts, the best episodes would be those that failed."""
    observations, following, terminations = [], [], []
    for number in range(20):
        length, start = (200, 1_000.0 * number) if number % 2 else (20, 1_000.0 * number)
        seen = (start + np.arange(length + 1, dtype=np.float32))[:, None]
        observations.append(seen[:-1])
        following.append(seen[1:])
        terminations.append(flags(length, *([] if number % 2 else [length - 1])))
    steps = sum(map(len, observations))
    data = Dataset.from_arrays(
        observations=np.concatenate(observations), next_observations=np.concatenate(following),
        terminations=np.concatenate(terminations), actions=np.zeros((steps, 1)), rewards=np.ones(steps),
    )  # fmt: skip
    assert set(data.whole_returns) == {20.0, 200.0}
    assert set(data.best(0.4).returns) == {200.0}


@pytest.mark.parametrize("as_dict", [False, True])
def test_rounding_of_next_observations_is_no_jump(as_dict):
    seen = np.cumsum(np.random.default_rng(0).normal(size=(101, 3)), 0).astype(np.float32)
    following = seen[1:] * np.float32(1 + 1e-6)
    arrays = {"observations": seen[:-1], "next_observations": following}
    if as_dict:
        arrays = {name: {"a": array[:, :1], "b": array[:, 1:]} for name, array in arrays.items()}
    data = Dataset.from_arrays(
        **arrays, actions=np.zeros((100, 1)), rewards=np.zeros(100), terminations=flags(100), truncations=flags(100, 99)
    )
    assert len(data.lengths) == 1


def test_images_of_two_scales_are_refused():
    images = np.random.default_rng(0).integers(0, 255, (11, 1, 8, 8), np.uint8)
    with pytest.raises(
        UserError, match="observations are uint8, but next_observations are float64; images need one type"
    ):
        Dataset.from_arrays(
            observations=images[:-1], next_observations=images[1:] / 255.0, actions=np.zeros((10, 1)),
            rewards=np.zeros(10), terminations=flags(10, 9),
        )  # fmt: skip


def test_the_recordings_own_cut_is_no_end_of_an_episode(tmp_path):
    given = recorded(9)
    data = Dataset.from_arrays(**{**given, "terminations": flags(9)})
    for source in (data, tmp_path / "saved.hdf5"):
        if source is not data:
            data.save(source)
        assert not read(source).has_ends
    with pytest.raises(UserError, match=r"give max_episode_steps to Dataset\.from_arrays instead"):
        read(data, options=DatasetOptions(max_episode_steps=3))


def test_the_number_of_discrete_actions_stays_open_in_a_file(tmp_path):
    """The recorded ones may lack the last action."""
    draw = np.random.default_rng(0)
    given = {**recorded(40), "terminations": flags(40, 39), "actions": draw.integers(0, 3, 40)}
    Dataset.from_arrays(**given).save(file := tmp_path / "d.hdf5")
    data = load_dataset(file)
    assert data.discrete_actions and data.action_range is None
    np.testing.assert_array_equal(data.actions[:, 0], given["actions"])


def test_a_time_limit_counts_from_ends_that_only_jumps_show():
    """Episodes of 4, 10, 10 and 3 steps; the limit is 10, and no end is flagged."""
    observations = np.concatenate([100.0 * number + np.arange(n + 1.0) for number, n in enumerate((4, 10, 10, 3))])
    is_last = np.zeros(len(observations), bool)
    is_last[np.cumsum([5, 11, 11, 4]) - 1] = True
    steps, after = np.flatnonzero(~is_last), np.flatnonzero(~is_last) + 1
    given = {
        "observations": observations[steps, None],
        "next_observations": observations[after, None],
        "actions": np.zeros((27, 1)),
        "rewards": np.zeros(27),
        "terminations": np.zeros(27, bool),
    }
    data = Dataset.from_arrays(**given, max_episode_steps=10)
    assert data.lengths.tolist() == [4, 10, 10, 3]
    assert data.is_whole.tolist() == [False, True, True, False]
    np.testing.assert_array_equal(data.next_observations, given["next_observations"])


def test_episodes_of_one_step_may_repeat_their_observation():
    """As of a bandit, whose next observation says nothing."""
    given = recorded(20)
    data = Dataset.from_arrays(
        **{name: given[name] for name in ("observations", "actions", "rewards", "terminations")},
        next_observations=given["observations"],
        max_episode_steps=1,
    )
    assert data.lengths.tolist() == [1] * 20


def test_truncations_that_are_all_terminations_get_a_notice():
    """stable-baselines3's `dones` hold the time limits, which its `timeouts` name again."""
    dones, timeouts = np.zeros((2, 40), np.bool_)
    dones[9::10] = timeouts[[9, 29]] = True
    rng = np.random.default_rng(0)
    given = {"observations": rng.normal(size=(40, 3)), "actions": rng.normal(size=(40, 1)), "rewards": np.ones(40)}
    given["next_observations"] = given["observations"] + 1.0

    def kinds(terminations):
        data = Dataset.from_arrays(**given, terminations=terminations, truncations=timeouts)
        return [kind for kind, _ in data.notices]

    assert "both ends" in kinds(dones)
    assert "both ends" not in kinds(dones & ~timeouts)
    dones[29] = False  # one end by a time limit alone: the flags are not copies
    assert "both ends" not in kinds(dones)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_pixels_of_another_type_are_refused(dtype):
    """Networks would read numbers up to 255 there, and divide the uint8 of an environment by 255."""
    images = np.random.default_rng(0).integers(0, 256, (11, 1, 8, 8))
    given = {"actions": np.zeros((10, 1)), "rewards": np.zeros(10), "terminations": flags(10, 9)}
    with pytest.raises(UserError, match=r"images of whole numbers up to 25\d, but of type .*astype\(np\.uint8\)"):
        Dataset.from_arrays(observations=images[:-1].astype(dtype), **given)
    symbols = (images[:-1] % 11).astype(dtype)
    assert Dataset.from_arrays(observations=symbols, **given).observations.dtype == np.float32
