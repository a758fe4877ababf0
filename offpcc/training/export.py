"""`export`: writes an actor for machines without offpcc, as an ONNX graph or a PyTorch program, with a contract."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import tempfile
import timeit
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from offpcc.algorithms.agent import Agent
from offpcc.algorithms.discrete import ValueBased
from offpcc.config.validation import format_value
from offpcc.core import Memory
from offpcc.envs.wrapper_chain import describe_wrapper, is_observation_wrapper, levels, name_of
from offpcc.envs.wrappers import PackedObservation, PackedStateObservation, StateObservation, WithoutState, bounds_of
from offpcc.networks import Inputs
from offpcc.networks.states import map_state, tensors_of
from offpcc.training.evaluation import check_spaces_fit
from offpcc.training.run_dir import RunFolder
from offpcc.training.spec import torch_settings
from offpcc.utils.errors import UserError, first_line, for_python
from offpcc.utils.files import read_json, replacing, sha256, write_json, writing_to
from offpcc.utils.paths import as_path, shown
from offpcc.utils.spaces import OBSERVATION, PackedDict, channels_last, has_images, is_image
from offpcc.utils.version import __version__

FORMAT = 1  # of the contract
ROWS = 3  # of the example batch; the graph takes any number
STEPS = 150  # of the episode that compares graph and actor
TOLERANCE = 1e-5  # difference of actions in [-1, 1] that 99% of steps may have
LARGEST = 1e-4  # that of any step: where a policy has large numbers, rounding alone passes 1e-5 at times
CALLS = 300  # timed calls
# Wrappers that the contract leaves out: the exported actor packs by itself, and critics alone see states.
OF_TRAINING = (PackedObservation, PackedStateObservation, StateObservation, WithoutState)
REPEATS = ("_skip", "frame_skip")  # attributes of wrappers that repeat an action so many times
PREVIOUS_ACTION, PREVIOUS_REWARD = "previous_action", "previous_reward"


class Port(NamedTuple):
    """An input or an output of an exported actor."""

    name: str  # its name in the graph
    shape: tuple[int, ...]  # its shape without the batch axis
    dtype: str  # name of its NumPy dtype
    meaning: str  # what it is, for the contract

    def plain(self) -> dict[str, Any]:
        """Return the port as plain data for the contract."""
        return {"name": self.name, "shape": ["batch", *self.shape], "dtype": self.dtype, "meaning": self.meaning}


class Latency(NamedTuple):
    """Median time of one step of one environment, in microseconds, on one thread."""

    exported: float
    actor: float


class Exported(NamedTuple):
    """What `export` wrote.

    Attributes:
        file: the graph or program.
        contract_file: the contract.
        contract: its content.
        difference: largest difference between an action of the exported actor and of the agent, in [-1, 1].
        latency: time of a step.
    """

    file: Path
    contract_file: Path
    contract: dict[str, Any]
    difference: float
    latency: Latency


class ActorStep(nn.Module):
    """One step of an actor as a function of tensors: observation and state in, action and next state out.

    The state contains the memory, and the previous action if the actor reads it. Zeros are the state at an episode's
    start. Normalisation of observations and the scale of actions are inside.

    Args:
        agent: the agent, on the CPU. Its networks get no gradients any more.

    Attributes:
        observations: the inputs that are observations.
        extras: the inputs that are neither observations nor state.
        states: the inputs that are state, in the order of the outputs after the action.
        action: the output that is the action.
    """

    low: Tensor  # these are of `ActionScale`
    high: Tensor
    centre: Tensor
    radius: Tensor
    start: Tensor  # this is of `ActionIndex`

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        algorithm = self._algorithm = agent.algorithm
        self.parts = nn.ModuleDict(algorithm.actor_parts()).eval().requires_grad_(False)  # it only acts
        self._packed: PackedDict | None = algorithm.packed
        space, scale = agent.action_space, agent._scale
        for name, value in scale._asdict().items():
            self.register_buffer(name, torch.as_tensor(np.asarray(value)))
        used = [module for part in self.parts.values() for module in part.modules()]
        reads_actions, reads_rewards = (
            any(getattr(module, f"use_{name}", False) for module in used) for name in (PREVIOUS_ACTION, PREVIOUS_REWARD)
        )
        self.observations = _observation_ports(self._packed, algorithm.space_shape)
        meaning = "reward of the last action; 0 at the first step of an episode"
        self.extras = [Port(PREVIOUS_REWARD, (1,), "float32", meaning)] if reads_rewards else []
        self._memory = self._memory_at_start(1)
        meaning = "part of the memory; zeros at the first step of an episode, then what the last step returned"
        memory = [
            Port(f"memory_{number}", tuple(part.shape[1:]), str(part.dtype).removeprefix("torch."), meaning)
            for number, part in enumerate(tensors_of(self._memory))
        ]
        kind = "one-hot" if algorithm.is_discrete else "in [-1, 1]"
        meaning = f"last action, {kind}; zeros at the first step of an episode, then what the last step returned"
        before = [Port(PREVIOUS_ACTION, (algorithm.action_dim,), "float32", meaning)] if reads_actions else []
        self.states = before + memory
        dtype, meaning = str(np.result_type(*(np.asarray(value).dtype for value in scale), np.float32)), "in the units"
        if isinstance(space, spaces.Discrete):
            dtype, meaning = "int64", "a whole number"
        self.action = Port("action", tuple(space.shape or ()), dtype, f"action, {meaning} of the environment")

    @property
    def inputs(self) -> list[Port]:
        """All inputs, in order."""
        return [*self.observations, *self.extras, *self.states]

    @property
    def outputs(self) -> list[Port]:
        """All outputs, in order: the action, then the next state."""
        meaning = "pass it as {} at the next step"
        return [
            self.action,
            *(port._replace(name=f"next_{port.name}", meaning=meaning.format(port.name)) for port in self.states),
        ]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the action (N, *action) and the next state, for the tensors (N, ...) of `inputs`."""
        known = {port.name: tensor for port, tensor in zip(self.inputs, given, strict=True)}
        observation = self._observation(known)
        rows = observation.shape[0]
        unused = observation.new_zeros(rows, self._algorithm.action_dim + 1, dtype=torch.float32)
        action, reward = known.get(PREVIOUS_ACTION, unused[:, 1:]), known.get(PREVIOUS_REWARD, unused[:, :1])
        if self._algorithm.clip_rewards:
            reward = reward.sign()
        inputs = Inputs(*(x.unsqueeze(1) for x in (observation, action, reward)))
        parts = iter([known[port.name] for port in self.states if port.name != PREVIOUS_ACTION])
        memory = map_state(lambda _: next(parts), self._memory)
        unit, memory = self._algorithm.act_on_tensors(inputs, memory, True)
        if self.action.dtype == "int64":
            action = self.start + unit.argmax(-1)
        else:
            stretched = self.centre + unit.reshape(rows, *self.action.shape) * self.radius
            action = torch.minimum(torch.maximum(stretched, self.low), self.high)
        after = [unit] if any(port.name == PREVIOUS_ACTION for port in self.states) else []
        return action, *after, *tensors_of(memory)

    def _observation(self, known: Mapping[str, Tensor]) -> Tensor:
        """Return the observation (N, ...) that the networks read."""
        if self._packed is None:
            observation = known[self.observations[0].name]
            return observation.movedim(-1, -3) if channels_last(self._algorithm.space_shape) else observation
        read = []
        for port, (key, entry) in zip(self.observations, self._packed.entries.items(), strict=True):
            x = known[port.name]
            if isinstance(entry, spaces.Discrete | spaces.MultiDiscrete):
                sizes = np.ravel(entry.nvec if isinstance(entry, spaces.MultiDiscrete) else entry.n)
                chosen = x.reshape(x.shape[0], -1) - torch.as_tensor(np.ravel(entry.start))
                x = torch.cat([chosen[:, i, None] == torch.arange(int(n)) for i, n in enumerate(sizes)], -1).float()
            elif port.dtype == "uint8":
                x = x.movedim(-1, -3) if channels_last(port.shape) else x
                x = x.float() / 255.0
            read.append((key, x.reshape(x.shape[0], -1).float()))
        parts = dict(read)
        return torch.cat([parts[part.key] for part in self._packed.unpacked_shape.parts], -1)

    def _memory_at_start(self, rows: int) -> Memory:
        """Return zeros of the structure of the memory."""
        sizes = self._algorithm.observation_shape, (self._algorithm.action_dim,), (1,)
        with torch.no_grad():
            inputs = Inputs(*(torch.zeros(rows, 1, *size) for size in sizes))
            _, memory = self._algorithm.act_on_tensors(inputs, None, True)
        return map_state(torch.zeros_like, memory)


