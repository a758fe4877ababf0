"""The TOML file of a sweep: its settings, from a grid and from random samples, and its rule for stopping."""

import hashlib
import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offpcc.config import gin_files
from offpcc.config.validation import LARGEST_SEED, is_number, is_whole_number
from offpcc.training.run_dir import path_part
from offpcc.utils.errors import UserError, first_line, similar
from offpcc.utils.paths import shown

KEYS = ["name", "env", "algo", "dataset", "config", "import", "seeds", "epochs", "gin", "grid", "random", "stop"]
MANY, MOST = 100, 100_000  # runs: more than MANY need --yes, more than MOST are refused
LONGEST = 60  # letters of the settings in a folder's name
LARGEST = 2**20  # bytes
EPOCHS = "train.num_epochs"
EXAMPLES = {"uniform": "[0.9, 0.999]", "log_uniform": "[1e-4, 1e-2]", "choice": "[64, 128]"}


class Halving(NamedTuple):
    """Successive halving: after `first_epochs` epochs, and at each multiple by `factor`, the best 1/factor go on."""

    factor: int
    first_epochs: int


class Point(NamedTuple):
    """One setting of a sweep: everything that a run has except its seed.

    Attributes:
        folder: the name of the setting's folder; it depends on the config and on the swept bindings alone.
        swept: the swept bindings, as gin writes their values.
    """

    env: str | None
    dataset: str | None
    algo: str
    config: str | None
    folder: str
    swept: Mapping[str, str]

    @property
    def text(self) -> str:
        """The swept bindings and the config, for tables."""
        parts = [Path(self.config).stem] if self.config else []
        return " ".join([*parts, *(f"{name}={value}" for name, value in self.swept.items())]) or "defaults"


@dataclass(frozen=True)
class Sweep:
    """What a file of a sweep asks for.

    Attributes:
        file: the file.
        name: the name of the sweep and of its folder.
        points: its settings.
        seeds: the seeds of each setting.
        epochs: `train.num_epochs` of each run; None for that of the config.
        fixed: the bindings of all runs, as gin writes their values.
        modules: modules to import.
        stop: the rule for stopping; None to train all runs to the end.
        hours: the time after which a call of the command ends; None for no limit.
        total_epochs: the epochs of all runs together; None for no limit.
    """

    file: Path
    name: str
    points: list[Point]
    seeds: tuple[int, ...]
    epochs: int | None
    fixed: Mapping[str, str]
    modules: tuple[str, ...]
    stop: Halving | None
    hours: float | None
    total_epochs: int | None


def read_sweep(file: Path, is_large_allowed: bool = False) -> Sweep:
    """Read a file of a sweep."""
    if not file.exists() and (ours := gin_files.CONFIGS.parent / file).is_file():
        file = ours  # as for --config, the checkout's or the installed package's
    table = _load(file)
    _refuse_unknown(file, "", table, KEYS)
    for part in ("gin", "grid", "random"):
        for key in KEYS:
            if isinstance(table.get(part), dict) and key in table[part]:
                raise UserError(f"{file}: {key} is in [{part}], which is for gin bindings; write it above all tables")
    envs = _names(file, table, "env") or [None]
    given = _names(file, table, "dataset")
    datasets = [str(Path(one).resolve()) if Path(one).is_file() else one for one in given] or [None]
    algos = _names(file, table, "algo")
    if not algos or (envs == [None] and datasets == [None]):
        missing = "algo, such as algo = ['sac', 'td3']" if not algos else "env or dataset, such as env = 'pendulum-v0'"
        raise UserError(f"{file}: there is no {missing}; add it")
    configs = _configs(file, table, algos)
    seeds = table.get("seeds", [1])
    is_valid = isinstance(seeds, list) and all(is_whole_number(one, 0, LARGEST_SEED) for one in seeds)
    if not is_valid or not seeds or len({*seeds}) < len(seeds):
        raise _fault(file, "seeds", seeds, "a list of different whole numbers from 0, such as [1, 2, 3]")
    epochs = table.get("epochs")
    if epochs is not None and not is_whole_number(epochs, 1):
        raise _fault(file, "epochs", epochs, "a whole number above 0, such as 20")
    fixed = {name: _as_gin(file, f"gin.{name}", value) for name, value in _flat(file, table, "gin").items()}
    grid = _flat(file, table, "grid")
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise _fault(file, f"grid.{name}", values, "a list of values, such as [1e-3, 3e-4]")
    random, samples, seed = _ranges(file, table)
    twice = [*(grid.keys() & random.keys()), *(fixed.keys() & (grid.keys() | random.keys()))]
    if twice:
        raise UserError(f"{file}: {twice[0]} is in two of [gin], [grid] and [random]; keep one")
    if EPOCHS in {**fixed, **grid, **random}:
        raise UserError(f"{file}: {EPOCHS} is bound as a setting; write epochs = N at the top of the file instead")
    parts = (envs, datasets, [*itertools.chain(*configs.values())], seeds, *grid.values())
    number = math.prod(map(len, parts)) * (samples if random else 1)
    if number > (MOST if is_large_allowed else MANY):
        remedy = f"a sweep may have {MOST:,}; shorten its lists" if is_large_allowed else "add --yes to start them"
        raise UserError(f"{file}: the sweep has {number:,} runs; {remedy}")
    written = [[(name, _as_gin(file, f"grid.{name}", one)) for one in values] for name, values in grid.items()]
    swept = [
        dict(sorted([*chosen, *drawn]))
        for drawn in (_draw(random, seed, samples) if random else [[]])
        for chosen in itertools.product(*written)
    ]
    points = {
        (env, dataset, algo, folder): Point(env, dataset, algo, config, folder, one)
        for env, dataset, algo in itertools.product(envs, datasets, algos)
        for config in configs[algo]
        for one in swept
        for folder in [_folder(config, one)]
    }
    modules = tuple(_names(file, table, "import"))
    stop = _stop(file, table.get("stop"), epochs, envs)
    name = table.get("name", file.stem)
    if not isinstance(name, str):
        raise _fault(file, "name", name, "the name of a folder, such as 'lr'")
    if "name" in table and (part := path_part(name)) != name:
        raise _fault(file, "name", name, f"a folder's name of letters, digits, '.', '-' and '_', such as {part!r}")
    return Sweep(file, path_part(name), [*points.values()], tuple(seeds), epochs, fixed, modules, *stop)


