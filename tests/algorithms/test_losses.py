"""Every loss of the online algorithms and its gradients against the papers' equations, written out in references.py."""

import copy
import functools
import math

import pytest
import torch
from references import (
    ENCODERS,
    GAMMA,
    SPACES,
    actor_output,
    assert_same,
    build,
    data,
    gaussian,
    gradients,
    n_step_target,
    padded,
    q_value,
    quantiles_of,
    random_row,
    read,
)

from offpcc.algorithms import DDPG, RLPD, SAC, SACN, TD3, TQC
from offpcc.data import ReplayBuffer
from offpcc.networks import Residual


def reference(agent, rows, noises, members=None):
    """Critic loss, actor loss and entropy (None for DDPG and TD3), each the mean of a list.

    Targets ask the critics `members`; None for all.
    """
    squares, actor_terms, log_probs = [], [], []
    stochastic = isinstance(agent, SAC)
    numbers = range(agent.critics.num)
    next_noise = noises.pop(0) if noises else None
    noise = noises.pop(0) if noises else None
    place = max(row.burn_in for row in rows)  # a row's first counted step stands here in the batch
    for i, row in enumerate(rows):
        begin = place - row.burn_in
        shared = read(agent.shared_encoder, row.observations, row)
        pi = read(agent.actor_encoder, [h.detach() for h in shared], row)
        qs = [read(encoder, shared, row) for encoder in agent.critic_encoders]
        with torch.no_grad():
            target_shared = read(agent.target_shared_encoder, row.observations, row)
            target_qs = [read(encoder, target_shared, row) for encoder in agent.target_critic_encoders]
            next_pi = pi if stochastic else read(agent.target_actor_encoder, target_shared, row)
            values = []
            for t in range(len(row.actions)):
                if stochastic:
                    action, log_prob = gaussian(agent.actor, next_pi[t + 1], next_noise[i, begin + t])
                else:
                    action = torch.tanh(actor_output(agent.target_actor, next_pi[t + 1]))
                if isinstance(agent, TD3):
                    smoothing = (agent.target_noise * next_noise[i, begin + t]).clamp(
                        -agent.noise_clip, agent.noise_clip
                    )
                    action = (action + smoothing).clamp(-1, 1)
                candidates = [
                    quantiles_of(agent.target_critics, n, target_qs[n % len(target_qs)][t + 1], action)
                    for n in members or numbers
                ]
                value = smallest(agent, candidates) if isinstance(agent, TQC) else torch.cat(candidates).min()
                has_entropy = stochastic and getattr(agent, "backup_entropy", True)
                values.append(value - agent.temperature() * log_prob if has_entropy else value)
        for t in row.counted:
            y = n_step_target(row, values, t, agent.n_step, agent.reward_scale, agent.reward_shift)
            read_by = [(agent.critics, n, qs[n % len(qs)][t], row.actions[t]) for n in numbers]
            if isinstance(agent, TQC):
                squares.append(sum(quantile_loss(quantiles_of(*given), y) for given in read_by))
            else:
                squares.append(sum((q_value(*given) - y) ** 2 for given in read_by))
            if stochastic:
                action, log_prob = gaussian(agent.actor, pi[t], noise[i, begin + t])
                log_probs.append(log_prob)
            else:
                action = torch.tanh(actor_output(agent.actor, pi[t]))
            candidates = [q_value(agent.critics, n, qs[n % len(qs)][t].detach(), action) for n in numbers]
            q = {"min": min(candidates), "mean": sum(candidates) / len(candidates), "first": candidates[0]}
            actor_terms.append((agent.temperature() * log_prob if stochastic else 0.0) - q[agent.actor_q])
    entropy = -torch.stack(log_probs).mean().detach() if stochastic else None
    return torch.stack(squares).mean(), torch.stack(actor_terms).mean(), entropy


def smallest(agent, quantiles):
    """The target quantiles of TQC: of those of all critics, the largest d for each critic are left out."""
    pooled = sorted(float(z) for each in quantiles for z in each)
    return torch.tensor(pooled[: len(pooled) - agent.top_quantiles_to_drop * len(quantiles)], dtype=torch.float64)


