"""README and docs/: generated parts are up to date, links lead somewhere, commands and snippets work, names exist."""

import importlib.util
import json
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import offpcc
from benchmarks import cases, results
from benchmarks.results import groups, speed_ratio, to_floor
from offpcc.algorithms import ALGORITHMS
from offpcc.cli.options import COMMANDS
from offpcc.training.constructors import NAMES

ROOT = Path(offpcc.__file__).parents[1]
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the package is installed without its pages")


def load(name):
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STAGE = load("stage")
PAGES = [page.relative_to(ROOT).as_posix() for page in STAGE.pages()]
OURS = [name for name in PAGES if name == "README.md" or name.startswith("docs/")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_generated_parts_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_has_every_command_and_function():
    commands = (ROOT / "docs/reference/command_line.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"<!-- generated: command {name} -->" not in commands] == []
    api = (ROOT / "docs/reference/python_api.md").read_text(encoding="utf-8")
    names = [name for name in offpcc.__all__ if name not in (*NAMES, "__version__", "configurable")]
    assert [name for name in names if f"<!-- generated: api offpcc.{name} -->" not in api] == []


def test_the_reference_has_all_that_gin_configures():
    assert offpcc.configure  # registers all that gin configures
    from offpcc.config.bindings import configurables
    from offpcc.config.hyperparameters import own_parameters

    page = (ROOT / "docs/reference/gin.md").read_text(encoding="utf-8")
    # Parts of users, which other tests register, are no part of the package.
    known = {name: thing for name, thing in configurables().items() if name.startswith(("offpcc.", "gymnasium."))}
    own = {name.rpartition(".")[2]: thing for name, thing in known.items() if name.startswith("offpcc.")}
    assert {"Imagination", "DynamicsModel", "ModelTraining", "RecurrentMOPO", "OfflineToOnline"} <= {*own}
    wanted = {f"`@{name}`" for name in known if name.startswith("gymnasium.")}
    wanted |= {f"`{short}.{one.name}`" for short, thing in own.items() for one in own_parameters(thing)}
    wanted |= {f"`{short}`" for short, thing in own.items() if not own_parameters(thing)}
    assert {text for text in wanted if text not in page} == set()


def test_each_statistic_of_an_update_is_explained():
    from offpcc.algorithms import ALGORITHMS

    page = (ROOT / "docs/reading_results.md").read_text(encoding="utf-8")
    names = {name for cls in ALGORITHMS.values() for name in cls.stat_names}
    assert len(names) > 15
    assert sorted(name for name in names if f"`update/{name}`" not in page) == []


def test_parameters_of_a_base_class_that_gin_does_not_know_belong_to_its_children():
    from offpcc.config.hyperparameters import own_parameters
    from offpcc.data.buffers.prioritized import PrioritizedReplayBuffer
    from offpcc.networks import Recurrent

    assert "use_previous_action" in {one.name for one in own_parameters(Recurrent)}
    assert {one.name for one in own_parameters(PrioritizedReplayBuffer)} >= {"alpha", "beta"}
    assert "capacity" not in {one.name for one in own_parameters(PrioritizedReplayBuffer)}  # ReplayBuffer's


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 170
    assert [line for line in lines if len(line) > 110] == []


def test_every_page_is_in_the_menu():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    notebooks = {f"examples/{file.stem}.md" for file in (ROOT / "examples").glob("*.ipynb")}
    assert len(listed) == len({*listed}) and {*OURS} | notebooks <= {*listed}
    assert all((ROOT / name).is_file() for name in {*listed} - notebooks)


@pytest.mark.parametrize("name", PAGES)
def test_no_page_has_a_heading_twice(name):
    titles = re.findall(r"^#+ (.*)", FENCE.sub("", (ROOT / name).read_text(encoding="utf-8")), re.MULTILINE)
    assert [title for title in {*titles} if titles.count(title) > 1] == []


# Links ----------------------------------------------------------------------------------------------------------------


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = (
        re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", title) for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    )
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def broken(page):
    """The links of a page that lead nowhere."""
    found = []
    for target, anchor in STAGE.links(page):
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(f"{target}#{anchor}")
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    assert broken(ROOT / name) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One title\n[a](other.md) [b](#one-title) [c](#two) `[d](e.md)` [f](https://example.org)\n")
    assert broken(page) == [f"{tmp_path / 'other.md'}#", f"{page}#two"]


def test_on_the_site_sources_and_notebooks_are_pages(tmp_path):
    STAGE.main(tmp_path)
    page = (tmp_path / "docs" / "index.md").read_text()
    assert "(../examples/memory_on_a_pendulum.md)" in page and "ipynb" not in page
    notebook = (tmp_path / "examples" / "memory_on_a_pendulum.md").read_text()
    assert notebook.startswith("# Memory on a pendulum\n") and "```python\nagent.save(" in notebook
    assert (tmp_path / "examples" / "memory_on_a_pendulum.ipynb").is_file()  # to download
    assert "# offpcc/algorithms/sac.py\n" in (tmp_path / "offpcc" / "algorithms" / "sac.md").read_text()
    broken_links = {
        f"{page.relative_to(tmp_path)}: {target}"
        for page in tmp_path.rglob("*.md")
        for target, _ in STAGE.links(page)
        if not target.is_file()
    }
    assert broken_links == set()


# Names in the text ----------------------------------------------------------------------------------------------------


def code_words(page):
    """Inline code of a page's hand-written and generated text."""
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", [name for name in OURS if name != "docs/reference/python_api.md"])  # docstrings
def test_names_in_the_text_exist(name):
    assert offpcc.configure  # registers all that gin configures
    from offpcc.cli.main import parser
    from offpcc.config.bindings import configurables, parameters

    known = {full.rpartition(".")[2]: parameters(thing) for full, thing in configurables().items()}
    options = {
        word
        for one in parser()._actions[-1].choices.values()
        for action in one._actions
        for word in action.option_strings
    }
    for words in code_words(ROOT / name):
        for owner, parameter in re.findall(r"(?<![\w.@])(\w+)\.(\w+)\b(?!\(|/)", words):
            if owner in known and not re.search(r"\.(md|py|gin)\b", words):
                assert parameter in known[owner], words
        if words.startswith("--"):
            assert words.split()[0].split("=")[0] in {*options, "--index-url"}, words
        for path in re.findall(r"(?<![\w/])configs/[\w/]+\.gin", words):
            assert (ROOT / path).is_file(), words


@pytest.mark.parametrize("name", OURS)
def test_python_names_in_the_text_exist(name):
    owners = {"agent": "offpcc.Agent", "learner": "offpcc.training.experiment.Experiment"}
    for words in code_words(ROOT / name):
        for dotted in re.findall(r"(?<![\w/.])(?:offpcc|agent|learner)(?:\.[A-Za-z_]\w*)+", words):
            first, _, rest = dotted.partition(".")
            assert pkgutil.resolve_name(f"{owners.get(first, first)}.{rest}") is not None, words


def test_the_names_beside_those_of_other_libraries_exist():
    from offpcc.config.bindings import configurables, parameters
    from offpcc.launch import ALGORITHMS

    assert offpcc.configure  # registers all that gin configures
    known = set().union(*(parameters(thing) for thing in configurables().values()))
    page = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    ours = [row.split(" | ")[-1] for row in page.splitlines() if row.startswith("| ")]
    named = {word for cell in ours for word in re.findall(r"`([a-z_]+)(?: = [^`]*)?`", cell)}
    assert len(named) > 30 and {*named} - {*known} - {"agent", "learner", *ALGORITHMS} == set()


# The questions of github.com/Mr-Pepe/offline-model-based-rl, each of which has one binding.
QUESTIONS = {
    "How many networks": "DynamicsModel.num_members",
    "How large is each network": "DynamicsModel.hidden_dims",
    "How often is the model trained": "Imagination.train_every",
    "from scratch": "Imagination.from_scratch",
    "For how long": "ModelTraining.patience",
    "How many epochs at most": "ModelTraining.max_epochs",
    "How many batches at most": "ModelTraining.updates_per_epoch",
    "How many samples are generated per step": "Imagination.steps_per_update",
    "How long may rollouts be": "Imagination.length",
    "May rollouts have no bound": "Imagination.length",
    "How many updates of the agent": "train.updates_per_step",
    "How many interactions": "train.update_every",
    "deleted after the model was trained again": "Imagination.clear",
    "How large is the imagined buffer": "Imagination.capacity",
    "How large is the real buffer": "ReplayBuffer.capacity",
    "How many random steps": "train.update_after",
    "before the first update": "train.update_after",
    "How many steps has an epoch": "train.num_steps_per_epoch",
    "online and on recorded data": "train.num_epochs",
    "How many test episodes": "train.num_test_episodes_per_epoch",
    "How many samples of the dataset": "--dataset_steps",
}


def test_each_question_about_a_model_has_one_binding():
    assert offpcc.configure  # registers all that gin configures
    from offpcc.config.bindings import find_configurable, parameters

    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ")]
    for question, binding in QUESTIONS.items():
        (row,) = [row for row in rows if question in row[0]]
        assert re.match(rf"`{re.escape(binding)}\b", row[1]), row
        if not binding.startswith("--"):
            owner, parameter = binding.split(".")
            assert parameter in parameters(find_configurable(owner))


ZOO = "docs/zoo.md"  # its table is generated from the entries, which tests/cli/test_zoo.py plays again
SPREAD = re.compile(r"(-?[\d,]*\d(?:\.\d+)?)\s±\s([\d,]*\d(?:\.\d+)?)")


def spreads(page):
    """Pairs of a mean and a standard deviation on a page, as text without commas."""
    return {(mean.replace(",", ""), std.replace(",", "")) for mean, std in SPREAD.findall(page.read_text())}


@pytest.mark.parametrize("name", [name for name in OURS if spreads(ROOT / name) and name != ZOO])
def test_published_numbers_are_those_of_the_results(name):
    known = [(float(mean), float(std)) for mean, std in spreads(ROOT / "results" / "README.md")]

    def is_known(mean, std):
        digits = [len(text.partition(".")[2]) for text in (mean, std)]
        return any(f"{a:.{digits[0]}f}" == mean and f"{b:.{digits[1]}f}" == std for a, b in known)

    assert [pair for pair in spreads(ROOT / name) if not is_known(*pair)] == []


@pytest.mark.parametrize(("place", "name"), [(1, "throughput"), (2, "throughput_epyc")])
def test_ratios_of_speed_are_those_of_the_benchmark(place, name):
    measured = set()
    for group in groups(results.read(ROOT / "results" / "benchmarks" / f"{name}.json")).values():
        ours = [row for row in group if row["library"] in cases.OURS]
        measured |= {f"{speed_ratio(row, other):.2f}" for row in ours for other in group if other["library"] != "floor"}
        measured |= {f"{to_floor(row, group):.2f}" for row in ours if to_floor(row, group)}
    table = (
        (ROOT / "results" / "README.md")
        .read_text()
        .partition("| | Intel Xeon | AMD EPYC | aim |\n")[2]
        .partition("\n\n")[0]
    )
    reached = [re.sub(r"\([^)]*\)", "", row.split(" | ")[place]) for row in table.splitlines()[1:]]
    ratios = [ratio for cell in reached for ratio in re.findall(r"(\d\.\d\d) x", cell)]
    assert len(ratios) > 15 and {*ratios} - measured == set()


def test_speeds_of_the_page_on_performance_are_those_of_the_benchmark():
    cases = {"SAC, 256": "sac", "TD3": "td3", "TD3+BC": "td3_bc", "IQL": "iql", "CQL, 3": "cql", "BCQ, 10": "bcq"}
    cases |= {"AWAC": "awac", "ReBRAC": "rebrac", "FQL": "fql", "RLPD": "rlpd"}
    cases |= {"BC": "bc", "`rsac` of the": "rsac", "`rsac`, LSTM 1": "rsac_small"}
    cases |= {f"whole steps of {name}": f"steps_{case}" for name, case in (
        ("SAC, pendulum", "pendulum"), ("SAC, Hopper", "hopper"), ("`cqrdqn`", "pong"), ("`cdqn`", "pong_dqn")
    )}  # fmt: skip
    rows = groups(results.read(ROOT / "results" / "benchmarks" / "throughput.json"))
    page = (
        (ROOT / "docs" / "performance.md")
        .read_text()
        .partition("| | floor | offpcc | compiled | others |")[2]
        .partition("\n\n")[0]
    )
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines()[2:]}
    assert len(lines) == len(cases)
    for title, line in lines.items():
        starts = [start for start in cases if title.startswith(start)]
        group = rows[cases[max(starts, key=len)], 2]
        told = {row["library"]: results.number(row["median"]) for row in group}
        for number in re.findall(r"(?<![\w.,-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w-])", " | ".join(line.split(" | ")[1:])):
            assert number in told.values(), (title, number)


# Commands and snippets ------------------------------------------------------------------------------------------------

ONLINE = {"num_epochs": "1", "num_steps_per_epoch": "250", "update_after": "210", "updates_per_step": "0.05"}
OFFLINE = {"num_epochs": "1", "num_steps_per_epoch": "3"}
TESTS = {"num_test_episodes_per_epoch": "1"}
SMALL_MODEL = ["ModelTraining.max_epochs=2"]
OF_MODELS = [name for name, cls in ALGORITHMS.items() if cls.imagination is not None]
IN_PYTHON = ", ".join(f"{key}={value}" for key, value in (ONLINE | TESTS).items())
DRIVER = """
import json, runpy, sys
import offpcc
import offpcc.training.fit
from offpcc.launch import main
if not json.load(open("pictures.json")):  # they take longer than the runs
    offpcc.training.fit.picture = lambda *given: None
for kind, what in json.load(open("steps.json")):
    print(">", what, flush=True)
    if kind == "config":
        offpcc.configure(what)
    elif kind == "script":
        runpy.run_path(what, run_name="__main__")
    elif code := main(what):
        sys.exit(f"exit code {code}: {what}")
"""
# The files of a page that another one uses, and what a snippet of the README leaves to its reader.
NEEDS = {"README.md": "docs/your_environment.md"}
ARRAYS = """
import numpy as np, offpcc
observations, rewards, terminations = np.random.normal(size=(400, 2)), np.zeros(400), np.zeros(400, bool)
actions, truncations = np.random.uniform(-2.0, 2.0, (400, 1)), np.arange(400) % 100 == 99
"""


def replaced(words, option, value):
    """Words with this value of an option."""
    if option in words:
        words[words.index(option) + 1] = value
        return words
    return [*words, option, value]


def shortened(words):
    """A command that takes seconds."""
    if "--then_env_steps" in words:
        words = replaced(words, "--then_env_steps", "1200")
    if words[0] == "evaluate":
        words = replaced(words, "--fqe_updates", "2") if "--from_data" in words else words
        return replaced(words, "--episodes", "1")
    if words[0] == "collect":
        return replaced(words, "--steps", "400")
    if words[0] == "check":
        steps_count = "--env" in words and "--dataset" not in words
        return replaced(words, "--steps", "300") if steps_count else words
    if words[0] == "train-model":
        return [*words, "--gin", *SMALL_MODEL]
    if not words[0].startswith("--"):  # published runs lie in the repository
        return [str(ROOT / word) if word.startswith("results/published") else word for word in words]
    if "--run_id" in words:
        first = words.index("--run_id") + 2
        while first < len(words) and words[first].isdecimal():
            del words[first]
    settings = {**(OFFLINE if "--dataset" in words else ONLINE), **TESTS}
    settings |= {"num_epochs": "2"} if "--resume" in words else {}
    if "--then_env_steps" in words:
        settings["num_steps_per_epoch"] = "600"
    if "--from" in words:
        settings = {"num_steps_per_epoch": "600", **TESTS}
    given = [f"train.{key}={value}" for key, value in settings.items() if f"train.{key}=" not in " ".join(words)]
    given += SMALL_MODEL if {*OF_MODELS} & {*words} and "--model" not in words else []
    return [*words, "--gin", *given]


def steps(name):
    """The commands, scripts and configs of a page in order, and the text of its files."""
    text, end, found, written = (ROOT / name).read_text(encoding="utf-8"), 0, [], {}
    text = re.sub(r"<!-- generated: .*?<!-- end of generated -->", "", text, flags=re.DOTALL)
    for number, match in enumerate(FENCE.finditer(text)):
        before, code = text[end : match.start()].rstrip(), match[2]
        end = match.end()
        language, target = match[1], re.findall(r"(?:[Pp]ut|and)\s+this\s+into\s+`([\w.]+)`", before)
        lines = [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
        if before.endswith("-->") and "<!-- test: skip" in before.rpartition("\n")[2]:
            continue
        if language == "python":
            file = target[-1] if target else f"snippet_{number}.py"
            code = ARRAYS + code if code.startswith("data = offpcc.Dataset.from_arrays(") else code
            # A call with num_epochs is short already.
            code = re.sub(r"\.train\((?!num_epochs=)", f".train({IN_PYTHON}, ", code)
            written[file] = f"{written[file]}\n\n{code}" if file in written else code  # "into FILE, too"
            found.append(("script", file))
        elif target and target[-1].endswith(".gin"):
            written[target[-1]] = code
        elif language == "" and all(line.startswith("offpcc ") for line in lines):
            found += [("command", shortened(shlex.split(line, comments=True)[1:])) for line in lines]
        elif language == "" and all(re.match(r"include |import |[\w./]+ = ", line) for line in lines):
            written[f"part_{number}.gin"] = code
            found.append(("config", f"part_{number}.gin"))
        elif language == "toml":
            tomllib.loads(code)
        elif language != "text" and not code.startswith(("pip install ", "make ")):
            raise ValueError(f"{name} has a block that no test runs: {code}")
    imported = {word for code in written.values() for word in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)}
    return [step for step in found if step[0] != "script" or Path(step[1]).stem not in imported], written


def run(forks, todo, written, folder, pictures=False):
    """Do all of it in one process, in a folder of its own."""
    for file, code in written.items():
        (folder / file).write_text(code)
    (folder / "steps.json").write_text(json.dumps(todo))
    (folder / "pictures.json").write_text(json.dumps(pictures))
    environment = {"PYTHONPATH": f"{ROOT}:{folder}:{ROOT / 'examples'}", "OFFPCC_RESULTS": "results"}
    code, told = forks.run(DRIVER, folder, environment | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"})
    assert code == 0, told[-6000:]


FAST = ("docs/reference/gin.md",)
PICTURED = ("README.md", "docs/your_environment.md", "docs/images.md")
RUN = [name for name in OURS if name != "docs/real_hardware.md" and steps(name)[0]]  # that page has tests of its own


def test_most_pages_have_commands():
    assert {*FAST, "docs/reproducing.md", "README.md", "docs/your_environment.md", "docs/algorithms/cql.md"} <= {*RUN}
    assert len(steps("README.md")[0]) == 12


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in RUN])
def test_every_command_and_snippet_works(name, tmp_path, forks):
    todo, written = steps(name)
    if name in NEEDS:
        written |= steps(NEEDS[name])[1]
    run(forks, todo, written, tmp_path, pictures=name in PICTURED)


@pytest.mark.parametrize("notebook", [path.name for path in sorted((ROOT / "examples").glob("*.ipynb"))])
@pytest.mark.slow
def test_every_notebook_works(notebook, tmp_path, forks):
    cells = json.loads((ROOT / "examples" / notebook).read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert all(not cell.get("outputs") for cell in cells), "notebooks are kept without outputs"
    written = {"notebook.py": code.replace(".train(", f".train({IN_PYTHON}, ")}
    run(forks, [("script", "notebook.py")], written, tmp_path)
