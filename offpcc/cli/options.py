"""The commands, the options of each, and their help texts."""

from pathlib import Path
from typing import Any

from offpcc.cli import arguments

COMMANDS = {  # the module of each command, and its help
    "train": (
        "offpcc.cli.train:run_train",
        "Train an agent, resume a run, or show what it learned. This is the default.",
    ),
    "evaluate": (
        "offpcc.cli.commands:run_evaluate",
        "Print the returns of saved actors over many episodes, or their values from recorded data.",
    ),
    "plot": (
        "offpcc.cli.commands:run_plot",
        "Draw learning curves: mean and spread over run ids, a line for each setting.",
    ),
    "report": (
        "offpcc.cli.commands:run_report",
        "Compare runs over seeds and tasks: a table with intervals, a figure and a JSON file.",
    ),
    "board": ("offpcc.cli.board:run_board", "Show runs in a local page: curves, settings that differ, videos, faults."),
    "params": ("offpcc.cli.params:run_params", "Print all hyper-parameters of an algorithm: default, meaning, range."),
    "envs": ("offpcc.cli.commands:run_envs", "List the environments, their sizes and what they hide."),
    "check": (
        "offpcc.cli.commands:run_check",
        "Print the problems of an environment or of recorded data, or how an agent uses its memory. The exit code is 1 "
        "if a problem would spoil learning.",
    ),
    "collect": (
        "offpcc.cli.recipe:run_collect",
        "Record a dataset in D4RL's HDF5 format, and in Minari's; or D4RL's five datasets.",
    ),
    "convert": (
        "offpcc.cli.convert:run_convert",
        "Make a dataset of recorded Atari games: of RL Unplugged, or the DQN replay dataset. It downloads missing "
        "recordings.",
    ),
    "export": (
        "offpcc.cli.commands:run_export",
        "Write a saved actor as ONNX, or for torch.export, with a contract, for machines without offpcc.",
    ),
    "train-model": (
        "offpcc.cli.train_model:run_train_model",
        "Train a model of an environment on recorded data, for algorithms that imagine steps.",
    ),
    "sweep": (
        "offpcc.cli.sweep:run_sweep",
        "Train the runs of a grid or a random search, which a TOML file describes, and rank their settings.",
    ),
    "toy-model": (
        "offpcc.cli.toy_model:run_toy_model",
        "Draw how an ensemble learns a noisy sine: where its networks see noise, and where they disagree.",
    ),
    "zoo": ("offpcc.cli.zoo:run_zoo", "List the trained agents that come with offpcc, copy one, or play one."),
    "docs": ("offpcc.cli.docs:run_docs", "List the pages of the documentation, print one, or search them."),
}
# Kinds of values: a number above 0, a number from 0 such as a seed, a share above 0 and at most 1, and a folder.
NUMBER = {"type": arguments.positive, "metavar": "N"}
SEED = {"type": arguments.run_id, "metavar": "N"}
SHARE = {"type": arguments.fraction, "metavar": "F"}
FOLDER = {"type": arguments.path, "metavar": "FOLDER"}