def _observation_ports(packed: PackedDict | None, shape: tuple[int, ...]) -> list[Port]:
    """Return the inputs that are observations."""
    if packed is None:
        if is_image(shape):
            meaning = "image as the wrappers return it, channels last"
            if not channels_last(shape):
                meaning = "image as the wrappers return it, channels first; of stacked frames, the oldest one first"
            return [Port("observation", tuple(shape), "uint8", meaning)]
        return [Port("observation", tuple(shape), "float32", "observation, as the environment returns it")]
    ports = []
    for key, entry in packed.entries.items():
        is_choice = isinstance(entry, spaces.Discrete | spaces.MultiDiscrete)
        part = next(part for part in packed.unpacked_shape.parts if part.key == key)
        dtype = "int64" if is_choice else "uint8" if len(part.shape) == 3 else "float32"
        name = f"observation.{key.replace('/', '.')}"
        ports.append(Port(name, tuple(entry.shape or ()), dtype, f"entry {key!r} of the observation, {entry}"))
    return ports


# Writing ------------------------------------------------------------------------------------------------------------


Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]  # runs an exported actor on the arrays of its inputs


def export(
    source: Agent | str | Path,
    file: str | Path | None = None,
    *,
    env: gymnasium.Env[Any, Any] | None = None,
    units: Mapping[str, Sequence[str]] | None = None,
) -> Exported:
    """Write an actor for machines without offpcc, and a contract in JSON beside it.

    The exported actor is deterministic. An episode of random observations compares it with the agent before anything is
    written. Needs the extra `export`.

    Args:
        source: an agent, an actor file, or a run's folder, whose best actor is exported.
        file: the file to write: `NAME.onnx` for ONNX, `NAME.pt2` for `torch.export.load`. The default is an ONNX file
            beside the actor's file. The contract is `NAME.json`, or `NAME.pt2.json`.
        env: the environment of the agent. The contract then has its id, its space of observations, the wrappers that
            change observations, and its control rate.
        units: units for the contract, one text per number, such as ``{"observation": ["rad", "rad/s"], "action":
            ["Nm"]}``. Of a `Dict`, the keys are the names of the inputs, such as ``observation.arm``. An image or a
            discrete action has one text.

    Raises:
        UserError: the actor cannot be read or exported, the environment is not the agent's, the file cannot be written,
            actions differ from the agent's, or the number of units is not that of the numbers.
    """
    path: Path | None = None
    facts: dict[str, Any] = {}
    if hasattr(source, "algorithm") and not isinstance(source, Agent):
        raise UserError("export got a learner; give its agent, which train returns: offpcc.Agent(learner.algorithm)")
    if not isinstance(source, Agent):
        path = as_path(source, "source")
        if path.is_dir():
            facts = {"env": RunFolder.at(path).details().get("env")}
            path = RunFolder.at(path).actor()
        facts["actor_sha256"] = sha256(path) if path.is_file() else None
        facts |= _origin(RunFolder.at(path.parent))
    if file is None and path is None:
        raise UserError("export got no file; give one, such as actor.onnx")
    file = path.with_suffix(".onnx") if file is None and path is not None else as_path(file or "", "file", is_file=True)
    if file.suffix not in WRITERS:
        raise UserError(f"{file} does not end in .onnx or .pt2; name it NAME.onnx for ONNX, or NAME.pt2 for PyTorch")
    contract_file = file.with_suffix(".json") if file.suffix == ".onnx" else file.with_name(f"{file.name}.json")
    if contract_file.exists() and not _is_contract(contract_file):
        raise UserError(f"{contract_file} exists already and is not the contract of an export; give another file")
    with tempfile.TemporaryDirectory() as folder:  # a copy on the CPU, which the export cannot disturb
        if path is None:
            source.save(path := Path(folder) / "actor.pt")  # type: ignore[union-attr]
        space = source.action_space if isinstance(source, Agent) else None
        agent = Agent.load(path, action_space=space)
    if isinstance(agent.algorithm, ValueBased):
        agent.algorithm.test_epsilon = 0.0  # the exported actor draws nothing
    if env is not None:
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"export.env is {format_value(env)}; give an environment, such as offpcc.make(NAME)")
        with for_python():
            seen = _seen(env.observation_space, agent)
            check_spaces_fit(name_of(env), seen, env.action_space, agent.algorithm)
    step = ActorStep(agent)
    facts["units"] = None if units is None else _checked_units(units, step)
    content, run = WRITERS[file.suffix](step)
    difference = _compare(step, agent, run)
    latency = _latency(step, agent, run)
    low, high = bounds_of(agent.action_space)
    contract = {
        "format": FORMAT,
        "offpcc": __version__,
        "algorithm": type(agent.algorithm).__name__,
        **{name: value for name, value in facts.items() if value is not None},
        **({} if env is None else _env_facts(env, agent)),
        "file": file.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "inputs": [port.plain() for port in step.inputs],
        "outputs": [port.plain() for port in step.outputs],
        "state": [{"input": port.name, "output": f"next_{port.name}", "reset": 0} for port in step.states],
        "action": {"low": low.tolist(), "high": high.tolist(), "deterministic": True},
        "inside": [
            *(["normalisation of observations"] if agent.algorithm.normalization is not None else []),
            *(["division of images by 255"] if has_images(agent.algorithm.observation_shape) else []),
            *(["one-hot vectors of choices"] if _has_choices(agent.algorithm.packed) else []),
            "number of the action" if agent.algorithm.is_discrete else "scale and bounds of actions",
            *(["signs of rewards"] if step.extras and agent.algorithm.clip_rewards else []),
        ],
        "verified": {"steps": STEPS, "largest_difference_of_unit_action": difference},
    }
    with writing_to(file):
        with replacing(file) as unfinished:
            unfinished.write_bytes(content)
        write_json(contract_file, contract)
    return Exported(file, contract_file, contract, difference, latency)


