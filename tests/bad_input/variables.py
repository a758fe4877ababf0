"""Environment variables with nonsense in them."""

HOPPER = "--algo bc --config test/offline_short.gin --dataset hopper-medium-v2 --run_id 99"

COMMANDS = [
    ({"OFFPCC_RESULTS": "a_file"}, "TRAIN", "a_file", "another folder"),
    ({"OFFPCC_RESULTS": "a_file/below"}, "TRAIN", "a_file"),
    ({"OFFPCC_DATASETS": "a_file"}, "OFFLINE --dataset mine", "mine"),
    ({"OFFPCC_DATASETS": "a_file", "D4RL_DATASET_DIR": "", "HOME": "a_file"}, HOPPER, "no folder", "OFFPCC_DATASETS"),
    ({"OFFPCC_D4RL_URL": "nonsense"}, HOPPER, "nonsense", "OFFPCC_D4RL_URL"),
    ({"OFFPCC_D4RL_URL": "http://127.0.0.1:9"}, HOPPER, "127.0.0.1:9", "OFFPCC_D4RL_URL"),
    ({"OFFPCC_D4RL_URL": "file:///etc"}, HOPPER, "file:///etc", "OFFPCC_D4RL_URL"),
    ({"OFFPCC_KEEP_MEMORY": "perhaps"}, "TRAIN", "OFFPCC_KEEP_MEMORY", "perhaps", "0 or 1"),
    ({"MUJOCO_GL": "crayons"}, "TRAIN", "MUJOCO_GL", "crayons", "egl"),
    ({"OMP_NUM_THREADS": "many"}, "TRAIN", "OMP_NUM_THREADS", "many", "such as 1"),
    ({"OMP_NUM_THREADS": "-2"}, "evaluate RUN", "OMP_NUM_THREADS", "-2"),
    ({"MKL_NUM_THREADS": "0"}, "envs", "MKL_NUM_THREADS", "0"),
    ({"OPENBLAS_NUM_THREADS": "1.5"}, "plot RUN", "OPENBLAS_NUM_THREADS", "1.5"),
    ({"OFFPCC_WANDB_PROJECT": "a/b:c"}, "TRAIN", "OFFPCC_WANDB_PROJECT", "a/b:c"),
    ({"OFFPCC_WANDB_ENTITY": "a b/c"}, "TRAIN --track", "OFFPCC_WANDB_ENTITY", "a b/c"),
    ({"WANDB_MODE": "sideways"}, "TRAIN --track", "WANDB_MODE", "sideways", "offline"),
    ({"MINARI_DATASETS_PATH": "a_file"}, "OFFLINE --dataset minari:mine-v0", "minari:mine-v0"),
    ({"MINARI_DATASETS_PATH": "a_file"}, "COLLECT --minari mine-v0", "a_file", "MINARI_DATASETS_PATH"),
]
