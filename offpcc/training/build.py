"""`build` and `build_run`: build the parts of a run, from a description of it, into an `Experiment`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from offpcc.algorithms import ActorCritic, find_algorithm
from offpcc.algorithms.components import find_constant
from offpcc.algorithms.construction import check_actions, is_for_data
from offpcc.algorithms.discrete import ValueBased
from offpcc.algorithms.dynamics import AUTO, DynamicsModel
from offpcc.algorithms.variants import TABLE
from offpcc.config import loading
from offpcc.config.bindings import COMMAND_LINE, add_scoped_used, declarations, explains_calls
from offpcc.config.validation import Fraction, NonnegativeInteger, PositiveInteger, Seed
from offpcc.data import Dataset, RecurrentReplayBuffer, ReplayBuffer, default_buffer
from offpcc.data.buffers.base import BufferBuilder
from offpcc.data.buffers.hindsight import Hindsight
from offpcc.data.buffers.imagined import ImaginedBuffer
from offpcc.data.buffers.mixed import MixedBuffer
from offpcc.data.buffers.prioritized import Prioritized
from offpcc.data.checks.episodes import NEARLY_ALL
from offpcc.data.offline import OfflineDataset, read
from offpcc.envs.d4rl import catalog
from offpcc.envs.guard import opened
from offpcc.envs.make import EnvFunction, make
from offpcc.envs.vector.local import LocalEnvironments
from offpcc.envs.vector.local import environments as build_environments
from offpcc.envs.vector.ray_actors import RayEnvironments
from offpcc.envs.wrappers import num_stacked
from offpcc.networks import Recurrent
from offpcc.networks.sequences import reads_previous
from offpcc.training.callbacks import as_callback
from offpcc.training.evaluation import Evaluation, MakeAnyEnv, changes_rewards
from offpcc.training.experiment import ActionSpace, Experiment, check_savable
from offpcc.training.interaction import Interaction
from offpcc.training.loggers.console import download_bar
from offpcc.training.metrics import Loop
from offpcc.training.models.files import (
    check_model_of,
    check_same_settings,
    find_or_train,
    fingerprint,
    load_with_content,
    model_for_env,
)
from offpcc.training.models.imagination import Imagination, imagined_capacity, stat_names
from offpcc.training.models.training import ModelTraining
from offpcc.training.online import AnyAlgorithm, OnlinePhase, check_take_over, other_values, value_settings
from offpcc.training.remote import RemoteInteraction
from offpcc.training.run_fns import columns_of, no_td_errors
from offpcc.training.spec import (
    Arguments,
    Callbacks,
    OwnLoggers,
    PartOptions,
    RunSpec,
    has_memory,
    memory_of,
    torch_settings,
    with_memory,
)
from offpcc.utils.errors import UserError, first_line, for_python, format_error, print_to_stderr, warn_of_data
from offpcc.utils.paths import PACKAGE
from offpcc.utils.rng import derived_seed, seeded_torch
from offpcc.utils.spaces import MAKE_IMAGE, images_read_as_vectors, observed_shape
from offpcc.utils.system import is_shortage

UNKNOWN_LENGTH = 1_000  # of an episode, for the capacity of imagined steps, if the environment has no time limit


@explains_calls
def build(
    env: str | EnvFunction | None,
    algo: AnyAlgorithm,
    *,
    seed: Seed | None = 0,
    device: str | torch.device = "cpu",
    threads: PositiveInteger | None = 1,
    algorithm: Arguments | None = None,
    buffer: Arguments | None = None,
    buffer_class: BufferBuilder | None = None,
    callbacks: Callbacks | None = None,
    loggers: OwnLoggers | None = None,
    environments: Arguments | None = None,
    make: Arguments | None = None,
    dataset: str | Path | Dataset | None = None,
    dataset_fraction: Fraction = 1.0,
    dataset_steps: PositiveInteger | None = None,
    then_env_steps: NonnegativeInteger | None = None,
    model: str | Path | None = None,
) -> Experiment:
    """Build a run from names. Arguments that are not given come from gin's bindings, else from the defaults.

    Args:
        env: a Gymnasium id, or a D4RL name such as "hopper-medium-v2", which also selects the dataset. Or a function or
            a class that makes the environment, such as ``lambda: gymnasium.make("Pendulum-v1")``: each call has to make
            a new one. None to learn from a dataset without tests.
        algo: a name in `offpcc.algorithms.ALGORITHMS`, or the name of a class with its own update that is registered
            with `offpcc.configurable`, or this class.
        seed: the seed of everything random. None draws one, and prints it.
        device: the device of the networks; "auto" for CUDA if it is available, else the CPU.
        threads: number of CPU threads of torch while this run is built and trained; then torch's own number holds
            again. More threads are faster only on an idle machine. None keeps torch's number.
        algorithm: arguments of the algorithm's class, and those of its memory (`offpcc.networks.Recurrent`), such as
            ``cell``.
        buffer: arguments of the buffer's class.
        buffer_class: class of the buffer, or gin's ``build.buffer_class = @MyBuffer``. By default `ReplayBuffer`, or
            `RecurrentReplayBuffer` for an agent with memory.
        callbacks: callbacks for each `train`; see `offpcc.training.run_fns.train`. Or gin's
            ``build.callbacks = [@MyCallback]``.
        loggers: classes of more loggers, or functions that return one, such as ``functools.partial(MyLogger, name=1)``;
            each is called with the run's folder (None without one). None for gin's ``build.loggers``.
        environments: arguments of `offpcc.envs.vector.local.environments`, such as ``num_envs``.
        make: arguments of `offpcc.make` for all environments of the run: ``wrappers``, ``kwargs``, ``timeout`` and
            ``state``, as in ``{"wrappers": [DropIndices], "kwargs": {"max_episode_steps": 200}}``. An instance cannot
            be a wrapper; a class gets its arguments from gin, or by `functools.partial`.
        dataset: a dataset to learn from instead of interaction; see `offpcc.data.load_dataset`. The wrappers of `env`
            apply to its observations as they would in `env`.
        dataset_fraction: the part of the dataset's steps to use. Takes whole episodes from the start, as few as hold
            this part, rounded up.
        dataset_steps: the number of the dataset's steps to use, from the start; the last episode is cut.
        then_env_steps: environment steps in which learning goes on in `env` after the dataset; see `RunSpec.make`.
        model: the file of a model of the dataset; see `RunSpec.make`.

    Raises:
        UserError: a name is unknown, or the environment or dataset is unsuitable.

    Note:
        This changes no setting of the process. `offpcc.utils.system.keep_freed_memory`, which the command line calls,
        saves up to a third of the time of an update on the CPU, but then the process keeps its peak memory.
    """
    spec = RunSpec.make(
        env,
        algo,
        seed=seed,
        device=device,
        threads=threads,
        algorithm=algorithm,
        buffer=buffer,
        buffer_class=buffer_class,
        callbacks=callbacks,
        loggers=loggers,
        environments=environments,
        make=make,
        dataset=dataset,
        dataset_fraction=dataset_fraction,
        dataset_steps=dataset_steps,
        then_env_steps=then_env_steps,
        model=model,
    )
    learner = build_run(spec)
    for note in notes_on_idle(spec, learner):
        warn_of_data(note)
    return learner


def notes_on_idle(spec: RunSpec, experiment: Experiment) -> list[str]:
    """Return notes on arguments of Python that have no effect and are not the defaults."""
    if not isinstance(experiment.algorithm, ActorCritic):
        return []
    idle = idle_parameters(experiment)
    return [
        f"{part.__name__}.{name} has no effect: {idle[part][name]}; leave it out"
        for part, given in arguments_of(spec, type(experiment.algorithm), experiment.buffer).items()
        for name in sorted(idle.get(part, {}).keys() & given.keys())
        if given[name] not in (False, None) and given[name] != declarations(part)[name].default
    ]


def idle_parameters(experiment: Experiment) -> dict[Any, dict[str, str]]:
    """Return the parameters of algorithm, encoders and buffer that have no effect, with the reasons, by class."""
    algorithm, buffer, phase = experiment.algorithm, experiment.buffer, experiment.online
    learning = [algorithm] if phase is None else [algorithm, phase.algorithm]
    parts: list[Any] = [part for one in learning for part in (one, one.shared_encoder, one.actor_encoder)]
    idle: dict[Any, dict[str, str]] = {type(part): part.unused_parameters() for part in parts}
    # A buffer of the user's need not have this method.
    unused = getattr(buffer if phase is None else phase.buffer, "unused_parameters", dict[str, str])
    idle[type(real_part(buffer))] = unused()
    if isinstance(learning[-1], ValueBased):
        waiting = experiment.interaction if phase is None else phase.interaction
        idle[type(learning[-1])] |= _unused_of_exploration(waiting)
    return idle


def _unused_of_exploration(interaction: Interaction | None) -> dict[str, str]:
    """Return the settings of epsilon that have no effect on a run with these environments, with the reasons."""
    if interaction is None:
        names = ("initial_epsilon", "epsilon_steps", "epsilon_ladder")
        return dict.fromkeys(names, "the agent learns from recorded data, and its epsilon is final_epsilon")
    return {"epsilon_ladder": "environments.num_envs is 1"} if interaction.num_envs == 1 else {}


def read_data(spec: RunSpec) -> OfflineDataset | None:
    """Read the dataset of a run, as its agent sees it; None if the run learns from interaction."""
    if spec.dataset is None:
        return None
    with opened(None if spec.env is None else spec.make_env()) as example, download_bar() as bar:
        fraction, seed, state = spec.dataset_fraction, spec.seed, spec.env_options.state
        given: dict[str, Any] = {"fraction": fraction, "steps": spec.dataset_steps, "seed": seed, "state": state}
        given["memory_limit"] = limit_of_images(spec)
        return read(spec.dataset, example, spec.dataset_options, progress=bar, **given)


def limit_of_images(spec: RunSpec) -> int | None:
    """Return `memory_limit` of the buffer that the dataset will fill; the dataset is read before that is built."""
    if "memory_limit" in spec.buffer:
        limit = spec.buffer["memory_limit"]
    else:
        algorithm = find_algorithm(spec.algo)
        is_memoryless = not has_memory(algorithm, spec.algorithm)
        default = default_buffer(is_memoryless, getattr(algorithm, "draws_by_priority", False))
        limit = loading.bound_value(spec.parts.buffer_class or default, "memory_limit")
    return limit if isinstance(limit, int) else None  # the buffer refuses others


def build_run(
    spec: RunSpec, data: OfflineDataset | None = None, check: Callable[[Experiment], None] | None = None
) -> Experiment:
    """Build the parts of a run; `data` is its dataset, if `read_data` has read it.

    `check` raises if a setting is wrong. It is called when all parts are built but the model of a dataset, whose
    training may take hours.
    """
    if loading.current().text != spec.config.text:
        raise UserError("other bindings were loaded after this spec was made; make a new one by RunSpec.make")
    with for_python(), loading.LOCK, torch_settings(spec.device, spec.threads):
        return _build_run(spec, data, check)


class _Task(NamedTuple):
    """What a run learns in, as far as its parts depend on it."""

    observations: spaces.Box  # the agent's space of observations
    actions: ActionSpace  # the agent's space of actions
    frames: int = 1  # number of stacked observations; 1 for none
    time_limit: int | None = None  # of an episode, in steps, as the environment's spec tells it; None if it is unknown
    # Whether a wrapper or `make.kwargs` may change rewards or the ends of episodes, so that test returns have no
    # normalised score.
    changes_rewards: bool = False
    make_env: MakeAnyEnv | None = None  # makes an environment of the agent; None for data without an environment


def _task_of(spec: RunSpec, data: OfflineDataset | None) -> _Task:
    if spec.env is None:
        assert data is not None and isinstance(data.action_space, ActionSpace)
        return _Task(data.observation_space, data.action_space)
    with opened(spec.make_env()) as example:
        entries = getattr(example.observation_space, "entries", {})
        for text in images_read_as_vectors(entries):
            warn_of_data(f"{spec.env}: {text}; {MAKE_IMAGE}")
        observations, actions = example.observation_space, example.action_space
        assert isinstance(observations, spaces.Box) and isinstance(actions, ActionSpace)
        return _Task(
            observations,
            actions,
            num_stacked(example),
            None if example.spec is None else example.spec.max_episode_steps,
            changes_rewards(example, spec.env_options),
            functools.partial(make, spec.env_source, **spec.env_options.values(), scale_actions=True),
        )


def _warn_unless_savable(algorithm: Any, spec: RunSpec) -> None:
    try:
        if hasattr(algorithm, "actor_file"):
            algorithm.actor_file()
    except UserError as error:
        warn_of_data(f"the agent can learn, but not be saved: {error.message}")
        return
    try:
        check_savable(spec, type(algorithm), with_callbacks=False)  # `save` tells of these
    except UserError as error:
        warn_of_data(f"the agent can be saved, but not the whole learner, by learner.save: {error.message}")


def _build_run(spec: RunSpec, data: OfflineDataset | None, check: Callable[[Experiment], None] | None) -> Experiment:
    loading.recall_used(spec.used)
    callbacks = [as_callback(given, "build.callbacks") for given in spec.parts.callbacks]
    data = data or read_data(spec)
    task = _task_of(spec, data)
    algorithm = _build_algorithm(spec, task, data)
    if check is None:  # else `check` raises, and the run tells what follows
        _warn_unless_savable(algorithm, spec)
        warn_of_data(note_without_memory(spec, algorithm))
    tests = None
    if task.make_env is not None:
        references = None if task.changes_rewards else catalog.reference_returns(str(spec.env))
        tests = Evaluation(functools.partial(task.make_env, shows_state=False), references, spec.longest_episode)
    interaction: Interaction | None = None
    online: OnlinePhase | None = None
    if data is None:
        warn_of_data(note_without_data(spec))
        buffer, interaction, imagination = _build_interaction(spec, task, algorithm, tests)
    else:
        warn_of_data(note_on_data(spec))
        data = _fit_data(data, algorithm)
        sizes = _buffer_arguments(spec, num_envs=1, frame_stack=1)
        buffer = build_buffer(algorithm, task.observations, task.actions, sizes, spec.parts.buffer_class)
        _learn_from(data, algorithm, buffer)
        if isinstance(algorithm, ValueBased):
            algorithm.epsilon.is_offline = True
        imagination = None
        if spec.then_env_steps:
            then = _algorithm_online(spec, algorithm, data, task)
            mixed, waiting, _ = _build_interaction(spec, task, then, tests, recorded=buffer)
            with closed_on_failure(waiting):
                parts = then, mixed, waiting, spec.seed, columns_of(algorithm, tests)
                online = OnlinePhase(spec.online, spec.then_env_steps, *parts)
            warn_of_data(note_on_copying(then))
    _record_used(spec, algorithm, buffer)
    if data is not None and spec.imagination is not None:  # its buffer is built last
        own_class = default_buffer(algorithm.memoryless, False)
        loading.add_used(own_class, loading.bindings_of(own_class))
    experiment = Experiment(
        algorithm,
        buffer,
        interaction,
        tests,
        Loop(),
        f"{spec.label} {spec.algo}",
        data,
        callbacks=callbacks,
        loggers=spec.parts.loggers,
        spec=spec,
        online=online,
        imagination=imagination,
        time_limit=task.time_limit,
    )
    with closed_on_failure(experiment):
        if check is not None:
            check(experiment)
        if data is not None and spec.imagination is not None and spec.start_from is None:
            experiment.imagination = _build_imagination(spec, task, algorithm, buffer, sizes, data)
            experiment.buffer = experiment.imagination.buffer
            if online is not None:
                online.columns_before = columns_of(algorithm, tests)
    experiment.config = loading.operative()
    return experiment


def _build_algorithm(spec: RunSpec, task: _Task, data: OfflineDataset | None) -> Any:
    """Return the algorithm of a run."""
    algorithm_class = find_algorithm(spec.algo)
    if hasattr(algorithm_class, "is_discrete"):  # an algorithm without a base class checks by itself
        named = spec.env or (data.name if data else "the data")
        shape = observed_shape(task.observations)
        check_actions(algorithm_class, task.actions, named, are_recorded=data is not None, shape=shape)
    with explain_failure(algorithm_class.__name__, "hidden_dims, hidden_dim or num_critics"), seeded_init(spec):
        own = with_memory(algorithm_class, spec)
        algorithm = algorithm_class(task.observations, task.actions, device=spec.device, seed=spec.seed, **own)
    if isinstance(algorithm, ActorCritic):
        algorithm.check_built()
    return algorithm


def seeded_init(spec: RunSpec) -> contextlib.AbstractContextManager[None]:
    """Return a context that seeds the weights of networks which a class of the user's builds in its own `__init__`."""
    return seeded_torch(derived_seed(spec.seed, 12))


