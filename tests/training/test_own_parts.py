"""Callbacks and loggers of a user: one file each, named in gin or given to `build`."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from conftest import QUICK, merged, run_folder
from gymnasium import spaces

import offpcc
from offpcc.algorithms import SAC
from offpcc.algorithms.fqe import FQE
from offpcc.data import RandomShift, RecurrentReplayBuffer, ReplayBuffer
from offpcc.envs.wrappers import DropIndices
from offpcc.networks import Convolutional, Recurrent
from offpcc.training.build import note_on_data
from offpcc.training.callbacks import Callback
from offpcc.training.loggers import Logger, Loggers
from offpcc.utils.errors import UserError

MY_PARTS = """
import gin
from offpcc.training.callbacks import Callback


@gin.configurable
class Counting(Callback):
    def __init__(self, word="none"):
        self.word, self.num_rounds = word, 0

    def before_updates(self, run):
        self.num_rounds += 1

    def on_end(self, run):
        print(f"{self.word}: {self.num_rounds} rounds, {run.loop.num_updates} updates")


@gin.configurable
class Lines:
    def __init__(self, folder, name="lines.txt"):
        self.file = (folder / name).open("a")

    def progress(self, progress):
        pass

    def epoch(self, row):
        print(row["epoch"], row["step"], file=self.file)

    def artifact(self, kind, file):
        print(kind, file=self.file)

    def close(self):
        self.file.close()


@gin.configurable
def stop_after(run, epochs=9):
    run.loop.stopped = run.loop.epoch >= epochs


@gin.configurable
class Broken(Callback):
    def __init__(self):
        raise ValueError("no sensor")
