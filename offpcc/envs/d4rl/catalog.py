"""D4RL's dataset names: files, test environments, reference returns.

Fu et al. 2020 (arXiv:2004.07219). Names, files, time limits and reference returns come from D4RL's own tables.
"""

import re

ADDRESS = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
SUFFIXES = (".hdf5", ".h5", ".npz")
LOCOMOTION = {  # returns of a random and an expert policy: the scores 0 and 100
    "halfcheetah": (-280.178953, 12135.0),
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
}
BULLET = {
    "halfcheetah": (-1275.766996, 2381.6725),
    "hopper": (20.058972, 1441.8059623430963),
    "walker2d": (16.523877, 1623.6476303317536),
    "ant": (373.705955, 2650.495),
}
ADROIT = {
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "door": (-56.512833, 2880.5693087298737),
    "relocate": (-6.425911, 4233.877797728884),
}
MAZES = {
    "maze2d-open-v0": (0.01, 20.66),
    "maze2d-open-dense-v0": (11.17817, 27.166538620695782),
    "maze2d-umaze-v0": (0.94, 62.6),
    "maze2d-medium-v0": (5.77, 85.14),
    "maze2d-large-v0": (4.83, 191.99),
    "maze2d-umaze-dense-v0": (23.249793, 81.78995240126592),
    "maze2d-medium-dense-v0": (19.47762, 96.03474232952358),
    "maze2d-large-dense-v0": (27.38831, 215.09965671563742),
    "maze2d-umaze-v1": (23.85, 161.86),
    "maze2d-medium-v1": (13.13, 277.39),
    "maze2d-large-v1": (6.7, 273.99),
    "maze2d-umaze-dense-v1": (68.537689, 193.66285642381482),
    "maze2d-medium-dense-v1": (44.264742, 297.4552547777125),
    "maze2d-large-dense-v1": (30.569041, 303.4857382709002),
    "maze2d-eval-umaze-v1": (36.63, 141.4),
    "maze2d-eval-medium-v1": (13.07, 204.93),
    "maze2d-eval-large-v1": (16.4, 302.22),
    "maze2d-eval-umaze-dense-v1": (56.95455, 178.21373133248397),
    "maze2d-eval-medium-dense-v1": (42.28578, 235.5658957482388),
    "maze2d-eval-large-dense-v1": (56.95455, 326.09647655082637),
    "bullet-maze2d-open-v0": (8.75, 64.15),
    "bullet-maze2d-umaze-v0": (32.46, 153.99),
    "bullet-maze2d-medium-v0": (14.87, 238.05),
    "bullet-maze2d-large-v0": (1.82, 285.92),
}
QUALITIES = ("random", "medium", "expert", "medium-replay", "medium-expert", "full-replay")
ANT_MAZES = {  # maze in the file's name, whether starts vary, whether goals vary
    "umaze": ("u-maze", False, False),
    "umaze-diverse": ("u-maze", True, True),
    "medium-play": ("big-maze", True, False),
    "medium-diverse": ("big-maze", True, True),
    "large-play": ("hardest-maze", True, False),
    "large-diverse": ("hardest-maze", True, True),
}
KITCHENS = {
    "complete": "mini_kitchen_microwave_kettle_light_slider",
    "partial": "kitchen_microwave_kettle_light_slider",
    "mixed": "kitchen_microwave_kettle_bottomburner_light",
}
TIME_LIMITS = (  # for files that do not mark where time limits ended an episode
    (r"maze2d-(umaze(-dense)?-v0|open)|bullet-maze2d-open", 150),
    (r"maze2d-medium(-dense)?-v0", 250),
    (r"maze2d-large(-dense)?-v0", 600),
    (r"(bullet-)?maze2d-(eval-)?umaze", 300),
    (r"(bullet-)?maze2d-(eval-)?medium", 600),
    (r"(bullet-)?maze2d-(eval-)?large", 800),
    (r"antmaze-umaze", 700),
    (r"kitchen", 280),
    (r"pen", 100),
    (r"door|hammer|relocate", 200),
    (r"", 1000),
)
REMARKS = (
    (
        r"antmaze-umaze-diverse",
        "rewards and terminals mark a goal once; in the other ant mazes, they mark every step near it (D4RL issue 199)",
    ),
    (
        r"antmaze-.*-v[01]",
        "timeouts are not at episodes' ends (D4RL issue 77), so some steps jump across the maze; -v2 corrects this",
    ),
    (
        r"ant-",
        "the 84 contact forces at the end of an observation are zeros (D4RL issue 143), in the data and therefore in "
        "tests, too; simulators compute different forces",
    ),
    (r"maze2d", "a reward belongs to the observation of the same row, not to the next one (D4RL issue 194)"),
)
OUT_OF_SCOPE = r"(flow|carla|waymo|minigrid)(?![a-z])"
TASKS = {  # test environments of the datasets; {} is a maze's size, and whether its reward is dense
    "halfcheetah": "HalfCheetah-v4",
    "hopper": "Hopper-v4",
    "walker2d": "Walker2d-v4",
    "ant": "Ant-v4",
    "pen": "AdroitHandPen-v1",
    "hammer": "AdroitHandHammer-v1",
    "door": "AdroitHandDoor-v1",
    "relocate": "AdroitHandRelocate-v1",
    "maze2d": "PointMaze_{}-v3",
    "antmaze": "AntMaze_{}-v5",
}
SIZES = {"open": "Open", "umaze": "UMaze", "medium": "Medium", "large": "Large"}
PACKAGES = (  # pip packages of these environments
    (r"AdroitHand|PointMaze|AntMaze", "gymnasium-robotics"),
    (r".+-bullet-", "pybullet-envs-gymnasium"),
    (r".+", "mujoco"),
)
_BODIES, _QUALITIES = "|".join(LOCOMOTION), "|".join(QUALITIES)
REFERENCED = (  # names of D4RL, and of environments with the same task and reward in any simulator version
    (rf"bullet-({_BODIES})-(?:{_QUALITIES})-v\d+|({_BODIES})bulletenv-v\d+|({_BODIES})-bullet(?:-[pv])?-v\d+", BULLET),
    (r"(halfcheetah|ant)-p-v\d+", BULLET),
    (rf"({_BODIES})(?:-(?:{_QUALITIES}|random-expert))?-v\d+", LOCOMOTION),
    (rf"({_BODIES})-mujoco(?:-[pv])?-v\d+|mujoco/({_BODIES})/.+", LOCOMOTION),
    # gymnasium-robotics' own hands are excluded. Their episodes continue after the pen was dropped. Since version 1.2.1
    # of the package, the rewards of the others' -v1 increase with the distance from the object.
    (r"(pen|hammer|door|relocate)(?:-(?:human|cloned|expert)(?:-longhorizon)?)?-v\d+", ADROIT),
    (r"d4rl/(pen|hammer|door|relocate)/.+", ADROIT),
    (rf"(antmaze)-(?:{'|'.join(ANT_MAZES)})-v\d+", {"antmaze": (0.0, 1.0)}),
    (r"(kitchen)-(?:complete|partial|mixed)-v0", {"kitchen": (0.0, 4.0)}),
)


