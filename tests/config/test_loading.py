import re

import gin
import numpy as np
import pytest

import offpcc
from offpcc.algorithms import SAC
from offpcc.algorithms.variants import RecurrentSAC
from offpcc.config import loading
from offpcc.config.bindings import check_unused_bindings
from offpcc.config.gin_files import CHECKOUT, CONFIGS
from offpcc.networks import Encoder
from offpcc.training.build import build
from offpcc.training.run_fns import train, unused_train_parameters
from offpcc.utils.errors import UserError


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(file, *command_line):
    with pytest.raises(UserError) as caught:
        loading.load_gin_config(file, list(command_line))
    return caught.value.args[0]


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ("SAK.lr = 1", ["'SAK'", "SAC"]),
        ("SAC.learning_rate = 1", ["no parameter 'learning_rate'", "SAC.lr"]),
        ("SAC.qqqq = 1", ["no parameter 'qqqq'", "autotune"]),
        ("RecurrentSAC.gama = 0.9", ["'gama'", "gamma"]),
        ("RecurrentTD3.alpha = 0.9", ["'alpha'"]),
        ("SAC.device = 'cpu'", ["device is passed by offpcc itself"]),
        ("RecurrentReplayBuffer.seed = 1", ["seed is passed by offpcc itself"]),
        ("train.buffer = 1", ["train.buffer"]),
        ("SAC.encoder = @Recurent", ["Recurent", "Recurrent"]),
        ("SAC.lr = 1e-4)", ["gin's syntax"]),
        ("SAC.lr = fast", ["gin's syntax", "fast"]),
        ("import there_is_no_such_module", ["there_is_no_such_module"]),
    ],
)
def test_what_does_not_exist_is_refused_with_the_nearest_name(tmp_path, binding, words):
    file = write(tmp_path / "a.gin", f"SAC.alpha = 0.1\n{binding}\n")
    message = refused(file)
    for word in words:
        assert word in message
    assert str(file) in message
    if "import" not in binding:
        assert all(word in refused(None, binding) for word in words)


def test_line_of_the_fault_is_told(tmp_path):
    file = write(tmp_path / "a.gin", "SAC.alpha = 0.1\n\n# a comment\nSAC.alfa = 1\n")
    assert f"{file}:4: SAC.alfa" in refused(file)


def test_a_binding_of_the_command_line_wins_and_needs_an_equals_sign(tmp_path):
    file = write(tmp_path / "a.gin", "SAC.alpha = 0.1")
    loading.load_gin_config(file, ["SAC.alpha=0.2"])
    assert gin.query_parameter("SAC.alpha") == 0.2
    assert "--gin" in refused(file, "SAC.alpha")


@pytest.mark.parametrize(
    "first, second, name",
    [
        ("SAC.lr=1e-4", "SAC.lr=1e-5", "SAC.lr"),
        ("SAC.lr=1e-4", "SAC.lr=1e-4", "SAC.lr"),
        ("SAC.lr=1e-4", "algorithms.sac.SAC.lr=1e-5", "algorithms.sac.SAC.lr"),
        ("slow/SAC.lr=1e-4", "slow/SAC.lr=1e-5", "slow/SAC.lr"),
        ("rate=1e-4", "rate=1e-5", "rate"),
    ],
)
def test_the_command_line_gives_a_binding_once(tmp_path, first, second, name):
    assert refused(None, first, "SAC.gamma=0.9", second) == f"--gin: {name} is given twice; remove one"
    loading.load_gin_config(write(tmp_path / "a.gin", f"{first}\n{second}\n"), [second])


@pytest.mark.parametrize("bindings", [(["SAC.lr = 1e-4"],), ("SAC.lr",), ({"SAC.lr": 1e-4},), (0.1,)])
def test_in_python_bindings_are_strings_of_their_own(bindings):
    with pytest.raises(UserError) as told:
        offpcc.configure(None, *bindings)
    assert repr(bindings[0]) in told.value.message
    assert 'as in offpcc.configure(FILE, "SAC.lr = 1e-4", ' in told.value.message


@pytest.mark.parametrize("bindings", [("SAC.lr =",), ("SAC.lr = x",), ("SAC.alfa = 1",), ("SAC.lr = 1", "SAC.lr = 2")])
def test_in_python_nothing_is_said_of_the_command_line(bindings):
    with pytest.raises(UserError, match=r"^offpcc\.configure: ") as told:
        offpcc.configure(None, *bindings)
    assert "--gin" not in told.value.message


def test_what_differs_in_scope_class_or_parameter_is_not_the_same_binding():
    loading.load_gin_config(
        None, ["SAC.lr=1", "slow/SAC.lr=1", "RecurrentSAC.lr=1", "SAC.actor_lr=1", "rate=1", "slow=1"]
    )


