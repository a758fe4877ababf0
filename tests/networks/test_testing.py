"""What is tried of encoders, on those that break one promise each."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import offpcc
from offpcc.algorithms import BC, BCQ, SAC, TQC
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.config.registry import configurable
from offpcc.networks import (
    Cell,
    Convolutional,
    Critics,
    DeterministicActor,
    Encoder,
    Identity,
    QuantileCritics,
    Recurrent,
    check_encoder,
)
from offpcc.networks.cells import CELLS
from offpcc.networks.encoders import InputShape, PassThrough
from offpcc.networks.testing import check_own_encoders
from offpcc.utils.errors import UserError

SMALL = functools.partial(Convolutional, channels=(4, 3), kernels=(3, 3), strides=(2, 1), feature_dim=6)


@pytest.mark.parametrize("cell", CELLS)
def test_our_memories_keep_their_promises(cell):
    check_encoder(functools.partial(Recurrent, cell=cell, hidden_dim=5, use_previous_reward=True))


def test_our_other_encoders_keep_theirs():
    check_encoder(Identity)
    check_encoder(SMALL, observation=(2, 12, 10))
    check_encoder(functools.partial(Recurrent, feature_extractor=SMALL, hidden_dim=5), observation=(2, 12, 10))


@configurable
class Mean(Cell):
    """A running mean, and ways to be wrong."""

    def __init__(self, num_in, hidden_dim, num_layers, *, fault=""):
        super().__init__()
        self.dim, self.fault = num_in, fault
        if fault == "not saved":
            self.scale = torch.rand(())

    def forward(self, x, state=None):
        before = torch.full_like(x[:, 0], float(self.fault == "start")) if state is None else state
        rows = []
        for step in x.unbind(1):
            before = 0.5 * before + 0.5 * step
            rows.append(before)
        h = torch.stack(rows, 1)
        if self.fault == "ahead":
            h = h + h.flip(1).cumsum(1).flip(1)
        if self.fault == "rows":
            h = h - h.mean(0)
        if self.fault == "width":
            h = h[..., 1:]
        if self.fault == "forgets":
            before = 0.0 * before
        if self.fault == "random":
            h = h + torch.randn_like(h)
        if self.fault == "layers first":
            before = before.unsqueeze(0)
        if self.fault == "not saved":
            h = self.scale * h
        return h, None if self.fault == "no state" else before

    def mirror(self):
        if self.fault != "mirror":
            return None
        return lambda x, state: (x, np.zeros(len(x)))


@pytest.mark.parametrize("fault, told", [
    ("", None),
    ("width", r"summaries of Mean have the shape \(3, 7, 3\); it must be \(batch, steps, Mean.dim\) = \(3, 7, 4\)"),
    ("no state", "Mean.forward returned None as its state; return what the cell remembers"),
    ("ahead", r"depend on later steps: by up to .* in 3 steps"),
    ("rows", "depend on other rows of the batch"),
    ("forgets", "differ between one call and step by step"),
    ("random", "depend on later steps"),
    ("start", "with a state of zeros differs from an episode's start"),
    ("layers first", "its first axis must be the batch"),
    ("mirror", "the mirror of Recurrent with Mean returns other summaries than forward"),
    ("not saved", "Recurrent with Mean returns other summaries after it was rebuilt from an actor's file"),
])  # fmt: skip
def test_a_memory_that_breaks_a_promise_is_named(fault, told):
    build = functools.partial(Recurrent, cell=functools.partial(Mean, fault=fault))
    if told is None:
        check_encoder(build)
        return
    with pytest.raises(UserError, match=told):
        check_encoder(build)


@configurable
class Recent(Cell):
    """The sum of the last `context_length` inputs; fed at once it has no window."""

    def __init__(self, num_in, hidden_dim, num_layers, *, context_length=40):
        super().__init__()
        self.dim, self.context_length = num_in, context_length

    def forward(self, x, state=None):
        before = x.new_zeros(len(x), self.context_length - 1, self.dim) if state is None else state
        known = torch.cat([before, x], 1)
        return known.cumsum(1)[:, self.context_length - 1 :], known[:, x.shape[1] :]


@pytest.mark.parametrize("context_length", [10, 40, 200])
def test_a_window_is_gone_past(context_length):
    with pytest.raises(
        UserError, match=r"summaries of Recurrent with Recent differ between one call and step by step: .* in 300 steps"
    ):
        check_encoder(functools.partial(Recurrent, cell=functools.partial(Recent, context_length=context_length)))


@configurable
class Overlooking(Encoder):
    """Memoryless, and random while it trains."""

    def __init__(self, shape):
        super().__init__(shape)
        self.dim, self.drop = shape.observation[0], nn.Dropout()

    def forward(self, inputs, state=None):
        return self.drop(inputs.observation), None


class TimeFirst(Cell):
    """A GRU without `batch_first`: it takes the steps for the batch."""

    def __init__(self, num_in, hidden_dim, num_layers):
        super().__init__()
        self.dim, self.gru = hidden_dim, nn.GRU(num_in, hidden_dim)

    def forward(self, x, state=None):
        return self.gru(x, state)


class Raising(TimeFirst):
    def forward(self, x, state=None):
        raise ValueError("no such thing")


class Mixing(TimeFirst):
    def forward(self, x, state=None):
        h = x.mean(0, keepdim=True).expand_as(x)[..., :1].expand(*x.shape[:2], self.dim)
        return h, torch.zeros(len(x), 1)


@pytest.mark.parametrize(
    "cell, told",
    [
        (TimeFirst, "its first axis must be the batch"),
        (Raising, r"Raising.forward\(x, None\) failed .* ValueError: no such thing"),
        (Mixing, "summaries of Mixing depend on other rows of the batch"),
    ],
)
def test_a_cell_of_your_own_is_checked_where_it_is_built(cell, told):
    with pytest.raises(UserError, match=told):
        Recurrent(InputShape((4,), 2), cell=cell, hidden_dim=8, num_layers=1)


def test_the_check_of_a_cell_leaves_it_as_it_is():
    class Counting(Cell):
        def __init__(self, num_in, hidden_dim, num_layers):
            super().__init__()
            self.dim = num_in
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x, state=None):
            self.calls += 1
            return x, torch.zeros(len(x), 1)

    memory = Recurrent(InputShape((4,), 2), cell=Counting, hidden_dim=8, num_layers=1)
    assert memory.cell.calls == 0 and memory.cell.training


def test_an_encoder_of_dict_observations_is_checked_by_their_space():
    seen = []

    class Parts(Encoder):
        def __init__(self, shape):
            super().__init__(shape)
            self.parts = {part.key: part for part in shape.observation.parts}
            self.dim = 2

        def forward(self, inputs, state=None):
            place = inputs.observation[..., self.parts["place"].columns]
            seen.append((place.shape[-1], self.parts["image"].shape))
            return place[..., :2], None

    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 16, 16), np.uint8), "place": spaces.Box(-1, 1, (4,))})
    with pytest.raises(UserError, match="decorate its class"):  # after the checks of what it returns
        check_encoder(Parts, space)
    assert set(seen) == {(4, (3, 16, 16))}


@configurable
class Unscaled(Encoder):
    """Reads an image as it comes, uint8, which convolutions do not take."""

    def __init__(self, shape, scaled):
        super().__init__(shape)
        self.net, self.dim, self.scaled = nn.Conv2d(shape.observation[0], 2, 3), 2, scaled

    def forward(self, inputs, state=None):
        assert inputs.observation.dtype == torch.uint8 and inputs.observation.max() > 200
        frames = inputs.observation.flatten(0, 1)
        frames = frames / 255.0 if self.scaled else frames
        return self.net(frames).mean((-2, -1)).unflatten(0, inputs.observation.shape[:2]), None


@pytest.mark.parametrize("space", [spaces.Box(0, 255, (12, 10, 3), np.uint8), (3, 12, 10)])
def test_an_encoder_of_an_image_is_checked_with_uint8(space):
    check_encoder(functools.partial(Unscaled, scaled=True), space)
    with pytest.raises(UserError, match=r"Unscaled.forward\(inputs, None\) failed .*: RuntimeError: .* type"):
        check_encoder(functools.partial(Unscaled, scaled=False), space)
    check_encoder(Identity, spaces.Box(-1.0, 1.0, (4,), np.float32))


def test_what_is_no_encoder_is_told():
    with pytest.raises(
        UserError, match=r"InputShape is not an encoder; derive it from Encoder, or check a memory cell by"
    ):
        check_encoder(lambda shape: shape)
    with pytest.raises(UserError, match=r"Cell is not an encoder; .* by functools.partial\(Recurrent, cell=Cell\)"):
        check_encoder(Cell)


def test_what_is_random_in_training_alone_is_no_fault():
    check_encoder(Overlooking)


# An actor's file ------------------------------------------------------------------------------------------------


class Undecorated(Mean):
    pass


class UndecoratedEncoder(Overlooking):
    pass


@configurable
class Misnaming(Overlooking):
    def __init__(self, input_shape):
        super().__init__(input_shape)


@configurable
class MisnamingApart(Encoder):
    def __init__(self, input_shape):
        super().__init__(input_shape)
        self.dim = input_shape.observation[0]

    def forward(self, inputs, state=None):
        return inputs.observation, None


@configurable
class Positional(Overlooking):
    def __init__(self, shape, *rates):
        super().__init__(shape)
        self.scales = nn.ParameterList(torch.ones(1) for _ in rates)


@configurable
class Renaming(Cell):
    def __init__(self, input_dim, width, depth):
        super().__init__()
        self.dim = input_dim


@pytest.mark.parametrize("build, told", [
    (functools.partial(Recurrent, cell=Undecorated), "^the class Undecorated cannot .*; decorate it with offpcc"),
    (UndecoratedEncoder, "^an object of UndecoratedEncoder cannot .*; decorate its class with offpcc.configurable$"),
    (functools.partial(Recurrent, cell=Renaming), "^Renaming takes the arguments input_dim, width, depth; a cell gets"),
    (MisnamingApart, "^MisnamingApart has an argument input_shape for its input shape, .* argument to shape$"),
    (Misnaming, "^Misnaming has an argument input_shape for its input shape"),
    (lambda shape: Positional(shape, 1, 2), r"^Positional cannot be rebuilt from an actor's file \(.*scales"),
])  # fmt: skip
def test_what_no_actors_file_could_hold_is_told_in_one_line(build, told):
    with pytest.raises(UserError, match=told) as caught:
        check_encoder(build)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("cell", [functools.partial(Mean, fault="none of them"), *CELLS])
def test_what_passes_is_loaded_as_it_was_saved(cell, tmp_path):
    box = functools.partial(gymnasium.spaces.Box, -1.0, 1.0)
    build = functools.partial(Recurrent, cell=cell, hidden_dim=5)
    save_actor(SAC(box((4,)), box((2,)), encoder=build, hidden_dims=(8,)), tmp_path / "actor.pt")
    loaded = load_actor(tmp_path / "actor.pt").actor_encoder.cell
    assert type(loaded) is (CELLS[cell] if isinstance(cell, str) else Mean)
    assert getattr(loaded, "fault", "none of them") == "none of them"


# Encoders of the user's when an algorithm is built ---------------------------------------------------------------


@configurable
class Linear(Encoder):
    """A layer over a vector, which children break."""

    def __init__(self, shape, *, width=6):
        super().__init__(shape)
        self.dim, self.layer = width, nn.Linear(shape.observation[0], width)

    def forward(self, inputs, state=None):
        return self.layer(inputs.observation), None


class NoDim(Linear):
    def __init__(self, shape):
        super().__init__(shape)
        del self.dim


class WrongDim(Linear):
    def __init__(self, shape):
        super().__init__(shape)
        self.dim = 9


class NoState(Linear):
    def forward(self, inputs, state=None):
        return self.layer(inputs.observation)


class OneArgument(Linear):
    def forward(self, inputs):
        return self.layer(inputs.observation), None


class FlatTime(Linear):
    def forward(self, inputs, state=None):
        return self.layer(inputs.observation).flatten(0, 1), None


class Forgetful(Linear):
    def forward(self, inputs, state=None):
        return self.layer(inputs.observation), inputs.observation[:, -1]


class NoForward(Encoder):
    dim = 6


class NoSuper(Linear):
    def __init__(self, shape):
        self.dim, self.layer = 6, nn.Linear(3, 6)


class ReadsImages(Linear):
    def __init__(self, shape):
        channels, _, _ = shape.observation
        super().__init__(shape, width=channels)


BROKEN = [
    (NoDim, r"NoDim.dim is not set"),
    (
        WrongDim,
        r"summaries of WrongDim have the shape \(\d, \d, 6\); it must be .* = \(\d, \d, 9\), with WrongDim.dim = 9",
    ),
    (NoState, r"NoState.forward has to return summaries and a state, which is None without memory"),
    (OneArgument, r"OneArgument.forward\(inputs, None\) failed .* = \(\d, \d, 3\): TypeError: .*; correct it"),
    (FlatTime, r"summaries of FlatTime have the shape \(\d+, 6\)"),
    (Forgetful, r"Forgetful.memoryless is True, but it returned a state"),
    (NoForward, r"NoForward has no forward\(inputs, state\); write it"),
]
UNBUILT = [
    (NoSuper, "AttributeError: cannot assign module before"),
    (ReadsImages, r"ValueError: not enough values to unpack \(expected 3, got 1\)"),
    (functools.partial(Linear, width=-4), "RuntimeError: Trying to create tensor with negative dimension"),
    (Encoder, "the class Encoder|it is the base class"),
]


@pytest.mark.parametrize("build, told", BROKEN)
def test_an_algorithm_checks_an_encoder_of_the_user_when_it_is_built(build, told):
    box = functools.partial(gymnasium.spaces.Box, -1.0, 1.0)
    for check in (lambda: SAC(box((3,)), box((1,)), encoder=build), lambda: check_encoder(build, (3,))):
        with pytest.raises(UserError, match=told):
            check()


@pytest.mark.parametrize("build, told", UNBUILT)
def test_an_encoder_that_cannot_be_built_is_named_with_its_line(build, told):
    line = "" if build is Encoder else r" \(\S+test_testing.py:\d+\); correct this line"
    with pytest.raises(UserError, match=rf"({told}).*{line}"):
        offpcc.SAC("pendulum-v0", encoder=build)
    told = "Encoder.dim is not set" if build is Encoder else rf"the encoder cannot be built: {told}"
    with pytest.raises(UserError, match=told):
        check_encoder(build, (3,))


class Noisy(Linear):
    """Draws random numbers in each call, of torch and of NumPy."""

    def forward(self, inputs, state=None):
        return super().forward(inputs)[0] + torch.rand(()) + np.random.random(), None


def test_the_check_of_a_users_encoder_draws_no_random_numbers():
    encoder, draws = Noisy(InputShape((3,), 1)), []
    for is_checked in (False, True):
        torch.manual_seed(3)
        np.random.seed(3)
        if is_checked:
            check_own_encoders(PassThrough(InputShape((3,), 1)), encoder, InputShape((3,), 1), torch.float32)
        draws.append((torch.rand(1).item(), np.random.random()))
    assert draws[0] == draws[1]


class Embedded(Encoder):
    """Reads symbols: numbers out of the space are errors."""

    def __init__(self, shape):
        super().__init__(shape)
        self.symbols, self.dim = nn.Embedding(11, 2), 2 * int(np.prod(shape.observation))

    def forward(self, inputs, state=None):
        assert inputs.observation.dtype == torch.uint8
        return self.symbols(inputs.observation.long()).flatten(2), None


class Scaled(PassThrough):
    """A shared encoder of maps: images from 0 to 1."""

    def forward(self, inputs, state=None):
        return inputs.observation.float() / 255.0, None


class ReadsFloats(Encoder):
    def __init__(self, shape):
        super().__init__(shape)
        self.net, self.dim = nn.Conv2d(shape.observation[0], 2, 3), np.int64(2)

    def forward(self, inputs, state=None):
        maps = self.net(inputs.observation.flatten(0, 1))
        return maps.mean((-2, -1)).unflatten(0, inputs.observation.shape[:2]), None


class Frozen(Linear):
    """Its `train` returns nothing, as many do."""

    def train(self, mode=True):
        super().train(mode)


class Uncopied(Linear):
    def __init__(self, shape):
        super().__init__(shape)
        self.lines = (line for line in ())


def space_of(*shape, dtype=np.float32):
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize("observations, given", [
    (space_of(7, 7, 3, dtype=np.uint8), {"encoder": Embedded}),
    (space_of(16, 16, 3, dtype=np.uint8), {"shared_encoder": Scaled, "encoder": ReadsFloats}),
    (space_of(3, 16, 16), {"encoder": ReadsFloats}),
    (space_of(3), {"encoder": Frozen}),
])  # fmt: skip
def test_an_encoder_that_is_right_is_built(observations, given):
    SAC(observations, spaces.Box(-1.0, 1.0, (1,)), hidden_dims=(8,), **given)


def test_an_encoder_that_cannot_be_copied_is_not_tried():
    BC(space_of(3), spaces.Box(-1.0, 1.0, (1,)), hidden_dims=(8,), encoder=Uncopied)


def test_a_part_of_the_users_in_an_encoder_of_ours_is_named():
    build = functools.partial(Recurrent, hidden_dim=4, feature_extractor=NoState)
    with pytest.raises(UserError, match=r"Recurrent with NoState.forward\(inputs, None\) failed"):
        SAC(space_of(3), spaces.Box(-1.0, 1.0, (1,)), encoder=build)


@pytest.mark.parametrize("observation", [gymnasium.spaces.Discrete(3), "box", None, 4])
def test_check_encoder_names_an_argument_of_the_wrong_kind(observation):
    with pytest.raises(UserError, match=r"check_encoder.observation is .* a Box, a Dict or a shape"):
        check_encoder(Linear, observation)
    with pytest.raises(UserError, match=r"check_encoder.build is 'Linear'; give an encoder class"):
        check_encoder("Linear", (3,))


def test_an_agent_that_cannot_be_saved_is_announced_when_it_is_built():
    with pytest.warns(offpcc.utils.errors.DataWarning, match="can learn, but not be saved: .*UndecoratedEncoder"):
        offpcc.SAC("pendulum-v0", encoder=UndecoratedEncoder)


# Actors and critics of the user's -------------------------------------------------------------------------------------


class Plain(nn.Module):
    """Critics without a method of their own."""

    def __init__(self, num, dim, fault=""):
        super().__init__()
        self.num, self.fault, self.net = num, fault, nn.Linear(dim, 1)

    def forward(self, summary, action, members=None):
        if self.fault == "error":
            raise ValueError("no such layer")
        q = self.net(
            torch.cat([summary.expand(self.num, *action.shape[:-1], -1), action.expand(self.num, *action.shape)], -1)
        )
        return q.squeeze(-1) if self.fault == "shape" else q


class Chooser(nn.Module):
    """An actor that chooses by another network."""

    def __init__(self, dim, action_dim):
        super().__init__()
        self.net = nn.Linear(dim, action_dim)

    def choose(self, summary, noise):
        return self.net(summary)[..., :1]


@pytest.mark.parametrize("build, words", [
    (lambda dim: {"build_actor": nn.Linear(dim, 2)}, "returned Linear, which has no method choose; inherit"),
    (lambda dim: {"build_actor": Chooser(dim, 2)}, r"of Own.build_actor returned a value of shape \(2, 2, 1\)"),
    (lambda dim: {"build_critics": Plain(2, dim + 2, "error")}, "build_critics failed .*: ValueError: no such layer"),
    (lambda dim: {"build_critics": Plain(2, dim + 2, "shape")}, r"\(2, 2, 2\) for .* but \(2, 2, 2, 1\) is needed"),
    (lambda dim: {"build_critics": nn.Linear(dim + 2, 1)}, "Linear.forward of Own.build_critics failed .*: TypeError"),
])  # fmt: skip
def test_actors_and_critics_are_tried_when_they_are_built(build, words):
    class Own(SAC):
        def build_actor(self, summary_dim, hidden_dims):
            return build(summary_dim).get("build_actor") or super().build_actor(summary_dim, hidden_dims)

        def build_critics(self, num, summary_dim, hidden_dims):
            return build(summary_dim).get("build_critics") or super().build_critics(num, summary_dim, hidden_dims)

    with pytest.raises(UserError, match=words):
        Own(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32))


@pytest.mark.parametrize("build, words", [
    (lambda *sizes: Critics(*sizes), "Own.build_critics returned Critics, which has no method quantiles; inherit from "
        "QuantileCritics of"),
    (lambda *sizes: QuantileCritics(*sizes, 3), r"QuantileCritics.quantiles of Own.build_critics returned a value of "
        r"shape \(5, 2, 2, 3\) .*, but \(5, 2, 2, 4\) is needed"),
])  # fmt: skip
def test_critics_of_quantiles_are_tried_when_they_are_built(build, words):
    class Own(TQC):
        def build_critics(self, num, summary_dim, hidden_dims):
            return build(num, summary_dim, self.action_dim, hidden_dims)

    with pytest.raises(UserError, match=words):
        Own(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), num_quantiles=4)


class Moved(DeterministicActor):
    """Reads the action, too, as BCQ's perturbation does."""


def test_networks_that_algorithms_call_in_other_ways_are_not_tried():
    class Perturbing(BCQ):
        def build_actor(self, summary_dim, hidden_dims):
            return Moved(summary_dim + self.action_dim, self.action_dim, hidden_dims)

    class Choosing(SAC):
        def build_actor(self, summary_dim, hidden_dims):
            return Moved(summary_dim + 1, self.action_dim, hidden_dims)

        def choose_action(self, summary, noise):
            return self.actor.choose(torch.cat([summary, summary[..., :1]], -1), noise)

    class Judging(SAC):
        def build_critics(self, num, summary_dim, hidden_dims):
            return nn.Linear(summary_dim, 1)

        def critic_loss(self, h, batch):
            return self.critics(h.q).square().mean(), {}

    for cls in (Perturbing, Choosing, Judging):
        cls(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32))