def _files() -> dict[str, str]:
    """Return D4RL's names and the paths of their files below `ADDRESS`."""
    files = {}
    for body in LOCOMOTION:
        for quality in QUALITIES:
            plain = quality.replace("-", "_")
            for version in ("v1", "v2"):
                files[f"{body}-{quality}-{version}"] = f"gym_mujoco_{version}/{body}_{plain}-{version}.hdf5"
            if quality != "full-replay":
                old = "walker_mixed" if body == "walker2d" else f"{body}_mixed"
                files[f"{body}-{quality}-v0"] = f"gym_mujoco/{old if 'replay' in quality else f'{body}_{plain}'}.hdf5"
                files[f"bullet-{body}-{quality}-v0"] = f"bullet/bullet-{body}_{plain}.hdf5"
    files["ant-random-expert-v0"] = "gym_mujoco/ant_random_expert.hdf5"
    for hand in ADROIT:
        files[f"{hand}-human-v0"] = f"hand_dapg/{hand}-v0_demos_clipped.hdf5"
        files[f"{hand}-cloned-v0"] = f"hand_dapg/{hand}-demos-v0-bc-combined.hdf5"
        files[f"{hand}-expert-v0"] = f"hand_dapg/{hand}-v0_expert_clipped.hdf5"
        for quality in ("human", "cloned", "expert"):
            files[f"{hand}-{quality}-v1"] = f"hand_dapg_v1/{hand}-{quality}-v1.hdf5"
    for name in MAZES:
        family = "bullet" if name.startswith("bullet") else "maze2d"
        stem, version = name.rsplit("-", 1)
        sparse = stem if stem.endswith("-dense") else f"{stem}-sparse"
        files[name] = f"{family}/{sparse}{'-v1' if version == 'v1' else ''}.hdf5"
    for maze, (shape, starts, goals) in ANT_MAZES.items():
        for version, folder, shown, end in (
            ("v0", "ant_maze_new", shape, ""),
            ("v1", "ant_maze_v1", maze.split("-")[0], ""),
            ("v2", "ant_maze_v2", shape, "_fixed"),
        ):
            varied = f"multistart_{starts}_multigoal_{goals}_sparse"
            files[f"antmaze-{maze}-{version}"] = f"{folder}/Ant_maze_{shown}_noisy_{varied}{end}.hdf5"
    files |= {f"kitchen-{kind}-v0": f"kitchen/{file}-v0.hdf5" for kind, file in KITCHENS.items()}
    return files