def quantile_loss(theta, y):
    """The mean over quantiles m and targets k of |tau_m - 1(y_k < theta_m)| huber(y_k - theta_m)."""
    terms = []
    for m in range(len(theta)):
        for target in torch.as_tensor(y, dtype=torch.float64).reshape(-1):  # one number where the task has ended
            u = target - theta[m]
            huber = 0.5 * u**2 if abs(u) < 1.0 else abs(u) - 0.5
            terms.append(abs((m + 0.5) / len(theta) - float(u < 0.0)) * huber)
    return torch.stack(terms).mean()


def drawn(agent, batch):
    """The noise that the agent is about to draw, and the critics that its targets ask; none of it is taken away."""
    generator = torch.Generator()
    generator.set_state(copy.deepcopy(agent.noise.generator.get_state()))
    normal = functools.partial(torch.randn, batch.actions.shape, generator=generator, dtype=torch.float64)
    noises = [] if type(agent) is DDPG else [normal()]
    num = agent.critics.num
    subset = agent.target_subset
    members = [*range(num)] if subset is None else torch.randperm(num, generator=generator)[:subset].tolist()
    return [*noises, *([normal()] if noises else [])], members


VARIATIONS = {
    "one critic": {"num_critics": 1},
    "two critics": {"num_critics": 2},
    "three critics, layer norm": {"num_critics": 3, "layer_norm": True},
    "a random subset, the mean": {"num_critics": 5, "target_subset": 2, "actor_q": "mean"},
    "a random critic, the least": {"num_critics": 3, "target_subset": 1, "actor_q": "min"},
    "residual heads": {"heads": Residual(actor_width=6, actor_blocks=2, critic_width=7, critic_blocks=1)},
    "layer norm in the actor": {"actor_layer_norm": True, "num_critics": 1},
    "three steps, rewards scaled": {"n_step": 3, "reward_scale": 0.5, "reward_shift": -0.25},
}


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("cls", [DDPG, TD3, SAC, SACN, RLPD, TQC])
def test_losses_and_gradients_are_the_papers(cls, kind, variation):
    options = VARIATIONS[variation] | ({"alpha": 0.3} if issubclass(cls, SAC) else {})
    options = {"target_subset": 1, **options} if options.get("num_critics") == 1 and cls is RLPD else options
    options |= {"num_quantiles": 3, "top_quantiles_to_drop": 1} if cls is TQC else {}
    options |= {"backup_entropy": False} if cls is RLPD and options.get("target_subset") == 2 else {}
    agent = build(cls, kind, **options)
    assert agent.critics.num == VARIATIONS[variation].get("num_critics", cls.default_num_critics)
    rows, batch = data(kind, agent.n_step)
    critic_reference, actor_reference, entropy_reference = reference(agent, rows, *drawn(agent, batch))

    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    critic_loss = agent.critic_loss(h, batch)[0]
    actor_loss, stats = agent.actor_loss(h, batch)
    if issubclass(cls, SAC):
        assert_same(stats["entropy"], entropy_reference)

    assert_same(critic_loss, critic_reference)
    assert_same(actor_loss, actor_reference)
    for optimizer, ours, expected in [
        (agent.critic_optimizer, critic_loss, critic_reference),
        (agent.actor_optimizer, actor_loss, actor_reference),
    ]:
        assert_same(gradients(ours, optimizer.parameters), gradients(expected, optimizer.parameters))
        assert any(g.abs().max() > 1e-4 for g in gradients(ours, optimizer.parameters))


