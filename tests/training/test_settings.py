"""Which runs count as seeds of one experiment, and by what the others are named."""

import json

import pytest

from offpcc.config.loading import plain_values
from offpcc.training.comparison import (
    are_same,
    differing,
    group_runs,
    hash_settings,
    name_settings,
    settings_of_run,
    with_facts,
)

BASE = "SAC.alpha = 1.0\nActorCritic.gamma = 0.99\ntrain.num_epochs = 3\nRecurrent.cell = 'lstm'\n"


def same(one, other):
    parsed = plain_values(one), plain_values(other)
    assert are_same(*parsed) is are_same(*reversed(parsed))
    return are_same(*parsed)


@pytest.mark.parametrize(
    "other",
    [
        BASE.replace("num_epochs = 3", "num_epochs = 30"),
        f"{BASE}train.stop_return = 5.0",
        f"{BASE}make.timeout = 60",
        f"{BASE}Checkpoints.every_minutes = 5.0",
        f"{BASE}ReplayBuffer.on_device = True",
        f"{BASE}train.num_test_envs = 3",
        BASE.replace("SAC.alpha = 1.0", "SAC.alpha = 1"),
        BASE.replace("SAC.alpha = 1.0", "temperature = 1.0\nSAC.alpha = %temperature"),
        f"# a comment\nimport nothing_of_this_name\n{BASE}",
        BASE.replace("ActorCritic.gamma", "SAC.gamma"),
        f"{BASE}ActorCritic.n_step = 1",  # its default, which an older version may not have told
        f"{BASE}environments.num_envs = 1",
    ],
)
def test_what_changes_nothing_that_is_learned_makes_no_other_setting(other):
    assert same(BASE, other)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (BASE.replace("0.99", "0.9"), ["gamma=0.99", "gamma=0.9"]),
        (f"{BASE}ActorCritic.n_step = 3", ["n_step=1", "n_step=3"]),
        (f"{BASE}SAC.gamma = 0.9", ["gamma=0.99", "gamma=0.9"]),
        (f"{BASE}environments.num_envs = 8", ["", "num_envs=8"]),
        (BASE.replace("alpha = 1.0", "alpha = %a\na = 2.0"), ["alpha=1.0", "alpha=2.0"]),
        (f"{BASE}make.wrappers = [@mine.Blur]", ["", "wrappers=(@mine.Blur,)"]),
        (f"{BASE}train.num_steps_per_epoch = 50", ["num_steps_per_epoch=1000", "num_steps_per_epoch=50"]),
        (f"{BASE}mine.Encoder.keep = 0.5", ["", "keep=0.5"]),
        (f"{BASE.replace('lstm', 'gpt')}GPT.context_length = 7", ["cell='lstm'", "cell='gpt', context_length=7"]),
        (f"{BASE}SAC.polyak = 0.5\nSAC.n_step = 2\nSAC.lr = 1.0\nSAC.gamma = 0.5\nSAC.alpha = 2.0",
         ["alpha=1.0, gamma=0.99, lr=0.0003 and 2 more", "alpha=2.0, gamma=0.5, lr=1.0 and 2 more"]),
    ],
)  # fmt: skip
def test_other_settings_are_named_by_what_differs(other, named):
    assert not same(BASE, other)
    assert name_settings([plain_values(BASE), plain_values(other)]) == named


def test_a_setting_of_a_parent_and_of_its_child_is_named_once():
    given = [plain_values(text) for text in ("SAC.lr = 1e-3", "ActorCritic.lr = 1e-4")]
    assert len(differing(given)) == 1 and name_settings(given) == ["lr=0.001", "lr=0.0001"]


def test_parameters_of_one_name_are_told_apart_by_their_owners():
    given = [plain_values(f"actor/Recurrent.hidden_dim = {n}\ncritic/Recurrent.hidden_dim = {n + 1}") for n in (1, 5)]
    assert name_settings(given)[0] == "actor/Recurrent.hidden_dim=1, critic/Recurrent.hidden_dim=2"


def test_groups_of_one_name_are_told_apart_by_their_ids(tmp_path):
    for run_id, length in ((1, 50), (2, 60), (10, 50)):
        (tmp_path / str(run_id)).mkdir()
        (tmp_path / str(run_id) / "config.gin").write_text(f"SAC.encoder = '{'x' * length}'")
    groups = group_runs([tmp_path / run_id for run_id in ("1", "2", "10")])
    assert [(name[-7:].removeprefix(" "), [run.name for run in runs]) for name, runs in groups.items()] == [
        ("[1 10]", ["1", "10"]),
        ("... [2]", ["2"]),
    ]
    assert list(group_runs([tmp_path / "1", tmp_path / "10"])) == [""]