FILES = _files()
NAMES = {path.rsplit("/", 1)[-1]: name for name, path in FILES.items()}


def task(name: str) -> str | None:
    """Return the Gymnasium id of the environment in which agents that learn from a D4RL dataset are tested.

    `offpcc.envs.d4rl` corrects the differences between this environment and D4RL's own. The corrected environment has
    the name of the dataset, and its observations, actions and rewards match the data.

    The id is None if no environment matches: no package has bullet-maze2d, and the kitchen's observation had 60
    numbers, but today's has 59. It is also None for names that are not D4RL's.
    """
    family, *words = name.split("-")
    if name not in FILES:
        return None
    if family == "bullet":
        return f"{words[0]}-bullet-v0" if words[0] in BULLET else None
    size = next((shown for word, shown in SIZES.items() if word in words), "")
    return TASKS[family].format(size + "Dense" * ("dense" in words)) if family in TASKS else None


def package(name: str) -> str | None:
    """Return the pip package that the `task` of a D4RL name needs, or None if it has no task."""
    return next((needed for pattern, needed in PACKAGES if re.match(pattern, task(name) or "")), None)


def max_episode_steps(name: str) -> int | None:
    """Return the time limit that the data of a D4RL name was recorded with; None for other names."""
    return next(steps for pattern, steps in TIME_LIMITS if re.match(pattern, name)) if name in FILES else None


def why_not(name: str) -> str | None:
    """Return why a D4RL name has no data and no environment in offpcc; None for names that are not out of scope."""
    if not re.match(OUT_OF_SCOPE, name):
        return None
    return (
        f"{name}: D4RL's data and environments of Flow, CARLA, Waymo and MiniGrid are out of scope; name another, or "
        f"give data of your own as a file with D4RL's keys"
    )


def remarks(name: str) -> list[str]:
    """Return the known oddities of a D4RL dataset."""
    return [words for pattern, words in REMARKS if name in FILES and re.match(pattern, name)]


def reference_returns(name: str) -> tuple[float, float] | None:
    """Return the returns with D4RL's scores 0 and 100 for a dataset or an environment; None if D4RL gives none."""
    name = name.split(":")[-1].lower()
    if name in MAZES:
        return MAZES[name]
    for pattern, returns in REFERENCED:
        if match := re.fullmatch(pattern, name):
            return returns[next(group for group in match.groups() if group)]
    return None


def normalized_score(name: str, return_: float) -> float | None:
    """Return D4RL's score of a return, 100 (R - R_random) / (R_expert - R_random); None without reference returns."""
    references = reference_returns(name)
    return None if references is None else 100.0 * (return_ - references[0]) / (references[1] - references[0])
