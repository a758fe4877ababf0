"""Why offpcc cannot make an environment or learn in it: `UnsuitableEnvironment`, the checks of spaces, and messages."""

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from offpcc.envs.d4rl import catalog
from offpcc.envs.faults import format_env_error
from offpcc.envs.registration import is_installed, package_of
from offpcc.envs.tasks import atari
from offpcc.envs.wrappers.old_gym import OF_OLD_GYM
from offpcc.utils.errors import UserError, message_of, similar
from offpcc.utils.spaces import IF_IMAGE, PackedDict, may_be_meant_as_image

OLD_GYM = "wrap it in offpcc.envs.wrappers.old_gym.OldGym, whose docstring shows how to register it"
FLATTEN = "gymnasium.wrappers.FlattenObservation (make.wrappers=[@gymnasium.FlattenObservation])"
OWN_WRAPPER = "a gymnasium.ObservationWrapper of your own that returns arrays of one size, with a Box as its space"
LARGEST_BOUND = 1e9  # of actions
MOST_NAMED = 3  # ids of a module in a message


class UnsuitableEnvironment(UserError, ValueError):  # noqa: N818 (a property of the environment, as users read it)
    """The environment does not exist, or offpcc cannot learn in it; the message says why and what to do."""


class CannotBeDrawn(UnsuitableEnvironment):
    """The environment exists, but does not have the render mode."""


def cannot_be_made(name: str, error: BaseException, given: Mapping[str, Any] | None = None) -> UnsuitableEnvironment:
    """Return the error for an environment whose constructor raised; `given` are the arguments that it got."""
    text, remedy = message_of(error), "correct its constructor"
    arguments = [key for key in given or () if key != "render_mode"]
    is_old = "v2 and v3 based environments" in text or "mujoco_py" in text  # the second if gymnasium-robotics has it
    if is_old and name.endswith(("-v2", "-v3")):
        return UnsuitableEnvironment(f"Gymnasium has no {name}, which needs the old mujoco-py; take {name[:-1]}5")
    if isinstance(error, gymnasium.error.DependencyNotInstalled):
        return UnsuitableEnvironment(f"{name}: {text}")
    if isinstance(error, ImportError):
        return UnsuitableEnvironment(f"{name}: {text.removesuffix('.')}; install what is missing, or correct the name")
    if isinstance(error, TypeError) and (lacking := _lacking(name, text)):
        given_so_far = [f"'{key}': {given[key]!r}" for key in arguments] if given else []
        wanted = ", ".join([*given_so_far, *(f"'{key}': ..." for key in lacking)])
        return UnsuitableEnvironment(
            f"{name} needs the argument{'s' * (len(lacking) > 1)} {', '.join(lacking)}; bind make.kwargs = {{{wanted}}}"
        )
    if isinstance(error, TypeError) and "render_mode" in (given or ()) and (not arguments or "'render_mode'" in text):
        return CannotBeDrawn(f"{name} cannot be rendered: {text}; add the argument render_mode to its constructor")
    if isinstance(error, TypeError) and arguments:
        return UnsuitableEnvironment(
            f"{name} does not take the arguments {', '.join(arguments)}: {text}; correct make.kwargs"
        )
    if arguments:
        remedy = "correct make.kwargs, or its constructor"
    if "must inherit from" in text or "incompatible with Gymnasium" in text:
        remedy = f"if it is of the old gym, {OLD_GYM}"
    return UnsuitableEnvironment(f"{name} cannot be made: {format_env_error(error)}; {remedy}")


def _lacking(name: str, text: str) -> list[str]:
    """Return the arguments that the constructor of an environment needs and did not get, by its TypeError's text."""
    spec = gymnasium.registry.get(name.split(":")[-1])
    entry = spec.entry_point if spec is not None else None
    own = str(entry).rpartition(":")[2] if isinstance(entry, str) else getattr(entry, "__qualname__", "")
    found = re.match(rf"\S*{re.escape(own)}(\.__init__)?\(\) missing \d+ required [\w-]+ arguments?: ([^(]*)", text)
    return re.findall(r"'(\w+)'", found[2]) if own and found else []


