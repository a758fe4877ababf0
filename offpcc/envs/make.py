"""`make`: builds an environment by name, with wrappers."""

import functools
import importlib.metadata
import inspect
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit

from offpcc.config import loading
from offpcc.config.bindings import Reference, as_references, explains_calls, refuse_unknown, with_references
from offpcc.config.settings import Settings, settings
from offpcc.config.synonyms import LEARNING_WRAPPERS
from offpcc.config.validation import FOR_NUMBERS, Rule, above, format_value, has_flags, takes_numbers
from offpcc.envs.faults import UnfitError
from offpcc.envs.registration import register_package
from offpcc.envs.rendering import choose_opengl
from offpcc.envs.tasks import atari, minatar
from offpcc.envs.unsuitable import (
    OLD_GYM,
    CannotBeDrawn,
    UnsuitableEnvironment,
    cannot_be_made,
    check_action_space,
    check_observation_space,
    unknown_id,
)
from offpcc.envs.wrapper_chain import levels, name_of
from offpcc.envs.wrappers import (
    EpisodeReturn,
    Float32Observation,
    OneHotObservation,
    PackedObservation,
    PackedStateObservation,
    StateObservation,
    UnitAction,
    WithoutState,
)
from offpcc.envs.wrappers.base import LazyEpisodeReturn
from offpcc.utils.errors import UserError, first_line, message_of, warn_of_data
from offpcc.utils.paths import import_own
from offpcc.utils.spaces import OBSERVATION, STATE, PackedDict
from offpcc.utils.torch_settings import torch_settings_kept

LONGEST_TIMEOUT = 1_000_000  # seconds; the limit of the system's clocks is not far above
Timeout = Annotated[float, above(0.0, LONGEST_TIMEOUT)]
TIME_LIMIT = "max_episode_steps"  # Gymnasium's name of it
INFO = "info"  # the value of make.state for info["state"]
StateKey = Annotated[str, Rule("a key of Dict observations, or 'info'", lambda value: isinstance(value, str) and value)]
Wrap = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]
EnvFunction = Callable[..., gymnasium.Env[Any, Any]]  # makes an environment; a class does, too


@settings("make")
class EnvOptions(Settings):
    """Arguments of `make` that hold for all environments of a run; gin binds them as ``make.wrappers`` and so on.

    Args:
        wrappers: see `make`.
        kwargs: see `make`.
        timeout: see `make`.
        state: see `make`.
    """

    wrappers: Sequence[Wrap] = ()
    kwargs: Mapping[str, Any] | None = None
    timeout: Timeout | None = None
    state: StateKey | None = None


DEFAULT_OPTIONS = EnvOptions()
ENV_SETTINGS = [*DEFAULT_OPTIONS.values()]


def env_options(given: Mapping[str, Any] | None = None) -> EnvOptions:
    """Return the given arguments for `make`, and gin's for the others, once for a run. `make` itself never asks gin."""
    chosen = _given_options(given or {})
    options = EnvOptions.from_gin(chosen)
    loading.add_bindings_used(loading.python_bindings("make", chosen))
    if "wrappers" not in chosen:
        return replace(options, wrappers=with_references(EnvOptions, "wrappers", options.wrappers))
    if isinstance(options.wrappers, list | tuple):
        return replace(options, wrappers=as_references("make.wrappers", options.wrappers))
    return options