"""
BINDINGS = "build.callbacks = [@Counting]", "Counting.word = 'mine'", "build.loggers = [@Lines]", "Lines.name = 'l.txt'"


def written(tmp_path, *lines):
    (tmp_path / "my_parts.py").write_text(MY_PARTS)
    lines = ["import my_parts", "include 'configs/test/template_short.gin'", *QUICK, "train.num_epochs = 2", *lines]
    (tmp_path / "mine.gin").write_text("\n".join([*lines, ""]))
    return "--env", "pendulum-p-v0", "--algo", "sac", "--config", "mine.gin"


@offpcc.configurable
class Scaled(gymnasium.ObservationWrapper):
    """Observations times a number."""

    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor

    def observation(self, observation):
        return observation * self.factor


def test_arguments_of_make_in_python_are_those_of_gin(tmp_path):
    short = {"num_epochs": 1, "num_steps_per_epoch": 60, "update_after": 20, "num_test_episodes_per_epoch": 1}
    given = {"algorithm": {"hidden_dims": (8,)}, "training": short, "results": tmp_path, "video": False}
    wrappers = [functools.partial(Scaled, factor=np.float32(2.0)), DropIndices]
    arguments = {"wrappers": wrappers, "kwargs": {"max_episode_steps": np.int64(30)}}
    offpcc.configure(None, "DropIndices.indices = [1]")
    spec = offpcc.RunSpec.make("pendulum-v0", "sac", make=arguments, **given)
    run = offpcc.fit(spec).folder
    assert offpcc.fit(spec, resume=True).was_finished
    text = (run / "config.gin").read_text()
    assert "make_wrappers_1/Scaled.factor = 2.0" in text and "make.kwargs = {'max_episode_steps': 30}" in text
    other = {**arguments, "wrappers": [functools.partial(Scaled, factor=3.0), DropIndices]}
    longer = {**given, "training": {**short, "num_epochs": 2}}
    with pytest.raises(UserError, match=r"Scaled\.factor is 3\.0, but the run was made with 2\.0"):
        offpcc.fit(offpcc.RunSpec.make("pendulum-v0", "sac", make=other, **longer), resume=True)
    offpcc.configure(
        None,
        "make.wrappers = [@Scaled, @DropIndices]",
        "make.kwargs = {'max_episode_steps': 30}",
        "Scaled.factor = 2.0",
        "DropIndices.indices = [1]",
    )
    by_gin = offpcc.fit(offpcc.RunSpec.make("pendulum-v0", "sac", seed=1, **given)).folder
    offpcc.configure(None, "DropIndices.indices = [1]")
    by_python = offpcc.fit(
        offpcc.RunSpec.make("pendulum-v0", "sac", seed=1, make=arguments, **{**given, "results": tmp_path / "again"})
    ).folder
    assert (by_gin / "actor_last.pt").read_bytes() == (by_python / "actor_last.pt").read_bytes()
    offpcc.configure(None)
    lengths = [offpcc.load_run(folder).evaluate(1).lengths for folder in (run, by_gin, by_python)]
    assert [list(one) for one in lengths] == [[30]] * 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ({"wrapper": [DropIndices]}, "make takes no argument 'wrapper'; did you mean wrappers"),
        ({"wrappers": DropIndices}, "make.wrappers is the class DropIndices; it has to be a list"),
        (
            {"wrappers": ["DropIndices"]},
            r"holds 'DropIndices', which is no class; give classes, such as \[offpcc.envs.wrappers.Dr",
        ),
        ({"kwargs": 3}, "make.kwargs is 3"),
        ({"timeout": -1}, "make.timeout is -1"),
        ({"state": 3}, "make.state is 3"),
        ([DropIndices], "make .*dictionary"),
    ],
)
def test_unsuitable_arguments_of_make_are_named(make, words):
    with pytest.raises(UserError, match=words):
        offpcc.SAC("pendulum-v0", make=make)


def test_only_the_state_counts_of_make_without_an_environment():
    data = offpcc.collect("pendulum-v0", None, steps=210)
    for name, value in {"wrappers": [DropIndices], "kwargs": {"max_episode_steps": 5}, "timeout": -3}.items():
        with pytest.raises(
            UserError, match=rf"make=\{{'{name}': .* has no effect without an environment; leave it out"
        ):
            offpcc.BC(dataset=data, hidden_dims=(8,), make={name: value})
    learner = offpcc.BC(dataset=data, hidden_dims=(8,), make={"state": None})
    assert learner.algorithm.observation_space.shape == (3,)
    with pytest.raises(UserError, match=r"make.state is 3"):
        offpcc.BC(dataset=data, make={"state": 3})


@pytest.mark.slow
@pytest.mark.pictures
def test_a_gin_file_names_callbacks_and_loggers(launch, tmp_path):
    code, out, err = launch(*written(tmp_path, *BINDINGS))
    assert code == 0, err
    assert "mine: 35 rounds, 35 updates" in out
    lines = (run_folder(tmp_path) / "l.txt").read_text().split("\n")
    assert lines[:2] == ["1 250", "2 500"] and {"curve", "actor"} <= set(lines[2:])
    code, out, err = launch(*written(tmp_path, *BINDINGS, "train.num_epochs = 3"), "--resume")
    assert code == 0 and "mine: 25 rounds, 60 updates" in out, err
    without_logger = [line for line in BINDINGS if "ines" not in line and "loggers" not in line]
    code, out, err = launch(*written(tmp_path, *without_logger, "train.num_epochs = 4"), "--resume")
    assert code == 0 and "mine: 25 rounds, 85 updates" in out, err
    code, out, err = launch(*written(tmp_path, "train.num_epochs = 5"), "--resume")
    assert code == 2 and "build.callbacks is (), but the run was made with" in err


def test_bindings_of_a_logger_are_taken_from_the_command_line_and_kept(launch, tmp_path):
    words = written(tmp_path, *BINDINGS[:3])
    code, _, err = launch(*words, "--gin", "Lines.name='given.txt'")
    assert code == 0, err
    folder = run_folder(tmp_path)
    assert (folder / "given.txt").is_file() and "Lines.name = 'given.txt'" in (folder / "config.gin").read_text()
    more = ("--import", "my_parts", "--resume", "--gin", "train.num_epochs=3")
    code, _, err = launch(*words[:4], *more)
    assert code == 0 and "3 750" in (folder / "given.txt").read_text(), err
    code, _, err = launch(*words[:4], *more[:-1], "train.num_epochs=4", "Lines.name='other.txt'")
    assert code == 0 and "4 1000" in (folder / "other.txt").read_text(), err


def test_bindings_of_a_function_as_a_callback_are_taken_from_the_command_line_and_kept(launch, tmp_path):
    words = written(tmp_path, "build.callbacks = [@stop_after]", "train.num_epochs = 9")
    code, out, err = launch(*words, "--gin", "stop_after.epochs=1", "--no_video")
    assert code == 0 and "stop_after: epochs = 1" in out and "ended early, after epoch 1 of 9" in out, err
    assert "stop_after.epochs = 1" in (run_folder(tmp_path) / "config.gin").read_text()
    more = ("--import", "my_parts", "--resume", "--no_video", "--gin", "train.num_epochs=10")
    code, out, err = launch(*words[:4], *more)
    assert code == 0 and "ended early, after epoch 2 of 10" in out, err


def test_bindings_of_parts_with_a_scope_are_kept(launch, tmp_path):
    lists = "build.callbacks = [@a/stop_after]", "build.loggers = [@a/Lines, @b/Lines]"
    bindings = "a/stop_after.epochs = 1", "a/Lines.name = 'a.txt'", "b/Lines.name = 'b.txt'"
    words = written(tmp_path, *lists, *bindings[:2], "train.num_epochs = 9")
    code, out, err = launch(*words, "--no_video", "--gin", bindings[2])
    assert code == 0 and "ended early, after epoch 1 of 9" in out, err
    folder = run_folder(tmp_path)
    kept = (folder / "config.gin").read_text()
    assert all(binding in kept for binding in bindings)
    more = ("--import", "my_parts", "--resume", "--no_video", "--gin", "train.num_epochs=10")
    code, out, err = launch(*words[:4], *more)
    assert code == 0 and "ended early, after epoch 2 of 10" in out, err
    assert all("2 500" in (folder / name).read_text() for name in ("a.txt", "b.txt"))


@pytest.mark.parametrize("name, words", [("Broken", "no sensor; correct it"), ("Lines", "folder")])
def test_a_callback_that_cannot_be_built_is_one_message(launch, tmp_path, name, words):
    code, _, err = launch(*written(tmp_path, f"build.callbacks = [@{name}]"))
    assert code == 2 and len(err.splitlines()) == 1 and "--resume" not in err
    assert f"build.callbacks: {name} cannot be built" in err and words in err
    assert not run_folder(tmp_path).exists()


@pytest.mark.parametrize(
    "line, words",
    [
        ("build.callbacks = @Counting", ["build.callbacks is", "[@MyCallback]"]),
        ("build.callbacks = [3]", ["build.callbacks is [3]", "[@MyCallback]"]),
        ("build.loggers = [@Lines()]", ["build cannot be read", "without parentheses"]),
        ("build.logers = [@Lines]", ["'logers'", "did you mean loggers?"]),
        ("build.callbacks = [@Count]", ["Count"]),
        ("Lines.nam = 'x'", ["'nam'", "did you mean name?"]),
    ],
)
def test_a_wrong_part_is_one_message(launch, tmp_path, line, words):
    code, _, err = launch(*written(tmp_path, line))
    assert code == 2 and "Traceback" not in err
    assert all(word in err for word in words), err


MY_MODEL = """
import torch
import offpcc
from offpcc.algorithms import SAC
from offpcc.algorithms.optim import Optimizer
from offpcc.training.callbacks import Callback