def unknown_id(name: str, known: Iterable[str]) -> str:
    """Return the message about an id that is not among the `known` ones."""
    if reason := catalog.why_not(name):
        return reason
    package = atari.PACKAGE if atari.is_atari(name) else package_of(name)
    if package is not None and not is_installed(package):
        return f"{name} needs the package {package}, which is not installed; run `pip install {package}`"
    if games := atari.similar_game(name):
        return f"{name}: offpcc does not make this form of the game; choose {games}"
    module, _, own_name = name.rpartition(":")
    if own_name in getattr(sys.modules.get("gym.envs.registration"), "registry", ()):
        return (
            f"{name} is registered in the old gym, not in Gymnasium; {OLD_GYM}; if its spaces are neither Box nor "
            f"Discrete, write a gymnasium.Env of your own around it, see {OF_OLD_GYM}"
        )
    if own := _registered_by(module):
        named = similar(own_name, own) or own[:MOST_NAMED]
        return f"{name}: {module} registers {', '.join(named)}; give {module}:{named[0]}"
    if not module and "-singletask-" in name:
        return f"{name}: there is no such environment; for OGBench's, give ogbench:{name}"
    nearest = similar(own_name, known)
    advice = f"did you mean {' or '.join(nearest)}?" if nearest else "`offpcc envs` lists those of offpcc."
    return (
        f"{name}: there is no such environment; {advice} An environment of your own needs the import of its module: "
        f"add --import MODULE, or --config with its import"
    )


def _registered_by(module: str) -> list[str]:
    """Return the ids of the environments whose classes or functions are in a module."""
    inside, found = re.compile(rf"{re.escape(module)}(\.|:|$)"), []
    for name, spec in gymnasium.registry.items() if module else ():
        point = spec.entry_point
        if inside.match(point if isinstance(point, str) else f"{getattr(point, '__module__', '')}"):
            found.append(name)
    return found


def check_action_space(name: str, space: gymnasium.Space[Any]) -> None:
    """Raise if agents cannot act in this space."""
    if isinstance(space, Discrete):
        return
    if isinstance(space, MultiDiscrete | MultiBinary):
        raise UnsuitableEnvironment(
            f"{name}: its actions are {space}, but offpcc needs a Box of floats or a Discrete space; bind "
            f"make.wrappers = [@MultiDiscreteToDiscrete], which makes each combination an action"
        )
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise UnsuitableEnvironment(
            f"{name}: its actions are {space}, but offpcc needs a Box of floats or a Discrete space; convert them in "
            "a gymnasium.ActionWrapper"
        )
    if len(space.shape) != 1 or space.shape[0] == 0:
        raise UnsuitableEnvironment(
            f"{name}: its actions have the shape {space.shape}, but offpcc needs a vector of numbers; "
            "reshape them in a gymnasium.ActionWrapper"
        )
    for bound, values in (("low", space.low), ("high", space.high)):
        if (np.abs(values) > LARGEST_BOUND).any():
            index = int(np.argmax(np.abs(values)))
            raise UnsuitableEnvironment(
                f"{name}: the {bound} bound of action {index} is {values[index]:.3g}, and actions are scaled to their "
                "bounds; give the environment a bounded Box of the actions that matter, such as by "
                "gymnasium.wrappers.TransformAction"
            )


def _remedy_for_shape(space: Box) -> str:
    """Return what to do about observations that are neither vectors nor images."""
    if len(space.shape) == 4 and space.dtype == np.uint8:
        return "stack frames by make.wrappers = [@Concatenate], Concatenate.num = 4 in place of FrameStackObservation"
    flat = f"else flatten it by {FLATTEN}"
    if may_be_meant_as_image(space.shape, space.dtype):
        return f"{IF_IMAGE}; {flat}"
    return f"join frames by Concatenate, or {flat}"


def check_observation_space(name: str, space: gymnasium.Space[Any], state: str | None) -> None:
    """Raise if agents cannot observe this space; `state` is the key of the entry that only critics see."""
    if isinstance(space, Dict):
        try:
            PackedDict(space, state)
        except UserError as error:
            raise UnsuitableEnvironment(f"{name}: {error.message}") from error
        return
    if not isinstance(space, Box):
        raise UnsuitableEnvironment(
            f"{name}: its observations are {space}, but offpcc needs a Box or a Dict; wrap the environment in "
            f"{FLATTEN if space.is_np_flattenable else OWN_WRAPPER}"
        )
    if 0 in space.shape:
        raise UnsuitableEnvironment(
            f"{name}: its observations have the shape {space.shape}, which holds no numbers; "
            "show at least one, for example the previous action by offpcc.envs.wrappers.PreviousAction"
        )
    is_vector, is_image = len(space.shape) == 1, len(space.shape) == 3 and space.dtype == np.uint8
    if not is_vector and not is_image:
        raise UnsuitableEnvironment(
            f"{name}: its observations have the shape {space.shape} and the type {space.dtype}, but offpcc "
            f"needs vectors, or uint8 images with 3 axes; {_remedy_for_shape(space)}"
        )