def _given_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check arguments of Python for `make`, and return them with numbers that gin can write."""
    refuse_unknown("make", given, ENV_SETTINGS)
    wrappers = given.get("wrappers", ())
    if isinstance(wrappers, list | tuple) and (wrong := [one for one in wrappers if not callable(one)]):
        raise UserError(
            f"make.wrappers holds {format_value(wrong[0])}, which is no class; give classes, such as "
            f"[offpcc.envs.wrappers.DropIndices], with their arguments by functools.partial"
        )
    chosen: dict[str, Any] = loading.python_numbers(given)
    return chosen


def options_without_env(given: Mapping[str, Any] | None) -> EnvOptions:
    """Return ``make.state``, for recorded data without an environment; other arguments of `make` stay unused."""
    for name, value in (given or {}).items():
        if name in ENV_SETTINGS and name != "state":
            raise UserError(
                f"make={{'{name}': {format_value(value)}}} has no effect without an environment; leave it out, or give "
                f"the environment"
            )
    used = loading.take_used()
    bound = EnvOptions.from_gin(_given_options(given or {}))
    loading.recall_used(used)
    if bound.wrappers:
        warn_of_data(
            "make.wrappers has no effect without an environment: the agent sees the observations as they were "
            "recorded; give the environment, and its wrappers apply to the data"
        )
    if bound.state is not None:
        loading.add_used(EnvOptions, {"state": bound.state})
    return EnvOptions(state=bound.state)


@explains_calls
def make(
    name: str | EnvFunction,
    *,
    render_mode: str | None = None,
    wrappers: Sequence[Wrap] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: Timeout | None = None,
    state: StateKey | None = None,
    shows_state: bool = True,
    scale_actions: bool = False,
    pack_observations: bool | None = None,
    lazy: bool = False,
) -> EpisodeReturn:
    """Make the environment `name`, any Gymnasium id or a function that makes it, with the wrappers that agents need.

    Observations are float32 vectors, uint8 images, or a Dict (see `offpcc.core.PackedDict`). The `info` of an
    episode's last step holds its return (see `EpisodeReturn`). Actions are in the environment's own units, as in
    `gymnasium.make` and in `offpcc.Agent`. gin's bindings of ``make`` are arguments of the environments of a run; they
    change nothing here.

    Args:
        name: A registered id, or "module:id", where importing the module registers the id. Or a function or a class
            that makes a new environment at each call, such as ``lambda: gymnasium.make("Pendulum-v1")``.
        render_mode: A render mode of Gymnasium, such as "rgb_array" or "human". A function gets it as its argument
            ``render_mode``.
        wrappers: Wrappers to apply in this order, around those that the environment is registered with. They can
            make any environment partially observable, as in ``make.wrappers = [@DropIndices, @Flicker]``.
        kwargs: Arguments of the environment's constructor, or of the function; and Gymnasium's ``max_episode_steps``.
        timeout: Maximum seconds of a reset, a step, a rendering (`render`) or the closing wherever offpcc makes these
            calls, in training, tests and commands; None for no limit. Your own calls are not limited. If a call takes
            longer, the run ends with a message; a slow closing only gives the message. In a worker process
            (`environments.worker_processes`), only that process ends, and a new one replaces it.
        state: Where the environment's state is, which only critics read: "info" for ``info["state"]``, or
            the key of an entry of Dict observations; None for no state. With "info", observations become a Dict with
            the entry "state", and an array its entry "observation".
        shows_state: Whether observations contain the state; False for an environment in which an agent only acts.
        scale_actions: Whether to take float32 actions in [-1, 1] and scale them to the environment's bounds (see
            `UnitAction`), or discrete actions as one-hot vectors. Algorithms choose such actions, and training sets
            this.
        pack_observations: Whether to pack Dict observations (see `PackedObservation`), as training does; default: as
            `scale_actions`.
        lazy: Whether to make the environment at its first reset, or when something of it is needed, such as a space.
            Until then it is small, and can be sent to another process.

    Returns:
        The environment, wrapped. Its method ``random_action()`` returns a random action, and
        ``enable_save_replay(path)`` records a video of each episode.

    Raises:
        UnsuitableEnvironment: The id is unknown, a package is missing, a space does not suit, or the environment's
            constructor raised.
    """
    choose_opengl()
    check_is_env(name)
    if not isinstance(wrappers, list | tuple) or not all(map(callable, wrappers)):
        raise UserError(
            f"make.wrappers is {format_value(wrappers)}; it has to be a list of wrappers, such as [@Flicker]"
        )
    arguments_given = kwargs or {}
    if not isinstance(arguments_given, Mapping) or not all(isinstance(key, str) for key in arguments_given):
        raise UserError(
            f"make.kwargs is {format_value(arguments_given)}; it has to be a dictionary of arguments by name, such as "
            f"{{'max_episode_steps': 100}}"
        )
    if lazy:
        own: dict[str, Any] = {"wrappers": wrappers, "kwargs": kwargs, "timeout": timeout, "state": state}
        own |= {"shows_state": shows_state, "scale_actions": scale_actions, "pack_observations": pack_observations}
        return LazyEpisodeReturn(functools.partial(make, name, render_mode=render_mode, **own), timeout)
    given = dict(arguments_given)
    _refuse_flags(gymnasium.make if isinstance(name, str) else name, given)
    if render_mode is not None:  # an environment without rendering may not have the argument
        given["render_mode"] = render_mode
    if isinstance(name, str):
        env = _make_registered(name, given)
    else:
        env = _call(name, given)
        name = env_label(name, env)
    with _closed_on_failure(env):
        _refuse_flags(type(env.unwrapped), given)
        if render_mode is not None and render_mode not in env.metadata.get("render_modes", []):
            raise CannotBeDrawn(
                f"{name} cannot be rendered as {render_mode!r}; its render_modes are {env.metadata.get('render_modes')}"
            )
        for wrap in wrappers:
            try:
                inner, env = env, wrap(env)
                if not isinstance(env, gymnasium.Env):
                    raise TypeError(f"it returned {format_value(env)}, which is not an environment")
            except (Exception, SystemExit) as error:
                wrapper = getattr(wrap, "__name__", wrap)
                lacks = re.search(r"missing \d+ required \S+ arguments?: '(\w+)'", str(error))
                remedy = "correct make.wrappers"
                if lacks:
                    remedy = f"give functools.partial({wrapper}, {lacks[1]}=...)"
                    remedy = f"bind {wrapper}.{lacks[1]}, or {remedy}" if isinstance(wrap, Reference) else remedy
                raise UnsuitableEnvironment(
                    f"{name} cannot be wrapped by {wrapper}: {first_line(error)}; {remedy}"
                ) from error
            for level in reversed(levels(env)):
                if level is inner:
                    break
                _refuse_learning(level)
        for space in ("action_space", "observation_space"):
            if getattr(env, space, None) is None:
                raise UnsuitableEnvironment(f"{name} has no {space}; set it in the constructor")
        check_action_space(name, env.action_space)
        env = _with_vectors(name, env)
        if state is not None:
            env, state = _with_state(name, env, state) if shows_state else (_without_state(env, state), None)
        check_observation_space(name, env.observation_space, state)
        seen = env.observation_space
        is_image = len(seen.shape or ()) == 3
        if isinstance(seen, Dict):
            is_packed = scale_actions if pack_observations is None else pack_observations
            if is_packed:
                env = PackedObservation(env) if state is None else PackedStateObservation(env, state)
        elif env.observation_space.dtype != np.float32 and not is_image and not isinstance(seen, PackedDict):
            env = Float32Observation(env)
        return EpisodeReturn(UnitAction(env) if scale_actions else env, timeout)


@contextmanager
def _closed_on_failure(env: gymnasium.Env[Any, Any]) -> Iterator[None]:
    """Close an environment that is refused: it may hold a process, a window or a connection."""
    try:
        yield
    except BaseException:
        with suppress(Exception, SystemExit):  # the refusal counts
            env.close()
        raise


def _refuse_learning(wrapper: gymnasium.Env[Any, Any]) -> None:
    """Raise if a wrapper learns while it wraps: tests and saved agents would lack what it learned."""
    for cls in (NormalizeObservation, NormalizeReward):
        if isinstance(wrapper, cls) and wrapper.update_running_mean:
            raise UnsuitableEnvironment(
                f"make.wrappers applies {type(wrapper).__name__}, which learns while it wraps; tests and saved agents "
                f"would lack what it learned; {LEARNING_WRAPPERS[cls.__name__]}"
            )


def _with_vectors(name: str, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment with vectors for observations that are choices, or tuples."""
    if not isinstance(env.observation_space, Discrete | MultiDiscrete | MultiBinary | Tuple):
        return env
    try:
        return OneHotObservation(env)
    except ValueError as error:
        raise UnsuitableEnvironment(f"{name}: {first_line(error)}") from error


