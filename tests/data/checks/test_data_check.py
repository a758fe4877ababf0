"""One planted fault per recording, which the doctor has to find and name; and real recordings."""

import re
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import ClipReward, TimeLimit
from recordings import real_recording

import offpcc
from offpcc.data.checks import check as doctor
from offpcc.data.checks import summary_stats
from offpcc.data.checks.check import examine_dataset, refused
from offpcc.data.checks.summary_stats import Motion, Spread
from offpcc.data.datasets.columns import SpoiledData
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.load import load_dataset
from offpcc.data.datasets.notices import Notice
from offpcc.utils.errors import UserError
from offpcc.utils.findings import FAULT, NOTE, OK, WARNING

LIMIT = 60


def recorded(num_episodes=20, seed=0):
    """A cart that is pushed about: it falls off at 1.5, or time is up."""
    random = np.random.default_rng(seed)
    steps = []
    for _ in range(num_episodes):
        state = np.array([random.uniform(-1, 1), random.uniform(-1, 1), 0.0])
        for t in range(1, LIMIT + 1):
            action = random.uniform(-1, 1)
            after = state + 0.05 * np.array([state[2], -state[0], 5 * action])
            fell = abs(after[0]) > 1.2
            steps.append((state, [action], 1.0 - abs(after[0]), fell, t == LIMIT and not fell, after))
            state = after
            if fell:
                break
    keys = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    columns = dict(zip(keys, zip(*steps, strict=True), strict=True))
    return {key: np.array(column, bool if key in ("terminals", "timeouts") else "f") for key, column in columns.items()}


def last_rows(given):
    return np.flatnonzero(given["terminals"] | given["timeouts"])


def rows_of(given, *episodes):
    ends = [-1, *last_rows(given)]
    return np.concatenate([np.arange(ends[i] + 1, ends[i + 1] + 1) for i in episodes])


def only(given, *episodes):
    chosen = rows_of(given, *episodes)
    return {key: column[chosen] for key, column in given.items()}


def odd(examination, *checks):
    """Findings that are not fine; those of some checks."""
    return [finding for finding in examination.findings if finding.level != OK and finding.check in (checks or CHECKS)]


def odd_in(given, *checks):
    """The same of arrays."""
    return odd(examine_dataset(Dataset.from_arrays(**given)), *checks)


CHECKS = {
    *("reading", "source", "size", "ends", "limit", "jumps", "resets", "continues", "leaps", "lengths", "returns"),
    *("order", "score", "terminals", "rewards", "observed", "actions", "copies", "env", "remark"),
}


def test_a_healthy_recording_passes():
    given = recorded()
    assert 3 < given["terminals"].sum() < 17
    examination = examine_dataset(Dataset.from_arrays(**given))
    assert not odd(examination)
    checks = [finding.check for finding in examination.findings]
    assert checks == [
        *("source", "size", "ends", "limit", "jumps", "continues", "leaps", "lengths", "returns", "rewards"),
        *("observed", "actions", "copies"),
    ]
    assert set(checks) <= CHECKS
    assert examination.verdict == "data: no fault"
    counts = {finding.check: finding.found for finding in examination.findings}
    num_steps, ended = len(given["rewards"]), given["terminals"].sum()
    assert counts["size"].startswith(f"{num_steps:,} steps in 20 episodes, {num_steps:,} transitions;")
    assert counts["ends"] == f"episodes: {ended} terminated, {20 - ended} cut, 0 ended with the recording only"


def test_without_next_observations_the_lost_steps_are_told_and_the_rest_is_healthy():
    given = recorded()
    del given["next_observations"]
    examination = examine_dataset(Dataset.from_arrays(**given))
    assert repr(examination) == str(examination)  # the last line of a notebook's cell shows it
    (finding,) = odd(examination)
    assert (finding.check, finding.level) == ("jumps", NOTE)
    assert f"the last step of {given['timeouts'].sum()} of 20 episodes" in finding.found


# Planted faults -------------------------------------------------------------------------------------------------


def time_limits_as_ends(given):
    given["terminals"] |= given["timeouts"]
    given["timeouts"][:] = False


def both_flags(given):
    given["timeouts"][given["terminals"]] = True


def no_ends(given):
    given["terminals"][:] = given["timeouts"][:] = False
    del given["next_observations"]


def no_ends_of_one_episode(given):
    longest = max(range(20), key=lambda episode: len(rows_of(given, episode)))
    given |= only(given, longest)
    given["rewards"] = np.tile(given["rewards"], 6)  # there and back, without a leap
    for key in ("observations", "actions"):
        given[key] = np.concatenate([given[key], given[key][::-1]] * 3)
    no_ends(given)
    given["terminals"] = given["timeouts"] = np.zeros(len(given["rewards"]), bool)


def no_terminations(given):
    given |= only(given, *[i for i, end in enumerate(last_rows(given)) if given["timeouts"][end]])


