"""Write the generated parts of the pages: parameters, names, command line, Python API.

    python docs/generate.py           # writes them
    python docs/generate.py --check   # exit code 1 if a page is not up to date

A page marks a generated part with two comments, `<!-- generated: KIND ARGUMENT -->` and `<!-- end of generated -->`.
Everything between them comes from the code: signatures, docstrings, the rules of `offpcc.config.validation`, the
parser of the command line, and the files in `configs/`. The rest of a page is written by hand. One module of the
package is generated as well: the names that `offpcc --help` lists.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gin
from torch import nn

import offpcc
from offpcc.algorithms import ALGORITHMS, variants
from offpcc.algorithms.fused import FUSED_UPDATES
from offpcc.algorithms.fused.eligibility import classes_of
from offpcc.cli.main import parser
from offpcc.cli.zoo import rows as zoo_rows
from offpcc.config.bindings import configurables, find_configurable
from offpcc.config.hyperparameters import (
    REQUIRED,
    described,
    hyperparameters,
    own_parameters,
    sections,
    sentence,
    written,
)
from offpcc.config.registry import REGISTRY
from offpcc.envs import ENVIRONMENTS, LISTED
from offpcc.networks.numpy_inference import LAYERS
from offpcc.training.comparison import MAY_CHANGE
from offpcc.training.models import training  # noqa: F401 (registers its classes)
from offpcc.training.models.imagination import stat_names
from offpcc.utils.edited import PACKAGE, digest

assert offpcc.configure  # its import registers all that gin configures

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
NAMES = ROOT / "offpcc" / "cli" / "names.py"
CONSTRUCTORS = ROOT / "offpcc" / "training" / "constructors.py"
MARKED = re.compile(r"(<!-- generated: (\w+)(?: ([^>]*?))? -->\n).*?(<!-- end of generated -->)", re.DOTALL)
DIGESTS = ROOT / "offpcc" / "utils" / "edited.py"
WIDTH = 110
PEERS = {  # by the beginning of the name of a run's algorithm
    **{"sb3": "stable-baselines3", "d3rlpy": "d3rlpy", "corl": "CORL", "tianshou": "Tianshou"},
    **dict.fromkeys(("ikostrikov", "seohongpark"), "the authors' code"),
}


def one_line(text: str) -> str:
    """Return `text` in one line of Markdown, for a cell of a table."""
    return sentence(text).replace("``", "`").replace("|", r"\|")


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def parameter_table(owner: Any, prefix: str) -> str:
    """Return the table of the `own_parameters` of a class or a function; "" if there are none."""
    rows = []
    for one in hyperparameters(owner, prefix, own=True):
        default = one.default if one.default == REQUIRED else f"`{one.default}`"
        rows.append([f"`{one.name}`", default, one_line(one.meaning), one_line(one.allowed)])
    return table(["parameter", "default", "meaning", "allowed"], rows) if rows else ""


# The kinds of generated parts --------------------------------------------------------------------------------------


def parameters(names: str) -> Iterator[str]:
    """Parameters of classes or functions, one table each."""
    for name in names.split():
        owner = find_configurable(name)
        text = parameter_table(owner, name)
        yield text or f"`{name}` has no parameters of its own.\n"


def of_algorithm(name: str) -> Iterator[str]:
    """All parameters of an algorithm: its own, then those it inherits."""
    cls = REGISTRY[name]
    for place in cls.__mro__:
        if place.__name__ not in REGISTRY or not own_parameters(place):
            continue
        if place.__name__ == "ActorCritic":
            link = "[Parameters of all algorithms](common.md)"
            yield f"{link} apply, too, for example `{name}.gamma` and `{name}.lr`.\n"
            return
        yield f"**{'Its own' if place is cls else f'Inherited from {place.__name__}'}**\n"
        yield parameter_table(place, name)


def facts(name: str) -> Iterator[str]:
    """What a class of algorithms says about itself."""
    cls: Any = REGISTRY[name]
    short = next(key for key, known in ALGORITHMS.items() if known is cls)
    own = [key for key, entry in variants.TABLE.items() if entry.algorithm == short]
    rows = [("names for `--algo`", ", ".join(f"`{key}`" for key in own))]
    rows.append(("class in gin", ", ".join(f"`{ALGORITHMS[key].__name__}`" for key in own)))
    rows.append(("critics by default", str(cls.default_num_critics) if cls.has_critics else "none"))
    normalises = cls.normalizes_recorded or cls.default_normalize_observations
    online = "yes" if cls.default_normalize_observations else "no"
    recorded = "yes" if normalises else "no"
    rows.append(("normalises vector observations by default", f"online: {online}; from recorded data: {recorded}"))
    methods = cls.fused_methods.items() if cls.fused_update else ()
    is_fused = bool(methods) and all(getattr(cls, key, None) is method for key, method in methods)
    rows.append(("fused update on the CPU", "yes" if is_fused else "no"))
    of_model = () if cls.imagination is None else stat_names(cls.trains_model, **cls.imagination)
    rows.append(
        ("columns `update/...` in `progress.csv`", ", ".join(f"`{key}`" for key in (*cls.stat_names, *of_model)))
    )
    yield table(["", f"`{name}`"], rows)


def differs(module: str) -> Iterator[str]:
    """The lists "Differs from ..." in a module's docstring."""
    text = inspect.cleandoc(importlib.import_module(module).__doc__ or "")
    _, found, rest = text.partition("\nDiffers from")
    lines = [re.sub(r"^\* ", "- ", line) for line in f"Differs from{rest}".splitlines()] if found else []
    yield (joined("\n".join(lines)) if lines else "No differences from the paper are known.") + "\n"