def _fit_data(data: OfflineDataset, algorithm: Any) -> OfflineDataset:
    """Return the data as an algorithm reads them, and warn of what is unusual in them."""
    if not isinstance(algorithm, ActorCritic):
        name = type(algorithm).__name__
        raise UserError(f"{name} cannot learn from recorded data; derive it from ActorCritic")
    algorithm.expect_recorded_data()
    data = data.for_agent(algorithm)
    notices = [notice.text for notice in data.notices]
    for text in filter(None, [*notices, data.scale_warning() if algorithm.has_critics else ""]):
        warn_of_data(f"{data.name}: {text}")
    return data


def _buffer_arguments(spec: RunSpec, **sizes: int) -> dict[str, Any]:
    """Return the arguments of a buffer of real transitions; those given by the user come first."""
    return {**sizes, "device": spec.device, "seed": spec.seed, **spec.buffer}


def _build_interaction(
    spec: RunSpec, task: _Task, algorithm: Any, tests: Evaluation | None, recorded: Any = None
) -> tuple[Any, Interaction, Imagination | None]:
    """Return a buffer for an algorithm in the environments, the interaction that fills it, and rollouts in a model.

    The tests may share the environment. `recorded` is the buffer of recorded data, for a run that goes on there.
    """
    assert task.make_env is not None
    with explain_failure("environments", "num_envs"):
        bound = {"timeout": spec.env_options.timeout, "bindings": spec.config.text}
        played = build_environments(task.make_env, spec.seed, **bound, **spec.environments)
    imagination = None
    with closed_on_failure(played):
        sizes = _buffer_arguments(spec, num_envs=played.num_envs, frame_stack=task.frames)
        buffer: Any = build_buffer(algorithm, task.observations, task.actions, sizes, spec.parts.buffer_class)
        if isinstance(buffer, Hindsight):
            buffer.make_env = task.make_env
        if recorded is not None and spec.online.share:
            buffer = MixedBuffer(recorded, buffer, spec.online.share)
        if spec.imagination is not None and recorded is None:
            imagination = _build_imagination(spec, task, algorithm, buffer, {**sizes, "num_envs": 1})
            buffer = imagination.buffer
        parts = algorithm, buffer, spec.seed, spec.longest_episode
        if isinstance(played, RayEnvironments) and not played.lockstep:
            if not isinstance(algorithm, ActorCritic):
                raise UserError(
                    f"{type(algorithm).__name__} cannot be sent to the actors of environments.ray_address; derive it "
                    f"from ActorCritic, or set environments.lockstep=True"
                )
            interaction: Interaction = RemoteInteraction(played, *parts)
        else:
            interaction = Interaction(played, *parts)
    if isinstance(played, LocalEnvironments) and played.shared_with_tests:
        assert tests is not None
        tests.shared = interaction
    return buffer, interaction, imagination


