"""Every loss of the algorithms for discrete actions and its gradients against the equations; and exploration."""

import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from references import (
    ENCODERS,
    SPACES,
    assert_same,
    assert_same_losses,
    build,
    data,
    mean,
    n_step_target,
    output,
    rows_read,
)

from offpcc.algorithms import (
    DQN,
    QRDQN,
    R2D2,
    SAC,
    DiscreteBC,
    DiscreteBCQ,
    DiscreteCQL,
    DiscreteCRR,
    DiscreteSAC,
)
from offpcc.algorithms.agent import Agent, load_actor, save_actor
from offpcc.algorithms.r2d2 import rescaled, restored
from offpcc.core import Batch, Step
from offpcc.networks import Identity
from offpcc.utils.errors import UserError

CHOICES = 2


# The reference --------------------------------------------------------------------------------------------------


def quantiles(critics, number, h):
    """The quantiles (A, K) of one network at one step; of plain Q networks K = 1."""
    q = output(critics.nets[number], h).view(CHOICES, -1)
    if critics.values:
        value = output(critics.values[number], h)
        q = torch.stack([value + q[a] - sum(q) / CHOICES for a in range(CHOICES)])
    return q


def all_q(critics, encodings, t):
    """The Q values of each network at step t, a list of (A,)."""
    return [quantiles(critics, n, encodings[n % len(encodings)][t]).mean(-1) for n in range(critics.num)]


def target_of(agent, row, values, t):
    return n_step_target(row, values, t, agent.n_step, agent.reward_scale, agent.reward_shift)


def choice(action):
    return int(action.argmax())


def huber(error):
    return 0.5 * error**2 if abs(error) < 1.0 else abs(error) - 0.5


def squeezed(x, epsilon):
    """h(x) of R2D2."""
    return torch.sign(x) * (torch.sqrt(abs(x) + 1.0) - 1.0) + epsilon * x


def stretched(x, epsilon):
    """The inverse of h, as printed in the appendix of Pohlen et al. 2018."""
    root = (torch.sqrt(1.0 + 4.0 * epsilon * (abs(x) + 1.0 + epsilon)) - 1.0) / (2.0 * epsilon)
    return torch.sign(x) * (root**2 - 1.0)


def r2d2_reference(agent, rows):
    terms, epsilon = [], agent.rescaling
    for seen in rows_read(agent, rows):
        values = []
        for t in range(1, len(seen.row.observations)):
            best = choice(all_q(agent.critics, seen.qs, t)[0])
            values.append(stretched(all_q(agent.target_critics, seen.target_qs, t)[0][best].detach(), epsilon))
        for t in seen.row.counted:
            q = all_q(agent.critics, seen.qs, t)[0][choice(seen.row.actions[t])]
            y = torch.as_tensor(target_of(agent, seen.row, values, t), dtype=torch.float64)
            terms.append(huber(q - squeezed(y, epsilon)))
    return {"critic": mean(terms)}


def dqn_reference(agent, rows):
    terms = []
    for seen in rows_read(agent, rows):
        values = []
        for t in range(1, len(seen.row.observations)):
            target = all_q(agent.target_critics, seen.target_qs, t)[0]
            chooser = all_q(agent.critics, seen.qs, t)[0] if agent.double else target
            if isinstance(agent, DiscreteBCQ):
                probs = torch.softmax(output(agent.actor.imitation, seen.pi[t]), -1)
                chooser = torch.where(probs / probs.max() >= agent.threshold, chooser, -torch.inf)
            values.append(target[choice(chooser)].detach())
        for t in seen.row.counted:
            q = all_q(agent.critics, seen.qs, t)[0][choice(seen.row.actions[t])]
            term = huber(q - target_of(agent, seen.row, values, t))
            if isinstance(agent, DiscreteBCQ):
                logits = output(agent.actor.imitation, seen.qs[0][t])
                term = term - torch.log_softmax(logits, -1)[choice(seen.row.actions[t])]
                term = term + agent.logits_weight * (logits**2).mean()
            terms.append(term)
    return {"critic": mean(terms)}