def joined(text: str) -> str:
    """Return paragraphs and list items with their lines filled anew to `WIDTH`."""
    blocks: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("- ") or not blocks or blocks[-1] == "":
            blocks.append(line)
        else:
            blocks[-1] += f" {line.strip()}"
    keep = functools.partial(textwrap.fill, width=WIDTH, break_on_hyphens=False, break_long_words=False)
    return "\n".join(keep(line, subsequent_indent="  " if line.startswith("- ") else "") for line in blocks)


def config(path: str) -> Iterator[str]:
    """A file of `configs/`."""
    yield f"```\n{(ROOT / path).read_text(encoding='utf-8')}```\n"


def algorithms(_: str) -> Iterator[str]:
    """All names of `--algo`."""
    header = ["algorithm", "no memory", "a memory for each network", "one memory for all networks"]
    rows = []
    for short in [key for key, entry in variants.TABLE.items() if key == entry.algorithm]:
        kinds: dict[str | None, list[str]] = {None: [], "separate": [], "shared": []}
        for key, entry in variants.TABLE.items():
            if entry.algorithm == short:
                kinds[entry.memory].append(f"`{key}`")
        page = ALGORITHMS[short].__module__.rpartition(".")[2]
        rows.append([f"[{ALGORITHMS[short].__name__}]({page}.md)", *map(", ".join, kinds.values())])
    yield table(header, rows)


def published(_: str) -> Iterator[str]:
    """The tasks on which each algorithm has published runs, and the libraries that have runs of the same task."""
    tasks: dict[str, set[str]] = {}
    for file in (ROOT / "results").glob("published*/**/progress.csv"):  # ENVIRONMENT/ALGORITHM/RUN_ID
        tasks.setdefault(file.parts[-3], set()).add(file.parts[-4])
    rows = []
    for short in [key for key, entry in variants.TABLE.items() if key == entry.algorithm]:
        own = [key for key, entry in variants.TABLE.items() if entry.algorithm == short and key in tasks]
        of_own = set[str]().union(*(tasks[key] for key in own))
        peers = {name.removesuffix(f"-{short}"): tasks[name] for name in tasks if name.endswith(f"-{short}")}
        others = {PEERS[name] for name, theirs in peers.items() if theirs & of_own}
        page = ALGORITHMS[short].__module__.rpartition(".")[2]
        trained = ", ".join(f"`{key}` {len(tasks[key])}" for key in own)
        rows.append([f"[{ALGORITHMS[short].__name__}](algorithms/{page}.md)", trained, ", ".join(sorted(others))])
    yield table(["algorithm", "published runs: name, number of tasks", "other libraries on the same task"], rows)