def no_timeouts_key(given):
    del given["timeouts"], given["next_observations"]


def lost_rows(given):
    keep = np.ones(len(given["rewards"]), bool)
    keep[rows_of(given, 3)[10:20]] = keep[rows_of(given, 5)[10:20]] = False
    given |= {key: column[keep] for key, column in given.items()}


def unmarked_resets(given):
    del given["next_observations"]
    given["timeouts"][last_rows(given)[8:10]] = given["terminals"][last_rows(given)[8:10]] = False


def resets_as_last_observations(given):
    ends = np.flatnonzero(given["timeouts"][:-1])
    given["next_observations"][ends] = given["observations"][ends + 1]


def repeated_last_observations(given):
    ends = np.flatnonzero(given["timeouts"])
    given["next_observations"][ends] = given["observations"][ends]


def one_long_walk(given):
    """Without ends of its own, in one episode of 1,200 steps."""
    t = np.arange(1201)[:, None]
    walk = np.sin(t / [50, 80, 130]).astype(np.float32)
    given |= {key: np.resize(column, (1200, *column.shape[1:])) for key, column in given.items()}
    given |= {"observations": walk[:-1], "next_observations": walk[1:], "rewards": walk[1:, 0]}
    given["terminals"] = given["timeouts"] = np.zeros(1200, bool)


def terminals_inside(given):
    one_long_walk(given)
    given["terminals"] = np.isin(np.arange(1200), np.cumsum(np.arange(30, 70)))


def pieces(given):
    one_long_walk(given)
    given["timeouts"] = np.arange(1200) % 50 == 49
    given["timeouts"][1199], given["terminals"][1199] = False, True


def inverted_flags(given):
    given["terminals"] = ~(given["terminals"] | given["timeouts"])
    given["timeouts"][:] = False


def shuffled(given):
    order = np.random.default_rng(0).permutation(len(given["rewards"]))
    given |= {key: column[order] for key, column in given.items()}


def shuffled_without_next(given):
    order = np.random.default_rng(0).permutation(len(given["rewards"]))
    for key in ("observations", "actions", "rewards"):
        given[key] = given[key][order]
    del given["next_observations"]


def wild_return(given):
    given["rewards"][rows_of(given, 4)] += 100


def same_rewards(given):
    given["rewards"][:] = 1


def same_rewards_without_ends(given):
    no_terminations(given)
    same_rewards(given)


def sparse_rewards(given):
    given["rewards"][:] = 0
    given["rewards"][last_rows(given)[:5]] = 1


def dead_columns(given):
    for key in ("observations", "next_observations"):
        zeros = np.zeros((len(given[key]), 3), np.float32)
        given[key] = np.concatenate([zeros[:, :1], given[key], zeros[:, 1:]], 1)


def unlike_columns(given):
    given["observations"][:, 1] *= 5000
    given["next_observations"][:, 1] *= 5000


def torques(given):
    given["actions"] *= 2


def out_of_bounds_at_times(given):
    """As a Gaussian policy's, whose actions its environment clips."""
    given["actions"] = np.random.default_rng(0).normal(0, 1, given["actions"].shape).astype("f")


def degrees(given):
    given["actions"] = np.random.default_rng(0).normal(0, 40, given["actions"].shape).astype("f")


def timid(given):
    given["actions"] *= 0.05


def stuck_action(given):
    given["actions"] = np.concatenate([given["actions"], np.full_like(given["actions"], 0.5)], 1)


def bang_bang(given):
    given["actions"] = np.sign(given["actions"])


def choices(given):
    given["actions"] = (given["actions"] > -0.5).astype(np.int64)


def choices_as_floats(given):
    given["actions"] = (given["actions"] > 0.1).astype(np.float32)


def choices_as_one_hot_floats(given):
    given["actions"] = np.eye(3, dtype=np.float32)[np.digitize(given["actions"][:, 0], (-0.3, 0.3))]


def whole_numbers(given):
    given["actions"] = np.round(given["actions"] * 2.0**40).astype(np.int64)


def late_rewards(given):
    given["rewards"] = np.append(0.0, 1.0 - given["actions"][:-1, 0] ** 2)


def last_rows_only_observed(given):
    for key in ("actions", "rewards"):
        given[key][last_rows(given)] = 0.0
    kept = ~given["timeouts"]  # as `Dataset.save` leaves them out
    given["timeouts"] = np.append(given["timeouts"][1:], False)
    given |= {key: column[kept] for key, column in given.items()}


def twice(given):
    again = only(given, 2, 5)
    given |= {key: np.concatenate([column, again[key]]) for key, column in given.items()}


def too_short(given):
    given |= only(given, 0, 1, 2, 3)