MADE = "gymnasium.envs.classic_control.pendulum.PendulumEnv Pendulum-v1"
ONLINE = {"then_env_steps": 50}


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ({}, {"init": "results/e-v0/sac/1"}, ["", "init='e-v0/sac'"]),
        ({"init": "results/e-v0/sac/1"}, {"init": "results/f-v0/sac/1"},
         ["init='e-v0/sac'", "init='f-v0/sac'"]),
        ({"init": "results/e-v0/sac/1"}, {"init": "./results/e-v0/sac/2"}, None),  # seeds of one experiment
        ({"init": "results/e-v0/sac/1"}, {"init": "/data/results/e-v0/sac/2"}, None),
        ({"init": "all/runs/before_1"}, {"init": "all/runs/before_2"}, None),
        ({"env_made": f"{MADE}(g=2)"}, {"env_made": f"{MADE}(g=10)"},
         ["env_made=Pendulum-v1(g=2)", "env_made=Pendulum-v1(g=10)"]),
        ({"env_made": "mine.One (g=2)"}, {"env_made": "mine.Two (g=2)"}, ["env_class=mine.One", "env_class=mine.Two"]),
        ({"num_epochs": 5, **ONLINE}, {"num_epochs": 9, **ONLINE}, ["switch_epoch=5", "switch_epoch=9"]),
        ({"num_epochs": 5, **ONLINE}, {"num_epochs": 9, "from": "a", "switch_epoch": 5, **ONLINE}, None),
        ({"from": "a", "switch_epoch": 5, **ONLINE}, {"from": "a", "switch_epoch": 9, **ONLINE},
         ["switch_epoch=5", "switch_epoch=9"]),
        ({"from": "a", "rows": "step,env_step\n1,\n2,\n3,1\n", **ONLINE},
         {"from": "a", "switch_epoch": 2, **ONLINE}, None),
        ({"from": "a", "rows": "\udcff", **ONLINE}, {"from": "a", "switch_epoch": 0, **ONLINE}, None),  # damaged
        ({"num_epochs": 5}, {"num_epochs": 9}, None),
        ({"init": "", "env_made": 3, "from": [], "then_env_steps": "x"}, {}, None),  # not by offpcc
    ],
)  # fmt: skip
def test_runs_that_differ_in_more_than_settings_are_no_seeds_of_one_experiment(one, other, named, tmp_path):
    runs = [tmp_path / "1", tmp_path / "2", tmp_path / "3"]
    for run, facts in zip(runs, (one, other, other), strict=True):
        run.mkdir()
        (run / "config.gin").write_text(BASE.replace("num_epochs = 3", f"num_epochs = {facts.get('num_epochs', 3)}"))
        (run / "run.json").write_text(json.dumps(facts))
        (run / "progress.csv").write_text(
            facts.get("rows", ""), errors="surrogateescape"
        )  # older runs do not say their switch_epoch
    groups = group_runs(runs)
    assert groups == ({"": runs} if named is None else {named[0]: runs[:1], named[1]: runs[1:]})
    digests = [hash_settings(with_facts(run, settings_of_run(run))) for run in runs]
    assert digests[1] == digests[2] and (digests[0] == digests[1]) is (named is None)


def test_macros_that_double_or_refer_to_themselves_take_no_time():
    doubled = "".join(f"m{i} = [%m{i + 1}, %m{i + 1}]\n" for i in range(60))
    first, second = (plain_values(f"{doubled}m60 = {end}\nSAC.alpha = %m0\nSAC.lr = %lr\nlr = %lr") for end in (1, 2))
    assert len(first["SAC.alpha"]) < 1_000 and first["SAC.alpha"] != second["SAC.alpha"]
    assert first["SAC.lr"] == "%lr"


def test_equal_settings_have_equal_digests():
    digests = [
        hash_settings(plain_values(text))
        for text in (BASE, BASE.replace("1.0", "1"), f"{BASE}make.timeout = 3.0", f"{BASE}SAC.lr = 1.0")
    ]
    assert digests[0] == digests[1] == digests[2] != digests[3]


def test_names_begin_with_what_tells_the_runs_apart():
    """One run that differs in many settings must not hide what the others differ in."""
    usual = {f"SAC.{name}": "1" for name in ("alpha", "gamma", "lr", "polyak", "zeta")}
    given = [{**usual, "Recurrent.cell": cell} for cell in ("'gru'", "'lru'")] + [
        dict.fromkeys(usual, "2") | {"Recurrent.cell": "'lru'"}
    ]
    named = name_settings(given)
    assert [name.split(", ")[0] for name in named[:2]] == ["cell='gru'", "cell='lru'"] and len({*named}) == 3
