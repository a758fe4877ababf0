"""Folders of results that cannot be, and run folders that are damaged."""

PLACES = [
    ("a_file", "a_file", "folder"),
    ("a_file/below", "a_file", "folder"),
    ("dangling", "dangling"),
]
EVALUATED = [
    *((f"actor_best_{way}", "actor_best.pt") for way in ("noise", "empty", "half")),
    ("config_noise", "config.gin"),
    ("run_env_escape", "../../../etc/passwd"),
    ("run_env_other", "Walker2d-v4"),
    ("run_env_none", "--env"),
    ("gin_syntax", "config.gin"),
    ("gin_wrapper", "somewhere.Wrapper", "--config"),
    ("only_a_checkpoint", "no saved actor", "resume the run"),
]
PLOTTED = [
    *((f"progress_{way}", "progress.csv") for way in ("noise", "empty", "folder")),
    ("csv_words", "progress.csv", "words"),
    ("csv_without_step", "progress.csv", "step"),
    ("csv_header", "test/return"),
]
RESUMED = [
    *((f"checkpoint_{way}", "checkpoint.pt") for way in ("noise", "empty", "half", "folder")),
    ("config_noise", "config.gin"),
    ("config_half", "train.num_epochs"),
    ("gin_syntax", "config.gin"),
    ("gin_import", "imports nothing", "--import"),
    ("only_a_checkpoint", "--config"),
]
RUN = "pendulum-p-v0/sac/1"
NEWER = [  # a run that a newer version made, or went on with
    f"evaluate damaged/run_newer_resume/{RUN} --episodes 1",
    *(f"{command} damaged/run_newer/{RUN}" for command in ("evaluate", "export", "check", "COLLECT --actor")),
    *(f"ACTOR {what} --results damaged/run_newer" for what in ("--resume", "--render", "--record")),
    "ACTOR --resume --results damaged/run_newer_resume",
    f"ACTOR --init damaged/run_newer/{RUN} --results new",
    f"report damaged/run_newer/{RUN} {'/'.join(('results', RUN))} --out new",
]
COMMANDS = [
    *((f"TRAIN --results {place}", *words) for place, *words in PLACES),
    *((f"evaluate damaged/{way}/{RUN} --episodes 1", *words) for way, *words in EVALUATED),
    (f"COLLECT --actor damaged/actor_best_half/{RUN}", "actor_best.pt"),
    ("ACTOR --record --results damaged/actor_best_half", "actor_best.pt"),
    *((f"plot damaged/{way}", *words) for way, *words in PLOTTED),
    *((f"ACTOR --resume --results damaged/{way}", *words) for way, *words in RESUMED),
    *((command, "offpcc 99.1.0", "install that version") for command in NEWER),
    ("ACTOR --resume --gin ActorCritic.gamma=0.5 train.num_epochs=9", "gamma is 0.5", "--results"),
    ("TRAIN --run_id 1 --resume --algo td3 --gin TD3.lr=-1", "TD3.lr is -1"),
    *((f"evaluate {file} --env pendulum-p-v0", file) for file in ("empty.pt", "bare.pt", "swings.hdf5")),
]