@offpcc.configurable
class Modelled(SAC):
    def __init__(self, observation_space, action_space, **kwargs):
        super().__init__(observation_space, action_space, **kwargs)
        self.model = torch.nn.Linear(1, 1)
        self.model_optimizer = Optimizer([(self.model.parameters(), 1e-2)])


@offpcc.configurable
class Fitting(Callback):
    def before_updates(self, run):
        agent = run.algorithm
        agent.model_optimizer.minimize((agent.model(run.buffer.peek().rewards)).square().mean())

    def on_end(self, run):
        print("weight", run.algorithm.model.weight.item(), run.algorithm.model_optimizer.num_updates)
"""


def test_a_model_of_the_algorithms_class_is_resumed_exactly(launch, tmp_path):
    """As the docstring of `Callback` and docs/extending.md say."""
    (tmp_path / "my_model.py").write_text(MY_MODEL)
    told = []
    for name, epochs in (("whole", [2]), ("parts", [1, 2])):
        for count in epochs:
            lines = ["import my_model", "include 'configs/test/template_short.gin'", *QUICK]
            lines += ["build.callbacks = [@Fitting]", f"train.num_epochs = {count}", ""]
            (tmp_path / "mine.gin").write_text("\n".join(lines))
            arguments = "--env", "pendulum-p-v0", "--algo", "Modelled", "--config", "mine.gin", "--results", name
            code, out, err = launch(*arguments, *(["--resume"] if count != epochs[0] else []))
            assert code == 0, err
        told.append([line for line in out.split("\n") if line.startswith("weight")])
    assert told[0] == told[1] and len(told[0]) == 1


OVERRIDING = """import offpcc
from offpcc.algorithms import SAC

