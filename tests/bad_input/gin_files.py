"""Gin files at fault, by name, and what is told of each."""

MODULES = {  # of a user's, that lie beside the config
    "broken": "def f(:\n",
    "raises": "raise RuntimeError('the robot is away')\n",
    "exits": "raise SystemExit(3)\n",
    "asks_for_more": "import a_module_that_nobody_has\n",
    "registers_wrongly": "import offpcc\n\n\n@offpcc.configurable\nclass SAC:\n    pass\n",
}
SHORT = "include 'test/template_short.gin'\n"

FAULTS = {
    "no_value": ("SAC.lr =\n", ":1", "SAC.lr"),
    "two_values": (f"{SHORT}SAC.lr = 1 2\n", ":2", "SAC.lr"),
    "open_bracket": (f"{SHORT}SAC.hidden_dims = (1,\n", "bracket"),
    "open_quote": (f"{SHORT}Recurrent.cell = 'lstm\n", "Recurrent.cell"),
    "words": ("learn quickly, please\n", ":1"),
    "python": ("for x in y:\n  pass\n", ":1"),
    "unknown_class": (f"{SHORT}SAK.lr = 1\n", ":2", "SAK", "SAC"),
    "unknown_parameter": (f"{SHORT}SAC.lrr = 1\n", ":2", "lrr", "lr"),
    "unknown_reference": (f"{SHORT}SAC.encoder = @Recurent\n", "Recurent", "Recurrent"),
    "undefined_macro": (f"{SHORT}SAC.lr = %rate\n", "rate"),
    "macro_of_itself": (f"{SHORT}rate = %rate\nSAC.lr = %rate\n", "rate"),
    "macros_in_a_ring": (f"{SHORT}one = %two\ntwo = %one\nSAC.lr = %one\n", "refers to itself"),
    "unused_macro": (f"{SHORT}rate = 3\n", "rate", "no effect"),
    "passed_by_us": (f"{SHORT}SAC.seed = 3\n", "SAC.seed", "remove it"),
    "child_and_parent": (f"{SHORT}SAC.lr = 1e-3\nSAC.lr = 'fast'\n", "SAC.lr is 'fast'"),
    "text_for_a_number": (f"{SHORT}SAC.gamma = '0.99'\n", "SAC.gamma is '0.99'"),
    "list_for_a_number": (f"{SHORT}ReplayBuffer.batch_size = [32]\n", "ReplayBuffer.batch_size is [32]"),
    "number_for_a_class": (f"{SHORT}SAC.encoder = 3\n", "SAC.encoder is 3", "@Recurrent"),
    "function_for_a_class": (f"{SHORT}SAC.encoder = @train\n", "SAC cannot be built", "train()"),
    "dictionary": (f"{SHORT}SAC.hidden_dims = {{1: 2}}\n", "SAC.hidden_dims is {1: 2}"),
    "missing_include": ("include 'no_such.gin'\n", "no_such.gin"),
    "include_of_a_folder": ("include 'gin/folder.gin'\n", "gin/folder.gin"),
    "include_of_itself": ("include 'include_of_itself.gin'\n", "include_of_itself.gin", "remove one include"),
    "include_ring_one": ("include 'include_ring_two.gin'\n", "include_ring", "remove one include"),
    "include_of_noise": ("include '../noise.gin'\n", "noise.gin"),
    "include_of_nothing": ("include ''\n", "''"),
    "missing_import": ("import a_lab_that_nobody_has\n", ":1", "a_lab_that_nobody_has"),
    "import_that_asks_for_more": ("import asks_for_more\n", ":1", "a_module_that_nobody_has"),
    "import_of_broken_code": ("import broken\n", ":1", "broken", "correct"),
    "import_that_raises": ("import raises\n", ":1", "the robot is away", "correct"),
    "import_that_exits": ("import exits\n", ":1", "SystemExit", "correct"),
    "import_of_a_name_taken": ("import registers_wrongly\n", ":1", "SAC", "rename"),
    "import_of_nothing": ("import\n", ":1"),
    "segments_at_odds": (
        f"{SHORT}RecurrentReplayBuffer.segment_len = None\nRecurrentReplayBuffer.burn_in = 5\n",
        "burn_in is 5",
        "segment_len",
    ),
    "utf_16": ("SAC.lr = 1e-3\n".encode("utf-16"), "utf_16.gin", "config"),
    "empty": ("", "train.num_epochs", "bind it"),
    "no_epochs": ("ActorCritic.lr = 1e-3\n", "train.num_epochs", "bind it"),
    "wrappers_that_are_none": (
        f"{SHORT}make.wrappers = [@make]\n",
        "cannot be wrapped by make",
        "make.wrappers",
    ),
    "key_of_a_list": (f"{SHORT}make.kwargs = {{[1]: 2}}\n", "unhashable", "use only numbers or strings as keys"),
}
GIN_FILES = {
    **{name: content for name, (content, *_) in FAULTS.items()},
    "include_ring_two": "include 'include_ring_one.gin'\n",
}
COMMANDS = [
    *(
        (f"TRAIN --algo {'r' * (name == 'segments_at_odds')}sac --config gin/{name}.gin", *words)
        for name, (_, *words) in FAULTS.items()
    ),
    ("TRAIN --config gin/folder.gin", "gin/folder.gin"),
    ("TRAIN --config a_folder", "a_folder"),
    ("TRAIN --config dangling.gin", "dangling.gin"),
    ("TRAIN --config swings.hdf5", "swings.hdf5"),
    ("evaluate RUN --config gin/import_that_exits.gin", "SystemExit", "correct"),
    ("check --env pendulum-p-v0 --config gin/import_that_raises.gin", "the robot is away"),
    ("check --dataset swings.hdf5 --config gin/words.gin", "words.gin"),
    ("COLLECT --config gin/unknown_class.gin", "SAK", "SAC"),
]
