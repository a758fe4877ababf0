"""Write the generated parts of the pages: parameters, names, command line, Python API.

    python docs/generate.py           # writes them
    python docs/generate.py --check   # exit code 1 if a page is not up to date

A page marks a generated part with two comments, `<!-- generated: KIND ARGUMENT -->` and `<!-- end of generated -->`.
Everything between them comes from the code: signatures, docstrings, the rules of `offpcc.config.validation`, the
parser of the command line, and the files in `configs/`. The rest of a page is written by hand.
"""

from __future__ import annotations

import argparse
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

import offpcc
from offpcc.algorithms import ALGORITHMS, FUSED_UPDATES, variants
from offpcc.cli.main import parser
from offpcc.config.bindings import configurables, passed_by_us
from offpcc.config.registry import REGISTRY
from offpcc.config.validation import rules_of
from offpcc.envs import ENVIRONMENTS
from offpcc.training.comparison import MAY_CHANGE

assert offpcc.configure  # its import registers all that gin configures

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
MARKED = re.compile(r"(<!-- generated: (\w+)(?: ([^>]*?))? -->\n).*?(<!-- end of generated -->)", re.DOTALL)
SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Yields|Note|Example):$")
WIDTH = 110
# Parameters whose meaning stands in no `Args` section of the function that gin configures.
MEANINGS = {
    "dataset.return_range": "scale rewards, so that the largest and the smallest return of whole episodes differ by "
    "this number; None to keep them.",
    "dataset.max_episode_steps": "time limit of the recorded environment, for data that marks no truncations.",
    "dataset.action_range": "lowest and highest action of the recording, which are scaled to -1 and 1; default: the "
    "bounds of the environment.",
    "LinearDecay.initial": "rate at the first update.",
    "LinearDecay.final": "rate after `num_updates` updates.",
    "LinearDecay.num_updates": "number of updates of the decay.",
}
MEANINGS |= {name.replace("Linear", "Cosine"): text for name, text in MEANINGS.items() if name.startswith("Linear")}


def one_line(text: str) -> str:
    """Return `text` in one line of Markdown, for a cell of a table."""
    plain = " ".join(text.split()).replace("``", "`").replace("|", r"\|")
    return plain[:1].upper() + plain[1:] if plain[:1].islower() else plain


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def sections(documentation: str) -> dict[str, str]:
    """Split a docstring in Google's style; the text before the first section has the name ""."""
    found: dict[str, list[str]] = {"": []}
    name = ""
    for line in documentation.splitlines():
        if match := SECTION.match(line):
            name = match[1]
            found[name] = []
        else:
            found[name].append(line)
    return {name: "\n".join(lines).strip("\n") for name, lines in found.items()}


def described(documentation: str | None, section: str = "Args") -> dict[str, str]:
    """Return the entries `name: text` of a section of a docstring."""
    found: dict[str, str] = {}
    name = ""
    for line in sections(inspect.cleandoc(documentation or "")).get(section, "").splitlines():
        if match := re.match(r"    (\*{0,2}[\w.]+): (.*)", line):
            name, found[match[1]] = match[1], match[2]
        elif name:
            found[name] += f"\n{line.strip()}" if line.strip() else "\n"
    return found


def meaning(owner: Any, name: str) -> str:
    """Return what a parameter means, from the docstring of its function or class, or of the one it refers to."""
    others = {"make": offpcc.make}
    if given := MEANINGS.get(f"{owner.__name__.replace('dataset_options', 'dataset')}.{name}"):
        return given
    seen: list[Any] = []
    waiting = list(owner.__mro__) if inspect.isclass(owner) else [owner]
    while waiting:
        place = waiting.pop(0)
        seen.append(place)
        text = described(place.__doc__).get(name, "")
        if not re.match(r"[Ss]ee `", text):
            if text:
                return text
            continue
        for word in re.findall(r"`(\w+)`", text):
            other = (
                REGISTRY.get(word) or others.get(word) or getattr(importlib.import_module(place.__module__), word, 0)
            )
            if other and other not in seen:
                waiting.insert(0, other)
    return ""


def default(value: Any) -> str:
    """Return a default as gin would write it."""
    if value is inspect.Parameter.empty or value is gin.REQUIRED:
        return "required"
    if isinstance(value, float):
        return f"`{value:.4g}`" if len(repr(value)) > 8 else f"`{value!r}`"
    return f"`@{value.__name__}`" if callable(value) else f"`{value!r}`"