PLANTED = {
    time_limits_as_ends: [("limit", FAULT, ["episodes last 60 steps", "time limit"])],
    both_flags: [("ends", NOTE, ["both terminated and cut"])],
    no_ends: [
        ("ends", FAULT, ["no episode has a recorded end"]),
        ("leaps", WARNING, ["leap"]),
        ("size", NOTE, ["1 episode,"]),
    ],
    no_ends_of_one_episode: [("ends", WARNING, ["no episode has a recorded end"]), ("size", NOTE, ["1 episode,"])],
    no_terminations: [("ends", NOTE, ["no termination", ": 0 terminated"])],
    no_timeouts_key: [("ends", WARNING, ["no truncations"]), ("leaps", WARNING, ["leap"])],
    lost_rows: [("jumps", WARNING, ["at 2 places"])],
    unmarked_resets: [("leaps", WARNING, ["after 2 steps inside"])],
    resets_as_last_observations: [("resets", NOTE, ["as after a reset", "are no transitions"])],
    repeated_last_observations: [("resets", NOTE, ["is the observation itself"])],
    terminals_inside: [("continues", WARNING, ["terminated episodes continue in the next"])],
    pieces: [("continues", NOTE, ["23 of 23 cut episodes continue in the next"])],
    inverted_flags: [("ends", WARNING, ["nearly all of the episodes are one step long"])],
    shuffled: [("ends", WARNING, ["nearly all of the episodes are one step long"])],
    shuffled_without_next: [("order", WARNING, ["as much as random pairs"])],
    wild_return: [("returns", NOTE, ["1 far from the others (episodes 4)"])],
    same_rewards: [("rewards", NOTE, ["always 1"])],
    same_rewards_without_ends: [("rewards", WARNING, ["always 1", "no episode terminated"])],
    sparse_rewards: [("rewards", NOTE, ["5 of 20 episodes hold others"])],
    dead_columns: [("observed", WARNING, ["3 of 6 columns never change (0, 4 to 5)"])],
    unlike_columns: [("observed", NOTE, ["observation 1 spreads by"])],
    torques: [("actions", FAULT, ["outside [-1, 1], up to -1.99"])],
    degrees: [("actions", FAULT, ["outside [-1, 1], up to"])],
    out_of_bounds_at_times: [("actions", FAULT, ["outside [-1, 1], up to", "their range is unknown"])],
    timid: [("actions", NOTE, ["none is beyond 5.0% of the way to a bound"])],
    stuck_action: [("actions", WARNING, ["1 of 2 numbers never changes (1)"])],
    bang_bang: [("actions", NOTE, ["100.0% of them at a bound"])],
    choices: [("actions", NOTE, ["whole numbers"])],
    choices_as_floats: [("actions", NOTE, ["numbers, whole ones, so they seem to be choices"])],
    choices_as_one_hot_floats: [("actions", NOTE, ["numbers, one-hot, so they seem to be choices"])],
    whole_numbers: [("actions", WARNING, ["whole numbers from -", "choices"])],
    late_rewards: [("rewards", WARNING, ["fit the step before better than their own"])],
    last_rows_only_observed: [("ends", WARNING, ["the actions and rewards of all", "terminal steps are 0"])],
    twice: [("copies", WARNING, ["2 of 22 episodes repeat another (episode 20 is 2)"])],
    too_short: [("size", WARNING, ["fewer than a batch of 256"])],
}
# What comes along with some of them, and is right to.
BESIDE = {
    pieces: {"resets"},
    no_ends: {"jumps"},
    no_ends_of_one_episode: {"jumps"},
    unmarked_resets: {"jumps"},
    inverted_flags: {"jumps"},
    shuffled: {"jumps"},
    shuffled_without_next: {"jumps"},
    same_rewards_without_ends: {"ends"},
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_nothing_else(plant):
    given = recorded()
    plant(given)
    examination = examine_dataset(Dataset.from_arrays(**given))
    for check, level, words in PLANTED[plant]:
        found = [finding for finding in odd(examination, check) if finding.level == level]
        assert any(all(word in finding.found for word in words) for finding in found), examination.findings
        assert all(finding.remedy for finding in found)
    expected = {check for check, *_ in PLANTED[plant]} | BESIDE.get(plant, set())
    assert {finding.check for finding in odd(examination)} == expected


def test_an_action_that_never_changes_is_no_choice():
    given = recorded()
    given["actions"] = np.zeros_like(given["actions"])
    told = [finding.found for finding in odd_in(given, "actions")]
    assert any("never changes" in text for text in told) and not any("choices" in text for text in told)


def inverted_time_limits(given):
    given["timeouts"] = ~(given["terminals"] | given["timeouts"])


@pytest.mark.parametrize(
    "plant, words",
    [(shuffled, "rows seem to be shuffled"), (inverted_flags, "inverted"), (inverted_time_limits, "inverted")],
)
def test_why_episodes_last_one_step_is_told(plant, words):
    given = recorded()
    plant(given)
    (finding,) = [finding for finding in odd_in(given, "ends") if "one step long" in finding.found]
    assert words in finding.remedy and "nothing to remember" in finding.found


@pytest.mark.parametrize("true_steps", [0, 25])
def test_next_observations_that_are_the_observations_are_refused_by_name(true_steps):
    """All of them, or nearly all; whatever is cut by that is not told as well."""
    given = recorded()
    given["next_observations"][true_steps:] = given["observations"][true_steps:]
    words = r"next_observations are the observations themselves.*leave next_obs"
    with pytest.raises(SpoiledData, match=words) as caught:
        Dataset.from_arrays(**given)
    (finding,) = refused("mine.npz", caught.value).findings
    assert finding.level == FAULT
    given["next_observations"] = None
    assert Dataset.from_arrays(**given).num_episodes == 20


def test_an_observation_that_stays_the_same_is_no_fault_of_next_observations():
    given = recorded()
    given["observations"][:] = given["next_observations"][:] = 1.0
    assert Dataset.from_arrays(**given).num_steps == len(given["rewards"])


def test_of_choices_nothing_else_is_said():
    given = recorded()
    choices(given)
    assert len(odd_in(given, "actions")) == 1


def of_lengths(*lengths, cut=(), name="data"):
    """Episodes of one long walk, terminated but for some that are `cut`."""
    stops = np.cumsum(lengths)
    walk = np.sin(np.arange(stops[-1])[:, None] / [50, 80, 130]).astype(np.float32)
    is_end = np.isin(np.arange(stops[-1]), stops - 1)
    is_cut = np.isin(np.arange(stops[-1]), stops[list(cut)] - 1)
    return Dataset.from_arrays(
        observations=walk,
        actions=walk[:, :1],
        rewards=walk[:, 0],
        terminals=is_end & ~is_cut,
        timeouts=is_cut,
        name=name,
    )


@pytest.mark.parametrize(
    ("data", "is_fault"),
    [
        (of_lengths(50, 50, 50, 50, 10, 20, 30), True),  # most
        (of_lengths(*range(10, 30), *[50] * 6), True),  # more than of any other length
        (of_lengths(*[10] * 10, *[11] * 10, *[12] * 10, *[13] * 20), False),  # lengths hardly differ
        (of_lengths(*[5, 8, 11] * 20, *range(12, 30), *[30] * 6), True),  # more than of any length nearby
        (of_lengths(300), False),
        (of_lengths(*[1] * 300), False),
        (of_lengths(50, 50, 50, cut=[2]), False),  # time limits are told from ends
        (of_lengths(200, 200, *range(30, 35)), False),
        (of_lengths(200, 200, *range(30, 35), name="door-human-v0"), True),  # its time limit is known
    ],
)
def test_a_time_limit_is_told_from_ends_of_the_task(data, is_fault):
    assert [finding.level for finding in odd(examine_dataset(data), "limit")] == [FAULT] * is_fault


def test_one_episode_of_one_step_is_nothing_odd():
    assert not odd(examine_dataset(of_lengths(1, 40, 30, 50, 20, 300)), "ends")
    assert odd(examine_dataset(of_lengths(1)), "size")


def test_half_the_rewards_may_be_0():
    given = recorded()
    given["rewards"][::2] = 0
    assert not odd_in(given, "rewards")


def test_episodes_that_start_alike_and_go_on_otherwise_are_no_copies():
    given = recorded()
    again = only(given, 2)
    again["actions"] *= 0.5
    given = {key: np.concatenate([column, again[key]]) for key, column in given.items()}
    assert not odd_in(given, "copies")


def test_what_follows_a_termination_is_bootstrapped_nowhere():
    given = recorded()
    ends = np.flatnonzero(given["terminals"][:-1])
    given["next_observations"][ends] = given["observations"][ends + 1]
    assert not odd_in(given)


def test_a_few_last_observations_may_stand_still():
    given = recorded()
    end = np.flatnonzero(given["timeouts"])[0]
    given["next_observations"][end] = given["observations"][end]
    assert not odd_in(given)


def test_what_has_come_to_rest_is_not_taken_for_a_repeated_last_observation():
    given = recorded()
    for end in np.flatnonzero(given["timeouts"]):
        given["observations"][end] = given["next_observations"][end] = given["observations"][end - 1]
        given["next_observations"][end - 1] = given["observations"][end]
    assert not odd_in(given, "resets", "jumps")


def test_one_episode_that_goes_on_is_chance():
    assert not odd(examine_dataset(of_lengths(300, 300)), "continues")


def test_few_episodes_that_go_on_are_not_told():
    given = recorded()
    middle = [rows_of(given, episode)[25] for episode in range(20) if len(rows_of(given, episode)) == LIMIT][:2]
    given["terminals"][middle] = True
    assert not odd_in(given, "continues")


def test_few_episodes_are_told():
    given = recorded()
    one_long_walk(given)
    given["terminals"] = np.isin(np.arange(1200), (300, 700, 1199))
    (finding,) = odd_in(given, "size")
    assert (finding.level, "in 3 episodes" in finding.found) == (NOTE, True)


def test_chance_is_no_time_limit():
    """Two of many episodes that end at the longest length, which others come near."""
    random = np.random.default_rng(1)
    lengths = [*random.integers(10, 40, 30), 40, 40]
    stops = np.cumsum(lengths)
    given = recorded()
    one_long_walk(given)
    given = {key: column[: stops[-1]] for key, column in given.items()}
    given["terminals"] = np.isin(np.arange(stops[-1]), stops - 1)
    assert not odd_in(given, "limit")
    known = examine_dataset(Dataset.from_arrays(**given), env=environment(40))
    assert [finding.level for finding in odd(known, "limit")] == [FAULT]


@pytest.mark.parametrize("last", [1.0, 0.0])
def test_a_task_of_fixed_length_that_its_last_step_decides_has_no_time_limit(last):
    given = recorded(40)
    one_long_walk(given)
    given["terminals"] = np.arange(len(given["rewards"])) % 10 == 9
    given["rewards"] = np.where(given["terminals"], last, 0.0).astype(np.float32)
    given["rewards"][9::30] = 0.0  # not each of them succeeds
    found = odd_in(given, "limit")
    assert [finding.level for finding in found] == ([] if last else [FAULT])
    if last:  # others end earlier, so the length is not the task's
        given["terminals"][4] = True
        (finding,) = odd_in(given, "limit")
        assert finding.level == FAULT


def test_episodes_that_all_fell_before_the_limit_are_no_time_limit():
    given = recorded(60)
    ended = [i for i, end in enumerate(last_rows(given)) if given["terminals"][end]]
    assert not odd(examine_dataset(Dataset.from_arrays(**only(given, *ended))), "limit")


def test_where_steps_are_as_long_as_resets_nothing_is_said_of_what_goes_on():
    given = recorded()
    for key in ("observations", "next_observations"):
        given[key] = np.random.default_rng(0).normal(size=given[key].shape).astype(np.float32)
    del given["next_observations"]
    ends = last_rows(given)[:-1]
    given["observations"][ends + 1] = given["observations"][ends]  # which is no next observation
    assert not odd_in(given, "continues", "leaps", "resets")
    assert not Motion.of(Dataset.from_arrays(**given)).can_tell


def test_cues_and_goals_that_leap_are_no_resets():
    given = recorded()
    cue = (np.arange(len(given["rewards"])) % 30 == 7).astype(np.float32)[:, None] * 20
    given["observations"] = np.concatenate([given["observations"], cue], 1)
    del given["next_observations"]
    assert not odd_in(given, "leaps", "continues", "observed")


@pytest.mark.parametrize("num_columns", [3, 160])
@pytest.mark.parametrize(("ratio", "is_told"), [(9.0, False), (11.0, True)])
def test_scales_that_differ_by_more_than_ten_are_told_however_many_columns_there_are(num_columns, ratio, is_told):
    given = recorded()
    wave = np.sin(np.arange(len(given["rewards"])))[:, None] * np.ones(num_columns)
    wave[:, 1] *= ratio
    given["observations"], given["next_observations"] = wave.astype("f"), np.roll(wave, -1, 0).astype("f")
    found = odd_in(given, "observed")
    assert bool(found) is is_told
    if is_told:
        assert "observation 1 spreads by 7.78, but observation " in found[0].found
        assert "SAC.normalize_observations = True" in found[0].remedy


def test_images_are_examined():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (400, 3, 8, 8), np.uint8)
    examination = examine_dataset(
        Dataset.from_arrays(
            observations=images,
            actions=random.uniform(-1, 1, (400, 1)),
            rewards=random.normal(size=400),
            terminals=np.zeros(400, bool),
            timeouts=np.arange(400) % 50 == 49,
        )
    )
    assert {finding.check for finding in odd(examination)} == {"ends", "jumps"}
    assert [spread.what for spread in examination.spreads[3:]] == ["observation", "action 0"]
    assert examination.spreads[3].highest == 255