def _configs(file: Path, table: Mapping[str, Any], algos: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the config files of each algorithm: the same for all, or those of a table."""
    given = table.get("config")
    if isinstance(given, dict):
        if sorted(given) != sorted(algos) or not all(isinstance(one, str) and one for one in given.values()):
            raise _fault(file, "config", given, f"a table with a file for each algo: {', '.join(algos)}")
        return {algo: [str(gin_files.find_config(given[algo]).resolve())] for algo in algos}
    common: list[str | None] = [str(gin_files.find_config(one).resolve()) for one in _names(file, table, "config")]
    if len({Path(one or "").stem for one in common}) < len(common):
        raise _fault(file, "config", given, "a list of files with different names")
    return dict.fromkeys(algos, common or [None])


def _load(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST:
            raise UserError(f"{file} has more than {LARGEST:,} bytes; name the TOML file of a sweep")
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {file}; name the TOML file of a sweep") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file} is not valid TOML: {first_line(error)}; correct it") from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read as TOML ({first_line(error)}); name the TOML file of a sweep"
        ) from error


def _stop(
    file: Path, table: Any, epochs: int | None, envs: list[Any]
) -> tuple[Halving | None, float | None, int | None]:
    """Return the rule, the hours and the total epochs of [stop]."""
    if table is None:
        return None, None, None
    limits = ["hours", "total_epochs"]
    if not isinstance(table, dict) or not {"rule", *limits} & table.keys():
        words = "a table with hours, total_epochs, or with rule = 'halving', factor and first_epochs"
        raise _fault(file, "stop", table, words)
    if (name := table.get("rule", "halving")) != "halving":
        raise _fault(file, "stop.rule", name, "'halving'")
    _refuse_unknown(file, "stop.", table, [*limits, *(["rule", *Halving._fields] if "rule" in table else [])])
    hours, total_epochs = map(table.get, limits)
    if hours is not None and not (is_number(hours) and hours > 0):
        raise _fault(file, "stop.hours", hours, "a number above 0, such as 8")
    if total_epochs is not None and not is_whole_number(total_epochs, 1):
        raise _fault(file, "stop.total_epochs", total_epochs, "a whole number above 0, such as 400")
    if "rule" not in table:
        return None, hours, total_epochs
    rule = Halving(table.get("factor", 2), table.get("first_epochs", 1))
    if not is_whole_number(rule.factor, 2):
        raise _fault(file, "stop.factor", rule.factor, "a whole number above 1, such as 2")
    if epochs is None or envs == [None]:
        raise UserError(f"{file}: [stop] needs {'epochs = N' if epochs is None else 'env, for tests'}; add it")
    if not is_whole_number(rule.first_epochs, 1, epochs - 1):
        raise _fault(
            file, "stop.first_epochs", rule.first_epochs, f"a whole number from 1, and less than epochs, {epochs}"
        )
    return rule, hours, total_epochs


def _ranges(file: Path, table: Mapping[str, Any]) -> tuple[dict[str, tuple[str, list[Any]]], int, int]:
    """Return the distribution of each random binding, the number of samples, and the seed of the draws."""
    given = _flat(file, table, "random")
    samples, seed = given.pop("samples", 10), given.pop("seed", 0)
    if not is_whole_number(samples, 1):
        raise _fault(file, "random.samples", samples, "a whole number above 0, such as 20")
    if not is_whole_number(seed, 0):
        raise _fault(file, "random.seed", seed, "a whole number from 0, such as 0")
    ranges: dict[str, tuple[str, list[Any]]] = {}
    for place, values in given.items():
        name, _, kind = place.rpartition(".")
        place = f"random.{place}"
        if kind not in EXAMPLES or not name:
            near = [] if kind in EXAMPLES else similar(kind, EXAMPLES, 1)
            kinds = ", ".join(f"{{{one} = {example}}}" for one, example in EXAMPLES.items())
            hint = f" (did you mean {near[0]}?)" if near else ""
            wanted = f"a distribution of a binding{hint}: {kinds}. For whole numbers, list them: {{choice = [1, 2, 3]}}"
            raise _fault(file, place, values, wanted)
        if name in ranges:
            raise UserError(f"{file}: random.{name} has two distributions; keep one")
        if not isinstance(values, list) or not values:
            raise _fault(file, place, values, f"a list, such as {EXAMPLES[kind]}")
        if kind == "choice":
            ranges[name] = (kind, [_as_gin(file, place, one) for one in values])
            continue
        is_range = len(values) == 2 and all(map(is_number, values))
        if not is_range or not values[0] < values[1] or (kind == "log_uniform" and values[0] <= 0):
            above = ", both above 0" if kind == "log_uniform" else ""
            raise _fault(file, place, values, f"the lowest and the highest number{above}, such as {EXAMPLES[kind]}")
        ranges[name] = (kind, [float(one) for one in values])
    if "random" in table and not ranges:
        raise UserError(f"{file}: [random] has no binding; add one such as SAC.lr = {{log_uniform = [1e-4, 1e-2]}}")
    return ranges, samples, seed


def _draw(ranges: Mapping[str, tuple[str, list[Any]]], seed: int, samples: int) -> Iterator[list[tuple[str, str]]]:
    """Yield samples of the bindings; a larger number of samples begins with the same ones."""
    for number in range(samples):
        generator = np.random.default_rng([seed, number])
        drawn = []
        for name, (kind, values) in sorted(ranges.items()):
            if kind == "choice":
                text = values[generator.integers(len(values))]
            elif kind == "uniform":
                text = repr(float(f"{generator.uniform(*values):.6g}"))
            else:
                text = repr(float(f"{math.exp(generator.uniform(*np.log(values))):.6g}"))
            drawn.append((name, text))
        yield drawn


def _folder(config: str | None, swept: Mapping[str, str]) -> str:
    stem = Path(config).stem if config else "defaults"
    words = "_".join(f"{name.rpartition('.')[2]}={value}" for name, value in swept.items()) or stem
    key = repr((stem, sorted(swept.items()))).encode()
    return f"{path_part(words[:LONGEST])}-{hashlib.blake2b(key, digest_size=3).hexdigest()}"


def _flat(file: Path, table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a table of bindings by their whole names: SAC.lr without quotes is a table within a table."""
    given = table.get(key, {})
    if not isinstance(given, dict):
        raise _fault(file, key, given, f"a table: [{key}], and bindings such as SAC.lr below it")

    def walk(prefix: str, inner: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in inner.items():
            if isinstance(value, dict):
                yield from walk(f"{prefix}{name}.", value)
            else:
                yield f"{prefix}{name}", value

    return dict(walk("", given))


def _as_gin(file: Path, key: str, value: Any) -> str:
    """Return a value as gin writes it. Strings such as "@LinearDecay()", "%MACRO", "{'a': 1}", "None" get no quotes."""
    if isinstance(value, str):
        return value if value.startswith(("@", "%", "{")) or value == "None" else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(_as_gin(file, key, one) for one in value)}]"
    if not isinstance(value, bool | int | float):
        raise _fault(file, key, value, "a number, a text, true, false or a list of these")
    return repr(value)


def _names(file: Path, table: Mapping[str, Any], key: str) -> list[Any]:
    """Return one name or a list of names as a list."""
    given = table.get(key, [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
        raise _fault(file, key, given, "a name or a list of names")
    if len({*names}) < len(names):
        raise _fault(file, key, given, "a list without repetitions")
    return names


def _fault(file: Path, key: str, value: Any, words: str) -> UserError:
    return UserError(f"{file}: {key} is {shown(repr(value))}; it has to be {words}")


def _refuse_unknown(file: Path, prefix: str, table: Mapping[str, Any], known: list[str]) -> None:
    for key in table:
        if key not in known:
            near = similar(key, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"{file}: there is no key {shown(repr(prefix + key))}; {advice}")
