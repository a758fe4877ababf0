"""The floor has all the dense products that an algorithm makes, and no more."""

import dataclasses
import functools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cases import ACTION_DIM, CASES, OBSERVATION_DIM, Sizes
from benchmarks.libraries import floor, offpcc_agents
from benchmarks.passes import PASSES, Pass, Unroll
from offpcc.core import Batch

PLAIN = Sizes(hidden_dims=(24, 24), batch_size=8, num_samples=3)
RECURRENT = Sizes(hidden_dims=(24, 24), batch_size=3, memory=(16, 2), segment_len=12)
NUM_UPDATES, OF_RLPD = 4, 20  # multiples of the delays

# How much more of them the library may make, and what that is. All: gradients of whole first inputs where those of
# actions would do. Nothing less than the floor is possible, or the floor holds a product that an update can do without.
ALLOWED = {
    "sac": 1.1,
    "td3": 1.15,  # the actor's loss reads all critics
    "td3_bc": 1.15,
    "cql": 1.18,  # recorded actions are read twice, for the gap and for the Bellman error
    "bcq": 1.12,  # the actor's loss reads all critics
    "iql": 1.18,  # V and the target critics are read again for the advantage
    "bc": 1.02,
    "awac": 1.05,  # the policy reads o for its samples, and again for the recorded actions
    "crr": 1.05,
    "sac_n": 1.1,
    "edac": 1.55,  # autograd goes back for dQ/da, again for the loss, and for the actor through all critics
    "rebrac": 1.1,
    "calql": 1.18,
    "fql": 1.1,
    "rlpd": 1.1,
    "model": 1.01,
    "imagine": 1.01,
    "imagine_one": 1.5,  # each network reads as many rows as the one with the most
    "rsac": 1.2,  # one step more goes back than counts; the policy reads h and h' one after the other
    "rsac_s": 1.2,
    "rdpg": 1.2,
    "rtd3": 1.25,  # the actor's memory reads the batch in every update, though it learns in every second one
}


def sizes_of(name):
    sizes = RECURRENT if CASES[name].sizes.memory else PLAIN
    rows = 400 if name == "imagine_one" else sizes.batch_size
    return dataclasses.replace(sizes, num_critics=CASES[name].sizes.num_critics, batch_size=rows)


def batch_of(sizes):
    """Rows without padding."""
    torch.manual_seed(3)
    B, T = sizes.batch_size, sizes.num_steps
    return Batch(
        observations=torch.randn(B, T + 1, OBSERVATION_DIM),
        actions=torch.rand(B, T, ACTION_DIM) * 2 - 1,
        rewards=torch.randn(B, T, 1),
        terminations=torch.zeros(B, T, 1),
        valid=torch.ones(B, T + 1, 1),
        loss_mask=torch.ones(B, T, 1),
        first_action=torch.zeros(B, ACTION_DIM),
        first_reward=torch.zeros(B, 1),
        next_actions=torch.rand(B, T, ACTION_DIM) * 2 - 1,
        has_next_action=torch.ones(B, T, 1),
        returns_to_go=torch.randn(B, T, 1),
        discounts_to_go=torch.ones(B, T, 1),
    )


def of_onednn(inputs, weights_in, weights_recurrent, *rest, out_shape=None, **kwargs):
    """Of a layer of oneDNN's LSTM, (steps, rows, num_in): torch counts none of them."""
    return 2 * inputs[0] * inputs[1] * (weights_in[0] * weights_in[1] + weights_recurrent[0] * weights_recurrent[1])


def of_onednn_backwards(*args, **kwargs):
    return 2 * of_onednn(*args)


ONEDNN = {
    torch.ops.aten.mkldnn_rnn_layer: of_onednn,
    torch.ops.aten.mkldnn_rnn_layer_backward: of_onednn_backwards,
}


def counted(work, number):
    """Floating-point operations of dense products, of each of `number` calls."""
    with FlopCounterMode(display=False, custom_mapping=ONEDNN) as counter:
        for _ in range(number):
            work()
    return counter.get_total_flops() / number


def needed(name, sizes):
    return sum(each.flops() for each in PASSES[name](sizes))


@pytest.mark.parametrize("name", PASSES)
def test_the_library_makes_the_floors_products_and_few_others(name):
    sizes = sizes_of(name)
    if name in ("model", "imagine", "imagine_one"):
        work = offpcc_agents.prepare(dataclasses.replace(CASES[name], sizes=sizes), 400).run
    else:
        learner, batch = offpcc_agents.algorithm(name, sizes), batch_of(sizes)
        work = functools.partial(learner.update_networks, batch)
    made = counted(work, OF_RLPD if name == "rlpd" else NUM_UPDATES)
    # The counter leaves out what is no product to it: the critics' last layer, one column, may be a sum over a row.
    assert 0.97 <= made / needed(name, sizes) <= ALLOWED[name]


@pytest.mark.parametrize("name", PASSES)
def test_the_floor_runs_what_the_table_says(name, monkeypatch):
    monkeypatch.setattr(floor, "TRIALS", 1)
    case = dataclasses.replace(CASES[name], sizes=sizes_of(name))
    work = floor.prepare(case, 0)
    assert counted(work.run, OF_RLPD if name == "rlpd" else NUM_UPDATES) == pytest.approx(needed(name, case.sizes))


@pytest.mark.parametrize("each", [
    Pass("critics", "o, a", (5, 7, 6, 1), 2, 4, 3, weights=True, inputs=2),
    Unroll("LSTMs", "o", (5, 6, 6), 2, 3, 4, 3),
])  # fmt: skip
def test_every_layout_makes_the_same_products(each):
    flops = {counted(lambda all_of=all_of: [one() for one in all_of], 1) for _, all_of in floor.layouts(each)}
    assert flops == {each.flops()}
    assert len(list(floor.layouts(each))) == 4


def test_every_update_has_a_floor():
    measured = {case.algorithm for case in CASES.values() if "floor" in case.libraries}
    assert measured == PASSES.keys()


def test_what_a_pass_costs():
    """By hand: 3 rows through 5 -> 4 -> 1, gradients of the hidden layer, of all weights and of 2 inputs."""
    forward, weights, hidden, inputs = 3 * (20 + 4), 3 * (20 + 4), 3 * 4, 3 * 2 * 4
    each = Pass("critics", "o, a", (5, 4, 1), 2, 3, 3, weights=True, inputs=2)
    assert each.flops() == 2 * 2 * (forward + weights + hidden + inputs)
    assert each._replace(every=2).flops() == each.flops() / 2