def algorithm_classes(_: str) -> Iterator[str]:
    """The classes of all algorithms in gin, with the names of their own parameters."""
    rows = []
    for short in [key for key, entry in variants.TABLE.items() if key == entry.algorithm]:
        cls = ALGORITHMS[short]
        names = [ALGORITHMS[key].__name__ for key, entry in variants.TABLE.items() if entry.algorithm == short]
        own = [one.name for one in hyperparameters(cls, own=True)]
        page = cls.__module__.rpartition(".")[2]
        rows.append(
            [", ".join(f"`{one}`" for one in part) for part in (names, own)] + [f"[{page}](../algorithms/{page}.md)"]
        )
    yield table(["classes", "own parameters", "page"], rows)


def environments(_: str) -> Iterator[str]:
    """All environments of the library."""
    rows = []
    for one in LISTED:
        shape = " x ".join(map(str, one.observation_shape))
        rows.append([f"`{one.name}`", shape, one.actions, str(one.max_episode_steps), one.hidden])
        rows[-1].append(f"`{one.package}`" if one.package else "")
    yield table(["name", "observation", "actions", "steps", "hidden", "needs"], rows)


def command(name: str) -> Iterator[str]:
    """The options of a command, from its parser."""
    commands = next(one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    rows = []
    for one in commands.choices[name]._actions:
        if one.dest == "help":
            continue
        words = " ".join(one.option_strings)
        metavar = "" if one.nargs == 0 else one.metavar if isinstance(one.metavar, str) else ""
        value = one.default[0] if isinstance(one.default, list) and one.default else one.default
        given = [] if value in (None, False, []) else [f"default: {value}"]
        text = "; ".join([*filter(None, [one.help]), *(part for part in given if "default" not in (one.help or ""))])
        option = f"{words} {metavar.replace('|', ' or ')}".strip() + (" ..." if one.nargs in ("+", "*") else "")
        rows.append([f"`{option}`", "yes" if one.required else "", one_line(text)])
    yield table(["option", "required", "meaning"], rows)


def may_change(_: str) -> Iterator[str]:
    """The bindings that a resumed run may change."""
    yield joined("- " + ", ".join(f"`{name}`" for name in MAY_CHANGE)) + "\n"


def zoo(_: str) -> Iterator[str]:
    """The trained agents, with a picture of each."""
    yield "| name | environment | algorithm | steps | return over 100 episodes |\n| --- | --- | --- | --- | --- |"
    found = [*zoo_rows()]
    yield from (f"| {' | '.join((f'`{row[0]}`', *row[1:]))} |" for row in found)
    yield from (f"\n![{row[0]}](../results/zoo/{row[0]}/picture.png)" for row in found)
    yield ""


def gymnasium_wrappers(_: str) -> Iterator[str]:
    """Gymnasium's wrappers that gin knows."""
    names = sorted(name for name in configurables() if name.startswith("gymnasium."))
    yield joined("- " + ", ".join(f"`@{name}`" for name in names)) + "\n"


def api(name: str) -> Iterator[str]:
    """A class or a function: signature and docstring, and the public fields, properties and methods of a class."""
    module, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(module), last)
    yield f"### {last}\n"
    yield from entry(name, thing)
    if not inspect.isclass(thing):
        return
    if told := [f"- `{key}`: {words}" for key, words in fields_of(thing).items()]:
        yield "Fields:\n\n" + markdown("\n".join(told))
    properties = {key: one for key, one in vars(thing).items() if not key.startswith("_") and isinstance(one, property)}
    if told := [f"- `{key}`: {' '.join(one.__doc__.split())}" for key, one in properties.items() if one.__doc__]:
        yield "Properties:\n\n" + markdown("\n".join(told))
    for key, member in vars(thing).items():
        is_function = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        if key.startswith("_") or not is_function or not getattr(thing, key).__doc__:
            continue
        yield f"#### {last}.{key}\n"
        yield from entry(f"{last}.{key}", getattr(thing, key))