def _with_state(name: str, env: gymnasium.Env[Any, Any], state: str) -> tuple[gymnasium.Env[Any, Any], str]:
    """Return the environment with the state among its observations, and the key of the state."""
    if isinstance(env.observation_space, Dict) and state in env.observation_space.spaces:
        return env, state
    if state != INFO:
        seen = env.observation_space
        keys = f"the entries {', '.join(seen.spaces)}" if isinstance(seen, Dict) else "no entries"
        raise UnsuitableEnvironment(
            f'make.state is {state!r}, but the observations of {name} have {keys}; give the key of one, or "info" for '
            f'info["state"]'
        )
    try:
        if not isinstance(env.observation_space, Dict):  # tests show the agent this array itself
            check_observation_space(name, env.observation_space, None)
        return StateObservation(env), STATE
    except UnfitError as error:
        raise UnsuitableEnvironment(f"{name} {error.what.rstrip(',')}; {error.remedy}") from error
    except UserError as error:
        raise UnsuitableEnvironment(f"{name}: {error.message}") from error


def _without_state(env: gymnasium.Env[Any, Any], state: str) -> gymnasium.Env[Any, Any]:
    """Return the environment without the state among its observations."""
    entries = env.observation_space.spaces if isinstance(env.observation_space, Dict) else {}
    if state in entries:
        return WithoutState(env, state)
    # With ``info["state"]`` beside it, a single entry "observation" becomes an array; here, too.
    return WithoutState(env, STATE) if state == INFO and list(entries) == [OBSERVATION] else env