def qrdqn_reference(agent, rows):
    terms, num = [], agent.num_quantiles
    for seen in rows_read(agent, rows):
        values = []
        for t in range(1, len(seen.row.observations)):
            target = quantiles(agent.target_critics, 0, seen.target_qs[0][t])
            chooser = quantiles(agent.critics, 0, seen.qs[0][t]) if agent.double else target
            values.append(target[choice(chooser.mean(-1))].detach())
        for t in seen.row.counted:
            every = quantiles(agent.critics, 0, seen.qs[0][t])
            theta, y = every[choice(seen.row.actions[t])], target_of(agent, seen.row, values, t)
            y = torch.as_tensor(y, dtype=torch.float64).expand(num)  # without quantiles where the task has ended
            term = 0.0
            for i in range(num):
                level = (2 * i + 1) / (2 * num)
                term = (
                    term + sum(abs(level - float(y[j] < theta[i])) * huber(y[j] - theta[i]) for j in range(num)) / num
                )
            if isinstance(agent, DiscreteCQL):
                q = every.mean(-1)
                gap = torch.log(torch.exp(q).sum()) - q[choice(seen.row.actions[t])]
                term = term + agent.conservative_weight * gap
            terms.append(term)
    return {"critic": mean(terms)}


def soft_value(agent, seen, t, alpha):
    """sum_a pi(a) (min Q'(a) - alpha log pi(a)) at step t."""
    log_probs = torch.log_softmax(output(agent.actor.net, seen.next_pi[t]), -1).detach()
    q = torch.stack(all_q(agent.target_critics, seen.target_qs, t)).amin(0).detach()
    return sum(math.exp(log_probs[a]) * (q[a] - alpha * log_probs[a]) for a in range(CHOICES))


def with_policy(agent, rows, alpha, critic_term, actor_term):
    critic_terms, actor_terms = [], []
    for seen in rows_read(agent, rows):
        values = [soft_value(agent, seen, t, alpha) for t in range(1, len(seen.row.observations))]
        for t in seen.row.counted:
            action, y = choice(seen.row.actions[t]), target_of(agent, seen.row, values, t)
            qs = all_q(agent.critics, seen.qs, t)
            critic_terms.append(sum((q[action] - y) ** 2 + critic_term(q, action) for q in qs))
            log_probs = torch.log_softmax(output(agent.actor.net, seen.pi[t]), -1)
            actor_terms.append(actor_term(torch.stack(qs).detach(), log_probs, action))
    return {"critic": mean(critic_terms), "actor": mean(actor_terms)}


def dsac_reference(agent, rows):
    alpha = agent.temperature().item()

    def actor_term(qs, log_probs, action):
        q = {"min": qs.amin(0), "mean": qs.mean(0), "first": qs[0]}[agent.actor_q]
        return sum(log_probs[a].exp() * (alpha * log_probs[a] - q[a]) for a in range(CHOICES))

    in_target = alpha if agent.backup_entropy else 0.0
    return with_policy(agent, rows, in_target, lambda q, action: 0.0, actor_term)


def dcrr_reference(agent, rows):
    def gap(q, action):
        return agent.conservative_weight * (torch.log(torch.exp(q).sum()) - q[action])

    def actor_term(qs, log_probs, action):
        q = qs.amin(0)
        advantage = q[action] - sum(log_probs[a].exp().detach() * q[a] for a in range(CHOICES))
        weight = min(math.exp(advantage / agent.temperature), agent.max_advantage_weight)
        weight = float(advantage > 0) if agent.weight_type == "binary" else weight
        return -weight * log_probs[action]

    return with_policy(agent, rows, 0.0, gap, actor_term)


def dbc_reference(agent, rows):
    return {
        "actor": mean(
            -torch.log_softmax(output(agent.actor.net, seen.pi[t]), -1)[choice(seen.row.actions[t])]
            for seen in rows_read(agent, rows)
            for t in seen.row.counted
        )
    }