def _build_imagination(
    spec: RunSpec,
    task: _Task,
    algorithm: ActorCritic,
    real: Any,
    sizes: Mapping[str, Any],
    data: OfflineDataset | None = None,
) -> Imagination:
    """Return the rollouts in a model, whose buffer has `real` as its real part, with `sizes` as its arguments.

    The model learns from `data`; without them, from the agent's own transitions.
    """
    assert spec.imagination is not None and spec.model_training is not None
    if real.frame_stack > 1:
        raise UserError(
            f"{spec.env} shows stacks of {task.frames} observations, but a model needs single observations; leave "
            f"Concatenate out, and bind DynamicsModel.history = {task.frames}"
        )
    encoders = algorithm.shared_encoder, algorithm.actor_encoder, *algorithm.critic_encoders
    if algorithm.memoryless and any(map(reads_previous, encoders)):
        raise UserError(
            f"{spec.algo} begins rollouts within episodes, where an agent without memory does not know the "
            f"previous action and reward; leave use_previous_action and use_previous_reward out, or choose "
            f"r{spec.algo}"
        )
    if algorithm.clip_rewards and spec.imagination.ends_as_failure:
        raise UserError(
            f"{spec.algo}: clip_rewards is True, but a rollout that passes Imagination.threshold ends with a special "
            f"reward, which must not be clipped to its sign; leave clip_rewards out, or bind Imagination.ends = "
            f"'truncated'"
        )
    if algorithm.clip_rewards and spec.imagination.penalty:
        raise UserError(
            f"{spec.algo}: clip_rewards is True, but Imagination.penalty lowers imagined rewards by their uncertainty, "
            f"of which the sign shows nothing; leave clip_rewards out, or bind Imagination.penalty = None"
        )
    if spec.imagination.penalty and any(reads_previous(encoder, "reward") for encoder in encoders):
        raise UserError(
            f"{spec.algo}: use_previous_reward is True, but Imagination.penalty lowers imagined rewards, so that the "
            f"memory would read an uncertainty that it never sees in the environment; leave use_previous_reward out, "
            f"or bind Imagination.penalty = None"
        )
    if data is None and spec.model_training.compile:
        raise UserError(
            f"ModelTraining.compile is True, but {spec.algo} trains its model again and again, and would compile it "
            f"each time; remove this setting"
        )
    model = get_model(spec, data, task.observations, task.actions)
    longest = task.time_limit or UNKNOWN_LENGTH
    if data is not None:
        longest = int((data.rows.stops - data.rows.starts).max())
    taken = inspect.signature(default_buffer(algorithm.memoryless, False)).parameters  # a user's class has others
    own_sizes = {name: value for name, value in sizes.items() if name in taken}
    # Of a class that the user chose, too: its own bindings do not reach this buffer.
    own_sizes |= {name: getattr(real, name) for name in ("segment_len", "burn_in", "draw_by") if name in taken}
    own_sizes["capacity"] = imagined_capacity(spec.imagination, real, longest)
    own_sizes["seed"] = derived_seed(spec.seed, 10)  # not that of the real part
    own = build_buffer(algorithm, task.observations, task.actions, own_sizes)
    buffer = ImaginedBuffer(real, own, spec.imagination.real_share, "" if data is None else fingerprint(model))
    algorithm.model_stats = stat_names(data is None, **spec.imagination.values())
    rows = None if data is None else data.rows
    learning = spec.model_training, spec.seed, algorithm.gamma
    return Imagination(spec.imagination, model, buffer, rows, *learning, algorithm.reward_scale, algorithm.reward_shift)


