"""`RemoteInteraction`: Ray actors play episodes with their own copies of the policy; one learner stores their steps."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from offpcc.algorithms import ActorCritic
from offpcc.algorithms.agent import build_actor
from offpcc.algorithms.discrete import ValueBased
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.vector.ray_actors import RayEnvironments
from offpcc.envs.vector.workers import DeadWorkerError, Host
from offpcc.training.interaction import EpisodeResult, Interaction
from offpcc.utils import signals
from offpcc.utils.rng import derived_seed

STRETCH = 32  # steps that an actor sends together to an agent without memory
POLL_INTERVAL = 0.5  # seconds

EXACT_IN_LOCKSTEP = "with environments.lockstep=True, a resume is exact"
RESUMES_ANEW = (
    f"note: the actors of environments.ray_address play for themselves, so a resume of this run will not be exact: "
    f"their unfinished episodes are dropped; {EXACT_IN_LOCKSTEP}"
)

Ending = Literal["drop", "truncate"]  # of an unfinished episode


class Task(NamedTuple):
    """What an actor plays next."""

    policy: Any  # Ray's reference to a `Policy`, which the actor asks for if it has another version
    version: int  # number of these weights, from 1
    explores_at_random: bool  # whether to choose random actions
    seed: int  # seed of an actor's noise; only its first task counts
    longest_episode: int  # see `Interaction`
    timeout: float | None  # maximum seconds of a step; None for no limit
    num_steps: int  # the run's environment steps so far, for messages
    epsilon: float | None  # share of random actions of an agent that acts by its Q network; else None


class Policy(NamedTuple):
    """A policy as it is sent to actors."""

    file: dict[str, Any]  # content of an actor file
    privileged: Any  # see `Construction.privileged`; an actor file lacks it
    noise_scale: float  # standard deviation of the exploration noise, which may change while learning
    classes: list[type]  # the classes of its parts; reading them imports the user's modules, which register them


class Piece(NamedTuple):
    """Consecutive transitions of one episode: arrays with one row for each."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    is_first: np.ndarray


class _Player:
    """Plays in an actor's process. It is the interaction of one environment, and keeps its transitions to send them."""

    def __init__(self, host: Host, task: Task) -> None:
        import ray

        torch.set_num_threads(1)
        policy = ray.get(task.policy)
        seed = derived_seed(task.seed, 0, 3)  # not that of the updates
        self.algorithm = build_actor(policy.file, "the policy that an actor got", seed=seed)
        self.algorithm.privileged, self.algorithm.noise_scale = policy.privileged, policy.noise_scale
        self.version = task.version
        played = LocalEnvironments.around(host.env)
        played.replay_on_resume = False
        self.interaction = Interaction(played, self.algorithm, self, task.seed, task.longest_episode)
        self.interaction.learns_of_lives = False  # the learner counts episodes by the terminations that it gets
        self.taken: list[Any] = []

    def play(self, task: Task) -> Piece:
        """Play to the end of the episode, or `STRETCH` steps of it."""
        import ray

        if task.version != self.version:
            policy = ray.get(task.policy)
            for name, part in self.algorithm.actor_parts().items():
                part.load_state_dict(policy.file["weights"][name])
            self.algorithm.noise_scale = policy.noise_scale
            self.algorithm._mirror, self.version = "unknown", task.version
        if isinstance(self.algorithm, ValueBased) and task.epsilon is not None:  # an actor does not know all steps
            self.algorithm.fix_epsilon(task.epsilon)
        self.interaction.num_steps, self.taken = task.num_steps, []
        most = STRETCH if self.algorithm.memoryless else math.inf
        while not (self.taken and (self.interaction.over[0] or len(self.taken) == most)):
            with _ended_after(task.timeout):
                self.interaction.step(task.explores_at_random)
        return Piece(*(np.stack(column) for column in zip(*self.taken, strict=True)))

    def push(self, *transition: Any, env: int = 0, is_first: bool = False) -> None:
        """See `Store.push`."""
        self.taken.append((*transition, is_first))

    def drop(self, env: int) -> None:
        """See `Store.drop`; an environment in this process loses no episode."""

    def truncate(self, env: int) -> None:
        """See `Store.truncate`; the learner cuts an episode where the next one begins."""