@pytest.mark.parametrize(
    "binding, reference",
    [
        ("SAC.encoder = @Recurrent()", "@Recurrent"),
        ("SAC.encoder = @small/Recurrent()", "@small/Recurrent"),
        ("Recurrent.feature_extractor = @Convolutional()", "@Convolutional"),
        ("memory = @Recurrent()", "@Recurrent"),
        ("SAC.encoder = [@Recurrent()]", "@Recurrent"),
    ],
)
def test_what_offpcc_builds_is_named_without_parentheses(tmp_path, binding, reference):
    name = binding.split(" = ")[0]
    words = f"{name} is {reference}(), which offpcc builds itself; write {reference} without parentheses"
    assert refused(None, binding) == f"--gin: {words}"
    file = write(tmp_path / "a.gin", f"SAC.alpha = 0.1\n{binding}\n")
    assert refused(file) == f"{file}:2: {words}"
    loading.load_gin_config(
        None, [binding.replace("()", ""), "SAC.lr = @LinearDecay()", "SAC.augmentation = @RandomShift()"]
    )


def load_and_build(tmp_path, text, *command_line, algo="rsac", env="pendulum-p-v0"):
    file = write(tmp_path / "a.gin", text)
    bindings = loading.load_gin_config(file, list(command_line))
    learner = build(env, algo)
    algorithm, settings = learner.algorithm, loading.resolve_bindings(train)
    check_unused_bindings(bindings)
    idle = unused_train_parameters(algorithm, learner.interaction, learner.tests, settings)
    encoder = algorithm.actor_encoder
    parts = {type(part): part.unused_parameters() for part in (algorithm, encoder)}
    check_unused_bindings(bindings, {**parts, train: idle})
    return learner


BASE = "train.num_epochs = 2\nRecurrent.hidden_dim = 4\nActorCritic.hidden_dims = (4,)\n"


def test_bindings_of_classes_that_take_no_part_are_for_files_only(tmp_path):
    load_and_build(tmp_path, BASE + "TD3.policy_delay = 3\nReplayBuffer.capacity = 10")
    with pytest.raises(UserError, match=r"--gin: TD3.policy_delay has no effect: this run does not use TD3"):
        load_and_build(tmp_path, BASE, "TD3.policy_delay=3")


def test_an_encoder_below_the_memory_that_all_networks_share(tmp_path):
    """`crsac_s` gives its memory convolutions, so yours need the second binding."""
    base = BASE + "Recurrent.feature_extractor = @my/Convolutional\nmy/Convolutional.feature_dim = 7\n"
    mine = "ConvolutionalRecurrentSACSharing.shared_encoder"
    with pytest.raises(UserError, match=rf"feature_extractor from its algorithm; bind {mine} = @Recurrent, too"):
        load_and_build(tmp_path, base, algo="crsac_s", env="pendulum-img-v0")
    learner = load_and_build(tmp_path, base + f"{mine} = @Recurrent", algo="crsac_s", env="pendulum-img-v0")
    assert learner.algorithm.shared_encoder.feature_extractor.dim == 7


def test_a_childs_binding_overrides_its_parents(tmp_path):
    learner = load_and_build(tmp_path, BASE + "SAC.gamma = 0.5\nRecurrentSAC.gamma = 0.7")
    assert learner.algorithm.gamma == 0.7
    with pytest.raises(UserError, match=r"SAC.gamma has no effect") as caught:
        load_and_build(tmp_path, BASE + "ActorCritic.gamma = 0.6\nRecurrentSAC.gamma = 0.7", "SAC.gamma=0.5")
    assert re.search(
        r"but got gamma from RecurrentSAC\.gamma \(\S+\.gin:\d+\), which overrides it", caught.value.message
    )
    with pytest.raises(
        UserError, match=r"ActorCritic.gamma has no effect.*from SAC.gamma \(--gin\), which overrides it"
    ):
        load_and_build(tmp_path, BASE, "ActorCritic.gamma=0.5", "SAC.gamma=0.6")


def test_a_file_may_bind_what_an_own_algorithm_sets_itself_and_names_as_unused(tmp_path):
    @offpcc.configurable
    class Targetless(SAC):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs | {"polyak": 0.0})

    def check(*command_line, reasons):
        file = write(tmp_path / "a.gin", BASE + "ActorCritic.polyak = 0.9")
        bindings = loading.load_gin_config(file, list(command_line))
        assert build("pendulum-v0", "Targetless").algorithm._targets.polyak == 0.0
        check_unused_bindings(bindings, {Targetless: reasons})

    with pytest.raises(UserError, match=r"polyak from its algorithm; remove it, or let unused_parameters\(\) of your"):
        check(reasons={})
    check(reasons={"polyak": "there are no targets"})
    for name in ("ActorCritic", "Targetless"):
        with pytest.raises(UserError, match=rf"{name}\.polyak has no effect: there are no targets; remove it"):
            check(f"{name}.polyak=0.5", reasons={"polyak": "there are no targets"})


