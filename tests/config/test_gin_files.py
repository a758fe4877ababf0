"""Where configs are looked for, and what is said of those that cannot be read."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gin
import pytest
from test_loading import refused, write

from offpcc.config import loading
from offpcc.config.gin_files import CONFIGS, MOST_INCLUDING, find_config, read_config, read_text
from offpcc.utils.errors import UserError


def test_a_config_is_found_as_given_from_the_root_and_below_configs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("configs/quickstart.gin", "quickstart.gin", "test/template_short.gin"):
        for given in (name, name.removesuffix(".gin")):
            assert find_config(given).resolve() == CONFIGS / name.removeprefix("configs/")
    mine = write(tmp_path / "quickstart.gin", "SAC.alpha = 0.3")
    assert find_config("quickstart.gin").resolve() == find_config("quickstart").resolve() == mine


def test_an_include_is_found_beside_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    write(tmp_path / "parts" / "alpha.gin", "SAC.alpha = 0.3")
    file = write(
        tmp_path / "parts" / "mine.gin", "include 'configs/base.gin'\ninclude 'alpha.gin'\nSAC.alpha_lr = 1e-3"
    )
    loading.load_gin_config(file, [])
    assert gin.query_parameter("SAC.alpha") == 0.3
    assert gin.query_parameter("ActorCritic.gamma") == 0.99


def test_a_missing_module_comes_with_the_places_that_were_searched(tmp_path):
    file = write(tmp_path / "mine.gin", "import no_such_lab")
    assert "in the working directory, beside the config, or installed" in refused(file)
    write(tmp_path / "lab" / "no_such_lab.py", "")
    other = write(tmp_path / "lab" / "mine.gin", "SAC.alpha = 0.3")
    with pytest.raises(UserError, match=r"in the working directory or installed; .* import it in a config beside it"):
        loading.load_gin_config(other, [], modules=["no_such_lab"])


def test_bindings_come_in_the_order_in_which_they_stand_and_nothing_is_bound(tmp_path):
    part = write(tmp_path / "part.gin", "\nSAC.alpha = 0.3")
    file = write(tmp_path / "mine.gin", "SAC.lr = 1.0\ninclude 'part.gin'\nSAC.lr = 2.0")
    read = [(statement.arg_name, statement.value, where) for statement, where in read_config(file)]
    assert read == [("lr", 1.0, f"{file}:1"), ("alpha", 0.3, f"{part}:2"), ("lr", 2.0, f"{file}:3")]
    assert gin.config_str() == ""


def test_a_missing_config_names_the_near_ones(tmp_path, monkeypatch):
    assert "configs/test/template_short.gin" in refused("template_short.gin")
    assert "there is no config 'xyz.gin'" in refused("xyz.gin")
    assert f"it is not in {Path.cwd()}, so give its path; offpcc's configs are below" in refused("xyz.gin")
    assert "it is not in" not in refused(f"{tmp_path}/xyz.gin")
    file = write(tmp_path / "lab" / "mine.gin", "\ninclude 'xyz.gin'")
    assert f"{file}:2: there is no config 'xyz.gin'; it is not in {file.parent} or {Path.cwd()}, so" in refused(file)
    monkeypatch.chdir(tmp_path)
    for name in ("qqq", "qqq.gin"):
        (tmp_path / name).mkdir()
        assert "(this path is a folder, a device or a broken link); offpcc's configs are below" in refused(name)
    (tmp_path / "swimmer_long.gin").touch()
    assert f"did you mean {tmp_path}/swimmer_long.gin?" in refused(f"{tmp_path}/swimmer_lnog.gin")


def test_an_include_of_itself_is_refused(tmp_path):
    file = write(tmp_path / "a.gin", "include 'b.gin'")
    write(tmp_path / "b.gin", "include 'a.gin'")
    assert "includes itself" in refused(file)


@pytest.mark.parametrize(
    "binding, words",
    [
        ("SAC.lr=fast", ["(Failed to parse token 'fast')", "a number, a string in quotes"]),
        ("SAC.lr=-fast", ["'-fast'"]),
        ("SAC.normalize_observations=true", ["'true'", "such as True"]),
        ("SAC.hidden_dims=(64, 64", ["is not closed after", "(64, 64"]),
        ("SAC.hidden_dims=[64, 64", ["is not closed after"]),
    ],
)
def test_what_gin_cannot_read_is_told_in_one_line(tmp_path, binding, words):
    for message in (refused(None, binding), refused(write(tmp_path / "a.gin", f"SAC.alpha = 1\n{binding}\n"))):
        assert all(word in message for word in words)
        assert "\n" not in message and " at 0x" not in message


def test_threads_that_parse_at_once_all_succeed():
    """In Python 3.11.7, `ast.literal_eval` fails if another thread calls it while it makes its objects."""

    class Slow:  # the garbage collection of one lets other threads run in the middle of a parse
        def __init__(self):
            self.itself = self

        def __del__(self):
            list(range(100))

    def parse():
        for _ in range(40):
            found.append(len([Slow() and one for one in read_text(text, "a text")]))

    found, thresholds, interval = [], gc.get_threshold(), sys.getswitchinterval()
    text = "\n".join(f"ReplayBuffer.capacity = [{number}, {{'a': {number}}}]" for number in range(50))
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(parse) for _ in range(4)]:
                future.result()
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
    assert found == [50] * 160


MISTAKES = {  # by name, the files and words of the message
    "include_chain": ({f"{i}": f"include '{i + 1}.gin'\n" for i in range(900)}, "merge some configs"),
    "reference_to_itself": ({"0": "make.kwargs = @make()"}, "refers to itself"),
    "references_in_a_ring": (
        {"0": "SAC.lr = @a/make()\na/make.kwargs = {'x': [@b/make()]}\nb/make.kwargs = @a/make()"},
        "refers to itself",
    ),
    "schedule_of_itself": ({"0": "SAC.lr = @LinearDecay()\nLinearDecay.final = @LinearDecay()"}, "itself"),
    "lists": ({"0": f"SAC.hidden_dims = {'[' * 100_000}1{']' * 100_000}"}, "nested too deeply"),
    "parentheses": ({"0": f"SAC.lr = {'(' * 900}1{')' * 900}"}, "nested too deeply"),
    "data": ({"0": "# nothing\n" * 50_000}, "has 500,000 bytes, too many for a config"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_config_without_an_end_or_of_endless_size_is_told_in_one_line(tmp_path, name):
    files, words = MISTAKES[name]
    for file, text in files.items():
        write(tmp_path / f"{file}.gin", text)
    message = refused(tmp_path / "0.gin")
    assert words in message and "\n" not in message and len(message) < 1_000


def test_includes_may_be_nested_as_deep_as_anyone_needs(tmp_path):
    for i in range(MOST_INCLUDING):
        write(tmp_path / f"{i}.gin", f"include '{i + 1}.gin'")
    write(tmp_path / f"{MOST_INCLUDING}.gin", "SAC.lr = 0.5")
    loading.load_gin_config(tmp_path / "0.gin", [])
    assert gin.query_parameter("SAC.lr") == 0.5
