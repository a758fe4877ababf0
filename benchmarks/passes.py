"""The dense products that an update cannot do without, read off each algorithm's page.

A pass is one network reading one kind of input. Its backward products are those of hidden layers' gradients and, where
the network learns, of its weights'. There are none that an update could leave out: no gradient of weights that are
not stepped (critics in the actor's step), none with respect to data, no second reading of the same by the same weights.
Where the actor's loss has the least critic of each row, a gradient comes back through that critic alone: B / N rows of
each of the N critics.

Letters: o observation, a recorded action, o' and a' those that follow, b an action of the policy, h a summary; B rows
of a batch, T its steps, A action dimensions, N critics, H the width of a summary, S sampled actions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.cases import ACTION_DIM, NUM_ELITES, OBSERVATION_DIM, Sizes


class Pass(NamedTuple):
    """An MLP, or an ensemble of them, reading some rows."""

    network: str
    reads: str
    dims: tuple[int, ...]  # widths, from the input's to the output's
    copies: int  # members of the ensemble
    forward: int  # rows
    backward: int = 0  # rows that a gradient comes back through
    weights: bool = False  # whether weights' gradients are taken
    inputs: int = 0  # columns of the input whose gradient is taken
    every: int = 1  # updates between two of them

    def flops(self) -> float:
        """Floating-point operations of an average update."""
        sizes = [num_in * num_out for num_in, num_out in itertools.pairwise(self.dims)]
        products = self.forward * sum(sizes) + self.backward * self.weights * sum(sizes)
        products += self.backward * (sum(sizes[1:]) + self.inputs * self.dims[1])
        return 2.0 * self.copies * products / self.every


class Unroll(NamedTuple):
    """An LSTM, or several side by side, reading sequences of observations from a state of zeros."""

    network: str
    reads: str
    dims: tuple[int, ...]  # the input's width, then that of each layer
    copies: int
    sequences: int
    forward: int  # steps
    backward: int = 0  # steps that a gradient comes back through; all weights learn
    every: int = 1

    def flops(self) -> float:
        """Floating-point operations of an average update; the first step has nothing to recall."""
        total = 0
        for layer, (num_in, width) in enumerate(itertools.pairwise(self.dims)):
            recalled = (self.forward - 1) * width + 2 * max(self.backward - 1, 0) * width
            read = self.forward * num_in + self.backward * num_in * (2 if layer else 1)
            total += 4 * width * (recalled + read)
        return 2.0 * self.copies * self.sequences * total / self.every


Passes = list[Pass | Unroll]
OBS, A = OBSERVATION_DIM, ACTION_DIM


def sac(s: Sizes) -> Passes:
    """SAC on transitions: algorithms/sac.py."""
    B, N = s.batch_size, s.num_critics
    actor, critic = (OBS, *s.hidden_dims, 2 * A), (OBS + A, *s.hidden_dims, 1)
    return [
        #    network           reads    dims    copies rows  backward
        Pass("actor", "o'", actor, 1, B),
        Pass("target critics", "o', a'", critic, N, B),
        Pass("critics", "o, a", critic, N, B, B, weights=True),
        Pass("actor", "o", actor, 1, B, B, weights=True),
        Pass("critics", "o, b", critic, N, B, B // N, inputs=A),
    ]


def td3(s: Sizes) -> Passes:
    """TD3 on transitions: algorithms/td3.py; actor and targets every second time, by the first critic alone."""
    B, N = s.batch_size, s.num_critics
    actor, critic = (OBS, *s.hidden_dims, A), (OBS + A, *s.hidden_dims, 1)
    return [
        Pass("target actor", "o'", actor, 1, B),
        Pass("target critics", "o', a'", critic, N, B),
        Pass("critics", "o, a", critic, N, B, B, weights=True),
        Pass("actor", "o", actor, 1, B, B, weights=True, every=2),
        Pass("first critic", "o, b", critic, 1, B, B, inputs=A, every=2),
    ]


def cql(s: Sizes) -> Passes:
    """CQL: algorithms/cql.py. Samples come from the forward passes that SAC makes anyway."""
    B, N, critic = s.batch_size, s.num_critics, (OBS + A, *s.hidden_dims, 1)
    sampled = 3 * s.num_samples * B  # of the uniform policy, pi(.|o) and pi(.|o')
    return [*sac(s), Pass("critics", "o, sampled a", critic, N, sampled, sampled, weights=True)]


def bcq(s: Sizes) -> Passes:
    """BCQ: algorithms/bcq.py; z has 2A numbers, each with a mean and a deviation."""
    B, N, sampled = s.batch_size, s.num_critics, s.num_samples * s.batch_size
    encoder, decoder = (OBS + A, *s.hidden_dims, 4 * A), (OBS + 2 * A, *s.hidden_dims, A)
    actor, critic = (OBS + A, *s.hidden_dims, A), (OBS + A, *s.hidden_dims, 1)
    return [
        Pass("encoder", "o, a", encoder, 1, B, B, weights=True),
        Pass("decoder", "o, z", decoder, 1, B, B, weights=True, inputs=2 * A),
        Pass("decoder", "o', sampled z", decoder, 1, sampled),
        Pass("target actor", "o', sampled a'", actor, 1, sampled),
        Pass("target critics", "o', sampled a'", critic, N, sampled),
        Pass("critics", "o, a", critic, N, B, B, weights=True),
        Pass("decoder", "o, z", decoder, 1, B),
        Pass("actor", "o, decoded a", actor, 1, B, B, weights=True),
        Pass("first critic", "o, b", critic, 1, B, B, inputs=A),
    ]


def iql(s: Sizes) -> Passes:
    """IQL: algorithms/iql.py; V is read again after its step, Q' of recorded actions once."""
    B, N = s.batch_size, s.num_critics
    actor, critic, value = (OBS, *s.hidden_dims, A), (OBS + A, *s.hidden_dims, 1), (OBS, *s.hidden_dims, 1)
    return [
        Pass("target critics", "o, a", critic, N, B),
        Pass("V", "o", value, 1, B, B, weights=True),
        Pass("V after its step", "o", value, 1, B),
        Pass("V after its step", "o'", value, 1, B),
        Pass("actor", "o", actor, 1, B, B, weights=True),
        Pass("critics", "o, a", critic, N, B, B, weights=True),
    ]


