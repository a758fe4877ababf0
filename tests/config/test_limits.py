"""Configs of a few lines that would cost minutes or all memory: each is refused at once, in one message."""

import contextlib
import io
import multiprocessing
import os
import resource
from pathlib import Path

import pytest
from conftest import QUICK, run_folder

from offpcc.cli import train  # noqa: F401 (registers what gin can configure)
from offpcc.cli.main import main
from offpcc.config import loading
from offpcc.config.limits import (
    DEEPEST,
    LONGEST_NAME,
    LONGEST_STRING,
    MOST_BYTES,
    MOST_INCLUDING,
    MOST_STATEMENTS,
    MOST_VALUES,
)
from offpcc.utils.errors import UserError

PATIENCE = 60  # seconds, of which a refusal takes less than one
MEMORY = 4 * 2**30  # bytes beside what this process holds
SHORT = "include 'test/template_short.gin'\n"


def lines(*given):
    return "\n".join([SHORT, *given])


def doubled(first, following, number=27):
    """A line, and more of them that each refer to the last one twice."""
    return [first, *(following.format(this=i, last=i - 1) for i in range(1, number + 1))]


BOMBS = {  # by name, the files and words of the message
    "includes": (
        {f"{i}": f"include '{i + 1}.gin'\n" * 2 for i in range(26)} | {"26": "SAC.lr = 1e-3\n"},
        "includes are nested more than 20 deep",
    ),
    "shallow_includes": (
        {f"{i}": f"include '{i + 1}.gin'\n" * 8 for i in range(9)} | {"9": "SAC.lr = 1e-3\n"},
        "more than 1,000 bindings",
    ),
    "include_chain": ({f"{i}": f"include '{i + 1}.gin'\n" for i in range(900)}, "merge some configs"),
    "large_includes": (
        {"0": "include '1.gin'\n" * 900, "1": f"# {'x' * 200_000}\n"},
        "bytes, more than 262,144",
    ),
    "macros": (
        {"0": lines(*doubled("m0 = 1", "m{this} = [%m{last}, %m{last}]"), "SAC.hidden_dims = %m27")},
        "100,000 values",
    ),
    "macro_chain": (
        {"0": lines("m0 = 1", *(f"m{i} = %m{i - 1}" for i in range(1, 900)), "SAC.lr = %m899")},
        "nested too deeply",
    ),
    "references": (
        {
            "0": lines(
                "m0/make.kwargs = None",
                *doubled("make.timeout = 5", "m{this}/make.kwargs = [@m{last}/make(), @m{last}/make()]"),
                "make.kwargs = @m27/make()",
            )
        },
        "100,000 values",
    ),
    "reference_to_itself": ({"0": lines("make.kwargs = @make()")}, "refers to itself"),
    "references_in_a_ring": (
        {"0": lines("SAC.lr = @a/make()", "a/make.kwargs = {'x': [@b/make()]}", "b/make.kwargs = @a/make()")},
        "refers to itself",
    ),
    "schedule_of_itself": ({"0": lines("SAC.lr = @LinearDecay()", "LinearDecay.final = @LinearDecay()")}, "itself"),
    "encoder_of_itself": (
        {"0": lines("SAC.encoder = @Recurrent", "Recurrent.feature_extractor = @Recurrent")},
        "it has to be an encoder class without memory",
    ),
    "wrappers": ({"0": lines(f"make.wrappers = [{'@Flicker, ' * 3_000}]", "Flicker.probability = 0.1")}, "3,000 wrap"),
    "tuples": ({"0": lines(f"SAC.hidden_dims = {'(' * 200}1{',)' * 200}")}, "nested too deeply"),
    "lists": ({"0": lines(f"SAC.hidden_dims = {'[' * 100_000}1{']' * 100_000}")}, "nested too deeply"),
    "dictionaries": ({"0": lines("make.kwargs = " + "{'a': " * 150 + "1" + "}" * 150)}, "nested too deeply"),
    "parentheses": ({"0": lines(f"SAC.lr = {'(' * 900}1{')' * 900}")}, "nested too deeply"),
    "long_line": ({"0": lines(f"SAC.hidden_dims = ({'1, ' * 60_000})")}, "1,000 numbers or fewer"),
    "longer_line": ({"0": lines(f"SAC.hidden_dims = ({'1, ' * 3_000_000})")}, "too many for a config"),
    "large_file": ({"0": "# nothing\n" * 500_000}, "too many for a config"),
    "bindings": ({"0": "SAC.lr = 1\n" * 20_000}, "more than 1,000 bindings"),
    "strings": ({"0": lines(f"SAC.lr = {repr('') * 60_000}")}, "has more than 5,000 letters"),
    "strings_in_lines": ({"0": lines("make.kwargs = (" + "'a'\n" * 60_000 + ")")}, "has more than 5,000 letters"),
    "string": ({"0": lines(f"SAC.lr = '{'x' * 9_000}'")}, "has a string of more than 5,000 letters"),
    "scopes": ({"0": lines(f"{'a/' * 100_000}SAC.lr = 1")}, "has more than 500 letters"),
    "scopes_of_a_reference": ({"0": lines(f"SAC.lr = @{'a/' * 100_000}LinearDecay()")}, "has more than 500 letters"),
    "digits": ({"0": lines(f"SAC.n_step = 0x{'f' * 200_000}")}, "digits; the largest whole number is"),
}