@offpcc.configurable
class Overriding(SAC):
    def update_networks(self, batch):
        return {}
"""


def test_an_algorithm_that_overrides_update_networks_is_one_message(launch, tmp_path):
    (tmp_path / "my_overriding.py").write_text(OVERRIDING)
    (tmp_path / "mine.gin").write_text("import my_overriding\ninclude 'configs/test/template_short.gin'\n")
    code, _, err = launch("--env", "pendulum-p-v0", "--algo", "Overriding", "--config", "mine.gin")
    assert code == 2 and "Traceback" not in err
    assert "Overriding overrides update_networks" in err and "rename the method to inner_update" in err


class Noting(Callback):
    ends = 0

    def on_end(self, run):
        Noting.ends += 1


class Log(Loggers):
    made = []

    def __init__(self, folder):
        super().__init__([])
        self.folder, self.rows, self.is_closed = folder, [], False
        Log.made.append(self)

    def epoch(self, row):
        self.rows.append(row)

    def close(self):
        self.is_closed = True


def test_python_gives_them_to_build():
    offpcc.configure("test/template_short.gin", *merged(*QUICK, "train.num_epochs = 1"))
    Noting.ends, Log.made = 0, []
    learner = offpcc.build("pendulum-p-v0", "sac", callbacks=[Noting], loggers=[Log])
    learner.train()
    (log,) = Log.made
    assert Noting.ends == 1 and log.folder is None and len(log.rows) == 1 and log.is_closed


def test_an_algorithm_may_be_given_as_its_class():
    given = {"algorithm": {"hidden_dims": (8,)}, "seed": 1}
    assert offpcc.build("pendulum-v0", SAC, **given).title == "pendulum-v0 sac"

    class Unknown(SAC):
        """Not registered."""

    with pytest.raises(UserError, match=r"Unknown is not registered; decorate the class with offpcc\.configurable"):
        offpcc.build("pendulum-v0", Unknown)


def test_networks_that_an_own_class_builds_after_its_parent_have_the_runs_seed():
    @offpcc.configurable
    class WithNet(SAC):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.net = torch.nn.Linear(3, 4)

    def weights(seed):
        torch.rand(1)  # moves the global generator
        return offpcc.build("pendulum-v0", WithNet, seed=seed).algorithm.net.weight

    state = torch.get_rng_state()
    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))
    torch.set_rng_state(state)


def test_a_logger_of_python_may_have_arguments(tmp_path):
    class Named(Logger):
        found = []

        def __init__(self, folder, name):
            self.found.append((folder, name))

    given = {
        "algorithm": {"hidden_dims": (8,)},
        "loggers": [functools.partial(Named, name="a"), lambda one: Named(one, "b")],
    }
    training = {"num_epochs": 1, "num_steps_per_epoch": 20, "update_after": 10, "num_test_episodes_per_epoch": 0}
    offpcc.build("pendulum-v0", "sac", **given).train(**training)
    spec = offpcc.RunSpec.make("pendulum-v0", "sac", **given, training=training)
    offpcc.fit(spec, tmp_path / "run")
    assert Named.found == [(None, "a"), (None, "b"), (tmp_path / "run", "a"), (tmp_path / "run", "b")]
    with pytest.raises(
        UserError, match=r"build.loggers is .* has to be a list of classes, or of functions .*MyLogger\]"
    ):
        offpcc.build("pendulum-v0", "sac", loggers=[Named(None, "c")])


@pytest.mark.parametrize("name, ours", [("epochs", "epoch"), ("write_metric", "epoch"), ("save_model", "artifact")])
def test_a_method_of_another_librarys_loggers_is_refused(name, ours):
    theirs = type("Theirs", (Logger,), {name: lambda self, row: None, "close": lambda self: None})
    with pytest.raises(UserError, match=f"Theirs has the method {name}, which offpcc never calls; .* {ours}$"):
        Loggers([theirs()])
    both = type("Both", (theirs,), {ours: lambda self, *row: None})
    further = type("Further", (both,), {name: lambda self, row: None})
    Loggers([both(), further(), type("Base", (Logger,), {"text_of": lambda self, row: str(row)})()])


def test_a_logger_needs_no_constructor(capsys):
    class Least(Logger):
        """Prints the step."""

        def epoch(self, row):
            print("after", row["step"])

    learner = offpcc.build("pendulum-v0", "sac", algorithm={"hidden_dims": (8,)}, loggers=[Least])
    learner.train(num_epochs=1, num_steps_per_epoch=20, update_after=10, num_test_episodes_per_epoch=0)
    assert "after 20\n" in capsys.readouterr().out


def test_whole_numbers_are_asked_for_where_choices_are_numbers():
    rows = np.arange(400)
    data = offpcc.Dataset.from_arrays(
        observations=np.random.default_rng(0).normal(size=(400, 2)),
        actions=(rows % 2).astype(np.float32),
        rewards=np.ones(400),
        terminations=rows % 20 == 19,
    )
    with pytest.raises(UserError, match=r"are choices, give whole numbers: actions\.astype\(int\)"):
        offpcc.build(None, "dcql", dataset=data)


@offpcc.configurable
class MunchausenDQN(offpcc.algorithms.DQN):
    """DQN with the bonus of Vieillard et al. 2020, which reads the target network at the observation itself."""

    def target(self, h, batch):
        """Return y with the scaled log-policy of the recorded action in the reward, (B, T, 1)."""
        with torch.no_grad():
            log_policy = torch.log_softmax(self.target_critics(h.target_q[:, :, :-1])[0] / 0.03, -1)
            bonus = 0.03 * (batch.actions * log_policy).sum(-1, keepdim=True).clamp(min=-1.0)
            next_q = self.target_critics(h.target_q[:, :, 1:])[0]
            return 0.9 * bonus + self.td_target(batch, next_q.amax(-1, keepdim=True))


@pytest.mark.parametrize("double", [False, True])
def test_an_algorithm_of_ones_own_may_read_any_summary_of_images(double):
    images, choices = spaces.Box(0, 255, (3, 24, 24), np.uint8), spaces.Discrete(2)
    agent = MunchausenDQN(images, choices, shared_encoder=Convolutional, hidden_dims=(8,), double=double)
    assert agent.skipped(True) is agent.skipped(False) is None
    buffer = ReplayBuffer(images, choices, batch_size=8, capacity=30)
    draw = np.random.default_rng(0)
    for _ in range(20):
        seen, then = draw.integers(0, 255, (2, *images.shape), np.uint8)
        buffer.push(seen, np.eye(2, dtype=np.float32)[draw.integers(2)], 1.0, then, False, False)
    assert all(bool(torch.isfinite(value).all()) for value in agent.update_networks(buffer.sample()).values())


def learn(cls):
    """Make a few updates of a user's algorithm."""
    learner = offpcc.build("pendulum-v0", cls, algorithm={"hidden_dims": (4,)})
    learner.train(Loggers([]), num_epochs=1, num_steps_per_epoch=40, update_after=20)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda loss: loss, r"Returning\.actor_loss returns a Tensor; return the loss and a dictionary of statistics"),
        (lambda loss: (loss, loss), r"Returning\.actor_loss returns a tuple of Tensor and Tensor; return the loss"),
        (lambda loss: (loss, {}), r"Returning\.actor_loss returns no statistic 'entropy', from which the temperature"),
        (lambda loss: (loss, {}, 1), r"Returning\.actor_loss returns a tuple of Tensor, dict and int; return the loss"),
    ],
)
def test_a_loss_without_statistics_is_refused_with_what_to_return(returned, words):
    @offpcc.configurable
    class Returning(offpcc.algorithms.SAC):
        def actor_loss(self, h, batch):
            return returned(super().actor_loss(h, batch)[0])

    with pytest.raises(UserError, match=words):
        learn(Returning)