OPTIONS: dict[str, dict[str, Any]] = {  # the options of all commands, as arguments of argparse; see `OF_COMMAND`
    "--address": {
        "metavar": "ADDRESS",
        "help": "Train the runs on the machines of this Ray cluster: auto, or HOST:PORT, on their CPUs; with --device "
        "cuda, each takes a GPU. It needs the extra ray.",
    },
    "--average": {
        **NUMBER,
        "default": 1,
        "help": "With --grid: draw the moving average over N values. The default is 1.",
    },
    "--baseline": {
        "metavar": "NAME",
        "help": "Print the probability that a run is better than a run of this algorithm, such as sac.",
    },
    "--buffer_dir": {
        **FOLDER,
        "help": "Write the dataset below this folder. The default is ~/.rl_unplugged/buffers or ~/.dqn_replay/buffers.",
    },
    "--between": {"action": "store_true", "help": "Add 100 points in the middle of the gap."},
    "--actor": {
        "required": True,
        "metavar": "FOLDER|random",
        "help": "Take the actions of this actor: a run's folder, an actor's file, or `random` for random actions.",
    },
    "--algo": {
        "metavar": "NAME",
        "help": "Train with this algorithm: a name of the list below, or a class of your own. Required, except with "
        "--from.",
    },
    "--units": {
        "type": arguments.path,
        "metavar": "FILE.json",
        "help": "Copy the units of observations and actions in this file into the contract, such as "
        '{"observation": ["rad", "rad/s"], "action": ["Nm"]}.',
    },
    "--config": {
        "metavar": "FILE.gin",
        "help": "Read this gin file first, for imports or wrappers that the environment needs.",
    },
    "--dataset": {
        "metavar": "DATA",
        "help": "Check recorded data: an HDF5 file, D4RL's name of a dataset, minari:ID or ogbench:NAME.",
    },
    "--dataset_dir": {
        **FOLDER,
        "help": "Look for the recording below this folder, and download it there. The default is "
        "~/.rl_unplugged/datasets or ~/.dqn_replay/datasets.",
    },
    "--dataset_fraction": {
        **SHARE,
        "default": 1.0,
        "help": "Use this fraction of the data's steps, from the first episodes. The default is 1.0, all of them.",
    },
    "--dataset_steps": {
        **NUMBER,
        "help": "Use exactly the first N steps of the data. The last episode is cut there, as by a time limit. "
        "Leave --dataset_fraction out then.",
    },
    "--deterministic": {"action": "store_true", "help": "Act without exploration."},
    "--epsilon": {
        **SHARE,
        "help": "Take this share of the actions at random, and the others as the actor does without exploration.",
    },
    "--device": {
        "metavar": "cpu|cuda|cuda:N",
        "help": "Compute on this device. The default is CUDA if there is a GPU, else the CPU.",
    },
    "--env": {"metavar": "NAME"},
    "--dry_run": {"action": "store_true", "help": "List the runs and rank the settings; train nothing."},
    "--episodes": NUMBER,
    "--final": {"action": "store_true", "help": "Draw a grid of the last values, with standard deviations over runs."},
    "--forever": {
        "action": "store_true",
        "help": "Play episode after episode until Ctrl-C. Then print mean, standard deviation, minimum and maximum of "
        "return and length.",
    },
    "--from": {
        "dest": "start_from",
        "type": arguments.path,
        "metavar": "RUN",
        "help": "Go on in --env from this folder of a run that learned from recorded data, finished or not, in a "
        "folder of its own. --dataset, --algo, --run_id and --config are then those of the run, unless you give them.",
    },
    "--fqe_gamma": {
        "type": arguments.fraction,
        "metavar": "G",
        "help": "With --from_data: discount rewards by this number per step, below 1. The default is 0.99.",
    },
    "--fqe_seed": {
        **SEED,
        "help": "With --from_data: use this seed for the critics and their batches. The default is 0.",
    },
    "--fqe_updates": {
        **NUMBER,
        "help": "With --from_data: make this many updates of the critics. The default is 100000.",
    },
    "--from_data": {
        "metavar": "DATA",
        "help": "Estimate the values of the actors from this recorded data, by fitted Q evaluation: an HDF5 file, "
        "D4RL's name of a dataset, minari:ID or ogbench:NAME. If there is an environment, episodes are also played, to "
        "compare.",
    },
    "--gin": {
        "nargs": "+",
        "action": "extend",
        "default": [],
        "metavar": "BINDING",
        "help": 'Set hyper-parameters, as in --gin "SAC.lr=1e-4" "train.num_epochs=50". They override those of the '
        "config. `offpcc params` lists them all.",
    },
    "--grid": {
        "action": "store_true",
        "help": "Draw a row of panels for each environment and a column for each dataset, with D4RL's scores "
        "where they are known, and BC as a dashed line.",
    },
    "--hidden_dims": {
        "nargs": "+",
        "type": arguments.width,
        "default": [64, 64],
        "metavar": "N",
        "help": "Give the networks hidden layers of these widths. The default is 64 64.",
    },
    "--import": {
        "dest": "modules",
        "type": arguments.module,
        "action": "append",
        "default": [],
        "metavar": "MODULE",
        "help": "Import this module, which defines parts of your own. The config in a run's folder imports nothing. "
        "You may give the option several times.",
    },
    "--jobs": {
        "type": arguments.num_jobs,
        "metavar": "N",
        "default": 1,
        "help": "Train this many run ids at a time, each in its own process. The default is 1.",
    },
    "--json": {
        "dest": "json_output",
        "action": "store_true",
        "help": "Print JSON, and nothing else, to the standard output.",
    },
    "--longest_episode": {
        **NUMBER,
        "help": "Report an episode of more steps than this as a fault. The default is 27000.",
    },
    "--lr": {**SHARE, "default": 1e-3, "help": "Use this learning rate. The default is 0.001."},
    "--medium": {
        **SHARE,
        "help": "With --recipe: the medium agent is the first whose test return is this fraction of the way from the "
        "random agent's to the expert's. The default is 1/3.",
    },
    "--metric": {
        "default": "test/return",
        "metavar": "COLUMN",
        "help": "Draw this column of progress.csv. The default is test/return.",
    },
    "--members": {"type": arguments.num_networks, "default": 2, "metavar": "N"},
    "--minari": {
        "metavar": "ID",
        "help": "Also write the steps as a Minari dataset with this id. With --recipe, KIND in the id stands for "
        "random, medium and so on, as in pendulum/KIND-v0.",
    },
    "--init": {
        "type": arguments.path,
        "metavar": "RUN",
        "help": "Start from the networks of this run's folder. Its algorithm may be another one with equal networks.",
    },
    "--model": {
        "type": arguments.file,
        "metavar": "FILE.pt",
        "help": "Learn with this model of the recorded data, which offpcc train-model wrote. The default is one of the "
        "same data in $OFFPCC_MODELS_DIR, else models/; if there is none, it is trained there first.",
    },
    "--normalise": {
        "metavar": "d4rl|minmax|FILE",
        "help": "Normalise returns: by D4RL's references, by the worst and the best run of each task, or by a TOML or "
        'JSON file with lines such as "pendulum-p-v0" = [-1500, -150]. Returns of several tasks need it to be '
        "aggregated.",
    },
    "--num_envs": {
        "type": arguments.num_envs,
        "default": 20,
        "metavar": "N",
        "help": "Play at most this many episodes in parallel. The default is 20.",
    },
    "--online": {
        "action": "store_true",
        "help": "Learn online in the task of --env, which is D4RL's name of a dataset. The data are not read.",
    },
    "--ordered": {
        "action": "store_true",
        "help": "Take whole episodes in order of time, which agents with memory need, instead of RL Unplugged's "
        "shuffled transitions.",
    },
    "--out": {"type": arguments.file, "required": True},
    "--output": {"type": arguments.file, "metavar": "FILE.png"},
    "--port": {
        "type": arguments.port,
        "metavar": "N",
        "help": "Serve the page at this port. The default is the first free one from 6006 on.",
    },
    "--recipe": {
        "action": arguments.ReplacesActor,
        "choices": ["d4rl"],
        "help": "Train an agent, and make D4RL's five datasets from this one run: random, medium-replay, medium, "
        "medium-expert, expert. Leave --actor out then.",
    },
    "--record": {"action": "store_true", "help": "Do not train; record the saved actor as MP4 files."},
    "--render": {
        "action": "store_true",
        "help": "Do not train; show the saved actor in a window, or record it if there is no screen.",
    },
    "--results": {
        "metavar": "DIR",
        "help": "Keep the runs in this folder. The default is $OFFPCC_RESULTS, else results/ of the checkout, else "
        "results/ of the working directory.",
    },
    "--resume": {
        "action": "store_true",
        "help": "Continue from the last checkpoint of the run, exactly as if it had not stopped. If there is no such "
        "run and --config is given, start it.",
    },
    "--retry": {"action": "store_true", "help": "Also train the runs that have failed again, from their checkpoints."},
    "--rollout_length": {
        **NUMBER,
        "help": "With --model: end an imagined episode after at most this many steps. The default is 5.",
    },
    "--run_id": {
        **SEED,
        "nargs": "+",
        "help": "Train a run for each of these ids. An id is the run's seed and the name of its folder. The default is "
        "1.",
    },
    "--save_dataset": {
        "type": arguments.file,
        "metavar": "FILE.hdf5",
        "help": "Record every step of training into this file, as a dataset.",
    },
    "--seed": SEED,
    "--shard_id": {**SEED, "default": 0, "help": "Convert this part of the run, from 0 on. The default is 0."},
    "--steps": NUMBER,
    "--task": {"required": True, "metavar": "GAME", "help": "Convert recordings of this game, such as Breakout."},
    "--test": {
        "choices": ["last", "best"],
        "default": "last",
        "help": "Compare this test of each run. The best is too optimistic. The default is last.",
    },
    "--then_env_steps": {
        **NUMBER,
        "help": "After learning from --dataset, continue for N steps in --env, in whole epochs. OfflineToOnline in gin "
        "has the settings. With train.num_epochs=0, begin in --env at once. The default with --from is 50000; a "
        "run that is resumed keeps its number.",
    },
    "--threads": {
        "type": arguments.num_threads,
        "metavar": "N",
        "default": 1,
        "help": "Use this many CPU threads of torch. The default is 1, which is fastest on a busy machine.",
    },
    "--track": {"action": "store_true", "help": "Also log the run to Weights & Biases."},
    "--no_video": {
        "action": "store_true",
        "help": "Record no video of the best actor at the end. A video can take longer than a short training.",
    },
    "--train_steps": {
        **NUMBER,
        "help": "With --recipe: train for this many environment steps, rounded up to whole epochs. The default is that "
        "of the config.",
    },
    "--updates": {**NUMBER, "default": 5_000},
    "--verbose": {
        "action": "store_true",
        "help": "Print the output of each run. By default, it goes to output.txt in the folder of the run.",
    },
    "--watch": {
        "action": "store_true",
        "help": "Show the table of a sweep that trains elsewhere, and draw it again every two seconds; train nothing.",
    },
    "--yes": {"action": "store_true", "help": "Start more than 100 runs."},
    "action": {
        "choices": ("list", "get", "play"),
        "metavar": "list|get|play",
        "help": "List all agents, copy the files of one, or show one.",
    },
    "file": {
        "type": arguments.path,
        "metavar": "FILE.toml",
        "help": "Train the runs of this file, which `offpcc docs sweeps` describes.",
    },
    "folder": FOLDER,
    "name": {"nargs": "?", "metavar": "NAME"},
    "page": {
        "nargs": "*",
        "default": [],  # else argparse would take it as required
        "metavar": "PAGE|TEXT",
        "help": "Print this page, such as sweeps. If no page has this name, list the pages that contain this text, "
        "such as burn_in. The default is a list of all pages.",
    },
    "text": {
        "nargs": "?",
        "metavar": "TEXT",
        "help": "List only the environments with this text in their name, in what they hide, or in what to install, "
        "such as hopper.",
    },
    "source": {
        "choices": ("rl-unplugged", "dqn-replay"),
        "metavar": "rl-unplugged|dqn-replay",
        "help": "Convert a shard of RL Unplugged, or a part of the DQN replay dataset (Dopamine's logs).",
    },
}
TAKES = {  # the options of each command
    "train": "--env --dataset --dataset_fraction --dataset_steps --algo --init --model --online --then_env_steps "
    "--from --config --import --run_id --jobs --gin --device --threads --resume --render --record --save_dataset "
    "--episodes --track --no_video --results",
    "evaluate": "folder --episodes --env --seed --num_envs --forever --render --json --from_data --fqe_updates "
    "--fqe_gamma --fqe_seed --config --gin --import --device --threads",
    "plot": "folder --output --metric --grid --final --average",
    "report": "folder --out --baseline --normalise --test --metric --track",
    "board": "folder --port",
    "params": "name --json --import",
    "envs": "text",
    "check": "folder --env --dataset --algo --dataset_fraction --dataset_steps --model --output --steps "
    "--longest_episode --seed --episodes --json --config --gin --import",
    "collect": "--env --actor --steps --out --minari --seed --deterministic --epsilon --resume --model --dataset "
    "--rollout_length --recipe --algo --train_steps --medium --config --gin --import --device --threads",
    "convert": "source --task --run_id --shard_id --ordered --dataset_dir --buffer_dir",
    "export": "folder --out --env --units --config --import",
    "train-model": "--dataset --dataset_fraction --dataset_steps --out --env --seed --resume --config --gin --import "
    "--device --threads",
    "zoo": "action name --out --episodes",
    "docs": "page",
    "sweep": "file --jobs --dry_run --watch --yes --retry --verbose --address --device --threads --track --no_video "
    "--results",
    "toy-model": "--out --members --hidden_dims --lr --updates --between --seed",
}
OF_COMMAND: dict[str, dict[str, Any]] = {  # what an option of a command has beside the table `OPTIONS`, or instead
    "train --env": {
        "help": "Learn in this environment: a name of `offpcc envs`, any Gymnasium id, MODULE:ID of your own, or "
        "D4RL's name of a dataset, which names both data and environment."
    },
    "train --dataset": {
        "help": "Learn from recorded data instead of interaction: an HDF5 file, D4RL's name of a dataset, minari:ID "
        "or ogbench:NAME. Then --env is only for tests."
    },
    "train --config": {
        "help": "Read the settings from this gin file. It is searched for as given, from the repository's root, and "
        "below configs/. The default is a file of configs/defaults/, by the kind of agent and data; for a run that "
        "exists, its own config."
    },
    "train --episodes": {"help": "Show or record this many episodes with --render or --record. The default is 3."},
    "evaluate folder": {
        "nargs": "+",
        "help": "Evaluate the actors in these folders: of runs, algorithms or environments, or in these actors' files. "
        "Several runs of one algorithm also get their mean and standard deviation.",
    },
    "evaluate --episodes": {
        "type": arguments.run_id,
        "default": 100,
        "help": "Play this many episodes. The default is 100. With --from_data, 0 plays none.",
    },
    "evaluate --env": {"help": "Play in this environment. The default is that of the run."},
    "evaluate --seed": {
        "default": 2_000_000,
        "help": "Use this seed for the first episode, and the numbers after it for the others. The default is 2000000.",
    },
    "evaluate --render": {
        "help": "With --forever: show the episodes in a window. Without a screen, they are only played."
    },
    "evaluate --config": {"help": "Read this gin file first, for imports that define classes of your own."},
    "evaluate --gin": {
        "help": "Change the environment of the run, as in --gin \"make.kwargs={'g': 5.0}\". These bindings override "
        "those of the run and of --config; a binding that changes nothing is refused."
    },
    "plot folder": {"nargs": "+", "help": "Draw the runs in these folders: of runs, algorithms or environments."},
    "plot --output": {
        "default": Path("curves.png"),
        "help": "Write the picture into this file: PNG, PDF or SVG. The default is curves.png.",
    },
    "report folder": {"nargs": "+", "help": "Compare the runs in these folders: of runs, algorithms or environments."},
    "report --out": {
        "type": arguments.path,
        "required": False,
        "default": Path("report"),
        "metavar": "NAME|FOLDER",
        "help": "Write NAME.md, NAME.tex (tables), NAME.png and NAME.json, or report.md and so on into a folder that "
        "exists. The default is report.",
    },
    "report --metric": {
        "help": "Compare this column of progress.csv, of which more is better, such as test/success_rate. The default "
        "is test/return."
    },
    "report --track": {"help": "Also log the table, the figure and the JSON file to Weights & Biases, as one run."},
    "board folder": {"nargs": "+", "help": "Show the runs in these folders: of runs, algorithms or environments."},
    "params name": {
        "help": "Explain this one: an algorithm as for --algo, a memory such as lstm, or a class or function of gin "
        "such as ReplayBuffer or train. Without it, the command lists all names."
    },
    "check folder": {
        "nargs": "?",
        "metavar": "RUN",
        "help": "Measure whether the agent with memory in this run's folder, or in this actor's file, uses its memory, "
        "and how far back.",
    },
    "check --env": {
        "help": "Check this environment: a name of `offpcc envs`, any Gymnasium id, or MODULE:ID of your own. With "
        "--dataset, compare the data with it. With RUN, play in it; the default is that of the run."
    },
    "check --algo": {
        "required": False,
        "help": "With --env or --dataset: also check whether this algorithm takes such observations and actions; if "
        "not, name one that does.",
    },
    "check --episodes": {"help": "With RUN: play this many episodes, two or more. The default is 20."},
    "check --json": {"help": "With RUN: print JSON, and nothing else, to the standard output."},
    "check --output": {
        "help": "Draw the returns and lengths of the data's episodes into this file. With RUN, draw the measurements; "
        "the default is then memory_NAME.png, by the name of the agent."
    },
    "check --model": {"help": "Check this model, which offpcc train-model wrote, on the recorded data."},
    "check --steps": {"help": "Walk through the environment for at most this many steps. The default is 2000."},
    "check --seed": {
        "help": "Use this seed for the environment and the actions. The default is 0. With RUN, it is the seed of the "
        "first episode, and the default is 2000000."
    },
    "collect --algo": {
        "required": False,
        "help": "With --recipe: train this algorithm, online. The default is sac; rsac has memory.",
    },
    "collect --config": {
        "help": "Read this gin file first, for imports or wrappers that the environment needs. With --recipe, it also "
        "has the settings of training; the default is a file of configs/defaults/, by the kind of agent."
    },
    "collect --gin": {
        "help": "Change the environment, as in --gin \"make.kwargs={'g': 5.0}\". With --recipe, also set training, as "
        "in --gin SAC.lr=1e-4. These bindings override those of --config and of the run; a binding without effect is "
        "refused."
    },
    "collect --dataset": {
        "help": "With --model: begin the episodes at observations of these data: an HDF5 file, D4RL's name of a "
        "dataset, minari:ID or ogbench:NAME."
    },
    "collect --env": {
        "required": True,
        "help": "Use this environment: a name of `offpcc envs`, or any Gymnasium id. With --model, you may leave it "
        "out; else its wrappers show the model and the actor the recorded observations.",
    },
    "collect --model": {
        "action": arguments.ReplacesEnv,
        "help": "Record episodes that the actor plays in this model, which offpcc train-model wrote, and not in an "
        "environment. An agent with memory first reads its recorded episode up to the start.",
    },
    "collect --out": {
        "metavar": "FILE.hdf5|FOLDER",
        "help": "Write the steps into this file; with --recipe, the five files into this folder, written without a "
        "slash at the end.",
    },
    "collect --steps": {
        "required": True,
        "help": "Record this many environment steps. With --recipe, in each of random, medium and expert.",
    },
    "collect --seed": {
        "default": 0,
        "help": "Use this seed for the environment, the noise and the random actions. The default is 0.",
    },
    "collect --resume": {"help": "Continue a recording, or a recipe, that was stopped."},
    "train-model --dataset": {
        "required": True,
        "help": "Train on recorded data: an HDF5 file, D4RL's name of a dataset, minari:ID or ogbench:NAME.",
    },
    "train-model --out": {"metavar": "FILE.pt", "help": "Write the model into this file."},
    "train-model --env": {
        "help": "Train on the observations that an agent sees in this environment, and take its termination rule. "
        "The default is the observations as recorded."
    },
    "train-model --seed": {"default": 0, "help": "Use this seed for weights, holdout and order. The default is 0."},
    "train-model --resume": {"help": "Continue a training that was stopped."},
    "convert --run_id": {
        "nargs": None,
        "default": 1,
        "help": "Convert recordings of this run, 1 to 5. The default is 1.",
    },
    "export folder": {"help": "Export the actor in this folder of a run, or in this actor's file."},
    "export --out": {
        "required": False,
        "metavar": "FILE.onnx|FILE.pt2",
        "help": "Write the actor into this file, and its contract beside it, as JSON. The default is an ONNX file "
        "beside the actor's.",
    },
    "export --env": {"help": "Take control rate and spaces from this environment. The default is that of the run."},
    "zoo name": {"help": "The agent, as `offpcc zoo list` names it."},
    "zoo --out": {
        **FOLDER,
        "required": False,
        "help": "Copy the files, or write the videos, into this folder. The default for a copy is a new folder with "
        "the agent's name. Without the option, `play` opens a window if there is a screen.",
    },
    "zoo --episodes": {"help": "Play this many episodes. The default is 1."},
    "sweep --jobs": {"help": "Train this many runs at a time, each in its own process. The default is 1."},
    "sweep --track": {"help": "Also log the runs to Weights & Biases, in one group."},
    "toy-model --out": {
        "metavar": "FILE.gif|FILE.mp4",
        "help": "Write the animation into this file, and its last frame beside it, as PNG.",
    },
    "toy-model --members": {"help": "Train this many networks. The default is 2."},
    "toy-model --updates": {"help": "Make this many updates. The default is 5000."},
    "toy-model --seed": {"default": 0, "help": "Use this seed for data, weights and batches. The default is 0."},
}