CONCAT = "Recurrent.cell = 'concat'\n"
FIXED = "SAC.autotune = False\n"
NO_TESTS = "train.num_test_episodes_per_epoch = 0\n"


@pytest.mark.parametrize(
    "algo, text, binding, reason",
    [
        ("rsac", "", "train.update_every=5", "an agent with memory learns when an episode ends"),
        ("rsac_s", "", "train.update_every=1", "an agent with memory learns when an episode ends"),
        ("sac", NO_TESTS, "train.stop_return=9.0", "there are no test episodes"),
        ("sac", NO_TESTS, "train.num_test_envs=2", "there are no test episodes"),
        ("sac", NO_TESTS, "train.stop_tests=2", "there are no test episodes"),
        ("sac", "", "train.stop_tests=2", "train.stop_return is None"),
        ("sac", "", "SAC.encoder_lr=1e-3", "no encoder has parameters"),
        ("td3", "", "ActorCritic.encoder_lr=1e-3", "no encoder has parameters"),
        ("sac", "", "SAC.augmentation=@RandomShift()", "observations are not images"),
        ("rdpg", "", "DDPG.augmentation=@RandomShift()", "observations are not images"),
        ("sac", FIXED, "SAC.target_entropy=-3.", "autotune is False, so alpha is constant"),
        ("rsac", FIXED, "RecurrentSAC.alpha_lr=1e-3", "autotune is False, so alpha is constant"),
        ("rsac", CONCAT, "Recurrent.num_layers=3", "concat only concatenates inputs and has no layers"),
    ],
)
def test_parameters_that_change_nothing_are_for_files_only(tmp_path, algo, text, binding, reason):
    name = binding.split("=")[0]
    with pytest.raises(UserError) as caught:
        load_and_build(tmp_path, BASE + text, binding, algo=algo)
    assert caught.value.message == f"--gin: {name} has no effect: {reason}; remove it"
    load_and_build(tmp_path, BASE + text + binding, algo=algo)


@pytest.mark.parametrize(
    "algo, binding",
    [
        ("sac", "train.update_every=5"),
        ("sac", "train.stop_return=9.0"),
        ("rsac", "SAC.encoder_lr=1e-3"),
        ("rsac_s", "SAC.encoder_lr=1e-3"),
        ("sac", "SAC.target_entropy=-3."),
        ("rsac", "SAC.alpha_lr=1e-3"),
        ("sac", "SAC.autotune=False"),
    ],
)
def test_where_they_change_something_they_are_taken(tmp_path, algo, binding):
    load_and_build(tmp_path, BASE, binding, algo=algo)


def test_a_scope_that_nobody_enters_has_no_effect(tmp_path):
    with pytest.raises(UserError, match=r"somewhere/SAC.gamma has no effect"):
        load_and_build(tmp_path, BASE + "somewhere/SAC.gamma = 0.5")


def test_a_scoped_reference_takes_what_its_scope_does_not_say_from_outside(tmp_path):
    text = BASE + "ActorCritic.encoder = @small/Recurrent\nsmall/Recurrent.num_layers = 1\nRecurrent.cell = 'gru'"
    cells = load_and_build(tmp_path, text, algo="sac").algorithm.actor_encoder.cell
    assert (cells.num_layers, cells.hidden_size, cells.mode) == (1, 4, "GRU")


def test_a_word_without_a_class_has_no_effect_unless_it_is_a_macro_in_use(tmp_path):
    learner = load_and_build(tmp_path, BASE + "rate = 0.25\nSAC.lr = %rate", "rate=0.5")
    assert learner.algorithm.actor_optimizer.rates == [0.5, 0.5]
    for text, command_line in ((BASE + "lr = 0.5", []), (BASE, ["lr=0.5"])):
        with pytest.raises(UserError, match=r"lr has no effect: it names no class; did you mean ActorCritic\.lr"):
            load_and_build(tmp_path, text, *command_line)


def test_names_that_the_library_passes_are_free_in_a_users_class(tmp_path):
    @offpcc.configurable
    class Stepping(Encoder):
        def __init__(self, shape, *, num_steps=1, seed=0):
            super().__init__(shape)

    loading.load_gin_config(None, ["Stepping.num_steps=4", "Stepping.seed=3"])
    assert "shape is passed by offpcc itself" in refused(None, "Stepping.shape=4")


