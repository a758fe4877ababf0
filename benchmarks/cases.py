"""What `benchmarks.throughput` measures: cases, their sizes, and the libraries that take part in each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

OBSERVATION_DIM, ACTION_DIM = 11, 3  # Hopper's
NUM_STACKED, NUM_ACTIONS = 4, 6  # Pong's
EPISODE_LENGTH = 200  # steps
NUM_TRANSITIONS = 100_000  # in each buffer

OURS = ("offpcc", "offpcc-compiled", "offpcc-bf16", "offpcc-eager")
PEERS = ("stable-baselines3", "d3rlpy", "tianshou", "torchrl", "torchrl-compiled")
# Measured where a clone is given. The last two are the authors of FQL and RLPD.
CLONES = ("corl", "offlinerl-kit", "cleanrl", "pomdp-baselines", "offpcc-2021", "mbrl-lib", "seohongpark", "ikostrikov")
LIBRARIES = ("floor", *OURS, *PEERS, *CLONES)
ON_GPU = ("offpcc", "offpcc-bf16", "offpcc-eager", "stable-baselines3", "d3rlpy")  # these are measured on a GPU, too
MEMORIES = ("lstm", "gru", "mingru", "lru", "gpt", "concat")


class CaseError(ValueError):
    """A case or a library that does not exist was asked for."""


@dataclass(frozen=True)
class Sizes:
    """Of networks and batches.

    Attributes:
        hidden_dims: widths of every MLP.
        num_critics: N; of a model, its networks.
        batch_size: transitions, or with memory episodes or segments.
        num_samples: actions that BCQ, AWAC, CRR, and for each of three policies CQL and Cal-QL sample at an
            observation.
        memory: width and number of layers of an LSTM; None for agents without memory.
        segment_len: steps of a segment; None for whole episodes.
        residual: width of residual heads, of 1 block (actor) and 2 blocks (critics); None for MLPs.
        frames_in: "memory" or "disk", where a buffer of images keeps its frames; "" for vectors.
    """

    hidden_dims: tuple[int, ...] = (256, 256)
    num_critics: int = 2
    batch_size: int = 256
    num_samples: int = 10
    memory: tuple[int, int] | None = None
    segment_len: int | None = None
    residual: int | None = None
    frames_in: str = ""

    @property
    def num_steps(self) -> int:
        """T, the steps of a row of a batch."""
        return (self.segment_len or EPISODE_LENGTH) if self.memory else 1


PLAIN = Sizes()
DEEP = Sizes(hidden_dims=(256, 256, 256))  # that of CORL's AWAC, SAC-N, EDAC and ReBRAC
ONE_SAMPLE = replace(DEEP, num_samples=1)
TEN_CRITICS = Sizes(num_critics=10)
ENSEMBLE, LARGE_BATCH = replace(DEEP, num_critics=10), replace(DEEP, batch_size=1024)
PAPER = Sizes(memory=(256, 2), batch_size=10)  # Yang & Nguyen 2021 (arXiv:2110.12628)
PAPER_DDPG = replace(PAPER, num_critics=1)
MODEL = Sizes(hidden_dims=(200, 200, 200, 200), num_critics=7)  # MBPO's (arXiv:1906.08253)
ROLLOUTS = replace(MODEL, batch_size=1_000)
NUM_ELITES = 5  # of these networks, which predict
ATARI, PONG = Sizes(hidden_dims=(512,), num_critics=1, batch_size=32), "PongNoFrameskip-v4"
FRAMES, FRAMES_ON_DISK = replace(ATARI, frames_in="memory"), replace(ATARI, frames_in="disk")
NUM_GAMES, STEPS_PER_UPDATE, N_STEP, NUM_QUANTILES = 10, 10, 3, 200  # as in Tianshou's examples/atari
SMALL = Sizes(memory=(64, 1), batch_size=32, segment_len=50, hidden_dims=(64, 64))


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: as it is asked for.
        title: for people.
        kind: "update", "act", "sample", "bytes", "steps"; of a model "model", an update, or "imagine", a step.
        algorithm: whose networks are updated or act.
        libraries: that take part.
        sizes: of its networks and batches.
        env: that steps are taken in.
        device: of networks and batches: "cpu" or "cuda".
    """

    name: str
    title: str
    kind: str
    algorithm: str
    libraries: tuple[str, ...]
    sizes: Sizes = field(default=PLAIN)
    env: str = ""
    device: str = "cpu"

    @property
    def unit(self) -> str:
        """Of its numbers."""
        return UNITS[self.kind]

    @property
    def higher_is_better(self) -> bool:
        """Whether it is told as a rate."""
        return self.unit.endswith("/s")


UNITS = {
    "update": "updates/s",
    "act": "us",
    "sample": "us",
    "bytes": "bytes",
    "steps": "steps/s",
    "model": "updates/s",
    "imagine": "us",
}

OWN, COMPILED = ("offpcc",), ("offpcc", "offpcc-compiled")
BF16 = (*COMPILED, "offpcc-bf16")
SB3, D3RLPY, TIANSHOU, *TORCHRL = PEERS
CORL, KIT, CLEANRL, POMDP, ORIGINAL, MBRL, FQL, RLPD = CLONES
OF_MODELS = ("floor", *COMPILED, KIT, MBRL)
COMPARING, DRAWN = (("floor", "offpcc", peer) for peer in (KIT, MBRL))
LOOPS = ("offpcc", SB3, CLEANRL)

