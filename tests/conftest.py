"""What all tests share."""

import os
import random
import re
import shutil
import signal

import gin
import h5py
import numpy as np
import pytest
import torch

if shutil.which("g++") is None:  # most tests build agents with compiled updates, and compile nothing
    os.environ["CXX"] = "true"

QUICK = (
    "train.num_steps_per_epoch=250",
    "train.update_after=150",
    "train.num_test_episodes_per_epoch=2",
    "train.updates_per_step=0.1",
)


# Tests with many cases: `make test` runs the cases whose id has one of these, `make test-slow` runs the others.
_AGENTS = "td3|rtd3_s-gru|sac|rsac-(lstm|gpt|concat)|rsac_s|csac|crsac-lstm|bc|rbc-lstm|iql|riql_s-lstm|cql|rcql-lstm"
_AGENTS += "|rdpg|bcq|crr|redac-lstm|rebrac|rcalql-lstm|fql|rrlpd_s-lstm|rtqc_s-lstm"
_BODIES = "pendulum-p-v0|balance-img-v0|balance-p-v0|reacher-pomdp-v0|hopper-bullet-p-v0|walker2d-mujoco-p-v0"
_BODIES += "|corridor-10-v0|^cartpole-p-v0"
FAST_CASES = {
    "algorithms/test_bad_numbers.py::test_a_run_whose_updates_are_all_skipped": None,
    "algorithms/test_compiled.py::test_a_bad_update": "^raise$",
    "algorithms/test_compiled.py::test_a_copy_and_an_actors_file": None,
    "algorithms/test_compiled.py::test_burn_in": None,
    "algorithms/test_compiled.py::test_ctrl_c": None,
    "algorithms/test_compiled.py::test_importance_weights": None,
    "algorithms/test_compiled.py::test_one_that_was_loaded": None,
    "algorithms/test_compiled.py::test_options": "dropout",
    "algorithms/test_compiled.py::test_threads_compile": None,
    "algorithms/test_compiled.py::test_updates_are_those": "^(td3|csac)$",
    "algorithms/test_compiled.py::test_updates_of_many_shapes": None,
    "algorithms/test_compiled.py::test_what_cannot_be_compiled": None,
    "algorithms/test_contract.py": rf"^(\d-)?({_AGENTS})(-None)?$|^[a-z0-9_]+-\d+$",
    "algorithms/test_contract.py::test_building_leaves_the_global_generator_alone": None,
    "algorithms/test_critic_inputs.py::test_critics_see": "^(sac|cql|rtd3-lstm|riql-lstm|crsac-lstm)$",
    "algorithms/test_folded_windows.py::test_no_summary": "^(cdqn|cqrdqn)-",
    "algorithms/test_fused.py::test_updates_give_what_the_plain": "^(SAC|TD3|IQL|BC)-",
    "algorithms/test_heads.py::test_every_algorithm_learns_with_residual_heads": "^(sac|rtd3|ccql|riql_s|bcq)-",
    "algorithms/test_losses.py::test_losses_and_gradients": (
        "^(DDPG|TD3|SAC|SACN)-.*(critics?|layer norm|scaled)$|^(TD3|RLPD|TQC)-(memoryless|shared)-(a random s|residual)"
    ),
    "algorithms/test_nonfinite.py::test_a_bad_batch_is_named": "^nan-|^[a-z]+-[a-z_]+-(sac|rsac)$",
    "algorithms/test_offline_learning.py::test_the_better_of_recorded_actions": "^td3_bc$",
    "algorithms/test_offline_losses.py::test_fql_learns_two_modes": None,
    "algorithms/test_offline_losses.py::test_losses_and_gradients": "^(memoryless|shared)-",
    "algorithms/test_pitfalls.py::test_a_time_limit_is_no_end": "^sac",
    "algorithms/test_pitfalls.py::test_episodes_of_any_length": "rsac",
    "algorithms/test_reading.py::test_a_new_algorithm_is_a_page_and_a_row": "^(CQL|DQN)$",
    "benchmarks/test_command.py::test_no_row_is_lost": None,
    "benchmarks/test_growth.py::test_all_panels": None,
    "benchmarks/test_large.py::test_a_buffer_is_filled": None,
    "cli/test_defaults.py::test_several_runs_print": None,
    "cli/test_evaluate_json.py::test_several_runs": None,
    "cli/test_evaluate_json.py::test_what_an_environment_prints": None,
    "cli/test_jobs.py::test_a_refused_run": None,
    "cli/test_jobs.py::test_a_signal_saves_and_ends_all_runs": None,
    "cli/test_jobs.py::test_runs_at_a_time": None,
    "cli/test_jobs.py::test_runs_go_on": None,
    "cli/test_jobs.py::test_the_worst_exit_code": None,
    "cli/test_main.py::test_bad_input_to_other_commands_gets_one_clear_message": "[025]$",
    "cli/test_main.py::test_four_ways_of_starting": None,
    "cli/test_params.py::test_a_reader_that_ends_early": None,
    "cli/test_params.py::test_all_that_gin_can_bind": "^(r?sac|crtd3_s|r?bcq|cql|r?qrdqn|dcrr|rmbpo)$",
    "cli/test_params.py::test_each_name_of_the_list": None,
    "cli/test_sweep.py::test_a_grid_makes_ordinary_runs_and_a_table": None,
    "cli/test_sweep.py::test_a_second_call": "^mbpo$",
    "cli/test_zoo.py::test_a_contract_has_all_fields": "^pendulum$",
    "cli/test_zoo.py::test_playing_records": None,
    "data/buffers/test_device_rings.py::test_batches_are_the_same": None,
    "data/buffers/test_hindsight.py::test_a_run_goes_on_exactly": "^sac$",
    "data/buffers/test_hindsight.py::test_bits_are_flipped": None,
    "data/buffers/test_memory_limit.py::test_batches_are": "^5760-4-",
    "data/buffers/test_prioritized_replay.py::test_a_gin_file_chooses_the_buffer": None,
    "data/buffers/test_prioritized_replay.py::test_a_run_that_was_killed": None,
    "data/convert/test_convert_atari.py::test_the_games_have": None,
    "data/convert/test_learning_from_frames.py::test_a_run_learns": None,
    "data/datasets/test_d3rlpy.py::test_reading_takes_little": None,
    "data/datasets/test_dtypes.py::test_every_type_and_shape": "^sac",
    "data/datasets/test_mutated_files.py::test_changed_bytes": None,
    "data/test_offline.py::test_a_run_learns_from_the_data": None,
    "data/test_offline.py::test_a_runs_config_repeats_it": "^rcql_s-False",
    "data/test_offline.py::test_resuming_is_exact": "rcql",
    "envs/tasks/test_atari.py::test_a_game_begins": None,
    "envs/tasks/test_atari.py::test_a_lost_life_goes": None,
    "envs/tasks/test_atari.py::test_a_run": None,
    "envs/tasks/test_atari.py::test_actions_are_sticky": None,
    "envs/tasks/test_atari.py::test_an_observation_is": None,
    "envs/tasks/test_atari.py::test_forms_of_a_game": None,
    "envs/tasks/test_atari.py::test_tests_play": None,
    "envs/tasks/test_atari.py::test_the_generators_state": "Tennis",
    "envs/tasks/test_bumps.py::test_feeling_solves_it": None,
    "envs/tasks/test_bumps.py::test_pushing_hard_or_softly": None,
    "envs/tasks/test_mujoco_locomotion.py::test_it_is_drawn": None,
    "envs/test_closing.py::test_a_worker_process_tells_of_it": None,
    "envs/test_env_check.py::test_an_episode_without_end": None,
    "envs/test_env_check.py::test_environments_of_the_field": "balance-p",
    "envs/test_envs.py::test_a_seed_fixes_the_episode": _BODIES,
    "envs/test_envs.py::test_frames_change_as_it_moves": _BODIES,
    "envs/test_envs.py::test_gymnasiums_checker_passes": _BODIES,
    "envs/test_envs.py::test_the_generators_state_fixes_the_episode": _BODIES,
    "envs/test_envs.py::test_the_spec_rebuilds_the_environment": _BODIES,
    "envs/test_state.py::test_a_run_resumes_exactly": None,
    "envs/vector/test_ray_actors.py::test_actors_explore": None,
    "envs/vector/test_workers.py::test_no_wrong_transition_is_stored_after_an_error": "^RecurrentReplayBuffer-",
    "envs/vector/test_workers.py::test_one_that_closes_its_files_is_started_anew": None,
    "envs/vector/test_workers.py::test_the_replay_of_an_episode_has": None,
    "envs/vector/test_workers.py::test_torchs_generator_of_a_process": None,
    "envs/wrappers/test_old_gym.py::test_an_agent_trains_in_it": None,
    "learning/test_memory_tasks.py::test_agents_remember_a_cue_by_any_memory": None,
    "learning/test_memory_tasks.py::test_agents_with_memory_remember_a_cue": None,
    "learning/test_memory_tasks.py::test_agents_without_memory_cannot": None,
    "networks/cells/test_residual.py::test_every_depth_learns": None,
    "networks/test_numpy_inference.py::test_5000_steps_one_by_one": "-dtype0$",
    "test_architecture.py::test_building_does_not_import": None,
    "test_bad_input.py::test_a_process_tells": None,
    "test_bad_input.py::test_one_message_and_nothing_made": "^(OFFLINE|check|evaluate|plot|ACTOR)|--algo",
    "test_dict_observations.py::test_a_run_from_data_resumes": None,
    "test_dict_observations.py::test_a_run_resumes_exactly_and_its_actor_acts_alike": "^csac$",
    "test_dict_observations.py::test_the_doctors": None,
    "test_gallery.py::test_cells_are_uniform": "^(1|7)$",
    "test_hostile_folders.py::test_an_import_that_is_asked_for": "beside",
    "test_hostile_folders.py::test_nothing_is_executed": "^(import|include|run.json is).*(e|t)$",
    "test_loggers.py::TestTensorBoardLogger::test_it_is_imported_late": None,
    "test_loggers.py::TestWandbLogger::test_a_chosen_mode": None,
    "test_packaging.py::test_messages_name_no_file": None,
    "test_real_hardware.py::test_a_resume_begins_a_new_episode": "rsac",
    "test_real_hardware.py::test_a_resume_of_it_is_exact": None,
    "test_resume.py::test_a_damaged_checkpoint_is_named": "nonsense",
    "test_resume.py::test_a_table_that_was_removed_or_changed": "removed|damaged",
    "test_resume.py::test_another_number_of_threads": None,
    "test_resume.py::test_resuming_is_exact_with_options": "schedule",
    "test_resume.py::test_what_a_killed_process_left": None,
    "test_resume.py::test_where_the_checkpoint_is_larger": None,
    "test_stopping.py::test_stopped_anywhere": "^offline",
    "test_stopping.py::test_the_script_for_slurm": None,
    "test_stopping.py::test_what_is_paid_at_the_end": None,
    "test_two_halves.py::test_a_clock_that_jumps_by_years": None,
    "test_two_halves.py::test_a_run_goes_on_under_another_version": "torch",
    "test_two_halves.py::test_nor_does_one_that_is_set": None,
    "test_untrusted_files.py::test_what_a_runs_config_names": "evil$",
    "training/analysis/test_grid_plot.py::test_the_command_draws_grids": None,
    "training/analysis/test_memory_check.py::test_every_memory": "concat|gpt|lstm",
    "training/analysis/test_memory_check.py::test_other_observations_and_algorithms": "Keyed",
    "training/analysis/test_memory_check.py::test_the_command": None,
    "training/analysis/test_policy_evaluation.py::test_a_value_that_depends_on_memory": None,
    "training/analysis/test_policy_evaluation.py::test_the_value_of_a_small_task": None,
    "training/analysis/test_policy_evaluation.py::test_the_value_of_choices": None,
    "training/analysis/test_report.py::test_track_logs": None,
    "training/models/test_collect_from_model.py::test_imagined_steps_are_a_data_set": "^(random|sac)$",
    "training/models/test_imagination.py::test_a_given_model_is": None,
    "training/models/test_imagination.py::test_a_model_is_found": None,
    "training/models/test_imagination.py::test_a_run_in_a_model_resumes": "^mbpo-stops4",
    "training/models/test_imagination.py::test_a_run_trains_its_model_first": None,
    "training/models/test_imagination.py::test_no_pessimism_equals_mbpo": None,
    "training/models/test_imagination.py::test_the_config_of_a_run": None,
    "training/models/test_model_training.py::test_as_many_imagined_steps": None,
    "training/models/test_model_training.py::test_compiled_updates": None,
    "training/models/test_model_training.py::test_terminations_are_learned": None,
    "training/models/test_model_training.py::test_the_toy_model_is_drawn": None,
    "training/test_checkpoint.py::test_a_changed_byte_is_named": "episodes",
    "training/test_checkpoint.py::test_killed_at_any_step_of_writing": "episodes",
    "training/test_checkpoint.py::test_whatever_is_pushed": None,
    "training/test_export.py::test_a_file_names_no_folder": "pt2",
    "training/test_export.py::test_a_file_that_onnxruntime": None,
    "training/test_export.py::test_a_program_of_pytorch": None,
    "training/test_export.py::test_random_actions_of_tests": None,
    "training/test_export.py::test_the_contract_names": None,
    "training/test_export.py::test_the_contract_of_images": None,
    "training/test_fit.py::test_python_and_the_command_line_write": None,
    "training/test_minimal_parts.py::test_they_are_built": None,
    "training/test_offline_to_online.py::test_a_run_resumes_exactly_before_at": "^riql-stops0",
    "training/test_offline_to_online.py::test_a_run_that_began_with_networks": "^cql-.*-150$",
    "training/test_offline_to_online.py::test_a_run_that_begins_there_resumes": "^rrlpd_s",
    "training/test_offline_to_online.py::test_another_algorithm_takes_over": "^(iql|cql)",
    "training/test_own_parts.py::test_a_model_of_the_algorithms_class": None,
    "training/test_own_parts.py::test_bindings_of_a_logger": None,
    "training/test_python_api.py::test_a_constructor_gives_the_bytes": "^sac",
    "training/test_python_api.py::test_a_function_is_a_callback": None,
    "training/test_python_api.py::test_a_run_without_gin_is": None,
    "training/test_python_api.py::test_agents_in_two_threads": None,
    "training/test_python_api.py::test_an_actor_that_another_thread_loads": None,
    "training/test_python_api.py::test_ctrl_c_in_train_ends_a_script": None,
    "training/test_python_api.py::test_ctrl_c_in_train_waits": "^(sac-step|rsac-update)$",
    "training/test_python_api.py::test_several_environments_collect_together": None,
    "training/test_python_api.py::test_threads_read_bindings": None,
    "training/test_python_api.py::test_training_goes_on_after_stop_return": None,
    "training/test_python_api.py::test_two_runs_in_two_threads": None,
    "training/test_python_api.py::test_worker_processes_make": None,
    "training/test_saved_learner.py::test_a_saved_learner_goes_on_exactly": "^recorded$",
    "training/test_saved_learner.py::test_the_learner_of_a_folder_goes_on_exactly": "^memory$",
    "utils/test_allocation.py::test_memory_is_kept_for_the_command_line_alone": None,
    "utils/test_disks.py::test_a_full_disk": None,
}  # None: the whole test is slow


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases that are not in `FAST_CASES` as slow."""
    for item in items:
        name, _, case = item.nodeid.removeprefix("tests/").rstrip("]").partition("[")
        test = max((test for test in FAST_CASES if name.startswith(test)), key=len, default=None)
        if test is not None:
            pattern = FAST_CASES[test]
            if pattern is None or (case and not re.search(pattern, case)):
                item.add_marker(pytest.mark.slow)


def pytest_configure():
    """In the background of a script SIGINT is ignored, here and in what is started from here."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def merged(*bindings):
    """Of each parameter's bindings the last; the command line gives each once."""
    return [*{binding.split("=")[0]: binding for binding in bindings}.values()]