class Unprepared(SAC):
    """SAC without the first line of its update."""

    def inner_update(self, batch):
        return self.update_critics(self.summarize(batch), batch)


class OwnPrepare(Unprepared):
    def prepare(self, batch, learns=True):
        return batch


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalize_observations": True}, "normalises observations"),
        ({"normalize_observations": True, "clip_rewards": True}, "normalises observations and applies clip_rewards"),
        ({"encoder": Recurrent}, "puts zeros into padding"),
        ({"encoder": Recurrent, "normalize_observations": True}, "normalises observations and puts zeros into padding"),
        ({"augmentation": RandomShift(), "shared_encoder": Convolutional}, "shifts images"),
        ({"dropout": 0.5}, "sets dropout and batch norm to train mode"),
        ({"encoder": lambda shape: FromFile(shape)}, "sets FromFile to train mode"),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_an_update_that_does_not_prepare_its_batch_is_one_message(options, words, nonfinite):
    images = "augmentation" in options
    space = spaces.Box(0, 255, (1, 40, 40), np.uint8) if images else spaces.Box(-1.0, 1.0, (3,), np.float32)
    actions = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def update(cls):
        agent = cls(space, actions, hidden_dims=(4,), nonfinite=nonfinite, **options)
        if agent.memoryless:
            buffer = ReplayBuffer(space, actions, batch_size=4)
        else:
            buffer = RecurrentReplayBuffer(space, actions, batch_size=4)
        for step in range(20):
            buffer.push(space.sample(), actions.sample(), 1.0, space.sample(), False, step in (3, 19))
        agent.update_networks(buffer.sample())
        return agent

    if words:
        with pytest.raises(UserError, match=rf"Unprepared.inner_update does not .* which {words}; begin inner_update"):
            update(Unprepared)
        update(OwnPrepare)
        assert update(SAC).nonfinite_guard.is_prepared
    else:
        assert not update(Unprepared).nonfinite_guard.is_prepared