def _record_used(spec: RunSpec, algorithm: Any, buffer: Any) -> None:
    """Add the arguments of Python to the values in use, as gin's bindings of them would be."""
    algorithm_class = type(algorithm)
    if spec.memory and (encoder := memory_of(algorithm_class)) not in spec.algorithm:
        loading.add_used(ActorCritic, {str(encoder): None})
    for part, arguments in arguments_of(spec, algorithm_class, buffer).items():
        loading.add_used(part, arguments)
    functions = filter(inspect.isfunction, spec.parts.callbacks)  # gin sees only the first call, after an epoch
    for part in (*spec.parts.loggers, *functions):  # loggers are built later, in the run's folder
        loading.add_used(part, loading.bindings_of(part))
    for name in ("callbacks", "loggers"):
        if f"build.{name}" not in spec.given:  # else Python gave them
            add_scoped_used(PartOptions, name)


def _warn_of_constant(data: OfflineDataset, algorithm: ActorCritic, is_constant: Any) -> None:
    """Warn of the numbers of observations that the normalisation hides, as they are constant in the data."""
    if algorithm.normalization is None:
        return
    names = [f"{place}" for place in range(is_constant.size)]
    if data.packed is not None:
        names = data.packed.unpacked_shape.number_names
    hidden = set[int]()
    if (packed := data.packed) is not None and packed.state_part is not None:  # only critics see these
        hidden = {*range(packed.state_part.columns.start, packed.state_part.columns.stop)}
    constant = [names[place] for place in np.flatnonzero(is_constant) if place not in hidden]
    if constant:
        which, are, them = ("numbers", "are", "them") if len(constant) > 1 else ("number", "is", "it")
        warn_of_data(
            f"{data.name}: the {which} {', '.join(constant[:10])}{' ...' * (len(constant) > 10)} of the observations "
            f"{are} constant in the data, so the agent does not see {them}: normalisation sets {them} to 0, also in a "
            f"later online phase"
        )