def fields(name: str) -> Iterator[str]:
    """A class of values: what it is, and its fields."""
    module, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(module), last)
    yield f"### {last}\n"
    yield markdown(sections(inspect.cleandoc(written(thing) or ""))[""])
    yield markdown("\n".join(f"- `{key}`: {words}" for key, words in fields_of(thing).items()))


def fields_of(cls: type) -> dict[str, str]:
    """Return the comments beside or above the fields of a class, by name."""
    if not issubclass(cls, tuple) and not dataclasses.is_dataclass(cls):
        return {}
    found, above = dict[str, str](), list[str]()
    for line in inspect.getsource(cls).splitlines():
        if match := re.match(r"    (?P<name>[a-z]\w*): [^#]*(?:# (?P<words>.*))?$", line):
            words = " ".join(filter(None, [*above, match["words"]]))
            found |= {match["name"]: words} if words else {}
        above = [*above, line.strip("# ")] if line.startswith("    # ") else []
    return found


def entry(name: str, thing: Any) -> Iterator[str]:
    """The signature and the docstring of one class or function."""
    documentation = inspect.cleandoc(written(thing) or "")
    parts = sections(documentation)
    if "Args" in parts or not inspect.isclass(thing):  # a class without is not built by users
        yield f"```python\n{signature_of(name, thing)}\n```\n"
    for title, text in parts.items():
        if title == "":
            yield markdown(text)
        elif title in ("Args", "Raises", "Attributes"):
            entries = described(documentation, title)
            hidden = ("observation_space", "action_space") if "kwargs" in entries else ()
            lines = [f"- `{key}`: {' '.join(words.split())}" for key, words in entries.items() if key not in hidden]
            heading = {"Args": "Arguments"}.get(title, title)
            yield f"{heading}:\n\n" + markdown("\n".join(lines))
        else:
            yield markdown(f"{title}: {inspect.cleandoc(text)}")


def signature_of(name: str, thing: Any) -> str:
    """Return the signature with one parameter a line where it is long."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    words = []
    previous = None
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and previous not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            words.append("*")
        previous = one.kind
        text = re.sub(r"\"|'", "", str(one.replace(annotation=one.empty, default=one.empty)))
        if one.default is not one.empty:
            given = getattr(one.default, "func", one.default)  # of a functools.partial
            if given is gin.REQUIRED:
                text += "=gin.REQUIRED"
            elif isinstance(given, str):
                text += f'="{given}"'  # as ruff writes it, which formats pages, too
            else:
                text += f"={given.__name__ if callable(given) else repr(given)}"
        words.append(text)
    whole = f"{name}({', '.join(words)})"
    return whole if len(whole) <= 100 else f"{name}(\n    " + ",\n    ".join(words) + ",\n)"


def markdown(text: str) -> str:
    """Return a part of a docstring as Markdown: `::` opens a block of code."""
    text = text.replace("``", "`")
    parts, inside = [], False
    for block in re.split(r"\n\s*\n", text):
        if inside and block.startswith("    "):
            code = textwrap.dedent(block)
            previous = parts[-1].removesuffix("\n```") + "\n\n" if parts[-1].startswith("```") else "```python\n"
            parts[-1:] = (
                [f"{previous}{code}\n```"] if parts[-1].startswith("```") else [parts[-1], f"{previous}{code}\n```"]
            )
            continue
        inside = block.rstrip().endswith("::")
        block = re.sub(r"::$", ":", block.rstrip())
        block = "\n".join(re.sub(r"^\* ", "- ", line) for line in block.splitlines())
        parts.append(joined(block))
    return "\n\n".join(parts) + "\n"


KINDS: Mapping[str, Callable[[str], Iterator[str]]] = {
    one.__name__: one
    for one in (
        parameters, of_algorithm, facts, differs, config, algorithms, algorithm_classes, published, environments,
        command,
        may_change, zoo, gymnasium_wrappers, api, fields,
    )
}  # fmt: skip


def generated(page: str) -> str:
    """Return a page with its generated parts written anew."""

    def part(match: re.Match[str]) -> str:
        text = "\n".join(KINDS[match[2]](match[3] or ""))
        return f"{match[1]}\n{text}\n{match[4]}"

    return MARKED.sub(part, page)


def pages() -> list[Path]:
    """Return all pages that may have generated parts."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def names_of_help() -> str:
    """Return the module with the names that `offpcc --help` lists, which must not import torch to find them."""
    lists = {"ALGORITHMS": list(ALGORITHMS), "ENVIRONMENTS": [environment.name for environment in ENVIRONMENTS]}
    text = '"""Names that --help lists, written by docs/generate.py: the tables of the names import torch."""\n'
    for name, entries in lists.items():
        lines = textwrap.wrap(" ".join(entries), 110, break_on_hyphens=False)
        body = "\n".join(f'    "{line} "' for line in lines)
        text += f"\n{name} = (  # separated by spaces\n{body}\n)\n"
    return text