def test_one_hot_observations_are_states_and_no_distances():
    random = np.random.default_rng(0)
    states = random.integers(0, 15, 2_000)
    given = {
        "observations": np.eye(16, dtype=np.float32)[states],
        "actions": random.integers(0, 4, 2_000),
        "rewards": random.normal(size=2_000),
        "terminals": np.arange(2_000) % 2 == 1,
        "timeouts": np.zeros(2_000, bool),
    }
    given["observations"][2:4], given["actions"][2:4] = given["observations"][:2], given["actions"][:2]
    examination = examine_dataset(Dataset.from_arrays(**given))
    found = {finding.check: finding for finding in examination.findings}
    assert "order" not in found
    assert found["observed"].found == "observations are one-hot vectors of 16 states; 15 of them occur"
    assert found["copies"].level == NOTE and "fine in a task of few states" in found["copies"].remedy
    assert not [finding for finding in examination.findings if finding.level == WARNING]
    both = np.concatenate((given["observations"][:, :4], np.eye(15, dtype=np.float32)[states]), 1)
    found = examine_dataset(Dataset.from_arrays(**given | {"observations": both})).findings  # as of MultiDiscrete
    assert not [finding for finding in found if finding.level == WARNING]
    given["observations"] = 2 * given["observations"]  # no longer one-hot
    found = {finding.check: finding for finding in examine_dataset(Dataset.from_arrays(**given)).findings}
    assert {found[name].level for name in ("order", "observed", "copies")} == {WARNING}
    given["observations"] = np.eye(16, dtype=np.float32)[np.zeros(2_000, int)]  # always the same state
    found = {finding.check: finding for finding in examine_dataset(Dataset.from_arrays(**given)).findings}
    assert found["observed"].level == WARNING and "16 of 16 columns never change" in found["observed"].found