def _is_contract(file: Path) -> bool:
    """Check whether a file is the contract of an earlier export, which a new one may replace."""
    try:
        return {"sha256", "inputs", "outputs"} <= dict(read_json(file)).keys()
    except (OSError, TypeError, ValueError):
        return False


def _origin(folder: RunFolder) -> dict[str, Any]:
    """Return where an actor's file comes from: the SHA-256 of the run's config, and facts of run.json; {} if unknown.

    The folder may come from somebody else, so facts of other types are left out.
    """
    details, kinds = folder.details(), {"env": str, "algo": str, "run_id": int, "seed": int, "git_commit": str}
    run = {name: details[name] for name, kind in kinds.items() if isinstance(details.get(name), kind)}
    if not run:
        return {}
    return {"config_sha256": sha256(folder.config) if folder.config.is_file() else None, "run": run}


def _checked_units(units: Mapping[str, Sequence[str]], step: ActorStep) -> dict[str, list[str]]:
    """Return units as plain data."""
    ports = {port.name: port for port in [*step.observations, step.action]}
    if not isinstance(units, Mapping):
        raise UserError(f"units are {format_value(units)}; map the names {', '.join(ports)} to lists of texts")
    for name, texts in units.items():
        if name not in ports:
            raise UserError(
                f"units name {shown(repr(name))}, which this actor does not have; it has {', '.join(ports)}"
            )
        shape = ports[name].shape
        size = 1 if len(shape) == 3 else int(np.prod(shape))
        is_list = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        if not is_list or len(texts) != size:
            raise UserError(
                f"units of {name} are {format_value(texts)}; it has to be a list of {size} texts, one per number, for "
                f"shape {shape}"
            )
    return {name: [*texts] for name, texts in units.items()}