STEPS = {"n_step": 3, "reward_scale": 0.5, "reward_shift": -0.25}
CASES = [
    (DQN, dqn_reference, {}),
    (DQN, dqn_reference, {"double": False, "dueling": True, **STEPS}),
    (R2D2, r2d2_reference, {}),
    (R2D2, r2d2_reference, {"reward_scale": 100.0}),
    (R2D2, r2d2_reference, {"rescaling": 0.1, "dueling": True, **STEPS}),
    (QRDQN, qrdqn_reference, {"num_quantiles": 4}),
    (QRDQN, qrdqn_reference, {"num_quantiles": 3, "double": True, "dueling": True, **STEPS}),
    (DiscreteSAC, dsac_reference, {"alpha": 0.3}),
    (DiscreteSAC, dsac_reference, {"alpha": 0.3, "num_critics": 3, "actor_q": "mean", **STEPS}),
    (DiscreteSAC, dsac_reference, {"alpha": 0.3, "backup_entropy": False, "actor_q": "first", **STEPS}),
    (DiscreteBC, dbc_reference, {}),
    (DiscreteCQL, qrdqn_reference, {"num_quantiles": 4, "conservative_weight": 2.0}),
    (DiscreteCQL, qrdqn_reference, {"num_quantiles": 1, **STEPS}),
    (DiscreteBCQ, dqn_reference, {"threshold": 0.8, "logits_weight": 0.1}),
    (DiscreteBCQ, dqn_reference, {"threshold": 0.0, "dueling": True, **STEPS}),
    (DiscreteBCQ, dqn_reference, {"threshold": 0.95, "double": False}),
    (DiscreteCRR, dcrr_reference, {"temperature": 0.5, "max_advantage_weight": 1.5}),
    (DiscreteCRR, dcrr_reference, {"weight_type": "binary", "conservative_weight": 3.0, **STEPS}),
]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("cls, reference, options", CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_losses_and_gradients_are_the_papers(cls, reference, options, kind):
    agent = build(cls, kind, **options)
    if hasattr(agent, "levels"):
        levels = (torch.arange(agent.num_quantiles, dtype=torch.float64) + 0.5) / agent.num_quantiles
        assert torch.equal(agent.levels, levels.float())
        agent.levels = levels
    rows, batch = data(kind, agent.n_step, discrete=True)
    references = reference(agent, rows)
    assert_same_losses(agent, batch, references)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5])
def test_rescaled_values_come_back(epsilon):
    x = torch.tensor([-1e4, -3.0, -1e-4, 0.0, 1e-6, 0.5, 200.0, 1e5])
    there = rescaled(x, epsilon)
    assert torch.allclose(there.double(), squeezed(x.double(), epsilon), rtol=1e-6)
    assert torch.allclose(restored(there, epsilon), x, rtol=1e-5, atol=1e-6)


def test_the_temperature_moves_towards_its_share_of_the_largest_entropy():
    agent = build(DiscreteSAC, target_entropy_ratio=0.7)
    assert agent.temperature.target_entropy == pytest.approx(0.7 * math.log(CHOICES))
    _, batch = data("memoryless", 1, discrete=True)
    h = agent.summarize(agent.prepare(batch))
    entropy = agent.actor_loss(h, agent.prepare(batch))[1]["entropy"]
    probs = torch.softmax(agent.actor(h.pi), -1)
    each = -(probs * probs.log()).sum(-1, keepdim=True)
    assert_same(entropy, agent.prepare(batch).mean(each))


# Acting ---------------------------------------------------------------------------------------------------------


def step(rows, agent):
    return Step(
        np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32),
        np.zeros((rows, agent.action_dim), np.float32),
        np.zeros((rows, 1), np.float32),
        np.ones(rows, np.bool_),
    )


def agent_of(cls, num_actions=4, **options):
    return cls(SPACES[0], Discrete(num_actions), hidden_dims=(5,), seed=1, **options)


@pytest.mark.parametrize("rows", [1, 4, 20])  # up to eight by the NumPy mirror
@pytest.mark.parametrize("cls", [DQN, QRDQN, R2D2, DiscreteSAC, DiscreteBC, DiscreteBCQ, DiscreteCQL, DiscreteCRR])
def test_the_mode_is_the_best_action_one_hot(cls, rows):
    agent = agent_of(cls, encoder=Identity, **({"dueling": True} if cls.acts_by_values else {}))
    given = step(rows, agent)
    action, _ = agent.act(given, deterministic=True)
    with torch.no_grad():
        scores = agent.actor(torch.from_numpy(given.observation).unsqueeze(1))[:, 0]
    np.testing.assert_array_equal(action, np.eye(4)[scores.argmax(-1).numpy()])