def note_on_data(spec: RunSpec) -> str:
    """Return a note on an algorithm that is made for learning online and gets recorded data alone, else ""."""
    cls = find_algorithm(spec.algo)
    if spec.dataset is None or spec.then_env_steps or is_for_data(cls) or not cls.has_critics:
        return ""
    offline, entry = "dcql" if cls.is_discrete else "mopo" if cls.trains_model else "cql", TABLE.get(spec.algo)
    if entry is not None:  # the variant with the same memory and encoder
        offline = next(name for name, one in TABLE.items() if one[1:] == (offline, *entry[2:]))
    is_ours = cls.__module__.startswith("offpcc.")
    return (
        f"{spec.algo} is made for learning online; from recorded data alone it overestimates actions that the data do "
        f"not have; choose an algorithm for recorded data, such as {offline}, or give --then_env_steps"
        f"{'' if is_ours else '; if it is for such data, set is_offline = True in its class'}"
    )


def note_on_copying(algorithm: ActorCritic) -> str:
    """Return a note on an algorithm that copies actions, and learns online after recorded data, else ""."""
    if algorithm.has_critics:
        return ""
    return (
        f"{type(algorithm).__name__} copies the actions of its data, also its own, so it does not improve; choose "
        f"another algorithm, or bind OfflineToOnline.algorithm"
    )