def test_a_loss_of_each_item_is_refused_with_the_way_to_one_number():
    class EachItem(offpcc.algorithms.TD3):
        def actor_loss(self, h, batch):
            return -self.policy_value(h, self.actor(h.pi)), {}

    with pytest.raises(UserError, match=r"EachItem is not registered; decorate the class with offpcc\.configurable"):
        offpcc.build("pendulum-v0", EachItem)
    offpcc.configurable(EachItem)
    words = r"the loss has the shape \(256, 1, 1\); return one number, such as batch.mean"
    with pytest.raises(ValueError, match=words):
        learn(EachItem)


@offpcc.configurable
class KeepsAnArray(SAC):
    def state_dict(self):
        return {**super().state_dict(), "counts": {"noise": np.zeros(2)}}


def test_a_state_that_no_checkpoint_could_give_back_is_refused_when_it_is_written(tmp_path):
    learner = offpcc.build("pendulum-v0", KeepsAnArray, algorithm={"hidden_dims": (8,)})
    words = r"KeepsAnArray.state_dict\(\)\['counts'\]\['noise'\] is of type ndarray.*take torch.from_numpy"
    with pytest.raises(UserError, match=words):
        learner.save(tmp_path / "saved.pt")
    spec = offpcc.RunSpec.make(
        "pendulum-v0",
        KeepsAnArray,
        algorithm={"hidden_dims": (8,)},
        training={"num_epochs": 1, "num_steps_per_epoch": 10, "num_test_episodes_per_epoch": 1},
        results=tmp_path,
        video=False,
    )
    with pytest.raises(UserError, match=words):
        offpcc.fit(spec)