def test_a_policy_is_sampled_by_its_probabilities():
    agent, rows = agent_of(DiscreteSAC, 3), 20_000
    given = step(1, agent)
    many = Step(*(np.repeat(part, rows, 0) for part in given))
    with torch.no_grad():
        agent.actor.net[-1].weight *= 20.0
        probs = torch.softmax(agent.actor(torch.from_numpy(given.observation)), -1)[0].numpy()
    assert probs.min() < 0.2 and probs.max() < 0.9
    np.testing.assert_allclose(agent.act(many)[0].mean(0), probs, atol=0.015)
    agent.noise_scale = 2.0
    np.testing.assert_allclose(agent.act(many)[0].mean(0), probs**0.5 / (probs**0.5).sum(), atol=0.015)


def test_epsilon_falls_with_the_steps_and_an_actors_file_keeps_it(tmp_path):
    agent = agent_of(DQN, final_epsilon=0.2, epsilon_steps=1_000)
    given = step(20, agent)
    best = agent.act(given, deterministic=True)[0]
    others = 0.0
    for _ in range(50):
        others += 1.0 - (agent.act(given)[0] * best).sum(-1).mean()
        agent.count_steps(20)
    assert agent.epsilon() == pytest.approx(0.2)
    assert others / 50 == pytest.approx(0.75 * 0.6, abs=0.05)  # three of four random actions are others
    shares = [1.0 - (agent.act(given)[0] * best).sum(-1).mean() for _ in range(200)]
    assert np.mean(shares) == pytest.approx(0.75 * 0.2, abs=0.03)
    save_actor(agent, tmp_path / "actor.pt")
    assert load_actor(tmp_path / "actor.pt").epsilon() == pytest.approx(0.2)
    other = agent_of(DQN, final_epsilon=0.2, epsilon_steps=1_000)
    other.load_state_dict(agent.state_dict())
    assert other.epsilon.taken == agent.epsilon.taken
    assert agent_of(DiscreteCQL).epsilon() == 0.05
    agent.count_steps(10_000)
    other.epsilon.taken, other.epsilon.is_offline = 0, True
    learned, told = agent_of(DQN, final_epsilon=0.2), agent_of(DQN, final_epsilon=0.2, initial_epsilon=0.7)
    for one in (learned, told):
        one.explore_as_trained()
    assert [one.epsilon() for one in (agent, other, learned, told)] == pytest.approx([0.2, 0.2, 0.2, 0.7])


def test_all_tests_draw_the_same_random_actions():
    """A new episode of some environments does not begin the draws anew, and no Q is so large that it decides."""
    agent = agent_of(DQN, test_epsilon=1.0)
    begins = step(6, agent)
    goes_on, some = (begins._replace(is_first=np.arange(6) < number) for number in (0, 2))
    one, other = (
        [agent.act(given, deterministic=True)[0] for given in (begins, goes_on, some, goes_on)] for _ in range(2)
    )
    np.testing.assert_array_equal(one, other)
    assert not any((later == one[0]).all() for later in one[1:])
    with torch.no_grad():
        [*agent.critics.parameters()][-1].copy_(torch.tensor([0.0, 1e9, 0.0, -1e9]))
    np.testing.assert_array_equal(agent.act(begins, deterministic=True)[0], one[0])


def test_a_ladder_gives_each_environment_its_own_share_of_random_actions():
    """Horgan et al. 2018: 0.4 to the power of 1 to 8."""
    agent = agent_of(R2D2, initial_epsilon=0.4, final_epsilon=0.4, epsilon_ladder=7.0, encoder=Identity)
    shares = agent.epsilons(8)
    np.testing.assert_allclose(shares, [0.4 ** (1 + i) for i in range(8)])
    np.testing.assert_allclose(agent.epsilons(1), [0.4])
    np.testing.assert_allclose(agent_of(DQN, final_epsilon=0.3, epsilon_steps=0).epsilons(3), [0.3] * 3)
    given = step(8, agent)
    best = agent.act(given, deterministic=True)[0]
    others = np.mean([1.0 - (agent.act(given)[0] * best).sum(-1) for _ in range(3_000)], 0)
    np.testing.assert_allclose(others, 0.75 * shares, atol=0.03)
    agent.fix_epsilon(0.3)
    assert agent.epsilons(3).tolist() == [0.3] * 3