def awac(s: Sizes) -> Passes:
    """AWAC and CRR: algorithms/awac.py. The critics read recorded and S sampled actions after their step."""
    B, N = s.batch_size, s.num_critics
    actor, critic = (OBS, *s.hidden_dims, A), (OBS + A, *s.hidden_dims, 1)
    return [
        Pass("actor", "o'", actor, 1, B),
        Pass("target critics", "o', a'", critic, N, B),
        Pass("critics", "o, a", critic, N, B, B, weights=True),
        Pass("critics after their step", "o, a and sampled b", critic, N, (1 + s.num_samples) * B),
        Pass("actor", "o", actor, 1, B, B, weights=True),
    ]


def edac(s: Sizes) -> Passes:
    """EDAC: algorithms/edac.py, SAC whose critics' loss also has dQ/da.

    The gradient of dQ/da times a direction v is that of Q along v. With ReLU, this takes one more reading by the same
    weights, of v; the weights' gradients of both parts of the loss are one product.
    """
    along = Pass("critics", "v", (A, *s.hidden_dims, 1), s.num_critics, s.batch_size)
    passes = [each._replace(inputs=A) if each[:2] == ("critics", "o, a") else each for each in sac(s)]
    return [*passes, along]


def rebrac(s: Sizes) -> Passes:
    """ReBRAC: algorithms/rebrac.py, TD3 whose actor's loss reads all critics."""
    *others, last = td3(s)
    return [*others, last._replace(network="critics", copies=s.num_critics, backward=s.batch_size // s.num_critics)]


def rlpd(s: Sizes) -> Passes:
    """RLPD: algorithms/rlpd.py, SAC whose target reads 2 of the N critics.

    The actor learns every 20th time, by the mean of all critics.
    """
    of_next, target, critics, actor, judged = sac(s)
    return [
        of_next,
        target._replace(copies=2),
        critics,
        actor._replace(every=20),
        judged._replace(backward=s.batch_size, every=20),
    ]


def fql(s: Sizes) -> Passes:
    """FQL: algorithms/fql.py; the flow takes 10 steps of Euler's method, the policy one."""
    B, N = s.batch_size, s.num_critics
    policy, flow, critic = (OBS + A, *s.hidden_dims, A), (OBS + A + 1, *s.hidden_dims, A), (OBS + A, *s.hidden_dims, 1)
    return [
        Pass("policy", "o', z", policy, 1, B),
        Pass("target critics", "o', a'", critic, N, B),
        Pass("critics", "o, a", critic, N, B, B, weights=True),
        Pass("flow", "o, noised a", flow, 1, B, B, weights=True),
        *(Pass("flow", f"o, step {step} from z", flow, 1, B) for step in range(10)),
        Pass("policy", "o, z", policy, 1, B, B, weights=True),
        Pass("critics", "o, b", critic, N, B, B, inputs=A),
    ]


def model(s: Sizes) -> Passes:
    """A model's update: networks/gaussian_ensemble.py; means and variances of the change of o and of the reward."""
    networks = (OBS + A, *s.hidden_dims, 2 * (OBS + 1))
    return [Pass("networks", "o, a", networks, s.num_critics, s.batch_size, s.batch_size, weights=True)]


def imagine(s: Sizes) -> Passes:
    """An imagined step: algorithms/dynamics.py. All elites read all rows, because uncertainty compares them."""
    return [Pass("elites", "o, a", (OBS + A, *s.hidden_dims, 2 * (OBS + 1)), NUM_ELITES, s.batch_size)]


def imagine_one(s: Sizes) -> Passes:
    """An imagined step of which each row is read by one of the elites only."""
    return [Pass("elites", "o, a", (OBS + A, *s.hidden_dims, 2 * (OBS + 1)), NUM_ELITES, s.batch_size // NUM_ELITES)]


def bc(s: Sizes) -> Passes:
    """Behaviour cloning: algorithms/bc.py."""
    return [Pass("actor", "o", (OBS, *s.hidden_dims, A), 1, s.batch_size, s.batch_size, weights=True)]


def rsac(s: Sizes) -> Passes:
    """RSAC: SAC whose networks each have an LSTM; one reading of T + 1 steps gives the actor h and h'."""
    B, T, N, (H, _), lstm = s.batch_size, s.num_steps, s.num_critics, _memory(s), _lstm(s)
    actor, critic = (H, *s.hidden_dims, 2 * A), (H + A, *s.hidden_dims, 1)
    return [
        #      network           reads   dims  copies sequences forward backward
        Unroll("actor's LSTM", "o, o'", lstm, 1, B, T + 1, T),
        Unroll("critics' LSTMs", "o", lstm, N, B, T, T),
        Unroll("target critics' LSTMs", "o, o'", lstm, N, B, T + 1),
        Pass("actor", "h, h'", actor, 1, B * (T + 1), B * T, weights=True, inputs=H),
        Pass("target critics", "h', a'", critic, N, B * T),
        Pass("critics", "h, a", critic, N, B * T, B * T, weights=True, inputs=H),
        Pass("critics", "h, b", critic, N, B * T, B * T // N, inputs=A),
    ]


def rsac_s(s: Sizes) -> Passes:
    """RSAC-sharing: one LSTM for all, trained by the critics."""
    B, T, N, (H, _), lstm = s.batch_size, s.num_steps, s.num_critics, _memory(s), _lstm(s)
    actor, critic = (H, *s.hidden_dims, 2 * A), (H + A, *s.hidden_dims, 1)
    return [
        Unroll("LSTM", "o, o'", lstm, 1, B, T + 1, T),
        Unroll("target LSTM", "o, o'", lstm, 1, B, T + 1),
        Pass("actor", "h, h'", actor, 1, B * (T + 1), B * T, weights=True),
        Pass("target critics", "h', a'", critic, N, B * T),
        Pass("critics", "h, a", critic, N, B * T, B * T, weights=True, inputs=H),
        Pass("critics", "h, b", critic, N, B * T, B * T // N, inputs=A),
    ]


def rdpg(s: Sizes, every: int = 1) -> Passes:
    """RDPG: DDPG whose networks, the target actor too, each have an LSTM."""
    B, T, N, (H, _), lstm = s.batch_size, s.num_steps, s.num_critics, _memory(s), _lstm(s)
    actor, critic = (H, *s.hidden_dims, A), (H + A, *s.hidden_dims, 1)
    return [
        Unroll("target actor's LSTM", "o, o'", lstm, 1, B, T + 1),
        Unroll("target critics' LSTMs", "o, o'", lstm, N, B, T + 1),
        Unroll("critics' LSTMs", "o", lstm, N, B, T, T),
        Unroll("actor's LSTM", "o", lstm, 1, B, T, T, every=every),
        Pass("target actor", "h'", actor, 1, B * T),
        Pass("target critics", "h', a'", critic, N, B * T),
        Pass("critics", "h, a", critic, N, B * T, B * T, weights=True, inputs=H),
        Pass("actor", "h", actor, 1, B * T, B * T, weights=True, inputs=H, every=every),
        Pass("first critic", "h, b", critic, 1, B * T, B * T, inputs=A, every=every),
    ]


def rtd3(s: Sizes) -> Passes:
    """RTD3: RDPG with more critics, whose actor learns every second time."""
    return rdpg(s, every=2)


def _memory(s: Sizes) -> tuple[int, int]:
    assert s.memory is not None
    return s.memory


def _lstm(s: Sizes) -> tuple[int, ...]:
    width, layers = _memory(s)
    return (OBS, *(width,) * layers)


PASSES: dict[str, Callable[[Sizes], Passes]] = {
    "sac": sac, "sac_n": sac, "td3": td3, "td3_bc": td3, "cql": cql, "bcq": bcq, "iql": iql, "bc": bc,
    "calql": cql, "fql": fql, "rlpd": rlpd, "awac": awac, "crr": awac, "edac": edac, "rebrac": rebrac,
    "model": model, "imagine": imagine, "imagine_one": imagine_one,
    "rsac": rsac, "rsac_s": rsac_s, "rdpg": rdpg, "rtd3": rtd3,
}  # fmt: skip