CASES = {
    case.name: case
    for case in (
        # name, title, kind, algorithm, libraries, sizes
        Case("sac", "SAC", "update", "sac", ("floor", *COMPILED, *PEERS, ORIGINAL)),
        Case("td3", "TD3", "update", "td3", ("floor", *COMPILED, *PEERS, ORIGINAL)),
        Case("td3_bc", "TD3+BC", "update", "td3_bc", ("floor", *COMPILED, *PEERS[1:], CORL, KIT)),
        Case("cql", "CQL, 3 x 10 sampled actions", "update", "cql", ("floor", *OURS[:3], *PEERS[1:], CORL, KIT)),
        Case("bcq", "BCQ, 10 sampled actions", "update", "bcq", ("floor", *COMPILED, D3RLPY, TIANSHOU)),
        Case("iql", "IQL", "update", "iql", ("floor", *COMPILED, D3RLPY, *TORCHRL, CORL, KIT)),
        Case("bc", "BC", "update", "bc", ("floor", *COMPILED, D3RLPY, *TORCHRL, CORL, KIT)),
        Case("awac", "AWAC, 3 x 256", "update", "awac", ("floor", *COMPILED, D3RLPY, CORL), ONE_SAMPLE),
        Case("crr", "CRR, 4 sampled actions", "update", "crr", ("floor", *COMPILED, D3RLPY), Sizes(num_samples=4)),
        Case("sac_n", "SAC-N, 10 critics of 3 x 256", "update", "sac_n", ("floor", *COMPILED, CORL), ENSEMBLE),
        Case("edac", "EDAC, 10 critics of 3 x 256", "update", "edac", ("floor", *COMPILED, CORL, KIT), ENSEMBLE),
        Case("rebrac", "ReBRAC, 3 x 256", "update", "rebrac", ("floor", *COMPILED, CORL), LARGE_BATCH),
        Case("calql", "Cal-QL, 3 x 10 sampled actions", "update", "calql", ("floor", *COMPILED, D3RLPY)),
        Case("fql", "FQL, 10 steps of the flow", "update", "fql", ("floor", *COMPILED, FQL)),
        Case("rlpd", "RLPD, 10 critics, actor every 20th", "update", "rlpd", ("floor", *COMPILED, RLPD), TEN_CRITICS),
        Case("rsac", "RSAC, LSTM 2 x 256", "update", "rsac", ("floor", *BF16, POMDP, ORIGINAL), PAPER),
        Case("rsac_s", "RSAC-sharing, LSTM 2 x 256", "update", "rsac_s", ("floor", *BF16, ORIGINAL), PAPER),
        Case("rtd3", "RTD3, LSTM 2 x 256", "update", "rtd3", ("floor", *BF16, POMDP, ORIGINAL), PAPER),
        Case("rdpg", "RDPG, LSTM 2 x 256", "update", "rdpg", ("floor", *BF16, ORIGINAL), PAPER_DDPG),
        Case("rsac_small", "RSAC, LSTM 1 x 64", "update", "rsac", ("floor", *BF16, POMDP, ORIGINAL), SMALL),
        Case("rsac_s_small", "RSAC-sharing, LSTM 1 x 64", "update", "rsac_s", ("floor", *BF16, ORIGINAL), SMALL),
        *(
            Case(f"sac_residual_{x}", f"SAC, residual heads of width {x}", "update", "sac", OWN, Sizes(residual=x))
            for x in (64, 128, 256)
        ),
        Case("model", "model, 7 networks of 4 x 200", "model", "model", OF_MODELS, MODEL),
        Case("imagine", "1,000 imagined steps, all networks", "imagine", "imagine", COMPARING, ROLLOUTS),
        Case("imagine_one", "1,000 imagined steps, one network each", "imagine", "imagine_one", DRAWN, ROLLOUTS),
        Case("act_paper", "act(), LSTM 2 x 256", "act", "rsac", OWN, PAPER),
        Case("act_small", "act(), LSTM 1 x 64", "act", "rsac", OWN, SMALL),
        Case("sample", "sample 256 transitions", "sample", "sac", ("offpcc", *PEERS[:4])),
        Case("sample_episodes", "sample 10 episodes of 200", "sample", "rsac", ("offpcc", D3RLPY), PAPER),
        Case("sample_frames", "sample 32 stacks of 4 frames", "sample", "cdqn", ("offpcc", SB3, TIANSHOU), FRAMES),
        Case("sample_frames_disk", "sample 32 stacks, frames on disk", "sample", "cdqn", OWN, FRAMES_ON_DISK),
        Case("bytes", "a stored Hopper transition", "bytes", "sac", ("offpcc", *PEERS[:4])),
        Case("steps_pendulum", "whole steps of SAC, pendulum", "steps", "sac", LOOPS, env="pendulum-v0"),
        Case("steps_hopper", "whole steps of SAC, hopper", "steps", "sac", LOOPS, env="hopper-mujoco-v0"),
        Case("steps_pong", "whole steps of QR-DQN, Pong", "steps", "cqrdqn", ("offpcc", TIANSHOU), ATARI, PONG),
        Case("steps_pong_dqn", "whole steps of DQN, Pong", "steps", "cdqn", (*COMPILED, CLEANRL), ATARI, PONG),
        Case("steps_pendulum_p", "whole steps of RSAC, pendulum-p", "steps", "rsac", OWN, SMALL, "pendulum-p-v0"),
    )
}  # fmt: skip


def chosen(names: str, known: Sequence[str], noun: str) -> list[str]:
    """The names of a list such as "sac,td3", in the order of `known`; all of them for an empty one.

    Raises:
        CaseError: one of them is not known.
    """
    asked = [name.strip() for name in names.split(",") if name.strip()]
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.4)
            instead = f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(known)}"
            raise CaseError(f"there is no {noun} {name!r}; {instead}")
    return [name for name in known if not asked or name in asked]