def outdated() -> dict[Path, str]:
    """Return the new text of each page whose generated parts are not up to date."""
    found = {}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := generated(text)) != text:
            found[page] = new
    if not NAMES.is_file() or NAMES.read_text(encoding="utf-8") != names_of_help():
        found[NAMES] = names_of_help()
    text = CONSTRUCTORS.read_text(encoding="utf-8")
    if text != (new := with_names_of_constructors(text)):
        found[CONSTRUCTORS] = new
    text = DIGESTS.read_text(encoding="utf-8")
    if text != (new := with_digests(text)):
        found[DIGESTS] = new
    return found


def with_digests(text: str) -> str:
    """Return the text of `DIGESTS` with a digest of each module that a fused update or a mirror computes again."""
    found = [cls for algorithm, fused in FUSED_UPDATES.items() for cls in classes_of(algorithm, fused)]
    classes = [nn.Module]
    for cls in classes:
        classes += cls.__subclasses__()
        if "mirror" in vars(cls) or cls in LAYERS:
            found += cls.__mro__
    names = sorted({cls.__module__ for cls in found if cls.__module__.startswith(PACKAGE)})
    lines = "".join(f'    "{name.removeprefix(PACKAGE)}": "{digest(name)}",\n' for name in names)
    return re.sub(r"(\nDIGESTS: [^\n]*\{\n).*?(\})", rf"\g<1>{lines}\g<2>", text, flags=re.DOTALL)


def with_names_of_constructors(text: str) -> str:
    """Return the text of `CONSTRUCTORS` with the names of all algorithms."""
    names = {name for short, cls in ALGORITHMS.items() for name in (cls.__name__, short.upper())}
    words = " ".join(f"{name}:_Constructor;" for name in sorted(names))
    listed = textwrap.fill(words, 120).replace(":_", ": ").replace(";\n", "\n").removesuffix(";")
    return re.sub(r"(# fmt: off\n).*?(\n# fmt: on)", rf"\g<1>{listed}\g<2>", text, flags=re.DOTALL)


def main() -> int:
    """Write or check the generated parts, and return the exit code."""
    is_check = sys.argv[1:] == ["--check"]
    found = outdated()
    for page, text in found.items():
        if not is_check:
            page.write_text(text, encoding="utf-8")
        print(
            f"{page.relative_to(ROOT)}: {'is not up to date; run python docs/generate.py' if is_check else 'written'}"
        )
    return 1 if is_check and found else 0


if __name__ == "__main__":
    sys.exit(main())