def own_parameters(owner: Any) -> list[inspect.Parameter]:
    """Return the parameters that a class or a function itself declares and that gin may set."""
    if inspect.isclass(owner) and "__init__" not in vars(owner):
        return []
    signature = inspect.signature(owner.__init__ if inspect.isclass(owner) else owner)
    passed = {*passed_by_us(owner), "self"}
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [one for one in signature.parameters.values() if one.name not in passed and one.kind not in kinds]


def parameter_table(owner: Any, prefix: str = "") -> str:
    """Return the table of the parameters that a class or a function itself declares; "" if there are none."""
    rules = rules_of(owner)
    rows = []
    for one in own_parameters(owner):
        rule = rules[one.name].words if one.name in rules else ""
        rows.append([f"`{prefix}{one.name}`", default(one.default), one_line(meaning(owner, one.name)), one_line(rule)])
    return table(["parameter", "default", "meaning", "allowed"], rows) if rows else ""


def find(name: str) -> Any:
    """Return a class or a function by its name in gin."""
    if name in REGISTRY:
        return REGISTRY[name]
    return next(known for full, known in configurables().items() if full.rpartition(".")[2] == name)


# The kinds of generated parts --------------------------------------------------------------------------------------


def parameters(names: str) -> Iterator[str]:
    """Parameters of classes or functions, one table each."""
    for name in names.split():
        owner = find(name)
        text = parameter_table(owner, f"{name}.")
        yield text or f"`{name}` has no parameters of its own.\n"


def hyperparameters(name: str) -> Iterator[str]:
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
        yield parameter_table(place, f"{name}.")


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
    rows.append(("fused update on the CPU", "yes" if cls in FUSED_UPDATES else "no"))
    rows.append(("columns `update/...` in `progress.csv`", ", ".join(f"`{key}`" for key in cls.stat_names)))
    yield table(["", ""], rows)


def differs(module: str) -> Iterator[str]:
    """The lists "Differs from ..." in a module's docstring."""
    text = inspect.cleandoc(importlib.import_module(module).__doc__ or "")
    _, found, rest = text.partition("\nDiffers from")
    lines = [re.sub(r"^\* ", "- ", line) for line in f"Differs from{rest}".splitlines()] if found else []
    yield (joined("\n".join(lines)) if lines else "The docstring lists no differences.") + "\n"


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
        rows.append([f"[{REGISTRY[ALGORITHMS[short].__name__].__name__}]({short}.md)", *map(", ".join, kinds.values())])
    yield table(header, rows)


def environments(_: str) -> Iterator[str]:
    """All environments of the library."""
    rows = []
    for one in ENVIRONMENTS:
        shape = " x ".join(map(str, one.observation_shape))
        rows.append([f"`{one.name}`", shape, str(one.action_size), str(one.max_episode_steps), one.hidden])
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
        option = f"{words} {metavar.replace('|', ' or ')}".strip() + (" ..." if one.nargs == "+" else "")
        rows.append([f"`{option}`", "yes" if one.required else "", one_line(text)])
    yield table(["option", "required", "meaning"], rows)


def may_change(_: str) -> Iterator[str]:
    """The bindings that a resumed run may change."""
    yield joined("- " + ", ".join(f"`{name}`" for name in MAY_CHANGE)) + "\n"


def gymnasium_wrappers(_: str) -> Iterator[str]:
    """Gymnasium's wrappers that gin knows."""
    names = sorted(name for name in configurables() if name.startswith("gymnasium."))
    yield joined("- " + ", ".join(f"`@{name}`" for name in names)) + "\n"


def api(name: str) -> Iterator[str]:
    """A class or a function: signature and docstring, and the public methods of a class."""
    module, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(module), last)
    yield f"### {last}\n"
    yield from entry(name, thing)
    if not inspect.isclass(thing):
        return
    for key, member in vars(thing).items():
        is_function = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        if key.startswith("_") or not is_function or not getattr(thing, key).__doc__:
            continue
        yield f"#### {last}.{key}\n"
        yield from entry(f"{last}.{key}", getattr(thing, key))


def entry(name: str, thing: Any) -> Iterator[str]:
    """The signature and the docstring of one class or function."""
    parts = sections(inspect.getdoc(thing) or "")
    if "Args" in parts or not inspect.isclass(thing):  # a class without is not built by users
        yield f"```python\n{signature_of(name, thing)}\n```\n"
    for title, text in parts.items():
        if title == "":
            yield markdown(text)
        elif title in ("Args", "Raises", "Attributes"):
            entries = described(thing.__doc__, title)
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
        parameters, hyperparameters, facts, differs, config, algorithms, environments, command, may_change,
        gymnasium_wrappers, api,
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


def outdated() -> dict[Path, str]:
    """Return the new text of each page whose generated parts are not up to date."""
    found = {}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := generated(text)) != text:
            found[page] = new
    return found


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