def _program(step: ActorStep) -> Any:
    """Return the `torch.export` program of a step, for any number of rows."""
    example = tuple(torch.zeros(ROWS, *port.shape, dtype=getattr(torch, port.dtype)) for port in step.inputs)
    batch = torch.export.Dim("batch", min=1, max=4096)
    try:
        with torch.no_grad(), _quiet():
            program = torch.export.export(
                step, example, dynamic_shapes=(tuple({0: batch} for _ in example),), strict=False
            )
    except Exception as error:  # a user's network may do anything
        raise UserError(
            f"the actor cannot be exported ({first_line(error)}); forward of its networks must use PyTorch operations "
            f"alone, and must not depend on values or on the number of rows"
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # a file must not name the folders of this machine
    return program


def _onnx(step: ActorStep) -> tuple[bytes, Run]:
    """Return the ONNX file, and how to run it."""
    try:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]
        import onnxscript  # noqa: F401 (torch.onnx needs it)
    except ImportError as error:
        raise UserError(
            f"export to ONNX needs {error.name}, which is not installed: `pip install onnx onnxruntime onnxscript`; or "
            f"name a file NAME.pt2 for torch.export"
        ) from error
    program = _program(step)
    try:
        with torch.no_grad(), _quiet():
            found: Any = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[port.name for port in step.inputs],
                output_names=[port.name for port in step.outputs],
            )
    except Exception as error:
        raise UserError(
            f"the actor cannot be written as ONNX ({first_line(error)}); name a file NAME.pt2 for torch.export instead"
        ) from error
    model: Any = found.model_proto
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        del node.metadata_props[:]  # names and folders of code, which no runtime needs
    _name_rows(model.graph)
    described = {"offpcc": __version__, "inputs": [port.plain() for port in step.inputs]}
    onnx.helper.set_model_props(model, {"offpcc": json.dumps(described)})
    content: bytes = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # before PyTorch 2.13, the files of LSTMs
        raise UserError(
            f"onnxruntime cannot read the file that PyTorch {torch.version.__version__} wrote ({first_line(error)}); "
            f"install PyTorch 2.13 or newer, or name a file NAME.pt2 for torch.export"
        ) from error
    inputs = [port.name for port in step.inputs]
    return content, lambda arrays: session.run(None, dict(zip(inputs, arrays, strict=True)))