def test_too_few_steps_to_know_an_ordinary_one(monkeypatch):
    data = Dataset.from_arrays(**recorded())
    assert Motion.of(data)
    assert Motion.of(of_lengths(60)) is None
    monkeypatch.setattr(summary_stats, "MIN_STEPS", data.num_steps - data.num_episodes + 1)
    assert Motion.of(data) is None
    assert not odd(examine_dataset(data))


def test_columns_of_a_cloud_of_points_are_taken_together():
    data = of_lengths(300, 300, cut=[0, 1])
    cloud = np.random.default_rng(0).normal(size=(600, 200)).astype(np.float32)
    examination = examine_dataset(replace(data, observations=cloud, final_observations=cloud[:2]))
    assert [spread.what for spread in examination.spreads[3:]] == ["observation", "action 0"]


def test_a_sample_tells_of_the_whole(monkeypatch):
    data = Dataset.from_arrays(**recorded(100))
    whole = examine_dataset(data)
    monkeypatch.setattr(summary_stats, "SAMPLE", 500)
    part = examine_dataset(data)
    assert not odd(part)
    for of_whole, of_part in zip(whole.spreads, part.spreads, strict=True):
        assert (of_part.lowest, of_part.highest, of_part.mean) == (of_whole.lowest, of_whole.highest, of_whole.mean)
        assert of_part.median == pytest.approx(of_whole.median, abs=0.3 * of_whole.std)