def note_without_data(spec: RunSpec) -> str:
    """Return a note on an algorithm that is made for recorded data and gets none, else ""."""
    cls = find_algorithm(spec.algo)
    if spec.dataset is not None or spec.init is not None or not getattr(cls, "is_offline", False):
        return ""
    entry = TABLE.get(spec.algo)
    online = "dqn" if getattr(cls, "is_discrete", False) else "sac"
    online = online if entry is None else spec.algo.replace(entry.algorithm, online)
    effect = "" if cls.has_critics else ", whose actions it copies, so it does not improve"
    return (
        f"{spec.algo} is made for recorded data, but no dataset is given, so it learns from its own steps{effect}; "
        f"give one with --dataset, or choose an algorithm for learning online, such as {online}"
    )


def note_without_memory(spec: RunSpec, algorithm: ActorCritic) -> str:
    """Return a note if the encoder took away the memory that the name of the algorithm promises, else ""."""
    entry = TABLE.get(spec.algo)
    if entry is None or entry.memory is None or not algorithm.memoryless:
        return ""
    return (
        f"{spec.algo} has no memory here, because its encoder has none; to keep the memory, give the encoder to "
        f"Recurrent.feature_extractor"
    )


def arguments_of(spec: RunSpec, algorithm_class: Any, buffer: Any) -> dict[Any, Mapping[str, Any]]:
    """Return the arguments of a run's parts that gin did not give, by class."""
    own, memory = (
        {name: loading.with_names(value) for name, value in given.items()} for given in (spec.algorithm, spec.memory)
    )
    given = {algorithm_class: own, Recurrent: memory, type(real_part(buffer)): spec.buffer}
    return {part: arguments for part, arguments in given.items() if arguments}


def real_part(buffer: Any) -> Any:
    """Return the part of a buffer that holds real transitions; without a model, the buffer itself."""
    return buffer.real if isinstance(buffer, ImaginedBuffer) else buffer


def get_model(
    spec: RunSpec, data: OfflineDataset | None, observations: spaces.Box, actions: ActionSpace
) -> DynamicsModel:
    """Return the model of a run: the given one, one of the same data, or a new one, which is trained first.

    Without recorded data, it is not trained yet.
    """
    env, options = spec.env or "", spec.env_options
    # Then the termination rule of its name may not hold.
    is_altered = bool(options.wrappers or options.kwargs) or spec.env_function is not None
    assert isinstance(actions, spaces.Box)  # as for all algorithms with a model
    if data is None:
        return model_for_env(spec.model_settings, env, observations, actions, spec.device, spec.seed, is_altered)
    if spec.model is not None:
        return _given_model(spec, spec.model, data)
    assert spec.model_training is not None
    names = [env, data.recorded_in or "", data.name]
    if is_altered and spec.model_settings.get("termination", AUTO) == AUTO:
        names = names[1:] if not options.wrappers else []  # wrappers change recorded observations, too
    how = spec.model_settings, spec.model_training, spec.device, spec.seed, env
    return find_or_train(data, names, *how)