def tell(pipe, words):
    """Run the command line in a process of bounded memory; what came of it."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    pipe.send((code, errors.getvalue()))


def told(words):
    """Exit code and errors of a command line, which has to end in time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=tell, args=(theirs, words))
    process.start()
    theirs.close()
    try:
        assert ours.poll(PATIENCE), "it takes too long"
        return ours.recv()
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_one_message(tmp_path, monkeypatch, name):
    files, words = BOMBS[name]
    for file, text in files.items():
        (tmp_path / f"{file}.gin").write_text(text)
    monkeypatch.chdir(tmp_path)
    command = "--env pendulum-p-v0 --algo sac --config 0.gin --results results"
    code, errors = told(command.split())
    assert (code, errors.count("\n"), errors[:8]) == (2, 1, "offpcc: "), errors[-2_000:]
    assert words in errors and len(errors) < 1_000
    assert not (tmp_path / "results").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = "--env pendulum-p-v0 --algo sac --config test/template_short.gin --results results --gin"
        assert main([*words.split(), *QUICK]) == 0
    return run_folder(folder)


@pytest.mark.parametrize("name", ["macros", "references", "reference_to_itself", "bindings", "large_file", "lists"])
def test_so_is_one_in_a_runs_folder(run, name):
    text = BOMBS[name][0]["0"].replace(SHORT, "").replace("SAC.hidden_dims", "make.kwargs")
    before = (run / "config.gin").read_text()
    (run / "config.gin").write_text(text)
    try:
        code, errors = told(["evaluate", str(run), "--episodes", "1"])
    finally:
        (run / "config.gin").write_text(before)
    assert (code, errors.count("\n"), errors[:8]) == (2, 1, "offpcc: "), errors[-2_000:]


def chain(length):
    """Texts of configs, each of which includes the next."""
    return [*(f"include '{i + 1}.gin'\n" for i in range(length)), "SAC.gamma = 0.5\n"]


def nested(depth):
    return [f"make.kwargs = {'[' * depth}1{']' * depth}\n"]


def macros(depth):
    return ["m0 = 1\n" + "".join(f"m{i} = %m{i - 1}\n" for i in range(1, depth)) + f"SAC.lr = %m{depth - 1}\n"]


@pytest.mark.parametrize(
    "texts, number",
    [
        (chain, MOST_INCLUDING),
        (lambda number: ["SAC.gamma = 0.5\n" * number], MOST_STATEMENTS),
        (nested, DEEPEST),
        (macros, DEEPEST),
        (lambda number: [f"SAC.lr = '{'x' * (number - 2)}'\n"], LONGEST_STRING),
        (lambda number: [f"{'a' * (number - 7)}/SAC.lr = 1\n"], LONGEST_NAME),
        (lambda number: [f"m = [{'1, ' * (number // 10 - 2)}]\nmake.kwargs = [{'%m, ' * 9}]\n"], MOST_VALUES),
        (lambda number: [f"#{'x' * (number - 1)}"], MOST_BYTES),
    ],
)
def test_a_config_that_is_just_within_a_bound_is_taken(tmp_path, texts, number):
    for size, is_taken in ((number, True), (number + 10, False)):
        for file, text in enumerate(texts(size)):
            (tmp_path / f"{file}.gin").write_text(text)
        with contextlib.nullcontext() if is_taken else pytest.raises(UserError):
            loading.load_gin_config(tmp_path / "0.gin", [])