def test_spreads_are_those_of_the_numbers():
    spread = Spread.of("it", np.array([[0.0, 1.0], [2.0, 7.0]]))
    assert spread == ("it", 0.0, 0.75, 1.5, 3.25, 7.0, 2.5, pytest.approx(np.std([0, 1, 2, 7])))
    assert not spread.is_constant
    data = Dataset.from_arrays(**recorded())
    table = {spread.what: spread for spread in examine_dataset(data).spreads}
    assert [*table] == [
        *("episode length", "episode return", "reward", "observation 0", "observation 1", "observation 2", "action 0")
    ]
    assert table["episode return"].highest == data.returns.max()
    assert table["observation 2"].lowest == data.observations[:, 2].min()


# Notices, scores and what could not be read ---------------------------------------------------------------------


def test_what_the_loader_says_is_told():
    given = recorded()
    del given["timeouts"]
    data = Dataset.from_arrays(**given, max_episode_steps=LIMIT)
    (finding,) = odd(examine_dataset(data), "ends")
    assert (finding.level, "cut after 60 steps" in finding.found) == (NOTE, True)
    notices = (Notice("remark", "rewards are late"),)
    (finding,) = odd(examine_dataset(replace(Dataset.from_arrays(**recorded()), notices=notices)))
    assert (finding.check, finding.level, finding.found) == ("remark", NOTE, "rewards are late")


def test_every_kind_of_notice_has_its_check():
    folder, own = Path(offpcc.__file__).parent / "data", Path(doctor.__file__)
    text = "".join(file.read_text() for file in folder.rglob("*.py") if file != own)
    assert set(re.findall(r'Notice\(\s*"([^"]+)"', text)) <= set(doctor.NOTICES)
    assert all(f'"{kind}"' in text for kind in doctor.NOTICES)
    assert {check for check, *_ in doctor.NOTICES.values()} <= CHECKS