def _make_registered(name: str, given: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment of an id."""
    if ":" in name:
        try:
            import_own(name.partition(":")[0], name)
        except UserError as error:
            raise UnsuitableEnvironment(error.message) from error
    atari.register(name)
    register_package(name)
    if name.split(":")[-1] not in gymnasium.registry:  # without a version, Gymnasium takes the latest, which changes
        raise UnsuitableEnvironment(unknown_id(name, gymnasium.registry))
    spec, given = spec_and_arguments(name, given)
    try:
        with torch_settings_kept(name), warnings.catch_warnings():  # these cases are intended, or refused below
            warnings.filterwarnings("ignore", message=".*(HumanRendering|possible render_modes|is out of date)")
            # The checker repeats its warnings for each environment. `offpcc check` and the guard look closer.
            return gymnasium.make(spec, **{"disable_env_checker": True, **given})
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise cannot_be_made(name, error, given) from error


def spec_and_arguments(name: str, given: Mapping[str, Any]) -> tuple[str | EnvSpec, dict[str, Any]]:
    """Return what `gymnasium.make` makes a registered environment from, and its arguments.

    That is its id; for a game of ale-py, the spec of the preprocessed game; for one of MinAtar, see `minatar.own_spec`.
    """
    spec = gymnasium.registry[name.split(":")[-1]]
    if spec.entry_point == atari.ALE_ENTRY_POINT:
        return atari.preprocessed_spec(spec, given)
    return (minatar.own_spec(spec) if spec.entry_point == minatar.THEIR_ENTRY_POINT else name), {**given}


class KeptOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that the user has made and will use again: `close` leaves it open."""

    def close(self) -> None:
        """Do nothing."""


_made: weakref.WeakValueDictionary[int, gymnasium.Env[Any, Any]] = weakref.WeakValueDictionary()  # by functions, by id


def _call(function: EnvFunction, given: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """Return the environment that a function makes."""
    label = _own_name(function) or "the function"
    mode = given.pop("render_mode", None)
    time_limit = given.get(TIME_LIMIT)
    if not _takes(function, TIME_LIMIT):
        given.pop(TIME_LIMIT, None)
    if mode is not None and _takes(function, "render_mode"):
        given = {**given, "render_mode": mode}
    try:
        with torch_settings_kept(label):
            env = function(**given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if given and isinstance(error, TypeError):
            raise UnsuitableEnvironment(
                f"{label} does not take the arguments {', '.join(given)}: {message_of(error)}; correct make.kwargs"
            ) from error
        raise cannot_be_made(label, error) from error
    if isinstance(env, gymnasium.vector.VectorEnv):
        env.close()
        raise UnsuitableEnvironment(
            f"{label} returned a vector environment, but offpcc makes its own; return a single one, as by "
            f'lambda: {_recipe(env)}, and give environments={{"num_envs": N}} for several'
        )
    if not isinstance(env, gymnasium.Env):
        raise UnsuitableEnvironment(
            f"{label} returned {format_value(env)}, which is not a gymnasium.Env; return an environment"
            + (f"; if it is of the old gym, {OLD_GYM}" if hasattr(env, "reset") and hasattr(env, "step") else "")
        )
    if isinstance(env, KeptOpen):
        return env
    if _made.get(id(env.unwrapped)) is env.unwrapped:
        raise UnsuitableEnvironment(
            f"{label} returned the same environment object again, but training and tests need one each; make a new one "
            f"inside the function, as in lambda: {_recipe(env)}"
        )
    _made[id(env.unwrapped)] = env.unwrapped
    if mode is not None and env.render_mode != mode:
        with _closed_on_failure(env):
            raise CannotBeDrawn(
                f"{label} cannot be rendered as {mode!r}: its environment has the render_mode {env.render_mode!r}; add "
                f"an argument render_mode, and pass it to the environment"
            )
    if time_limit is None or TIME_LIMIT in _parameters(function):
        return env
    with _closed_on_failure(env):
        return _with_time_limit(label, env, time_limit)


def _with_time_limit(label: str, env: gymnasium.Env[Any, Any], steps: int) -> gymnasium.Env[Any, Any]:
    """Return the environment with a time limit. One of its own must not be shorter, because it would still hold.

    A function with ``**kwargs`` may have set the limit, or ignored it.
    """
    if any(isinstance(level, TimeLimit) and level._max_episode_steps == steps for level in levels(env)):
        return env
    if not isinstance(steps, int) or steps <= 0:
        raise UnsuitableEnvironment(
            f"make.kwargs has {TIME_LIMIT!r}: {steps!r}, but it has to be an integer, and positive"
        )
    limited = TimeLimit(env, steps)
    own = [level._max_episode_steps for level in levels(env) if isinstance(level, TimeLimit)]
    if own and min(own) < steps:
        raise UnsuitableEnvironment(
            f"make.kwargs has 'max_episode_steps': {steps}, but the environment of {label} has a time limit of "
            f"{min(own)} steps; change it inside the function"
        )
    return limited


def _takes(function: EnvFunction, argument: str) -> bool:
    declared = _parameters(function)
    return argument in declared or any(one.kind is one.VAR_KEYWORD for one in declared.values())


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some C functions have no signature
        return {}


def _own_name(function: EnvFunction) -> str | None:
    """Return the name of a function or a class; None for a lambda and for an object without a name."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name.isidentifier() else None


def env_label(function: EnvFunction, made: gymnasium.Env[Any, Any] | None = None) -> str:
    """Return the label of an environment that a function makes: the function's name, else the id of what it makes."""
    if name := _own_name(function):
        return name
    if made is not None:
        return name_of(made)
    env = _call(function, {})
    try:
        return name_of(env)
    finally:
        env.close()


def check_is_env(env: Any) -> None:
    """Raise if `env` is neither a name nor a function that makes an environment."""
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        several = isinstance(env, gymnasium.vector.VectorEnv)
        raise UnsuitableEnvironment(
            f"the environment {name_of(env)} is made already, but offpcc makes its own, for training and for tests; "
            f"give its name, or a function that makes one: lambda: {_recipe(env)}"
            + (', and environments={"num_envs": N} for several' if several else "")
        )
    if not isinstance(env, str) and not callable(env):
        raise UnsuitableEnvironment(
            f'an environment cannot be {format_value(env)}; give a name such as "pendulum-p-v0", or a function that '
            f"makes one"
        )


def _recipe(env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]) -> str:
    spec = env.unwrapped.spec
    return f'gymnasium.make("{spec.id}")' if spec is not None else f"{type(env.unwrapped).__name__}()"


def timeout_of(env: Any) -> float | None:
    """Return the `timeout` that `make` was called with, or None for an environment that it did not build."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, EpisodeReturn):
            return env.timeout
        env = env.env
    return None


def _refuse_flags(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse True and False for arguments of `function` that take numbers, because 1 and 0 are rarely meant."""
    declared = _parameters(function)
    for name, value in given.items():
        if has_flags(value) and name in declared and takes_numbers(declared[name]):
            raise UserError(f"make.kwargs has {name!r}: {value!r}; {FOR_NUMBERS}")


def simulator_version() -> str | None:
    """Return the name and version of the simulator that this process has loaded, or None.

    Scores depend on the version.
    """
    for module, title in (("mujoco", "MuJoCo"), ("pybullet", "PyBullet"), ("ale_py", "ALE")):
        if module in sys.modules:
            return f"{title} {importlib.metadata.version(module)}"
    return None