def test_bcq_never_chooses_an_unlikely_action():
    agent = agent_of(DiscreteBCQ, threshold=0.9, initial_epsilon=0.0, final_epsilon=0.0)
    for seed in range(50):
        given = step(8, agent)._replace(observation=np.random.default_rng(seed).normal(size=(8, 3)).astype(np.float32))
        action = agent.act(given)[0]
        logits = agent.actor.imitation(torch.from_numpy(given.observation))
        chosen = (logits * torch.from_numpy(action)).sum(-1)
        assert (logits.amax(-1) - chosen <= -math.log(0.9) + 1e-6).all()


@pytest.mark.parametrize("rows", [1, 20])  # up to eight by the NumPy mirror
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("logit", [9.0, 99.0])  # with a threshold of 0, no action is too unlikely
def test_a_threshold_of_bcq_that_changes_counts_at_once(rows, double, logit, tmp_path):
    """`OfflineToOnline.decay` may name it."""
    agents = [agent_of(DiscreteBCQ, threshold=share, double=double) for share in (1.0, 0.0)]
    given = step(rows, agents[0])
    for agent in agents:
        agent.act(given, deterministic=True)
        with torch.no_grad():  # likely actions have low Q values
            agent.actor.imitation[-1].bias.copy_(torch.tensor([logit, 0.0, 0.0, 0.0]))
            agent.critics.nets[0][-1].bias.copy_(torch.tensor([-9.0, 0.0, 0.0, 0.0]))
            agent.target_critics.load_state_dict(agent.critics.state_dict())
    assert agents[0].act(given, deterministic=True)[0][:, 0].all()
    agents[0].threshold = 0.0
    save_actor(agents[0], tmp_path / "actor.pt")
    for agent in (*agents, load_actor(tmp_path / "actor.pt")):
        assert not agent.act(given, deterministic=True)[0][:, 0].any()
    ones, nothing = torch.ones(8, 1, 1), torch.zeros(8, 1)
    actions, observations = torch.eye(4)[torch.arange(8) % 4].unsqueeze(1), torch.randn(8, 2, 3)
    batch = Batch(observations, actions, ones, 0.0 * ones, torch.ones(8, 2, 1), ones, torch.zeros(8, 4), nothing)
    found, expected = (agent.update_networks(batch)["critic_loss"] for agent in agents)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_an_agent_gives_whole_numbers_that_begin_where_the_space_does(tmp_path):
    agent = DiscreteBC(SPACES[0], Discrete(3, start=-1), hidden_dims=(5,), seed=1)
    save_actor(agent, tmp_path / "actor.pt")
    loaded = Agent.load(tmp_path / "actor.pt")
    one = loaded.act(np.ones(3, np.float32))
    assert np.ndim(one) == 0 and int(one) in Discrete(3, start=-1)
    loaded.reset(num_envs=5)
    many = loaded.act(np.ones((5, 3), np.float32), deterministic=False)
    assert many.shape == (5,) and set(many.tolist()) <= {-1, 0, 1}


def test_a_q_value_of_nan_is_no_action():
    agent = agent_of(DQN)
    with torch.no_grad():
        agent.critics.nets[0][-1].bias[2] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        agent.act(step(2, agent), deterministic=True)


@pytest.mark.parametrize(
    "cls, space, proposed",
    [(SAC, Discrete(2), "dsac"), (DQN, SPACES[1], "sac"), (R2D2, SPACES[1], "rsac"), (DiscreteCQL, SPACES[1], "cql")],
)
def test_the_other_kind_of_actions_is_refused_with_an_algorithm_for_it(cls, space, proposed):
    with pytest.raises(UserError, match=f"choose {proposed}, or another"):
        cls(SPACES[0], space)


def test_a_q_network_is_one():
    with pytest.raises(UserError, match=r"DQN.num_critics is 2, but DQN has one Q network"):
        agent_of(DQN, num_critics=2)