@pytest.mark.parametrize("of_torch", [False, True])
def test_a_tensor_that_is_trained_and_not_saved_is_refused(of_torch):
    @offpcc.configurable
    class TrainsATensor(SAC):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.beta = torch.nn.Parameter(torch.zeros(()))
            own = self.optimizer([([self.beta], 1e-3)])
            self.beta_optimizer = torch.optim.Adam([self.beta]) if of_torch else own

    with pytest.raises(UserError, match=r"TrainsATensor\.beta_optimizer trains a tensor that is in no module"):
        offpcc.build("pendulum-v0", TrainsATensor)

    @offpcc.configurable
    class SavesATensor(TrainsATensor):
        def state_dict(self):
            return {**super().state_dict(), "beta": self.beta}

    @offpcc.configurable
    class HoldsATensor(TrainsATensor):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.held = torch.nn.ParameterList([self.beta])

    for cls in (SavesATensor, HoldsATensor):
        assert offpcc.build("pendulum-v0", cls).algorithm.beta == 0.0


def test_an_own_algorithm_without_its_parents_init_is_one_message():
    @offpcc.configurable
    class Orphan(SAC):
        def __init__(self, *args, beta=1.0, **kwargs):
            self.beta = beta

    with pytest.raises(UserError, match=r"Orphan\.__init__ does not call its parent; call super\(\)\.__init__"):
        offpcc.build("pendulum-v0", Orphan)


@offpcc.configurable
class TakesAll(SAC):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_a_wrong_argument_that_an_own_algorithm_passes_on_is_told_as_such():
    with pytest.raises(UserError, match=r"did you mean gamma\? \(\S+:\d+\); correct the argument, or this line"):
        offpcc.build("pendulum-v0", TakesAll, algorithm={"gama": 0.9})


def test_a_prefix_before_an_own_algorithm_is_told_as_a_binding():
    for name, encoder in (("rTakesAll", "Recurrent"), ("cTakesAll", "Convolutional"), ("crTakesAll", "Recurrent")):
        words = rf"'{name}': prefixes are .* bind TakesAll\.encoder = @{encoder}$"
        with pytest.raises(UserError, match=words):
            offpcc.build("pendulum-v0", name)


def test_a_target_without_its_last_axis_is_refused():
    @offpcc.configurable
    class Squeezed(SAC):
        def target(self, h, batch):
            return super().target(h, batch).squeeze(-1)

    words = r"batch\.mean got the shape \(2, 256, 256, 1\), but needs \(\.\.\., 256, 1, D\)"
    with pytest.raises(ValueError, match=words):
        learn(Squeezed)


def test_an_own_algorithm_with_a_memory_is_told_which_class_has_the_size_of_the_memory():
    with pytest.raises(UserError, match=r"hidden_dims\? For a memory, bind Recurrent.hidden_dim$"):
        offpcc.build("pendulum-v0", KeepsAnArray, algorithm={"encoder": Recurrent, "hidden_dim": 8})


def test_the_note_on_recorded_data_names_the_attribute_that_says_that_an_own_algorithm_is_for_them():
    note = note_on_data(offpcc.RunSpec.make("pendulum-v0", KeepsAnArray, dataset="x.hdf5", seed=1))
    assert note.endswith("if it is for such data, set is_offline = True in its class")
    assert "is_offline" not in note_on_data(offpcc.RunSpec.make("pendulum-v0", "sac", dataset="x.hdf5", seed=1))


@offpcc.configurable
class FromFile(offpcc.networks.Encoder):
    """An encoder with pretrained weights, or with layers that somebody else made."""

    learning_only = frozenset({"weights"})

    def __init__(self, shape, *, weights=None, layers=None, frozen=False):
        super().__init__(shape)
        self.net, self.dim = torch.nn.Linear(3, 2) if layers is None else layers, 2
        if weights is not None:
            self.net.load_state_dict(torch.load(weights, weights_only=True))
        if frozen:
            self.net.requires_grad_(False)

    def forward(self, inputs, state=None):
        return self.net(inputs.observation), None


@offpcc.configurable
class AlwaysFromFile(FromFile):
    learning_only = frozenset()