@pytest.mark.parametrize("kind", ["memoryless", "recurrent", "burn-in"])
def test_the_temperatures_loss_weighs_counted_steps_alone(kind):
    """J(alpha) = mean of -log alpha (log pi + target) (eq. 18 on log alpha), over steps that exist."""
    agent = build(SAC, kind, alpha=0.3, target_entropy=-1.5)
    rows, batch = data(kind, agent.n_step)
    log_alpha = torch.tensor(math.log(0.3) + 0.1, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        agent.temperature.log_alpha.copy_(log_alpha)
    _, _, entropy = reference(agent, rows, *drawn(agent, batch))

    batch = agent.prepare(batch)
    h = agent.summarize(batch)
    agent.critic_loss(h, batch)
    loss = agent.temperature.loss(agent.actor_loss(h, batch)[1]["entropy"])
    expected = log_alpha * (entropy + 1.5)
    assert_same(loss, expected)
    assert_same(gradients(loss, [agent.temperature.log_alpha]), gradients(expected, [log_alpha]))


def test_the_only_mean_is_over_counted_steps():
    draw = torch.Generator().manual_seed(0)
    rows = [random_row(draw, 3, burn_in=1), random_row(draw, 1)]
    batch = padded(rows, burn_in=1)
    x = torch.randn(2, *batch.actions.shape, generator=draw, dtype=torch.float64)  # (N, B, T, A)
    counted = [x[:, 0, 1], x[:, 0, 2], x[:, 1, 1]]
    assert_same(batch.mean(x), torch.cat(counted, -1).mean(-1))


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_backup_is_a_plain_loop(n_step):
    """With truncation in the middle of a row, termination in the middle and at the end, and the row's end."""
    agent = build(DDPG, n_step=n_step, reward_scale=2.0, reward_shift=0.5)
    draw = torch.Generator().manual_seed(0)
    rows = [random_row(draw, 7), random_row(draw, 3), random_row(draw, 4, True), random_row(draw, 1, True)]
    rows += [random_row(draw, 7, True), random_row(draw, 1)]
    rows.append(random_row(draw, 7)._replace(terminations=[t == 3 for t in range(7)]))
    batch = padded(rows).without_padding()
    values = torch.randn(batch.rewards.shape, generator=draw, dtype=torch.float64)
    y = agent.td_target(batch, values)
    for i, row in enumerate(rows):
        for t in range(len(row.actions)):
            expected = n_step_target(row, values[i, :, 0], t, n_step, 2.0, 0.5)
            assert y[i, t, 0].item() == pytest.approx(float(expected), rel=1e-9)


def test_backup_bootstraps_after_a_time_limit_but_not_after_the_end():
    agent = build(DDPG)
    draw = torch.Generator().manual_seed(0)
    batch = padded([random_row(draw, 1), random_row(draw, 1, True)]).without_padding()
    y = agent.td_target(batch, torch.full((2, 1, 1), 10.0, dtype=torch.float64))
    assert_same(y, batch.rewards + GAMMA * torch.tensor([10.0, 0.0], dtype=torch.float64).view(2, 1, 1))


@pytest.mark.parametrize("n_step", [1, 2, 5])
def test_backup_of_sampled_windows_stays_inside_the_episode(n_step):
    """From the buffer's ring, overwritten several times, to the target: against loops over the episodes."""
    episodes = [(4, False), (1, True), (7, True), (2, False), (1, False), (6, False), (3, True)] * 3
    buffer = ReplayBuffer(*SPACES, capacity=40, batch_size=256, num_steps=n_step)
    rows, draw = {}, torch.Generator().manual_seed(5)
    for length, terminated in episodes:
        row = random_row(draw, length, terminated)
        observations = row.observations.float().numpy()
        for t in range(length):
            over = t == length - 1
            buffer.push(
                observations[t], row.actions[t].numpy(), row.rewards[t], observations[t + 1],
                over and terminated, over and not terminated,
            )  # fmt: skip
            rows[observations[t].tobytes()] = row, t
    agent = build(DDPG, n_step=n_step)
    batch = agent.prepare(buffer.sample())
    values = batch.observations[:, 1:, :1].double()  # a value that only the right observation has
    y = agent.td_target(batch, values)
    seen = set()
    for i, observation in enumerate(batch.observations[:, 0].numpy()):
        row, t = rows[observation.tobytes()]
        expected = n_step_target(row, row.observations[1:, 0].float().double(), t, n_step)
        assert y[i, 0, 0].item() == pytest.approx(float(expected), abs=1e-5)
        seen.add((id(row), t))
    assert len(seen) > 20