def test_extra_inputs_are_read_once(tmp_path):
    text = BASE + "Identity.use_previous_action = True\nIdentity.use_previous_reward = True"
    assert load_and_build(tmp_path, text, algo="sac").algorithm.actor_encoder.dim == 2 + 1 + 1
    recurrent = load_and_build(tmp_path, BASE + "Recurrent.use_previous_action = True").algorithm
    assert recurrent.actor_encoder.cell.input_size == 2 + 1


def test_a_required_binding_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match=r"train.num_epochs is not set"):
        load_and_build(tmp_path, "Recurrent.hidden_dim = 4")


def test_the_operative_config_does_the_same_again(tmp_path):
    text = (
        BASE + "SAC.gamma = 0.5\nRecurrentSAC.lr = @LinearDecay()\nLinearDecay.num_updates = 7\nRecurrent.cell = 'gru'"
    )
    first = load_and_build(tmp_path, text)
    operative = loading.operative()
    assert "train.num_epochs = 2" in operative
    again = load_and_build(tmp_path, operative)
    assert loading.operative() == operative
    assert isinstance(again.algorithm, RecurrentSAC)
    assert again.algorithm.gamma == first.algorithm.gamma == 0.5
    assert again.algorithm.actor_encoder.cell.mode == "GRU"
    assert again.algorithm.actor_optimizer.rates[0].num_updates == 7
    assert loading.values(operative)["LinearDecay.num_updates"] == "7"


def test_results_go_where_they_are_asked_to(tmp_path, monkeypatch):
    assert loading.results_folder(None) == CHECKOUT / "results"
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "elsewhere"))
    assert loading.results_folder(None) == tmp_path / "elsewhere"
    assert loading.results_folder("given").name == "given"
    monkeypatch.delenv("OFFPCC_RESULTS")
    monkeypatch.setattr(loading, "CHECKOUT", None)
    monkeypatch.chdir(tmp_path)
    assert loading.results_folder(None) == tmp_path / "results"


@pytest.mark.parametrize("file", sorted(CONFIGS.rglob("*.gin")), ids=lambda file: file.stem)
def test_every_config_that_comes_along_is_sound_and_says_where_it_comes_from(file):
    assert re.match(r"# .{20,}", file.read_text())
    loading.load_gin_config(file, [])


@pytest.mark.parametrize(
    "file",
    sorted(file for file in CONFIGS.rglob("*.gin") if ".segment_len = " in file.read_text()),
    ids=lambda file: file.stem,
)
def test_with_a_transformer_in_a_config_with_segments_its_window_is_learned(file):
    loading.load_gin_config(file, [])
    get = gin.query_parameter
    segment_len = get("RecurrentReplayBuffer.segment_len")  # None for whole episodes
    assert segment_len is None or 2 * get("GPT.context_length") <= segment_len + 5


@pytest.mark.parametrize(
    ("name", "epochs", "cell"),
    [("100k", 100, "lstm"), ("200k_gru", 200, "gru"), ("300k_rnn", 300, "rnn"), ("500k", 500, "lstm")],
)
def test_recurrent_templates_hold_the_papers_settings(name, epochs, cell):
    loading.load_gin_config(f"test/template_recurrent_{name}.gin", [])
    expected = {
        "ActorCritic.lr": 3e-4,
        "ActorCritic.gamma": 0.99,
        "ActorCritic.polyak": 0.995,
        "ActorCritic.hidden_dims": (256, 256),
        "Recurrent.cell": cell,
        "Recurrent.hidden_dim": 256,
        "Recurrent.num_layers": 2,
        "RecurrentReplayBuffer.capacity": 5000,
        "RecurrentReplayBuffer.batch_size": 10,
        "train.num_epochs": epochs,
        "train.num_steps_per_epoch": 1000,
        "train.update_after": 10_000,
        "train.num_test_episodes_per_epoch": 10,
    }
    assert {key: gin.query_parameter(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((8,), "(8,)"), ((8, 8), "(8, 8)"), ((), "()"), (((8,), (8, 8)), "((8,), (8, 8))"), (((),), "((),)"), (8, "8"),
        (("a (b)",), "('a (b)',)"), ("(8)", "'(8)'"), ("it's (8)", '"it\'s (8)"'), ({"a": (8,)}, "{'a': (8,)}"),
        (np.float64(0.5), "np.float64(0.5)"),
    ],
)  # fmt: skip
def test_a_message_writes_a_tuple_of_one_item_with_its_comma(value, text):
    assert loading.write_plainly(value) == text


def test_a_list_of_one_item_in_a_config_is_written_with_its_comma():
    assert loading.plain_values("SAC.hidden_dims = [8]") == {"SAC.hidden_dims": "(8,)"}
    assert loading.plain_values("SAC.encoder = (@Identity(),)") == {"SAC.encoder": "(@Identity(),)"}
