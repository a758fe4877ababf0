"""Whatever an environment does comes to one message, and what is harmless passes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import gin
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from misbehaving import HARD_TO_TELL, Naps, Raises, Shut, Walk, walk

from offpcc.envs import faults
from offpcc.envs.faults import EnvironmentFault
from offpcc.envs.guard import Guard, Inspection, UnfitError, guarded
from offpcc.envs.make import env_options, make
from offpcc.utils import signals
from offpcc.utils.errors import UserError


def play(env, num_steps=10, **given):
    guard = Guard(env, "environment 2", **given)
    try:
        guard.reset(seed=3)
        for _ in range(num_steps):
            returned = guard.step(np.array([0.5], np.float32))
    finally:
        guard.release()
    return returned


def observing(change):
    return lambda self, observation, *others: (change(observation), *others)


def rewarding(value):
    return lambda self, observation, reward, *others: (observation, value, *others)


def ending(terminated, truncated=False):
    return lambda self, observation, reward, *_: (observation, reward, terminated, truncated, {})


def put(value):
    def change(observation):
        observation[1] = value
        return observation

    return change


def leave(self, *returned):
    sys.exit(0)


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (observing(put(np.nan)), ["returned nan at index 1 of its observation", "division by 0"]),
        (observing(put(np.inf)), ["returned inf at index 1"]),
        (observing(put(-np.inf)), ["returned -inf at index 1"]),
        (observing(lambda seen: np.array([np.inf, -np.inf])), ["returned inf at index 0"]),
        (observing(lambda seen: np.array([0.0, 1e300])), ["1e+300 at index 1", "float32 cannot hold"]),
        (observing(lambda seen: seen[:1]), ["array of shape (1,)", "float32 and shape (2,)", "observation_space"]),
        (observing(lambda seen: seen[:, None]), ["array of shape (2, 1)"]),
        (observing(lambda seen: 3.0), ["returned a float for an observation"]),
        (observing(lambda seen: None), ["returned None for an observation"]),
        (observing(lambda seen: [[1.0], [1.0, 2.0]]), ["returned a list of 2 for an observation"]),
        (observing(lambda seen: np.array(["a", "b"])), ["array of shape (2,) and type <U1"]),
        (observing(lambda seen: {"seen": seen}), ["returned a dict for an observation"]),
        (rewarding(np.nan), ["returned the reward nan"]),
        (rewarding(-np.inf), ["returned the reward -inf"]),
        (rewarding(np.float32(np.inf)), ["returned the reward inf"]),
        (rewarding(1e39), ["returned the reward 1e+39"]),
        (rewarding(None), ["returned None for a reward", "float(reward)"]),
        (rewarding("1"), ["returned a str for a reward"]),
        (rewarding(np.zeros(2)), ["array of shape (2,) and type float64 for a reward"]),
        (ending(None), ["returned None for terminated", "bool(terminated)"]),
        (ending(0.5), ["returned 0.5 for terminated"]),
        (ending(False, "no"), ["returned a str for truncated"]),
        (ending(np.zeros(2, bool)), ["array of shape (2,) and type bool for terminated"]),
        (lambda self, *returned: (*returned[:4], None), ["returned None for an info", "return a dictionary"]),
        (lambda self, *returned: (*returned[:4], [1]), ["returned a list of 1 for an info", "after the observation"]),
        (lambda self, *returned: returned[:4], ["cannot be read (ValueError: not enough values", "OldGym"]),
        (lambda self, *returned: None, ["cannot be read (TypeError", "OldGym"]),
        (leave, ["raised SystemExit: 0", "test_guard.py:"]),
        (Raises.odd, ["raised ValueError: too far (", "misbehaving.py:", "fix it"]),
        *((odd, [words]) for odd, words in HARD_TO_TELL.values()),
    ],
)  # fmt: skip
def test_what_is_unfit_is_told_in_one_message(odd, words):
    with pytest.raises(EnvironmentFault) as raised:
        play(walk(odd)())
    message = raised.value.message
    for word in ["Odd (environment 2)", "in step 4 of its episode of seed 3, on the action [0.5]", *words]:
        assert word in message
    assert message.isprintable()


def test_a_reset_without_a_seed_is_told_with_the_signature_it_needs():
    class OldReset(gymnasium.Env):
        observation_space = action_space = Box(-1.0, 1.0, (2,), np.float32)

        def reset(self):
            return np.zeros(2, np.float32)

    with pytest.raises(
        EnvironmentFault, match=r"cannot be called .*'seed'.*reset\(self, \*, seed=None, options=None\)"
    ):
        guarded(OldReset()).reset(seed=1)


@pytest.mark.parametrize(
    ("odd", "index", "value"),
    [
        (observing(lambda seen: seen.astype(np.float64)), 0, None),
        (observing(lambda seen: seen.tolist()), 0, None),
        (observing(lambda seen: np.array([1, 2])), 0, [1.0, 2.0]),
        (observing(lambda seen: np.array([True, False])), 0, [1.0, 0.0]),
        (observing(lambda seen: np.array([3e38, 3e38], np.float32)), 0, None),
        (rewarding(3), 1, 3.0),
        (rewarding(True), 1, 1.0),
        (rewarding(np.float32(0.5)), 1, 0.5),
        (rewarding(np.array(0.5)), 1, 0.5),
        (ending(np.True_), 2, True),
        (ending(1), 2, True),
        (ending(False, np.array(True)), 3, True),
    ],
)  # fmt: skip
def test_what_is_harmless_passes(odd, index, value):
    returned = play(walk(odd)(), 4)
    assert returned[0].dtype == np.float32 and returned[0].shape == (2,)
    assert type(returned[1]) is float and all(type(flag) is bool for flag in returned[2:4])
    if value is not None:
        np.testing.assert_array_equal(returned[index], value)


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_images_of_whole_numbers_are_bytes(kind):
    inspection = Inspection(Box(0, 255, (1, 3, 3), np.uint8))
    image = np.arange(9).reshape(1, 3, 3) * 30
    read = inspection.observation(image.astype(kind))
    assert read.dtype == np.uint8 and (read == image).all()


@pytest.mark.parametrize(("number", "told"), [(256, "256"), (-1, "-1"), (0.5, "0.5"), (np.nan, "nan")])
def test_images_of_other_numbers_are_refused(number, told):
    image = np.zeros((1, 3, 3))
    image[0, 1, 2] = number
    with pytest.raises(UnfitError, match=rf"returned {told} at index \(0, 1, 2\)"):
        Inspection(Box(0, 255, (1, 3, 3), np.uint8)).observation(image)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 100, 1000])
def test_a_bad_number_is_found_wherever_it_is(size):
    inspection = Inspection(Box(-np.inf, np.inf, (size,), np.float32))
    for bad in (np.nan, np.inf, -np.inf):
        for index in {0, size // 2, size - 1}:
            observation = np.full(size, 3e38, np.float32)
            assert inspection.observation(observation) is not None  # though its sum overflows
            observation[index] = bad
            with pytest.raises(UnfitError, match=f"index {index} "):
                inspection.observation(observation)


def test_a_reset_is_guarded_too():
    class BadStart(Walk):
        def seen(self):
            return np.array([np.nan, 0.0], np.float32)

    with pytest.raises(
        EnvironmentFault, match="nan at index 0 of its observation in the reset of its episode of seed 3"
    ):
        play(BadStart())


def test_what_was_raised_is_the_cause():
    with pytest.raises(EnvironmentFault) as raised:
        play(Raises())
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_message_for_users_passes_as_it_is():
    def odd(self, *returned):
        raise UserError("pay for the simulator")

    with pytest.raises(UserError) as raised:
        play(walk(odd)())
    assert raised.value.message == "pay for the simulator"


def interrupt(self, *returned):
    raise KeyboardInterrupt


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):  # handled by Python, as in a notebook
        play(walk(interrupt)())
    kill = walk(lambda self, *returned: (os.kill(os.getpid(), signal.SIGINT), returned)[1])
    with signals.handled(), pytest.raises(signals.Interrupted):
        play(kill())
    with signals.handled(), pytest.raises(KeyboardInterrupt), signals.deferred():
        os.kill(os.getpid(), signal.SIGTERM)  # which may have ended its simulator as well
        play(walk(interrupt)())


def test_the_place_is_the_users_own_line_though_a_library_raised():
    def odd(self, *returned):
        return np.concatenate([np.zeros(1), np.zeros((1, 1))])

    with pytest.raises(EnvironmentFault, match=r"raised ValueError.*test_guard\.py:\d+\)"):
        play(walk(odd)())


def test_a_constructor_that_raises_is_told_in_one_message():
    def broken(**kwargs):
        raise RuntimeError("no licence\nbuy one")

    gymnasium.register("broken-v0", entry_point=broken)
    try:
        with pytest.raises(UserError, match=r"broken-v0 cannot be made: RuntimeError: no licence \(.*test_guard"):
            make("broken-v0")
    finally:
        del gymnasium.registry["broken-v0"]


@pytest.mark.parametrize(
    "picture", [None, [], np.zeros((3, 4, 3)), np.zeros((3, 4), np.uint8), np.zeros((3, 4, 4), np.uint8)], ids=str
)
def test_a_picture_that_is_none_is_refused(picture):
    guard = Guard(type("Drawn", (Walk,), {"render": lambda self: picture, "render_mode": "rgb_array"})())
    guard.reset()
    with pytest.raises(
        EnvironmentFault, match=r"returned .* for a frame when it was rendered.*\(height, width, 3\) of ui"
    ):
        guard.render()


# Environments that do not come back -------------------------------------------------------------------------------


def test_a_hang_in_python_ends_with_its_place():
    """Also where all exceptions are caught in it."""
    with pytest.raises(EnvironmentFault, match=r"did not return within make.timeout = 0.2 seconds \(.*misbehaving"):
        play(Naps(), timeout=0.2)


def test_a_hang_in_c_ends_the_process_with_a_message():
    code = "\n".join([
        "from misbehaving import Locks",
        "from offpcc.envs.guard import Guard",
        "guard = Guard(Locks(), 'environment 0', 0.2)",
        "guard.reset()",
        "print('begun')",
        "while True: guard.step([0.0])",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path(), timeout=60)
    assert done.returncode == 2 and done.stdout == "begun\n"
    (line,) = done.stderr.splitlines()
    for word in ("Locks (environment 0)", "make.timeout = 0.2", "misbehaving.py:", "in step 4", "--resume"):
        assert word in line


def path():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_drawing_that_does_not_come_back_ends_too():
    guard = Guard(type("Drawn", (Walk,), {"render": Naps.odd})(), timeout=0.2)
    guard.reset(seed=3)
    with pytest.raises(
        EnvironmentFault, match=r"make\.timeout = 0.2 seconds \(.*misbehaving.*when it was rendered, after step 0"
    ):
        guard.render()
    guard.close()


def test_a_closing_that_does_not_come_back_is_told(capsys):
    guard = Guard(Shut(), timeout=0.2)
    guard.close()
    told = capsys.readouterr().err
    assert "Shut did not return within make.timeout = 0.2 seconds (" in told and "misbehaving.py:" in told
    assert "when it was closed; no data is lost, but fix its close(), or raise make.timeout" in told
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.parametrize("call", ["render", "close"])
def test_one_that_hangs_in_c_over_it_ends_the_process_with_a_message(call):
    code = "\n".join([
        "from misbehaving import Locks",
        "from offpcc.envs.guard import Guard",
        f"env = type('Stuck', (Locks,), {{{call!r}: Locks.odd}})()",
        "guard = Guard(env, 'environment 0', 0.2)",
        "guard.reset()",
        f"guard.{call}()",
    ])  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path(), timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    for word in ("Stuck", "make.timeout = 0.2", "misbehaving.py:", {"render": "rendered", "close": "closed"}[call]):
        assert word in line


def test_the_signal_is_given_back_and_those_of_others_are_passed_on():
    heard = []
    before = signal.signal(signal.SIGALRM, lambda *given: heard.append("alarm"))
    mine = signal.getsignal(signal.SIGALRM)
    try:
        guards = [Guard(Walk(), timeout=5.0) for _ in range(2)]
        signal.raise_signal(signal.SIGALRM)
        for guard in guards:
            assert signal.getsignal(signal.SIGALRM) is not mine
            guard.close()
        assert signal.getsignal(signal.SIGALRM) is mine and heard == ["alarm"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_time_between_steps_is_nobodys_fault(monkeypatch):
    passed = 0.0
    monkeypatch.setattr(faults, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed))
    guard = Guard(Walk(), timeout=1.0)
    guard.reset()
    for _ in range(2):
        passed += 10.0
        time.sleep(0.3)  # the guard looks eight times a second
        guard.step(np.zeros(1))
    guard.close()


def test_the_timeout_is_that_of_make():
    gin.bind_parameter("make.timeout", 30.0)
    guard = guarded(make("pendulum-p-v0", **env_options().values()))
    assert guard._watchdog.timeout == 30.0
    guard.close()
    assert isinstance(guarded(make("pendulum-p-v0"))._watchdog, nullcontext)
    assert isinstance(guarded(Walk())._watchdog, nullcontext)


@pytest.mark.parametrize("timeout", [0, -1, "5", True])
def test_a_timeout_that_makes_no_sense_is_refused(timeout):
    gin.bind_parameter("make.timeout", timeout)
    with pytest.raises(UserError, match=r"make\.timeout is"):
        env_options()
    with pytest.raises(UserError, match=r"make\.timeout is"):
        make("pendulum-p-v0", timeout=timeout)


def test_a_fault_names_the_discrete_action_that_the_environment_got():
    class Breaks(gymnasium.Env):
        observation_space, action_space = Box(-1, 1, (2,)), Discrete(3, start=5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            raise ValueError("broken")

    guard = Guard(make(Breaks, scale_actions=True), "")
    try:
        guard.reset(seed=3)
        with pytest.raises(EnvironmentFault, match=r"on the action 6; "):
            guard.step(np.array([0, 1, 0], np.float32))
    finally:
        guard.release()