def _name_rows(graph: Any) -> None:
    """Name the first axis of inputs and outputs "batch", as the contract does."""
    rows = {value.type.tensor_type.shape.dim[0].dim_param for value in graph.input}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in rows - {""}:
                dim.dim_param = "batch"


def _pt2(step: ActorStep) -> tuple[bytes, Run]:
    """Return the file of `torch.export.save`, and how to run it."""
    buffer = io.BytesIO()
    with _quiet():
        torch.export.save(_program(step), buffer)
        content = buffer.getvalue()
        module = torch.export.load(io.BytesIO(content)).module()

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return [tensor.numpy() for tensor in module(*map(torch.from_numpy, arrays))]

    return content, run


WRITERS: dict[str, Callable[[ActorStep], tuple[bytes, Run]]] = {".onnx": _onnx, ".pt2": _pt2}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress lines and warnings of exporters."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# Checking -----------------------------------------------------------------------------------------------------------


def _observation(step: ActorStep, agent: Agent, rows: int, draw: np.random.Generator) -> tuple[list[np.ndarray], Any]:
    """Return random observations: the arrays of the inputs, and what `Agent.act` reads."""
    arrays: list[np.ndarray] = []
    packed = agent.algorithm.packed
    entries: Mapping[str, Any] = {"": None} if packed is None else packed.entries
    for port, (key, entry) in zip(step.observations, entries.items(), strict=True):
        if port.dtype == "uint8":
            arrays.append(draw.integers(0, 256, (rows, *port.shape), np.uint8))
        elif isinstance(entry, spaces.Discrete | spaces.MultiDiscrete):
            entry.seed(int(draw.integers(2**31)))
            arrays.append(np.stack([np.asarray(entry.sample(), np.int64) for _ in range(rows)]))
        else:
            columns = None if packed is None else next(p for p in packed.unpacked_shape.vectors if p.key == key).columns
            mean, std = _statistics(agent, columns)
            drawn = mean + 2.0 * std * draw.normal(size=(rows, *(np.shape(mean) or port.shape)))
            arrays.append(drawn.reshape(rows, *port.shape).astype(np.float32))
    if packed is None:
        return arrays, arrays[0]
    nested: dict[str, Any] = {}
    for key, array in zip(packed.entries, arrays, strict=True):
        *above, last = key.split("/")
        place = nested
        for name in above:
            place = place.setdefault(name, {})
        place[last] = array
    return arrays, nested