def _given_model(spec: RunSpec, file: Path, data: OfflineDataset) -> DynamicsModel:
    """Return the model in a file, whose settings the run's config keeps."""
    if not file.exists():
        raise UserError(f"the model {file} does not exist; put it back, or name its place by --model FILE")
    model, content = load_with_content(file, spec.device)
    check_model_of(model, file, data)
    assert spec.model_training is not None
    given = [one for one in spec.config.bindings if one.where in (COMMAND_LINE, loading.IN_PYTHON)]
    networks, training = (
        {one.parameter: values[one.parameter] for one in given if one.selector.endswith(f".{owner}")}
        for owner, values in (("DynamicsModel", spec.model_settings), ("ModelTraining", spec.model_training.values()))
    )
    remedy = "leave the binding out, or train a model with it by `offpcc train-model`"
    check_same_settings(content, networks, training, file, remedy)
    if model.history < (wanted := spec.model_settings["history"]) and "history" not in networks:
        print_to_stderr(
            f"note: {file} reads {model.history} observation{'s' * (model.history > 1)}, but a model that {spec.algo} "
            f"trains itself reads {wanted}, because velocities may be hidden; such a model comes from `offpcc "
            f"train-model` with DynamicsModel.history = {wanted}"
        )
    known = content["class"]["arguments"]
    loading.add_used(DynamicsModel, {name: known[name] for name in spec.model_settings if name in known})
    loading.add_used(ModelTraining, model.facts.get("settings", {}))
    return model


def _algorithm_online(spec: RunSpec, before: ActorCritic, data: OfflineDataset, task: _Task) -> ActorCritic:
    """Return the algorithm of the online phase: the one of the dataset, or another one that can take over."""
    if spec.online.algorithm is None:
        return before
    cls = find_algorithm(spec.online.algorithm)
    if spec.start_from is not None and cls is not type(before):
        raise UserError(
            f"OfflineToOnline.algorithm is {spec.online.algorithm}, but this run has --algo {spec.algo} and begins "
            f"online; leave OfflineToOnline.algorithm out, or give it as --algo"
        )
    if cls is type(before):
        return before
    with explain_failure(cls.__name__, "hidden_dims, hidden_dim or num_critics"), seeded_init(spec):
        algorithm: ActorCritic = cls(task.observations, task.actions, device=spec.device, seed=spec.seed)
    if algorithm.has_critics and before.has_critics and algorithm.n_step != before.n_step:
        raise UserError(
            f"{cls.__name__}.n_step is {algorithm.n_step}, but that of {type(before).__name__} is {before.n_step}; "
            f"give both the same"
        )
    algorithm.reward_scale *= data.reward_scale
    if text := other_values(algorithm, value_settings(before), type(before).__name__):
        raise UserError(f"{text}; give both the same, as by a binding of ActorCritic")
    check_take_over(algorithm, before)
    return algorithm


@contextlib.contextmanager
def closed_on_failure(part: Any) -> Iterator[None]:
    """Close a part, such as worker processes or the lock of a recording, if the body raises."""
    try:
        yield
    except BaseException:
        part.close()
        raise