def test_bounds_of_actions_are_the_environments_unless_the_data_tells_them():
    given = recorded()
    given["actions"] *= 2
    data, wide = Dataset.from_arrays(**given), environment(actions=Box(-2, 2, (1,), np.float32))
    findings = [finding for finding in examine_dataset(data, env=wide).findings if finding.check == "actions"]
    assert [finding.level for finding in findings] == [OK, OK]
    assert findings[0].found == "actions are taken to be in the environment's units, [-2, 2]"
    assert findings[1].found.startswith("1 number, from -1.99")
    (finding,) = odd(examine_dataset(data.with_range((-1, 1)), env=wide), "actions")
    assert (finding.level, "outside [-1, 1]" in finding.found) == (FAULT, True)
    (finding,) = odd(examine_dataset(data.with_range((-40, 40)), env=wide), "actions")
    assert "none is beyond 5.0% of the way" in finding.found
    (finding,) = odd(examine_dataset(Dataset.from_arrays(**recorded()), env=wide), "actions")
    assert (finding.level, "scaled already" in finding.found) == (NOTE, True)


def test_wrappers_that_change_rewards_of_tests_are_told():
    data = Dataset.from_arrays(**recorded())
    (finding,) = odd(examine_dataset(data, env=ClipReward(environment(), -1, 1)))
    assert (finding.check, finding.level, "ClipReward of" in finding.found) == ("rewards", NOTE, True)


def test_columns_of_bytes_do_not_wrap():
    """One counts up and one down; the way back to the start is as long as an episode."""
    given = recorded()
    t = np.concatenate([np.arange(len(rows_of(given, episode))) for episode in range(20)])
    given["observations"] = np.stack([4 * t, 240 - 4 * t], 1).astype(np.uint8)
    given["next_observations"] = np.stack([4 * t + 4, 236 - 4 * t], 1).astype(np.uint8)
    data = Dataset.from_arrays(**given)
    assert data.observations.dtype == np.float32
    steady = Motion.of(data)
    assert (steady.leap, len(steady.far)) == (1.0, 0)
    assert steady.across.max() == pytest.approx(t.max())


@pytest.mark.parametrize(
    ("name", "metadata", "words"),
    [
        ("hopper-medium-v2", {}, "by the references of hopper-medium-v2"),
        ("mine", {"env": "Hopper-v2"}, "by the references of Hopper-v2"),
        ("mine", {}, None),
    ],
)
def test_the_score_is_told_where_there_are_references(name, metadata, words):
    data = replace(Dataset.from_arrays(**recorded(), name=name), metadata=metadata)
    found = [finding.found for finding in examine_dataset(data).findings if finding.check == "score"]
    if words is None:
        assert not found
    else:
        score = 100 * (data.returns.mean() + 20.272305) / (3234.3 + 20.272305)
        assert found == [f"the mean return is D4RL's score {score:.1f}, {words}"]


def test_the_score_is_that_of_whole_episodes():
    data = replace(Dataset.from_arrays(**recorded(), name="hopper-medium-v2"), is_whole=np.arange(20) == 3)
    score = 100 * (data.returns[3] + 20.272305) / (3234.3 + 20.272305)
    (found,) = (finding.found for finding in examine_dataset(data).findings if finding.check == "score")
    assert f"D4RL's score {score:.1f}, by" in found


def test_what_a_file_cannot_say_of_its_environment_is_a_fault():
    data = replace(Dataset.from_arrays(**recorded()), metadata={"env_spec": "{"})
    (finding,) = odd(examine_dataset(data))
    assert (finding.check, finding.level, "env_spec" in finding.found) == ("source", FAULT, True)


def test_what_a_file_says_of_itself_is_told_in_one_line():
    metadata = {
        "env": "Cart-v0",
        "note": "by\n" + "hand" * 20,
        "algorithm": "x" * 1000,
        "actor": 7,
        "returns": np.zeros(9),
    }
    data = replace(Dataset.from_arrays(**recorded()), metadata=metadata)
    assert examine_dataset(data).findings[0].found == "arrays; env: Cart-v0; note: by " + "hand" * 20


def test_what_cannot_be_read_is_a_fault():
    given = recorded()
    given["rewards"][7] = np.nan
    with pytest.raises(UserError) as caught:
        Dataset.from_arrays(**given)
    examination = refused("mine.hdf5", caught.value)
    (finding,) = examination.of(FAULT)
    assert finding.found.startswith("data: rewards[7] is nan")
    assert examination.verdict == "mine.hdf5: 1 fault; fix it before training on it"


# Time limits of an environment ----------------------------------------------------------------------------------