def _statistics(agent: Agent, columns: slice | None) -> tuple[Any, Any]:
    """Return mean and standard deviation of observations, of these columns of a Dict; 0 and 1 if they are unknown."""
    normalization: Any = agent.algorithm.normalization
    if normalization is None:
        return 0.0, 1.0
    mean, std = normalization.mean.numpy(), np.sqrt(normalization.variance.numpy())
    return (mean, std) if columns is None else (mean[columns], std[columns])


def _compare(step: ActorStep, agent: Agent, run: Run) -> float:
    """Play an episode of random observations with both; return the largest difference of actions in [-1, 1]."""
    draw, differences = np.random.default_rng(0), []
    radius = np.maximum(getattr(agent._scale, "radius", 1.0), np.finfo(np.float32).tiny)
    for rows, num_steps in ((1, STEPS), (ROWS, 20)):
        agent.reset(num_envs=rows)
        state = [np.zeros((rows, *port.shape), port.dtype) for port in step.states]
        reward = np.zeros((rows, 1), np.float32)
        for _ in range(num_steps):
            arrays, observation = _observation(step, agent, rows, draw)
            expected = agent.act(observation, reward[:, 0])
            action, *state = run([*arrays, *([reward] if step.extras else []), *state])
            differences.append(float(np.abs((action - expected) / radius).max()))
            reward = draw.normal(size=(rows, 1)).astype(np.float32)
    agent.reset()
    # An agent that chooses the best of several actions may choose another one if two are equally good up to rounding.
    is_sure = agent.algorithm.acts_by_actor and not agent.algorithm.is_discrete
    share, most = (0.99, LARGEST) if is_sure else (0.9, np.inf)
    if not (np.quantile(differences, share) <= TOLERANCE and max(differences) <= most):
        raise UserError(
            f"actions of the exported actor differ from the agent's by up to {max(differences):.2g} in [-1, 1], more "
            f"than rounding ({TOLERANCE:g}); nothing was written. The actor may depend on more than its inputs"
        )
    return max(differences)


def _latency(step: ActorStep, agent: Agent, run: Run) -> Latency:
    """Return the time of a step, of the exported actor and of the agent."""
    draw = np.random.default_rng(0)
    arrays, observation = _observation(step, agent, 1, draw)
    arrays += [np.zeros((1, *port.shape), port.dtype) for port in (*step.extras, *step.states)]
    agent.reset(num_envs=1)
    with torch_settings(torch.device("cpu"), threads=1):
        times = (
            timeit.repeat(call, number=1, repeat=CALLS)
            for call in (lambda: run(arrays), lambda: agent.act(observation, 0.0))
        )
        exported, actor = (1e6 * float(np.median(seconds)) for seconds in times)
    agent.reset()
    return Latency(exported, actor)


def _seen(space: spaces.Space[Any], agent: Agent) -> spaces.Space[Any]:
    """Return the part of an environment's observations that the actor sees, without the state for critics."""
    space = getattr(space, "dict_space", space)
    if not isinstance(space, spaces.Dict):
        return space
    packed = agent.algorithm.packed
    if packed is None:
        return space.spaces.get(OBSERVATION, space)
    return spaces.Dict({key: entry for key, entry in space.items() if key in packed.dict_space.spaces})


def _has_choices(packed: PackedDict | None) -> bool:
    return packed is not None and any(not isinstance(entry, spaces.Box) for entry in packed.entries.values())


def _env_facts(env: gymnasium.Env[Any, Any], agent: Agent) -> dict[str, Any]:
    """Return what an environment says of itself."""
    seconds = getattr(env.unwrapped, "dt", None)
    rate = 1.0 / seconds if isinstance(seconds, float) and seconds > 0 else env.metadata.get("render_fps")
    for level in levels(env)[1:]:
        known = (vars(level).get(name) for name in REPEATS)
        repeated = next((number for number in known if isinstance(number, int | float) and number > 0), 1)
        rate = None if rate is None else rate / repeated
    outside = [one for one in levels(env) if is_observation_wrapper(one) and not isinstance(one, OF_TRAINING)]
    facts = {
        "env": env.spec.id if env.spec else None,
        "observation_space": str(_seen(env.observation_space, agent)),
        "wrappers": [*map(describe_wrapper, outside)] or None,
    }
    return {name: value for name, value in {**facts, "control_rate_hz": rate}.items() if value is not None}