@contextlib.contextmanager
def explain_failure(part: str, sizes: str) -> Iterator[None]:
    """Turn exceptions from building a part into a `UserError` that names the part and a remedy.

    `part` is the name of the part's class, and `sizes` are the arguments to lower in order to save memory.

    Raises:
        UserError: a binding has the wrong type, refers to itself, or needs more memory than there is; or a line of the
            user's own classes raises an exception.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        line = "" if is_shortage(error) else _line_of_user(error)
        if line:
            is_passed_on = "unexpected keyword argument" in str(error)
            what = "the argument, or this line" if is_passed_on else "this line"
            raise UserError(f"{part} cannot be built: {format_error(error)} ({line}); correct {what}") from error
        if is_shortage(error) or isinstance(error, OverflowError):
            remedy = f"that needs more memory than is free: lower its sizes, such as {sizes}"
        elif isinstance(error, TypeError) and "too many positional arguments" in str(error):
            remedy = "let its constructor take *args, **kwargs and pass them on"
        elif isinstance(error, TypeError):  # a value of the wrong type, such as a function for @Recurrent
            has_hint = any(words in str(error) for words in ("; did you mean", "; in offpcc"))
            remedy = "" if has_hint else "correct its bindings"
        elif isinstance(error, RecursionError):
            remedy = "a binding refers to itself; correct it"
        else:
            raise
        fault = "; ".join(filter(None, (first_line(error).removesuffix("."), remedy)))
        raise UserError(f"{part} cannot be built: {fault}") from error


def _line_of_user(error: Exception) -> str:
    """Return the last line of an error's traceback outside offpcc and installed packages, or ""."""
    libraries = PACKAGE, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or frame.filename.startswith("<")
        if not is_installed and not any(map(file.is_relative_to, libraries)):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def build_buffer(
    algorithm: ActorCritic,
    observations: spaces.Box,
    actions: ActionSpace,
    arguments: Mapping[str, Any],
    buffer_class: BufferBuilder | None = None,
) -> ReplayBuffer | RecurrentReplayBuffer:
    """Build the replay buffer of an algorithm: `buffer_class`, else the one that suits it."""
    buffer_class = buffer_class or default_buffer(algorithm.memoryless, getattr(algorithm, "draws_by_priority", False))
    name = getattr(buffer_class, "__name__", str(buffer_class))
    if getattr(buffer_class, "holds_episodes", not algorithm.memoryless) is algorithm.memoryless:
        holds, needs = ("sequences", "transitions") if algorithm.memoryless else ("transitions", "sequences")
        raise UserError(
            f"build.buffer_class is {name}, which draws {holds}, but {type(algorithm).__name__} learns from {needs}; "
            f"choose a subclass of {'ReplayBuffer' if algorithm.memoryless else 'RecurrentReplayBuffer'}"
        )
    steps: dict[str, Any] = {"num_steps": algorithm.n_step} if algorithm.memoryless else {}
    with explain_failure(name, "capacity or batch_size" + ", or n_step of the algorithm" * algorithm.memoryless):
        buffer: ReplayBuffer | RecurrentReplayBuffer = buffer_class(observations, actions, **steps, **arguments)
    for what, reads, setting, value in (
        ("next actions", "reads_next_actions", "gives_next_actions", True),
        ("returns", "reads_returns", "return_discount", getattr(algorithm, "gamma", None)),
    ):
        if getattr(algorithm, reads, False):
            if not hasattr(buffer, setting):
                raise UserError(
                    f"{type(algorithm).__name__} reads recorded {what}, which {name} does not give; derive {name} from "
                    f"ReplayBuffer or RecurrentReplayBuffer"
                )
            setattr(buffer, setting, value)
    if isinstance(algorithm, ActorCritic) and algorithm.execution.compile:
        buffer.gives_few_shapes = True
    if isinstance(buffer, Prioritized) and not getattr(algorithm, "has_critics", True):
        raise no_td_errors(buffer, algorithm)
    warn_of_data(check_context_length(algorithm, buffer))
    return buffer


def check_context_length(algorithm: ActorCritic, buffer: Any) -> str:
    """Return a warning if the segments are shorter than the encoder's context length, else ""."""
    if not isinstance(algorithm, ActorCritic) or not isinstance(buffer, RecurrentReplayBuffer):
        return ""
    if buffer.segment_len is None:
        return ""
    seen = buffer.segment_len + buffer.burn_in
    context_length = max(encoder.context_length or 0 for encoder in (algorithm.shared_encoder, algorithm.actor_encoder))
    if context_length <= seen:
        return ""
    return (
        f"the memory looks back {context_length} steps, but learning sees {seen} of them together "
        f"(RecurrentReplayBuffer.segment_len and burn_in), so the agent acts with longer memories than it learned "
        f"with; lower its window, such as GPT.context_length={max(seen // 2, 1)}, or raise segment_len or burn_in"
    )


def _learn_from(data: OfflineDataset, algorithm: ActorCritic, buffer: ReplayBuffer | RecurrentReplayBuffer) -> None:
    """Fill the buffer with the dataset, and set the algorithm's reward scale and normalisation statistics from it."""
    name, reader = type(algorithm).__name__, "an agent with memory learns from whole episodes"
    if algorithm.reads_returns:
        reader = f"{name} reads the return from each step on"
    if not data.has_ends and (algorithm.reads_returns or not algorithm.memoryless):
        raise UserError(
            f"{data.name} does not say where any episode ends (no terminals, no timeouts), and {reader}; give the time "
            f'limit, --gin "dataset.max_episode_steps=N", or mark the ends in the data'
        )
    stops, terminations = data.rows.stops, data.rows.terminations
    is_alone = (stops - data.rows.starts == 2) & (terminations[stops - 2, 0] == 0.0)
    if is_alone.sum() >= NEARLY_ALL * len(stops) and (algorithm.reads_returns or algorithm.reads_next_actions):
        what = "the return from each step on" if algorithm.reads_returns else "the recorded next action"
        raise UserError(
            f"{data.name}: {is_alone.sum():,} of {len(stops):,} episodes are single steps that did not terminate, and "
            f"{name} reads {what}; give the steps in order of time and mark only the ends of episodes, or choose an "
            f"algorithm that learns from single steps, such as iql or cql"
        )
    if algorithm.reads_returns and algorithm.gamma == 1.0 and not terminations.any():
        raise UserError(
            f"{name}.gamma is 1 and no episode of {data.name} terminated, so no return is finite, but {name} reads "
            f"returns; lower gamma, or choose cql"
        )
    algorithm.reward_scale *= data.reward_scale
    if not (algorithm.normalization is algorithm.state_normalization is None):
        mean, std = data.statistics()
        algorithm.set_statistics(mean, std)
        _warn_of_constant(data, algorithm, find_constant(mean, std))
    buffer.fill(data.rows, data.identity)