@pytest.mark.parametrize("inside", [lambda cls: cls, lambda cls: functools.partial(Recurrent, feature_extractor=cls)])
def test_an_actor_with_pretrained_weights_does_not_need_their_file(inside, tmp_path):
    """Not even if gin still names it."""
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "vision.pt")
    offpcc.configure(None, f"FromFile.weights = '{tmp_path / 'vision.pt'}'")
    for cls in (FromFile, AlwaysFromFile):
        learner = offpcc.SAC("pendulum-v0", encoder=inside(cls), hidden_dims=(4,))
        offpcc.Agent(learner.algorithm).save(tmp_path / f"{cls.__name__}.pt")
    (tmp_path / "vision.pt").unlink()
    loaded = offpcc.Agent.load(tmp_path / "FromFile.pt").algorithm.actor_encoder.state_dict()
    with pytest.raises(UserError, match=r"vision.pt'\); put the file back, or name the argument .* in learning_only"):
        offpcc.Agent.load(tmp_path / "AlwaysFromFile.pt")
    saved = learner.algorithm.actor_encoder.state_dict()  # of AlwaysFromFile, whose network is from the same file
    same = [torch.equal(loaded[name], saved[name]) for name in saved if "net." in name]
    assert loaded.keys() == saved.keys() and same == [True, True]


def test_weights_that_actor_and_critics_share_without_a_shared_encoder_are_refused():
    space, actions = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32)
    layers = torch.nn.Linear(3, 2)
    encoder = functools.partial(FromFile, layers=layers)
    with pytest.raises(UserError, match=r"have the same weights, which two optimizers would change; .* shared_encoder"):
        SAC(space, actions, encoder=encoder)
    SAC(space, actions, shared_encoder=encoder)
    offpcc.algorithms.DQN(space, spaces.Discrete(2), encoder=encoder)  # its actor is the Q network
    layers.requires_grad_(False)
    SAC(space, actions, encoder=encoder)


@pytest.mark.parametrize("where", ["encoder", "shared_encoder"])
def test_the_estimate_from_data_reads_frozen_weights_as_the_actor_does(where, tmp_path, monkeypatch):
    weights = {"weight": torch.full((2, 3), 0.5), "bias": torch.ones(2)}
    torch.save(weights, tmp_path / "vision.pt")
    encoder = functools.partial(FromFile, weights=str(tmp_path / "vision.pt"), frozen=True)
    data = offpcc.collect("pendulum-v0", None, steps=400)
    offpcc.Agent(offpcc.BC(dataset=data, **{where: encoder}).algorithm).save(tmp_path / "actor.pt")
    seen = []
    update = FQE.inner_update
    monkeypatch.setattr(FQE, "inner_update", lambda self, b: seen.append(self) or update(self, b))
    offpcc.evaluate_from_data(offpcc.Agent.load(tmp_path / "actor.pt"), data, num_updates=1)
    fqe = seen[0]
    parts = [fqe.shared_encoder, fqe.target_shared_encoder, *fqe.critic_encoders, *fqe.target_critic_encoders]
    read = [part for part in parts if isinstance(part, FromFile)]
    assert len(read) >= 2
    for part in read:
        assert all(torch.equal(a, b) for a, b in zip(part.state_dict().values(), weights.values(), strict=True))
    agent = offpcc.Agent.load(tmp_path / "actor.pt")
    offpcc.evaluate_from_data(agent, data, num_updates=1, algorithm={where: FromFile})
    fqe = seen[1]
    [other, *_] = (one for one in (fqe.shared_encoder, *fqe.critic_encoders) if isinstance(one, FromFile))
    assert not torch.allclose(other.net.bias, weights["bias"], atol=0.1), "another encoder is the user's choice"


@pytest.mark.parametrize("change", [lambda frames: frames / 255.0, lambda frames: frames[:, :, :, 1:]])
def test_an_augmentation_that_returns_other_images_is_refused(change):
    space, actions = spaces.Box(0, 255, (1, 40, 40), np.uint8), spaces.Box(-1.0, 1.0, (1,), np.float32)
    agent = offpcc.algorithms.ConvolutionalSAC(
        space, actions, augmentation=lambda frames, noise, one_per_row: change(frames)
    )
    with pytest.raises(UserError, match=r"augmentation returned .* for torch.uint8 of .*; return the same type and"):
        agent.augment(torch.zeros(2, 1, 1, 40, 40, dtype=torch.uint8))
