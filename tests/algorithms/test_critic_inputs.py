"""Critics that see the state, and actors that do not."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from references import GAMMA, NAN, SPACES, assert_same, build, data, gaussian, q_value, read
from test_contract import ACTIONS, IMAGES, VECTORS, WITH_CRITICS, act_along, assert_equal, each, moved, parameters

from offpcc.algorithms import ALGORITHMS, BC, BCQ, IQL, MBPO, MOPO, SAC, TD3
from offpcc.algorithms.agent import load_actor, save_actor
from offpcc.config import loading
from offpcc.core import Batch, PackedDict
from offpcc.data import ReplayBuffer
from offpcc.utils.errors import UserError

RecurrentSACSharing = ALGORITHMS["rsac_s"]
NUM_STATES = 4
STATES = Box(-np.inf, np.inf, (NUM_STATES,), np.float32)
BOTH, ALONE = "history+state", "state"
CASES = [
    case
    for case in WITH_CRITICS
    if not case.cls.acts_by_critics and not case.shared and case.cls.imagination is None and case.cell in ("lstm", None)
]


def space_of(observations):
    return PackedDict(Dict({"observation": observations, "state": STATES}), "state")


def with_states(case, seed=0, change=0.0):
    """A batch of packed observations with states, with NaN as padding."""
    batch = case.batch(seed)
    draw = torch.Generator().manual_seed(seed + 7)
    states = torch.randn(*batch.valid.shape[:2], NUM_STATES, generator=draw) + change
    states = torch.where(batch.valid > 0, states, NAN)
    parts = [states.contiguous().view(torch.uint8)]
    if case.images:
        parts.append(batch.observations.flatten(2))
    else:
        parts.insert(0, batch.observations.contiguous().view(torch.uint8))
    return batch._replace(observations=torch.cat(parts, -1))


def build_case(case, **options):
    inputs = {"encoder": case.small(case.cls.default_encoder)}
    inputs["shared_encoder"] = case.small(case.cls.default_shared_encoder)
    small = {"hidden_dims": (10, 10), "lr": 1e-2, "num_critics": 3, **inputs, **options}
    if case.plain in ("ddpg",):
        small["num_critics"] = 1
    return case.cls(space_of(IMAGES if case.images else VECTORS), case.actions, seed=0, **small)


@each(CASES)
def test_critics_see_the_state_and_actors_do_not(case, tmp_path):
    agent = build_case(case)
    assert agent.critic_inputs == BOTH and agent.num_states == NUM_STATES
    for number in range(1, 4):
        stats = agent.update_networks(with_states(case, number))
        assert all(torch.isfinite(value).all() for value in stats.values())
    batch, other = (agent.prepare(with_states(case, 5, change), learns=False) for change in (0.0, 3.0))
    h, changed = agent.summarize(batch), agent.summarize(other)
    for name in ("pi", "next_pi"):
        assert_equal(getattr(h, name), getattr(changed, name))
    actions = () if case.cls.is_discrete else (batch.actions,)  # discrete critics give the Q of every action
    assert (agent.critics(h.q, *actions) - agent.critics(changed.q, *actions)).abs().max() > 1e-4
    if isinstance(agent, IQL):
        assert (agent.value(h.v) - agent.value(changed.v)).abs().max() > 1e-4
    before = parameters(agent)
    agent.update_networks(with_states(case, 6))
    assert {"critics", "target_critics"} <= moved(agent, before)
    save_actor(agent, file := tmp_path / "actor.pt")
    content = agent.actor_file()
    assert content["algorithm"]["arguments"]["observation_space"]["box"] == list(
        (IMAGES if case.images else VECTORS).shape
    )
    assert "state" not in content["algorithm"]["arguments"] and "state_normalization" not in content["weights"]
    acting = load_actor(file)
    assert acting.privileged is None and acting.space_shape == (IMAGES if case.images else VECTORS).shape
    assert_equal(act_along(acting, case), act_along(agent, case))


def test_an_agent_acts_on_the_observations_that_its_buffer_gets():
    case = next(case for case in CASES if case.name == "rsac")
    agent, plain = build_case(case), [*case.steps(7, 4)]
    draw = np.random.default_rng(0)
    actions = []
    memory = None
    for step in plain:
        states = draw.normal(size=(len(step.observation), NUM_STATES)).astype(np.float32)
        packed = np.concatenate([step.observation.view(np.uint8), states.view(np.uint8)], -1)
        action, memory = agent.act(step._replace(observation=packed), memory, deterministic=True)
        actions.append(action)
    assert_equal(np.stack(actions), act_along(agent, case))


@pytest.mark.parametrize("inputs", [BOTH, ALONE, "history"])
@pytest.mark.parametrize("kind", ["memoryless", "recurrent", "burn-in"])
def test_the_loss_is_the_equation_of_the_paper(kind, inputs):
    """Float64, row by row: eq. 5 of SAC with Q(h, s, a), Q(s, a) or Q(h, a)."""
    rows, batch = data(kind, 1)
    draw = torch.Generator().manual_seed(11)
    states = torch.randn(*batch.valid.shape[:2], NUM_STATES, generator=draw, dtype=torch.float64)
    batch = batch._replace(states=torch.where(batch.valid > 0, states, NAN))
    space = PackedDict(Dict({"observation": SPACES[0], "state": STATES}), "state")
    agent = build_with(space, kind, critic_inputs=inputs)
    assert len(agent.critic_encoders) == (0 if inputs == ALONE else 1 if kind == "memoryless" else 2)
    noises = []

    def normal(like):
        noises.append(torch.randn(like.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64))
        return noises[-1]

    agent.noise.normal = normal
    prepared = agent.prepare(batch)
    loss, _ = agent.critic_loss(agent.summarize(prepared), prepared)

    def seen(summary, state):
        return {BOTH: torch.cat([summary, state]), ALONE: state, "history": summary}[inputs]

    place, total = max(row.burn_in for row in rows), []
    for number, row in enumerate(rows):
        begin = place - row.burn_in
        of_row = states[number, begin:]
        pi = read(agent.actor_encoder, row.observations, row)
        qs, targets = pi, pi
        if inputs != ALONE and kind != "memoryless":
            qs = [read(encoder, row.observations, row) for encoder in agent.critic_encoders]
            targets = [read(encoder, row.observations, row) for encoder in agent.target_critic_encoders]
        else:
            qs = targets = [pi, pi]
        for t in row.counted:
            action, log_prob = gaussian(agent.actor, pi[t + 1], noises[0][number, begin + t])
            values = [
                q_value(agent.target_critics, n, seen(targets[n % len(targets)][t + 1], of_row[t + 1]), action)
                for n in range(2)
            ]
            value = min(values) - agent.temperature() * log_prob
            y = row.rewards[t] + GAMMA * (1.0 - float(row.terminations[t])) * value
            q = [q_value(agent.critics, n, seen(qs[n % len(qs)][t], of_row[t]), row.actions[t]) for n in range(2)]
            total.append(sum((one - y.detach()) ** 2 for one in q))
    assert_same(loss, torch.stack(total).mean())


def build_with(space, kind, **options):
    """`references.build` in a space with a state."""

    class Given(SAC):
        def __init__(self, _, actions, **given):
            super().__init__(space, actions, **given)

    return build(Given, kind, **options)


def test_states_and_observations_are_normalised_apart():
    agent = SAC(space_of(VECTORS), ACTIONS, normalize_observations=True, hidden_dims=(4,))
    case = next(case for case in CASES if case.name == "sac")
    for number in range(3):
        agent.update_networks(with_states(case, number, change=50.0))
    assert agent.normalization.mean.shape == VECTORS.shape and agent.normalization.mean.abs().max() < 5.0
    assert agent.state_normalization.mean.shape == STATES.shape and agent.state_normalization.mean.min() > 45.0
    assert agent.prepare(with_states(case, 4, change=50.0)).states.abs().max() <= 10.0
    numbers = np.arange(7.0)
    agent.set_statistics(numbers, numbers + 1.0)
    assert_equal(agent.normalization.mean, torch.arange(3.0))
    assert_equal(agent.state_normalization.mean, torch.arange(3.0, 7.0))
    actor = agent.actor_file()
    assert set(actor["weights"]["normalization"]) == {"mean", "variance", "count"}


def test_statistics_of_states_are_those_of_counted_steps():
    case = next(case for case in CASES if case.name == "rsac")
    agent, batch = build_case(case, normalize_observations=True), with_states(case)
    counted = agent.unpack(batch).states[:, :-1][batch.loss_mask[..., 0] > 0]
    prepared = agent.prepare(batch)
    torch.testing.assert_close(agent.state_normalization.mean, counted.mean(0))
    torch.testing.assert_close(agent.state_normalization.variance, counted.var(0, correction=0))
    assert 0 < len(counted) == agent.state_normalization.count < batch.loss_mask.numel()
    assert not prepared.states[batch.valid[..., 0] == 0].any()


def test_an_image_has_a_state_beside_it_that_may_be_normalised_alone():
    case = next(case for case in CASES if case.name == "csac")
    agent = build_case(case, normalize_observations=True)
    assert agent.normalization is None and agent.state_normalization is not None
    agent.update_networks(with_states(case))


@pytest.mark.parametrize(
    "cls, options, words",
    [
        (RecurrentSACSharing, {}, "share a memory"),
        (BCQ, {}, "chooses its actions with its critics"),
        (MBPO, {}, "learns in a model"),
        (BC, {"critic_inputs": BOTH}, "has no critics"),
        (SAC, {"critic_inputs": "all"}, "critic_inputs"),
        (SAC, {"fused": True}, "the critics see a state"),
    ],
)
def test_what_cannot_have_a_state_is_refused(cls, options, words):
    with pytest.raises(UserError, match=words):
        cls(space_of(VECTORS), ACTIONS, **options)


@pytest.mark.parametrize("cls", [RecurrentSACSharing, BCQ])
def test_a_refused_default_is_said_to_be_the_default(cls):
    default, name = ", the default with make.state", cls.__name__
    for options, told in (({}, default), ({"critic_inputs": BOTH}, "")):
        with pytest.raises(UserError) as caught:
            cls(space_of(VECTORS), ACTIONS, **options)
        assert caught.value.message.startswith(f"{name}.critic_inputs is 'history+state'{told}, but ")


def test_a_state_is_needed():
    with pytest.raises(UserError, match=r"but there is no state; bind make.state to the place of the state"):
        SAC(VECTORS, ACTIONS, critic_inputs=ALONE)
    assert SAC(VECTORS, ACTIONS, critic_inputs="history").num_states == 0


@pytest.mark.parametrize(
    ("cls", "words"),
    [(BC, "leave critic_inputs out"), (BCQ, 'bind BCQ.critic_inputs = "history"'), (MOPO, "remove critic_inputs")],
)
def test_where_no_state_can_be_none_is_asked_for(cls, words):
    with pytest.raises(UserError, match=words) as caught:
        cls(VECTORS, ACTIONS, critic_inputs=ALONE)
    assert "make.state" not in caught.value.message


def test_shared_convolutions_need_a_critic_that_reads_them():
    case = next(case for case in CASES if case.name == "crsac")
    with pytest.raises(UserError, match="trains the shared encoder"):
        build_case(case, critic_inputs=ALONE)


@pytest.mark.parametrize("cls, inputs", [(BC, None), (BCQ, "history"), (RecurrentSACSharing, "history")])
def test_without_it_the_state_is_left_out(cls, inputs):
    options = {} if inputs is None else {"critic_inputs": inputs}
    agent = cls(space_of(VECTORS), ACTIONS, hidden_dims=(6, 6), **options)
    case = next(case for case in CASES if case.name == "sac")
    agent.update_networks(with_states(case))
    assert agent.num_states == 0 and agent.unpack(with_states(case)).states is None


def test_a_state_with_nan_is_named():
    case = next(case for case in CASES if case.name == "sac")
    batch = with_states(case)
    batch.observations[0, 0, -4:] = torch.tensor([float("nan")]).view(torch.uint8)
    with pytest.raises(UserError, match="the batch's states"):
        build_case(case).update_networks(batch)


def test_a_buffer_gives_the_states_of_all_observations():
    """Also those of the last observation of an episode that a time limit ended."""
    space, draw = space_of(VECTORS), np.random.default_rng(0)
    buffer = ReplayBuffer(space, ACTIONS, capacity=100, batch_size=64, seed=0)
    states = np.arange(12.0, dtype=np.float32)[:, None] + np.zeros(NUM_STATES, np.float32)
    rows = [space.pack({"observation": np.full(3, s[0], np.float32), "state": s}) for s in states]
    for t in range(11):
        buffer.push(rows[t], draw.uniform(-1, 1, 2), 0.0, rows[t + 1], False, t % 5 == 4, is_first=t % 5 == 0)
    agent = SAC(space, ACTIONS, hidden_dims=(4,))
    batch = agent.prepare(buffer.sample())
    assert_equal(batch.states[..., :3], batch.observations)
    assert_equal(batch.states[:, 1, 0], batch.states[:, 0, 0] + 1.0)


@pytest.mark.slow
@pytest.mark.learning
def test_only_a_critic_with_the_state_explains_the_return():
    """The reward is a coin that the agent does not see, plus a term of its action; the state shows the coin."""
    space = space_of(VECTORS)

    def unexplained(inputs):
        agent = SAC(space, ACTIONS, seed=0, hidden_dims=(32, 32), lr=3e-3, critic_inputs=inputs)
        draw = torch.Generator().manual_seed(0)
        for _ in range(600):
            observations = torch.randn(64, 2, 3, generator=draw)
            coins = torch.randint(0, 2, (64, 1), generator=draw) * 2.0 - 1.0
            states = torch.zeros(64, 2, NUM_STATES)
            states[:, 0, 0] = coins[:, 0]
            actions = torch.rand(64, 1, 2, generator=draw) * 2.0 - 1.0
            rewards = coins[:, None] - actions[..., :1].square()
            packed = torch.cat([observations, states], -1).view(torch.uint8)
            ones, none = torch.ones(64, 1, 1), torch.zeros(64, 2)
            stats = agent.update_networks(
                Batch(
                    packed, actions, rewards, ones, torch.ones(64, 2, 1), ones, none, torch.zeros(64, 1), complete=True
                )
            )
        return stats["critic_loss"].item() / 2.0  # of two critics

    assert unexplained("history") > 0.7  # the variance of the coin is 1
    assert unexplained(BOTH) < 0.05
    assert unexplained(ALONE) < 0.05


@pytest.mark.parametrize("binding", ["SAC.critic_inputs = 'state'", "SAC.fused = True"])
def test_bindings_of_learning_do_not_reach_an_actor_that_is_loaded(binding, tmp_path):
    agent = SAC(VECTORS, ACTIONS, hidden_dims=(8,), actor_layer_norm=True)
    save_actor(agent, tmp_path / "actor.pt")
    loading.load_gin_config(None, [binding])
    assert load_actor(tmp_path / "actor.pt").space_shape == agent.space_shape


def test_an_actor_file_has_the_noise_of_the_moment(tmp_path):
    agent = TD3(VECTORS, ACTIONS, hidden_dims=(8,))
    agent.action_noise = 0.7
    save_actor(agent, tmp_path / "actor.pt")
    assert load_actor(tmp_path / "actor.pt").noise_scale == 0.7
