"""Terminals of recorded data against the rules by which known tasks end."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from recordings import real_recording

from offpcc.data.checks.check import examine_dataset
from offpcc.data.checks.termination import terminals
from offpcc.data.datasets.dataset import Dataset
from offpcc.data.datasets.load import load_dataset
from offpcc.utils.findings import NOTE, OK, WARNING

LENGTH = 20
HEALTHY = {"hopper": (1.2, 0.0), "walker2d": (1.2, 0.0), "ant": (0.6, 0.0), "halfcheetah": (0.0, 0.0)}
FALLEN = {"hopper": (0.69, 0.0), "walker2d": (1.2, 1.01), "ant": (1.01, 0.0)}
SIZES = {"hopper": 11, "walker2d": 17, "ant": 27, "halfcheetah": 17}


def recorded(body, falls=(True, True, False), size=None, next_observations=True, drop_last=False, **options):
    """Episodes of a body, which end where it falls; `drop_last` moves the flags to the step before and drops it."""
    random, steps = np.random.default_rng(0), []
    for falls_in_it in falls:
        seen = random.normal(0, 0.01, (LENGTH + 1, SIZES[body] if size is None else size)).astype(np.float32)
        seen[:, :2] += HEALTHY[body]
        if falls_in_it:
            seen[-1, :2] = FALLEN[body]
        num = LENGTH - drop_last
        for t in range(num):
            steps.append((seen[t], seen[t + 1], t == num - 1 and falls_in_it, t == num - 1 and not falls_in_it))
    before, after, terminated, truncated = (np.array(column) for column in zip(*steps, strict=True))
    columns = {"observations": before, "terminations": terminated, "truncations": truncated}
    columns |= {"actions": random.uniform(-1, 1, (len(steps), 3)), "rewards": random.normal(size=len(steps))}
    if next_observations:
        columns["next_observations"] = after
    return Dataset.from_arrays(**columns, **options)


def one(data, *names):
    (finding,) = terminals(data, names)
    assert finding.check == "terminals" and (finding.level == OK) == (not finding.remedy)
    return finding


@pytest.mark.parametrize("body", FALLEN)
@pytest.mark.parametrize(
    "name", ["{}-v2", "{}-v5", "{}-medium-replay-v2", "{}-mujoco-v0", "minari:mujoco/{}/expert-v0"]
)
def test_terminals_that_follow_the_rule_pass_and_those_a_step_early_are_told(body, name):
    name = name.format(body.capitalize() if name == "{}-v2" else body)
    finding = one(recorded(body), name)
    assert finding.level == OK and f"agree with the rule of {name}" in finding.found
    finding = one(recorded(body, drop_last=True), name)
    assert finding.level == WARNING and "dropped last steps" in finding.remedy
    assert finding.found.startswith(f"terminals that lead to a state where {name} continues (")
    assert finding.found.endswith(f": 2 of 2, the first at step {LENGTH - 2}")


def test_terminals_of_imagined_data_may_lead_back_into_the_range_of_the_models_data():
    """The model's known rule reads the prediction, and the recording has the observation that was moved back."""
    data = recorded("hopper", drop_last=True)
    for imagined, level in ((True, NOTE), (np.True_, NOTE), (False, WARNING), (np.ones(3), WARNING)):
        finding = one(replace(data, metadata={"imagined": imagined}), "hopper-v4")
        assert finding.level == level and ("moves imagined observations back" in finding.remedy) == (level == NOTE)


@pytest.mark.parametrize("body", FALLEN)
def test_falls_that_are_no_terminals_are_told(body):
    data = recorded(body)
    data.terminations[:] = False
    finding = one(data, f"{body}-v4")
    assert finding.level == WARNING and finding.found.startswith(f"steps that lead to a state where {body}-v4 ends (")
    assert finding.found.endswith(f"but are not terminals: 2, the first at step {LENGTH - 1}")
    data = recorded(body, falls=(False, False))
    data.observations[7, :2] = FALLEN[body]
    finding = one(data, f"{body}-v4")
    assert finding.found.endswith("but are not terminals: 1, the first at step 6")


def test_a_task_without_an_end_has_no_terminals():
    assert one(recorded("halfcheetah", falls=(False,) * 3), "halfcheetah-medium-v2").level == OK
    data = recorded("halfcheetah", falls=(False,) * 3)
    data.terminations[LENGTH - 1] = True
    found = one(data, "HalfCheetah-v4").found
    assert found.startswith("terminals that lead to a state where HalfCheetah-v4 continues (it never ends): 1 of 1")


def test_positions_alone_and_contact_forces_show_the_rule_too_but_velocities_do_not():
    assert one(recorded("hopper", size=5, drop_last=True), "hopper-v4").level == WARNING
    assert one(recorded("ant", size=111, drop_last=True), "ant-v2").level == WARNING
    assert terminals(recorded("hopper", size=6, drop_last=True), ["hopper-mujoco-v-v0"]) == []


@pytest.mark.parametrize(
    "name", ["hopper-bullet-v0", "antmaze-umaze-v2", "mine", "", "Hopper", "bullet-hopper-medium-v0"]
)
def test_other_tasks_have_rules_of_their_own(name):
    assert terminals(recorded("hopper", drop_last=True), [name]) == []


def test_the_surest_name_counts():
    assert one(recorded("hopper"), "mine", "hopper-v4", "walker2d-v4").level == OK
    assert terminals(recorded("hopper"), ["walker2d-v4"]) == [], "whose observations have other sizes"


def test_nothing_is_compared_where_nothing_tells_what_a_terminal_led_to():
    data = recorded("hopper", next_observations=False, drop_last=True)
    assert "what they led to is unknown" in one(data, "hopper-v4").found
    data = recorded("hopper", falls=(True,) * 4)
    data.final_observations[:-1] = data.observations[data.stops[:-1]]  # the recorder looks after resets
    data.final_observations[-1] = data.observations[0]
    finding = one(data, "hopper-v4")
    assert finding.level == OK and "what they led to is unknown" in finding.found


def test_what_rounding_or_clipping_hides_is_not_told():
    data = recorded("hopper")
    data.final_observations[:2, 0] = np.float32(0.7)
    data.final_observations[1, 0], data.final_observations[1, 7] = 1.2, 10.0  # of a speed that may be above 100
    assert one(data, "hopper-v4").level == OK


def test_the_doctor_knows_the_task_by_metadata_name_or_environment():
    pytest.importorskip("mujoco")

    def found(data, **options):
        return [finding.level for finding in examine_dataset(data, **options).findings if finding.check == "terminals"]

    early = {"drop_last": True}
    assert found(recorded("hopper", **early)) == []
    assert found(recorded("hopper", **early, name="hopper-medium-v2")) == [WARNING]
    assert found(replace(recorded("hopper", **early), metadata={"env": "Hopper-v4"})) == [WARNING]
    for kwargs, expected in (({}, [WARNING]), ({"healthy_angle_range": (-1.0, 1.0)}, [])):
        with gymnasium.make("Hopper-v5", **kwargs) as env:
            assert found(recorded("hopper", **early), env=env) == expected


@pytest.mark.parametrize("name", ["hopper-opolo-expert", "hopper-cs285-expert-v4", "walker2d-opolo-medium"])
def test_real_recordings_follow_the_rule(name):
    path = real_recording(name)
    data = load_dataset(path)
    finding = one(data, str(data.metadata["env"]))
    assert finding.level == OK
    assert ("is unknown" in finding.found) == (name == "walker2d-opolo-medium"), "which looks after resets"