class Cart(gymnasium.Env):
    observation_space = Box(-9, 9, (3,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)


def environment(limit=LIMIT, actions=Cart.action_space):
    name = "cart-to-record-v0"
    entry_point = type("Cart", (Cart,), {"action_space": actions})
    gymnasium.register(name, entry_point=entry_point, max_episode_steps=limit)
    try:
        return gymnasium.make(name, disable_env_checker=True)
    finally:
        gymnasium.registry.pop(name)


def test_an_environment_is_asked_whether_the_data_fits_it():
    data = Dataset.from_arrays(**recorded())
    examination = examine_dataset(data, env=environment())
    assert not odd(examination)
    assert examination.findings[-1].check == "env"
    (finding,) = odd(examine_dataset(replace(data, metadata={"seen_through": '["Flicker()"]'}), env=environment()))
    assert (finding.check, finding.level) == ("env", FAULT)


@pytest.mark.parametrize(
    ("limit", "level", "words"),
    [(LIMIT - 1, WARNING, "up to 60 steps, but"), (LIMIT, OK, "the longest"), (LIMIT + 1, NOTE, "last 60 steps, but")],
)
def test_the_environments_time_limit_is_compared(limit, level, words):
    examination = examine_dataset(Dataset.from_arrays(**recorded()), env=environment(limit))
    (finding,) = [finding for finding in examination.findings if finding.check == "limit"]
    assert (finding.level, words in finding.found) == (level, True)


@pytest.mark.parametrize("data", [of_lengths(59, 60, cut=[0, 1]), of_lengths(40, 59)])
def test_episodes_that_may_end_at_the_limit_lack_no_step(data):
    assert not odd(examine_dataset(data, env=environment()), "limit")


def test_a_time_limit_by_a_wrapper_counts():
    env = TimeLimit(environment(None), LIMIT - 1)
    assert odd(examine_dataset(Dataset.from_arrays(**recorded()), env=env), "limit")


# Real recordings ------------------------------------------------------------------------------------------------

NO_ENDS = ("ends", NOTE, "no termination")
RESET = ("resets", NOTE, "as after a reset")
UNKNOWN = ("actions", FAULT, "their range is unknown")
FEW = ("size", NOTE, "2 episodes")
UNLIKE = ("observed", NOTE, "spreads by")
REAL = {
    "hopper-opolo-expert": [UNLIKE, NO_ENDS, RESET],
    "halfcheetah-opolo-medium": [UNLIKE, NO_ENDS, RESET, ("actions", NOTE, "75.5% of them at a bound")],
    "walker2d-opolo-medium": [UNLIKE, RESET],
    "ant-opolo-mixed": [UNLIKE, NO_ENDS, RESET, ("observed", WARNING, "84 of 111 columns never change (27 to 110)")],
    "hopper-cs285-expert-v4": [UNLIKE, FEW, NO_ENDS, UNKNOWN],
    "halfcheetah-cs285-expert-v4": [UNLIKE, FEW, NO_ENDS, UNKNOWN],
    "walker2d-cs285-expert-v4": [UNLIKE, FEW, NO_ENDS, UNKNOWN],
    "door-human-dapg": [UNLIKE, NO_ENDS, UNKNOWN, ("resets", NOTE, "of 25 cut episodes is the observation itself")],
    "pendulum-sb-expert": [NO_ENDS, UNKNOWN],
    "cartpole-sb-expert": [("actions", NOTE, "whole numbers"), ("rewards", NOTE, "always 1")],
}


@pytest.mark.parametrize("name", REAL)
def test_real_recordings_get_the_remarks_they_deserve_and_no_others(name):
    found = odd(examine_dataset(load_dataset(real_recording(name))))
    assert len(found) == len(REAL[name]), found
    for check, level, words in REAL[name]:
        assert any((f.check, f.level) == (check, level) and words in f.found for f in found), found


def test_actions_of_unknown_range_are_not_said_to_be_at_a_bound():
    given = recorded()
    given["actions"] *= 90.0
    told = [finding.found for finding in odd_in(given, "actions")]
    assert "their range is unknown" in told[0] and not any("at a bound" in text for text in told)


def test_clipped_actions_are_a_warning_where_their_bounds_are_told():
    given = recorded()
    out_of_bounds_at_times(given)
    (finding,) = odd(examine_dataset(Dataset.from_arrays(**given, action_range=(-1.0, 1.0))), "actions")
    assert (finding.level, "outside [-1, 1], up to" in finding.found) == (WARNING, True)


def test_the_last_steps_that_pendulums_recorder_dropped_are_told():
    data = load_dataset(real_recording("pendulum-sb-expert"), action_range=(-2.0, 2.0))
    found = odd(examine_dataset(data, env=gymnasium.make("Pendulum-v1")))
    assert [finding.check for finding in found] == ["ends", "limit"]
    assert "last 199 steps, but the environment's time limit is 200" in found[1].found


def test_the_sample_of_many_numbers_has_all_colours_and_last_steps():
    draw = np.random.default_rng(0)
    images = draw.integers(10, 40, (300, 64, 64, 3)).astype(np.uint8)
    images[..., 0] = 200
    spread = Spread.of("pixel", images)
    assert spread.three_quarters == 200 and spread.median < 40 and spread.std == pytest.approx(images.std(), rel=0.02)
    rewards = np.where(np.arange(1_000_000) % 1_000 == 999, 100.0, 0.0)
    assert Spread.of("reward", rewards).std == pytest.approx(rewards.std(), rel=0.3)