@contextlib.contextmanager
def _ended_after(timeout: float | None) -> Iterator[None]:
    """End this process if the block takes longer; the learner then starts another actor."""
    if timeout is None:
        yield
        return
    timer = threading.Timer(timeout, os._exit, (1,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def play_task(host: Host, task: Task) -> Piece:
    """Play in an actor; `Host.answer` runs this."""
    host.kept = host.kept or _Player(host, task)
    piece: Piece = host.kept.play(task)
    return piece


class RemoteInteraction(Interaction):
    """Environments in Ray actors that play by themselves. `step` stores one received transition.

    Each actor plays an episode, or `STRETCH` steps of one if the agent has no memory, with the newest weights at its
    beginning. It gets its next task when the learner begins to store the last one's steps. So an actor is at most two
    tasks ahead of the learner, and the steps in flight when random exploration ends are random, too.

    The arguments are those of `Interaction`.
    """

    environments: RayEnvironments
    algorithm: ActorCritic

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.version = 0  # of the weights that were sent last
        self._weights: dict[str, dict[str, torch.Tensor]] = {}
        self._noise = 0.0
        self._policy: Any = None  # Ray's reference to them
        self._playing: dict[int, None] = {}  # the actors that have a task, the longest one first
        self._received: deque[tuple[int, Piece | Ending]] = deque()  # from actors, in the order of arrival
        self._rest: Iterator[tuple[Any, ...]] = iter(())  # transitions of the piece that is being stored
        self._left, self._number = 0, 0  # how many, and whose

    def step(self, explore_at_random: bool) -> int:
        """Store the next transition, wait for one if there is none, and return 1."""
        while not self._left:
            self._next_piece(explore_at_random)
        *transition, is_first = next(self._rest)
        self._left -= 1
        number, (reward, terminated, truncated) = self._number, (transition[2], *map(bool, transition[4:]))
        if is_first:
            self.returns[number], self.lengths[number] = 0.0, 0
        before, action, _, after, *_ = transition
        for store in self.stores:
            store.push(before, action, float(reward), after, terminated, truncated, env=number, is_first=bool(is_first))
        self.returns[number] += reward
        self.lengths[number] += 1
        self._count(1)
        self.over[:] = False
        self.over[number] = terminated or truncated
        if self.over[number]:
            self.finished.append(EpisodeResult(float(self.returns[number]), int(self.lengths[number])))
            self.returns[number], self.lengths[number] = 0.0, 0
        return 1

    def _next_piece(self, explore_at_random: bool) -> None:
        """Take the next piece, or end the episode of a lost actor; then give its actor a task."""
        self._give_tasks(explore_at_random)
        while not self._received:
            signals.poll()
            self._receive(POLL_INTERVAL)
        number, piece = self._received.popleft()
        if isinstance(piece, Piece):
            self._number, self._left = number, len(piece.rewards)
            self._rest = zip(*piece, strict=True)
        else:
            for store in self.stores:
                getattr(store, piece)(number)
            self.num_dropped += piece == "drop"
            self.returns[number], self.lengths[number] = 0.0, 0
        self._give_tasks(explore_at_random)

    def _give_tasks(self, explore_at_random: bool) -> None:
        """Give a task to each actor that has none, unless the learner has not begun to store its last one."""
        busy = {*self._playing, *(number for number, _ in self._received)}
        idle = [number for number in range(self.num_envs) if number not in busy]
        if idle:
            self._publish()
        epsilons: list[float | None] = [None] * self.num_envs
        if isinstance(self.algorithm, ValueBased):
            epsilons = self.algorithm.epsilons(self.num_envs).tolist()
        for number in idle:
            own = self.environments.seeds[number], self.longest_episode, self.environments.timeout, self.num_steps
            task = Task(self._policy, self.version, explore_at_random, *own, epsilons[number])
            self.environments.workers[number].send(play_task, task)
            self._playing[number] = None

    def _publish(self) -> None:
        """Store the weights for the actors under a new version, if they have changed."""
        import ray

        file = self.algorithm.actor_file()
        weights, noise = file["weights"], float(self.algorithm.noise_scale)
        if self._policy is None or noise != self._noise or not _are_equal(weights, self._weights):
            parts = self.algorithm.actor_parts().values()
            classes = {type(self.algorithm), *(type(module) for part in parts for module in part.modules())}
            self._policy = ray.put(Policy(file, self.algorithm.privileged, noise, list(classes)))
            self._weights, self._noise, self.version = weights, noise, self.version + 1

    def _receive(self, seconds: float) -> None:
        """Receive the first piece that arrives within this time, if any."""
        import ray

        workers = self.environments.workers
        answers = {workers[number].asked[-1]: number for number in self._playing}
        for answer in ray.wait(list(answers), timeout=seconds)[0]:
            number = answers[answer]
            del self._playing[number]
            self._received.append((number, self._answer(number)))

    def _answer(self, number: int) -> Piece | Ending:
        """Return an actor's piece; if the actor is lost, start another one."""
        worker = self.environments.workers[number]
        try:
            while len(worker.asked) > 1:  # the first answer of a new actor
                worker.answer()
            piece = Piece(*map(np.array, worker.answer()))  # copies, so that Ray can free its memory
        except DeadWorkerError as death:
            self.environments.replace(number, death)
            return "drop"
        self.environments.has_answered(number)
        return piece

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and all pieces that have arrived. The episodes that actors still play are not in it."""
        before = None
        while self._playing and before != len(self._received):
            before = len(self._received)
            self._receive(0.0)
        rest = list(self._rest)
        self._rest = iter(rest)
        pieces = [(self._number, Piece(*map(np.stack, zip(*rest, strict=True))))] if rest else []
        return {
            "finished": [tuple(result) for result in self.finished],
            "notes": [
                [number, [torch.as_tensor(column) for column in piece] if isinstance(piece, Piece) else piece]
                for number, piece in [*pieces, *self._received]
            ],
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
            "num_steps": self.num_steps,
            "num_dropped": self.num_dropped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> str:
        """Restore the pieces that had arrived, and truncate the other unfinished episodes; return a message."""
        self.finished = [EpisodeResult(*result) for result in state["finished"]]
        self.returns, self.lengths = np.array(state["returns"]), np.array(state["lengths"])
        self.num_steps, self.num_dropped = state["num_steps"], state["num_dropped"]
        for number, piece in state["notes"] or ():
            read: Any = piece if isinstance(piece, str) else Piece(*(column.numpy() for column in piece))
            self._received.append((number, read))
        self._received += [(number, "truncate") for number in range(self.num_envs)]
        self.environments.reseed(self.num_steps)
        return (
            f"this resume is not exact: the episodes that the actors of environments.ray_address were playing are "
            f"dropped, and new ones begin; {EXACT_IN_LOCKSTEP}"
        )


def _are_equal(some: dict[str, dict[str, torch.Tensor]], others: dict[str, dict[str, torch.Tensor]]) -> bool:
    return all(torch.equal(tensor, others[part][name]) for part in some for name, tensor in some[part].items())