def run_folder(tmp_path, env="pendulum-p-v0", algo="sac", run_id=1):
    return tmp_path / "results" / env / algo / str(run_id)


def rows(folder):
    """The rows of progress.csv without the columns of time."""
    return [line.rsplit(",", 2)[0] for line in (folder / "progress.csv").read_text().splitlines()]


@pytest.fixture(autouse=True)
def clean_slate(monkeypatch):
    """No bindings of another test, the same seeds, one thread, and none of the user's settings."""
    gin.clear_config()
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack three times where there is no GPU
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    torch.set_num_threads(1)
    for name in ("OFFPCC_RESULTS", "OFFPCC_WANDB_PROJECT", "OFFPCC_WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    yield
    gin.clear_config()


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """A run of a test without the marker `pictures` ends without curve and video, which take longer than the run."""
    if not request.node.get_closest_marker("pictures"):
        monkeypatch.setattr("offpcc.training.fit.picture", lambda *rest: None)


@pytest.fixture
def hopper(tmp_path, monkeypatch):
    """A file under D4RL's name of data that is tested in an environment."""
    pytest.importorskip("mujoco")
    monkeypatch.setenv("OFFPCC_DATASETS", str(tmp_path))
    generator = np.random.default_rng(0)
    with h5py.File(tmp_path / "hopper_expert-v2.hdf5", "w") as data:
        data["observations"], data["actions"] = generator.normal(size=(30, 11)), generator.uniform(-1, 1, (30, 3))
        data["rewards"], data["terminals"], data["timeouts"] = np.ones(30), np.zeros(30, bool), np.zeros(30, bool)
        data["terminals"][[9, 19, 29]] = True
    return "hopper-expert-v2"


@pytest.fixture(scope="session")
def pendulum_file(tmp_path_factory):
    """Six random episodes of the pendulum that sees all, as D4RL records: actions in the environment's own units."""
    import gymnasium

    import offpcc.envs  # noqa: F401 (registers it)

    env, generator = gymnasium.make("pendulum-v0"), np.random.default_rng(4)
    steps = []
    for episode in range(6):
        observation, over = env.reset(seed=episode)[0], False
        while not over:
            action = generator.uniform(-2, 2, 1).astype(np.float32)
            following, reward, terminated, over, _ = env.step(action)
            steps.append((observation, action, reward, terminated, over, following))
            observation = following
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    file = tmp_path_factory.mktemp("data") / "swings.hdf5"
    with h5py.File(file, "w") as data:
        for name, column in zip(names, zip(*steps, strict=True), strict=True):
            data[name] = np.array(column)
    return file


@pytest.fixture
def recorded(monkeypatch):
    """Run the operations of compiled updates one by one, as no compiler is needed for that."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda module, given: module)


@pytest.fixture(scope="session")
def forks():
    """A process that has imported torch and offpcc, and is forked for each program."""
    from forked import Forks  # here, because programs of tests import this file without the folder of helpers

    shared = Forks()
    yield shared
    shared.close()


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    """Run the command line in this process, results below `tmp_path`; the exit code, output and errors."""
    from offpcc.cli.main import main

    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "results"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def quick(launch):
    """Train a few steps of an algorithm with configs/test/template_short.gin."""

    def run(algo, *extra, env="pendulum-p-v0", bindings=()):
        config = ("--config", "test/template_short.gin", "--gin", *merged(*QUICK, *bindings))
        return launch("--env", env, "--algo", algo, *config, *extra)

    return run


@pytest.fixture(scope="session")
def unit_file(pendulum_file, tmp_path_factory):
    """The same with actions in [-1, 1], which are learned from without an environment."""
    file = tmp_path_factory.mktemp("unit_data") / pendulum_file.name
    with h5py.File(pendulum_file) as source, h5py.File(file, "w") as target:
        for key in source:
            target[key] = source[key][:] / 2 if key == "actions" else source[key][:]
    return file
