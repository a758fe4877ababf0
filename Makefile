# Two commands on a fresh machine with Python 3.11 and make: `make train` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
BENCH_VENV := .venv-bench
BENCH := $(BENCH_VENV)/bin/python
DOCS_VENV := .venv-docs
RESULTS := $(or $(OFFPCC_RESULTS),results)
QUICKSTART := --env pendulum-p-v0 --algo rsac --config configs/quickstart.gin --run_id 1

# Containers often set this. Then each process that a test starts, and each collection of the tests, compiles all anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help train test test-slow test-ci storm soak soak-long lint format check evidence evidence-offline \
  evidence-online evidence-paper evidence-million evidence-velocities evidence-peers evidence-d3rlpy evidence-sb3 \
  evidence-memories evidence-evaluation evidence-heads evidence-critics evidence-models evidence-discrete evidence-grid \
  evidence-pong evidence-pong-expert gallery docs links bench bench-growth bench-solve bench-bf16 bench-checkpoints \
  bench-memories bench-large quantile-critics clean

help:
	@echo "make train      install, then train the quickstart on the CPU and show the result"
	@echo "make test       install, then run the fast tests"
	@echo "make test-slow  run the other tests, which take longer (make test-ci: all but those that learn for minutes)"
	@echo "make storm      kill short trainings a hundred times, and see that each ends as if nothing had happened"
	@echo "make soak       train for 45 minutes with everything on, and watch memory and open files"
	@echo "make soak-long  train for 8 hours with the paper's settings and random kills, and watch the same; can be continued"
	@echo "make check      formatting, lint, types and the fast tests"
	@echo "make evidence   train again what results/README.md reports, hours"
	@echo "make evidence-paper   the paper's twelve tasks, and its own settings on two of them, hours"
	@echo "make evidence-million   TD3 and SAC on three of MuJoCo's bodies, 2 to 4 hours for each of six runs"
	@echo "make evidence-velocities   PyBullet's tasks with hidden velocities or positions, a day"
	@echo "make evidence-offline   the same of learning from recorded data, hours"
	@echo "make evidence-online   the same of going on in the environment after recorded data, hours"
	@echo "make evidence-peers   offline algorithms beside d3rlpy, CORL and authors' code, hours; clones in \$$CORL, \$$FQL, \$$RLPD"
	@echo "make evidence-d3rlpy   BC, TD3+BC, IQL, CQL and BCQ beside d3rlpy on three recordings, CQL on a fourth, hours"
	@echo "make evidence-sb3   SAC and TD3 beside stable-baselines3 on three tasks, a day"
	@echo "make evidence-memories   one memory beside another, hours; some by make evidence-memories MEMORIES='lstm mingru'"
	@echo "make evidence-evaluation   values of policies from recorded data beside their returns, minutes"
	@echo "make evidence-heads   SAC with residual heads beside MLPs, and TQC, hours"
	@echo "make evidence-critics   critics that see the state beside those that do not, hours"
	@echo "make evidence-models   agents that learn in a model, online and from recorded data, beside others, hours"
	@echo "make evidence-discrete   discrete actions on a small task that hides velocities, and beside d3rlpy and Tianshou, an hour"
	@echo "make evidence-grid, evidence-pong   memory in a grid, and Tianshou's table of Pong, many hours"
	@echo "make evidence-pong-expert   train again the expert that evidence-pong takes from results/, two hours"
	@echo "make gallery    draw one frame of each family of environments, as the README shows them"
	@echo "make docs       write the generated parts of the pages and build the site into site/"
	@echo "make links      follow the links of the pages that lead to other sites, and list those that fail"
	@echo "make bench      measure speed beside other libraries; make bench CASES=sac,td3,rsac_small for some cases"
	@echo "make bench-growth, bench-solve, bench-bf16   how cost grows, seconds to solve pendulum-p, bfloat16's error"
	@echo "make bench-checkpoints   bytes and seconds of checkpoints with a million transitions"
	@echo "make bench-large   10 million transitions in a buffer, recordings of 5 GB, several runs at a time"
	@echo "make bench-memories   measure each memory's learning and acting beside the LSTM's"
	@echo "make format     put the code into the project's format"

$(VENV)/installed: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 is not installed; name another with make PYTHON=..."; exit 2; }
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -r requirements.txt
	$(RUN) -m pip install --no-deps -e .
	@touch $@

$(VENV)/installed-tests: $(VENV)/installed tests/requirements.txt
	$(RUN) -m pip install -r tests/requirements.txt
	@touch $@

# A run that is there already is gone on with or, if it is finished, shown.
train: $(VENV)/installed
	$(RUN) offpcc/launch.py $(QUICKSTART) $(if $(wildcard $(RESULTS)/pendulum-p-v0/rsac/1/run.json),--resume)

test: $(VENV)/installed-tests
	$(RUN) -m pytest -m "not slow" -n auto --maxprocesses 8 --dist worksteal --durations=30

test-slow: $(VENV)/installed-tests
	$(RUN) -m pytest -m slow -n auto --maxprocesses 8 --dist worksteal --durations=30

# The slow tests that take less than minutes each.
test-ci: $(VENV)/installed-tests
	$(RUN) -m pytest -m "slow and not learning" -n auto --maxprocesses 8 --dist worksteal --durations=30

# Others of its options, such as --kills, --minutes or --seed, go into OPTIONS.
storm: $(VENV)/installed-tests
	$(RUN) tests/storm.py $(OPTIONS)

soak: $(VENV)/installed-tests
	$(RUN) tests/soak.py $(OPTIONS)

soak-long: $(VENV)/installed-tests
	$(RUN) tests/soak.py --minutes 480 --kill_after 20 60 --samples results/evidence/soak.csv $(OPTIONS) -- \
	  --env pendulum-p-v0 --algo rsac --config paper/pendulum_p.gin --run_id 1 --gin "ActorCritic.precision = 'bfloat16'" \
	  --results results/evidence/paper

lint: $(VENV)/installed-tests
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

format: $(VENV)/installed-tests
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

check: lint test

# What results/README.md reports: environment, algorithm and config of each; ids 1 to 3. `make -j2 evidence` uses 2 cores.
EVIDENCE := pendulum-p-v0+rsac+evidence/pendulum \
  $(foreach algo,sac rsac,dmc-cartpole-balance-p-v0+$(algo)+evidence/dmc_cartpole) \
  $(foreach algo,csac crsac,pendulum-img-v0+$(algo)+evidence/pendulum_img) \
  $(foreach algo,ddpg td3 sac,pendulum-v0+$(algo)+evidence/pendulum) \
  $(foreach algo,sac rsac_s rtd3 rdpg,pendulum-p-v0+$(algo)+evidence/pendulum)

# About an hour each, so one id each.
HOURS := water-maze-simple-pomdp-v0+rsac+evidence/water_maze bumps-normal-test-v0+rsac+evidence/bumps \
  $(foreach algo,rsac sac,hopper-bullet-p-v0+$(algo)+evidence/hopper_p)

evidence: $(EVIDENCE) $(HOURS)

$(EVIDENCE) $(HOURS): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 2,$(subst +, ,$@)) \
	  --config $(word 3,$(subst +, ,$@)).gin --run_id $(if $(filter $@,$(HOURS)),1,1 2 3) \
	  --threads 1 --results results/evidence --no_video --resume

# The paper's twelve tasks (Yang & Nguyen 2021): those that no other table has, in budgets for one core, and its own
# settings on two tasks, until three tests in a row have at least the return: environment, algorithm, config, precision.
TWELVE := $(addprefix twelve+,dmc-cartpole-balance-v0+sac+dmc_cartpole dmc-cartpole-balance-va-v0+rsac+dmc_cartpole \
  dmc-cartpole-swingup-v0+sac+dmc_swingup dmc-cartpole-swingup-p-v0+rsac+dmc_swingup \
  dmc-cartpole-swingup-va-v0+rsac+dmc_swingup reacher-pomdp-v0+rsac+reacher \
  dmc-cartpole-balance-va-v0+sac+dmc_cartpole dmc-cartpole-swingup-p-v0+sac+dmc_swingup \
  dmc-cartpole-swingup-va-v0+sac+dmc_swingup reacher-pomdp-v0+sac+reacher reacher-mdp-v0+sac+reacher \
  water-maze-simple-pomdp-v0+sac+water_maze water-maze-simple-mdp-v0+sac+water_maze)
PAPER := paper+pendulum-p-v0+pendulum_p+-200+bfloat16 paper+dmc-cartpole-balance-p-v0+cartpole_balance_p+950+float32

evidence-paper: $(TWELVE) $(PAPER)

$(TWELVE): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo $(word 3,$(subst +, ,$@)) \
	  --config evidence/$(word 4,$(subst +, ,$@)).gin --run_id 1 --threads 1 --results results/evidence --no_video --resume

$(PAPER): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo rsac --config paper/$(word 3,$(subst +, ,$@)).gin --run_id 1 \
	  --gin "ActorCritic.precision = '$(word 5,$(subst +, ,$@))'" "train.stop_return = $(word 4,$(subst +, ,$@))" "train.stop_tests = 3" \
	  --threads 2 --results results/evidence/paper --no_video --resume

# A million steps of MuJoCo's bodies, one seed each.
MILLION := $(foreach algo,td3 sac,$(foreach env,HalfCheetah Hopper Walker2d,million+$(env)-v5+$(algo)))

evidence-million: $(MILLION)

$(MILLION): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo $(word 3,$(subst +, ,$@)) --config envs/locomotion.gin \
	  --run_id 1 --threads 1 --results results/evidence/million --no_video --resume

# PyBullet's tasks with hidden velocities or positions, one setting for all, two seeds each: task and epochs of 5,000 steps.
VELOCITIES := $(addsuffix +60,$(addprefix velocities+,halfcheetah-bullet-p-v0 walker2d-bullet-p-v0 walker2d-bullet-v-v0))
VELOCITIES += $(addsuffix +100,$(addprefix velocities+,hopper-bullet-p-v0 hopper-bullet-v-v0))
VELOCITIES_SAC := $(addprefix velocities-without-memory+,hopper-bullet-p-v0 hopper-bullet-v-v0)

evidence-velocities: $(VELOCITIES) $(VELOCITIES_SAC)

$(VELOCITIES): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo rsac --config evidence/velocities.gin --run_id 1 2 \
	  --gin "train.num_epochs = $(word 3,$(subst +, ,$@))" --threads 1 --results results/evidence/velocities --no_video --resume

$(VELOCITIES_SAC): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo sac --config evidence/velocities.gin --run_id 1 \
	  --threads 1 --results results/evidence/velocities --no_video --resume

# Learning from recorded data: environment, data, algorithm, config. The first two kinds of data are made here; the last are
# others' recordings, which are to lie in $OFFPCC_DATASETS (results/README.md names their sources).
DATA := results/evidence/data
FIVE := bc td3_bc iql bcq cql
WITH_MEMORY := rbc rtd3_bc riql rbcq rcql
OFFLINE_PENDULUM := $(foreach algo,$(FIVE) rebrac edac $(WITH_MEMORY) rrebrac redac,pendulum-p-v0+pendulum_replay+$(algo)+evidence/offline/pendulum) \
  $(foreach algo,sac $(FIVE) $(WITH_MEMORY),pendulum-v0+pendulum_replay+$(algo)+evidence/offline/pendulum)
OFFLINE_HOPPER := $(foreach algo,$(FIVE),$(foreach data,medium replay random,hopper-mujoco-v0+hopper_$(data)+$(algo)+evidence/offline/$(algo))) \
  $(foreach algo,td3_bc iql rtd3_bc riql,hopper-mujoco-p-v0+hopper_medium+$(algo)+evidence/offline/hopper_p)
# Memory and no memory from the expert's data of Hopper, of which the agents see only positions.
OFFLINE_HIDDEN := $(addprefix hidden+,td3_bc iql rebrac rtd3_bc riql rrebrac)
OFFLINE_OTHERS := $(foreach algo,$(FIVE),Hopper-v4+hopper-opolo-expert+$(algo)+evidence/offline/$(algo) \
  HalfCheetah-v4+halfcheetah-opolo-medium+$(algo)+evidence/offline/$(algo) \
  Walker2d-v4+walker2d-opolo-medium+$(algo)+evidence/offline/$(algo))
OFFLINE := $(OFFLINE_PENDULUM) $(OFFLINE_HOPPER) $(OFFLINE_OTHERS)
# The same with raw and with normalised observations, in folders of their own: 5,000 updates of three ids, and 20,000 of one.
CLASS_bc := BC
CLASS_td3_bc := TD3BC
CLASS_iql := IQL
CLASS_bcq := BCQ
CLASS_cql := CQL
OFFLINE_NORMALIZATION := $(foreach kind,raw normalized normalized_20000,$(addprefix $(kind)+,\
  $(filter-out %+cql+evidence/offline/cql,$(OFFLINE_OTHERS)) Hopper-v4+hopper-opolo-expert+cql+evidence/offline/cql))

$(DATA)/pendulum_replay.hdf5: | $(VENV)/installed
	$(RUN) offpcc/launch.py --env pendulum-v0 --algo sac --config evidence/pendulum.gin --run_id 1 \
	  --threads 1 --results results/evidence/recorded --save_dataset $@ --no_video --resume

$(DATA)/hopper_replay.hdf5: | $(VENV)/installed
	$(RUN) offpcc/launch.py --env hopper-mujoco-v0 --algo sac --config evidence/hopper.gin --run_id 1 \
	  --threads 1 --results results/evidence/recorded --save_dataset $@ --no_video --resume

$(DATA)/hopper_medium.hdf5: $(DATA)/hopper_replay.hdf5
	$(RUN) offpcc/launch.py collect --env hopper-mujoco-v0 --actor results/evidence/recorded/hopper-mujoco-v0/sac/1 \
	  --steps 100000 --out $@ --resume

$(DATA)/hopper_random.hdf5: | $(VENV)/installed
	$(RUN) offpcc/launch.py collect --env hopper-mujoco-v0 --actor random --steps 100000 --out $@ --resume

# D4RL's five kinds of data of MuJoCo's Hopper, from one run of SAC.
HOPPER_REPLAY := hopper_d4rl/medium-replay

$(DATA)/$(HOPPER_REPLAY).hdf5: | $(VENV)/installed
	$(RUN) offpcc/launch.py collect --recipe d4rl --env hopper-mujoco-v0 --config evidence/hopper.gin --steps 100000 \
	  --threads 1 --out $(@D) --resume

# The same recipe's medium and expert agents are in the zoo, so their data take a minute.
HOPPER_MEDIUM := $(DATA)/hopper_zoo_medium.hdf5
HOPPER_EXPERT := $(DATA)/hopper_zoo_expert.hdf5

$(HOPPER_MEDIUM) $(HOPPER_EXPERT): $(DATA)/hopper_zoo_%.hdf5: | $(VENV)/installed
	$(RUN) offpcc/launch.py collect --env hopper-mujoco-v0 --actor results/zoo/hopper-$* --steps 100000 --out $@ --resume

$(DATA)/water_maze_replay.hdf5: | $(VENV)/installed
	$(RUN) offpcc/launch.py --env water-maze-simple-pomdp-v0 --algo rsac --config evidence/water_maze.gin --run_id 1 \
	  --gin "train.num_epochs=30" --threads 1 --results results/evidence/recorded --save_dataset $@ --no_video --resume

# Imitation of all recorded episodes, of the best tenth, and conditioned on the return, with an LSTM and a transformer.
RETURNS := $(foreach algo,bc rbc,$(addprefix returns+$(algo)+,all best asked)) returns+rbc+gpt
RETURNS_all := --config offline_quickstart.gin
RETURNS_best := $(RETURNS_all) --gin "dataset.best_fraction = 0.1"
RETURNS_asked := --config evidence/offline/return_to_go.gin
RETURNS_gpt := $(RETURNS_asked) --gin "Recurrent.cell = 'gpt'"
# The same of Ant's six agents of other skill, without memory.
RETURNS_ANT := $(addprefix returns-ant+,all best asked)
RETURNS_ANT_best := --gin "dataset.best_fraction = 0.3"
RETURNS_ANT_asked := --gin "make.wrappers = [@ReturnToGo]" "ReturnToGo.target_return = 5600"

evidence-offline: $(OFFLINE) $(OFFLINE_HIDDEN) $(OFFLINE_NORMALIZATION) $(RETURNS) $(RETURNS_ANT)

$(RETURNS): $(VENV)/installed $(DATA)/pendulum_replay.hdf5
	$(RUN) offpcc/launch.py --env pendulum-p-v0 --algo $(word 2,$(subst +, ,$@)) $(RETURNS_$(word 3,$(subst +, ,$@))) \
	  --dataset $(DATA)/pendulum_replay.hdf5 --run_id 1 2 3 --threads 1 \
	  --results results/evidence/returns/$(word 3,$(subst +, ,$@)) --no_video --resume

$(RETURNS_ANT): $(VENV)/installed
	$(RUN) offpcc/launch.py --env ant-mujoco-v0 --algo bc --config evidence/offline/beside_d3rlpy.gin \
	  $(RETURNS_ANT_$(word 2,$(subst +, ,$@))) --dataset $(OFFPCC_DATASETS)/ant-opolo-mixed.hdf5 --run_id 1 2 3 \
	  --threads 1 --results results/evidence/returns/$(word 2,$(subst +, ,$@)) --no_video --resume

$(OFFLINE_PENDULUM): $(DATA)/pendulum_replay.hdf5
$(OFFLINE_HOPPER): $(foreach data,medium replay random,$(DATA)/hopper_$(data).hdf5)
$(OFFLINE): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 3,$(subst +, ,$@)) --config $(word 4,$(subst +, ,$@)).gin \
	  --dataset $(if $(filter $@,$(OFFLINE_OTHERS)),$(OFFPCC_DATASETS),$(DATA))/$(word 2,$(subst +, ,$@)).hdf5 \
	  --run_id $(if $(filter $@,$(OFFLINE_PENDULUM)),1 2 3,1) --threads 1 --results results/evidence --no_video --resume

$(OFFLINE_HIDDEN): $(VENV)/installed $(HOPPER_EXPERT)
	$(RUN) offpcc/launch.py --env hopper-mujoco-p-v0 --algo $(word 2,$(subst +, ,$@)) --config evidence/offline/hopper_hidden.gin \
	  --dataset $(HOPPER_EXPERT) --run_id 1 2 --threads 1 --results results/evidence --no_video --resume

$(OFFLINE_NORMALIZATION): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo $(word 4,$(subst +, ,$@)) --config $(word 5,$(subst +, ,$@)).gin \
	  --gin "$(CLASS_$(word 4,$(subst +, ,$@))).normalize_observations=$(if $(filter raw+%,$@),False,True)" \
	  "train.num_epochs=$(if $(filter normalized_20000+%,$@),4,1)" \
	  --dataset $(OFFPCC_DATASETS)/$(word 3,$(subst +, ,$@)).hdf5 --run_id $(if $(filter normalized_20000+%,$@),1,1 2 3) \
	  --threads 1 --results results/evidence/$(word 1,$(subst +, ,$@)) --no_video --resume

# Going on in the environment after recorded data: environment, data, algorithm, config, environment steps.
TO_ONLINE := evidence/offline_to_online
ONLINE_PENDULUM := $(foreach algo,riql rtd3_bc rcql rawac,pendulum-p-v0+pendulum_replay+$(algo)+$(TO_ONLINE)/pendulum+10000) \
  pendulum-p-v0+pendulum_replay+rrebrac+$(TO_ONLINE)/pendulum_rebrac+10000
ONLINE_HOPPER := $(foreach algo,iql td3_bc awac,hopper-mujoco-v0+$(HOPPER_REPLAY)+$(algo)+$(TO_ONLINE)/hopper+50000) \
  hopper-mujoco-v0+$(HOPPER_REPLAY)+rebrac+$(TO_ONLINE)/hopper_rebrac+50000 \
  $(foreach algo,riql rtd3_bc rawac,hopper-mujoco-p-v0+$(HOPPER_REPLAY)+$(algo)+$(TO_ONLINE)/hopper_p+50000) \
  hopper-mujoco-p-v0+$(HOPPER_REPLAY)+rrebrac+$(TO_ONLINE)/hopper_p_rebrac+50000
# The maze's data are all steps of a run of 150,000, one id each.
ONLINE_MAZE := water-maze-simple-pomdp-v0+water_maze_replay+rcalql+$(TO_ONLINE)/water_maze+150000
# SAC after CQL, without the data (WSRL), in folders of their own: beside them lie runs of CQL that stays CQL.
ONLINE_SAC := wsrl+pendulum-p-v0+pendulum_replay+rcql+$(TO_ONLINE)/pendulum_sac+10000
ONLINE_MAZE_1 := weight_1+water-maze-simple-pomdp-v0+water_maze_replay+rcalql+$(TO_ONLINE)/water_maze_weight_1+150000
ONLINE := $(ONLINE_PENDULUM) $(ONLINE_HOPPER) $(ONLINE_MAZE)

evidence-online: $(ONLINE) $(ONLINE_SAC) $(ONLINE_MAZE_1)

$(ONLINE_PENDULUM) $(ONLINE_SAC): $(DATA)/pendulum_replay.hdf5
$(ONLINE_HOPPER): $(DATA)/$(HOPPER_REPLAY).hdf5
$(ONLINE_MAZE) $(ONLINE_MAZE_1): $(DATA)/water_maze_replay.hdf5
$(ONLINE): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 3,$(subst +, ,$@)) --config $(word 4,$(subst +, ,$@)).gin \
	  --dataset $(DATA)/$(word 2,$(subst +, ,$@)).hdf5 --then_env_steps $(word 5,$(subst +, ,$@)) \
	  --run_id $(if $(filter $@,$(ONLINE_PENDULUM)),1 2 3 4 5,1 $(if $(filter $@,$(ONLINE_HOPPER)),2)) --threads 1 --results results/evidence --no_video --resume

$(ONLINE_SAC) $(ONLINE_MAZE_1): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo $(word 4,$(subst +, ,$@)) --config $(word 5,$(subst +, ,$@)).gin \
	  --dataset $(DATA)/$(word 3,$(subst +, ,$@)).hdf5 --then_env_steps $(word 6,$(subst +, ,$@)) \
	  --run_id 1 $(if $(filter $@,$(ONLINE_SAC)),2 3 4 5) --threads 1 --results results/evidence/$(word 1,$(subst +, ,$@)) --no_video --resume

# The same recording, learned by d3rlpy, by CORL and by the code of two papers' authors, with equal settings: algorithm,
# library. Clones are in $CORL, $FQL and $RLPD. `bc` learns from the best tenth of the episodes.
BESIDE := --env hopper-mujoco-v0 --dataset $(HOPPER_MEDIUM) --run_id 1 2 3 --results results/evidence/peers
BESIDE_OURS := $(addprefix beside+,awac crr rebrac sac_n edac calql bc fql rlpd)
BESIDE_PEERS := $(addprefix beside+,awac+d3rlpy crr+d3rlpy calql+d3rlpy rebrac+corl sac_n+corl edac+corl bc+corl \
  fql+seohongpark rlpd+ikostrikov)
CLONE_corl = $(CORL)
CLONE_seohongpark = $(FQL)
CLONE_ikostrikov = $(RLPD)
BESIDE_CONFIG = configs/evidence/offline/beside_peers$(if $(filter bc,$(word 2,$(subst +, ,$@))),_bc_10).gin

evidence-peers: $(BESIDE_OURS) $(BESIDE_PEERS)

$(BESIDE_OURS) $(BESIDE_PEERS): $(HOPPER_MEDIUM)
$(BESIDE_OURS): $(VENV)/installed
	$(RUN) offpcc/launch.py --algo $(word 2,$(subst +, ,$@)) --config $(BESIDE_CONFIG) $(BESIDE) --threads 1 --no_video --resume

# The algorithms that d3rlpy has had for long, on three recordings with equal settings, observations normalised on both
# sides: data, environment, algorithm. The last two recordings are others', in $OFFPCC_DATASETS. CQL's returns swing on an
# agent's own data of Hopper, so it is tested there more often.
D3RLPY_DATA := $(basename $(HOPPER_MEDIUM))+hopper-mujoco-v0 halfcheetah-opolo-medium+HalfCheetah-v4 \
  walker2d-opolo-medium+Walker2d-v4
D3RLPY_OURS := $(foreach data,$(D3RLPY_DATA),$(addprefix five+$(data)+,$(FIVE))) \
  $(foreach data,$(HOPPER_EXPERT) $(DATA)/hopper_medium.hdf5,five+$(basename $(data))+hopper-mujoco-v0+cql)
D3RLPY_THEIRS := $(D3RLPY_OURS:five+%=d3rlpy+%)
D3RLPY_ALONE := five+walker2d-opolo-medium+Walker2d-v4+rebrac
D3RLPY_OPTIONS = --env $(word 3,$(subst +, ,$@)) --algo $(lastword $(subst +, ,$@)) \
  --dataset $(if $(findstring opolo,$@),$(OFFPCC_DATASETS)/)$(word 2,$(subst +, ,$@)).hdf5 --run_id 1 2 3 \
  --config configs/evidence/offline/beside_d3rlpy$(if $(filter %+cql,$@),_cql)$(if $(findstring expert,$@)$(findstring /hopper_medium,$@),_hopper).gin \
  --results results/evidence/d3rlpy

evidence-d3rlpy: $(D3RLPY_OURS) $(D3RLPY_ALONE) $(D3RLPY_THEIRS)

$(filter-out %_expert+hopper-mujoco-v0+cql %/hopper_medium+hopper-mujoco-v0+cql,$(D3RLPY_OURS) $(D3RLPY_THEIRS)): $(HOPPER_MEDIUM)
$(filter %/hopper_medium+hopper-mujoco-v0+cql,$(D3RLPY_OURS) $(D3RLPY_THEIRS)): $(DATA)/hopper_medium.hdf5
$(filter %_expert+hopper-mujoco-v0+cql,$(D3RLPY_OURS) $(D3RLPY_THEIRS)): $(HOPPER_EXPERT)
$(D3RLPY_OURS) $(D3RLPY_ALONE): $(VENV)/installed
	$(RUN) offpcc/launch.py $(D3RLPY_OPTIONS) --threads 1 --no_video --resume

$(D3RLPY_THEIRS): $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.offline_returns --library d3rlpy $(D3RLPY_OPTIONS)

$(BESIDE_PEERS): $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.offline_returns --algo $(word 2,$(subst +, ,$@)) --config $(BESIDE_CONFIG) $(BESIDE) \
	  --library $(lastword $(subst +, ,$@))$(addprefix =,$(CLONE_$(lastword $(subst +, ,$@))))

# SAC and TD3 beside stable-baselines3, by equal settings: environment, config, algorithm.
SB3_TASKS := pendulum-v0+pendulum Hopper-v5+locomotion halfcheetah-bullet-v0+locomotion
SB3_OURS := $(foreach task,$(SB3_TASKS),$(foreach algo,sac td3,ours+$(task)+$(algo)))
SB3_THEIRS := $(SB3_OURS:ours+%=sb3+%)
SB3_OPTIONS = --env $(word 2,$(subst +, ,$@)) --algo $(word 4,$(subst +, ,$@)) \
  --config evidence/beside_sb3/$(word 3,$(subst +, ,$@)).gin --run_id 1 2 3 4 5 --results results/evidence/sb3

evidence-sb3: $(SB3_OURS) $(SB3_THEIRS)

$(SB3_OURS): $(VENV)/installed
	$(RUN) offpcc/launch.py $(SB3_OPTIONS) --threads 1 --no_video --resume

$(SB3_THEIRS): $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.sb3_returns $(SB3_OPTIONS)

# One memory beside another with all else equal, each in a folder of its own: environment, algorithm, config, memory.
# Corridors are trained by bench-solve, which stops when they are solved: make bench-solve OPTIONS='--configs corridor_100_lru'.
MEMORIES := lstm gru mingru lru gpt concat
MEMORY_TASKS := $(foreach env,pendulum-p-v0 pendulum-va-v0,$(env)+rsac+evidence/pendulum) \
  dmc-cartpole-balance-p-v0+rsac+evidence/dmc_cartpole
EVIDENCE_MEMORIES := $(foreach memory,$(MEMORIES),$(addsuffix +$(memory),$(MEMORY_TASKS)))
# A learning rate of the memory's own, below that of the heads: memory, rate.
ENCODER_RATES := $(foreach memory,lstm lru,encoder_lr+$(memory)+1e-5)

evidence-memories: $(EVIDENCE_MEMORIES) $(ENCODER_RATES)

$(ENCODER_RATES): $(VENV)/installed
	$(RUN) offpcc/launch.py --env pendulum-p-v0 --algo rsac --config evidence/pendulum.gin --run_id 1 2 3 \
	  --gin "Recurrent.cell = '$(word 2,$(subst +, ,$@))'" --gin "ActorCritic.encoder_lr = $(word 3,$(subst +, ,$@))" \
	  --threads 1 --results results/evidence/encoder_lr/$(word 2,$(subst +, ,$@))_$(word 3,$(subst +, ,$@)) --no_video --resume

$(EVIDENCE_MEMORIES): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 2,$(subst +, ,$@)) \
	  --config $(word 3,$(subst +, ,$@)).gin --gin "Recurrent.cell = '$(word 4,$(subst +, ,$@))'" --run_id 1 2 3 \
	  --threads 1 --results results/evidence/memories/$(word 4,$(subst +, ,$@)) --no_video --resume

# Fitted Q evaluation of the policies of one run, without memory and with it.
EVALUATIONS := pendulum-v0+sac pendulum-p-v0+rsac

evidence-evaluation: $(EVALUATIONS)

$(EVALUATIONS): $(VENV)/installed
	$(RUN) -m benchmarks.policy_evaluation $(subst +, ,$@) \
	  results/evidence/policy_evaluation/$(firstword $(subst +, ,$@)).json

# Residual heads beside MLPs with all else equal, each in a folder of its own: environment, algorithm, config, heads.
HEAD_TASKS := pendulum-p-v0+rsac+pendulum $(foreach env,hopper-mujoco-v0 dmc-cartpole-swingup-v0,$(env)+sac+locomotion)
EVIDENCE_HEADS := $(foreach heads,plain residual,$(addsuffix +$(heads),$(HEAD_TASKS)))

evidence-heads: $(EVIDENCE_HEADS) quantile-critics

quantile-critics: $(VENV)/installed
	$(RUN) offpcc/launch.py --env hopper-mujoco-v0 --algo tqc --config evidence/locomotion.gin --run_id 1 2 3 \
	  --gin "TQC.top_quantiles_to_drop=5" --threads 1 --results results/evidence/tqc --no_video --resume

# Critics that see a state beside those that do not, each in a folder of its own: environment, algorithm, config, inputs.
CRITIC_TASKS := $(foreach algo,rsac rtd3,pendulum-p-v0+$(algo)+pendulum corridor-30-v0+$(algo)+corridor hopper-bullet-p-v0+$(algo)+hopper)
EVIDENCE_CRITICS := $(foreach inputs,history state both,$(addsuffix +$(inputs),$(CRITIC_TASKS)))
INPUTS = $(subst both,history+state,$(lastword $(subst +, ,$@)))

evidence-critics: $(EVIDENCE_CRITICS)

$(EVIDENCE_CRITICS): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 2,$(subst +, ,$@)) \
	  --config evidence/critic_inputs/$(word 3,$(subst +, ,$@)).gin --gin "ActorCritic.critic_inputs = '$(INPUTS)'" \
	  --run_id $(if $(filter hopper%,$@),1 2,1 2 3 4 5) --threads 1 --results results/evidence/critics/$(INPUTS) --no_video --resume

$(EVIDENCE_HEADS): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 2,$(subst +, ,$@)) \
	  --config evidence/$(if $(filter %+residual,$@),heads/)$(word 3,$(subst +, ,$@)).gin \
	  --run_id $(if $(filter pendulum%,$@),1 2 3 4 5,1 2 3) \
	  --threads 1 --results results/evidence/heads/$(word 4,$(subst +, ,$@)) --no_video --resume

# Discrete actions: a pole whose velocity is hidden, and recorded data beside d3rlpy and Tianshou. The random data is made
# here; the other recording, of stable-baselines, is to lie in $OFFPCC_DATASETS.
DISCRETE := $(addprefix pole+,dqn rdqn rqrdqn rdsac r2d2)
DISCRETE_DATA := $(DATA)/cartpole-random.hdf5
DISCRETE_PEERS := $(foreach algo,dbc dbcq dcql,$(algo)+d3rlpy $(algo)+tianshou) dcrr+tianshou
DISCRETE_OURS := $(foreach data,cartpole-random cartpole-sb-expert,$(addprefix choices+$(data)+,dbc dbcq dcql dcrr))
DISCRETE_THEIRS := $(foreach data,cartpole-random cartpole-sb-expert,$(addprefix choices+$(data)+,$(DISCRETE_PEERS)))
OF_CHOICES = --env CartPole-v1 --config configs/evidence/discrete/beside_peers.gin --run_id 1 2 3 \
  --results results/evidence/discrete_peers --algo $(word 3,$(subst +, ,$@)) \
  --dataset $(if $(findstring random,$@),$(DISCRETE_DATA),$(OFFPCC_DATASETS)/$(word 2,$(subst +, ,$@)).hdf5)

evidence-discrete: $(DISCRETE) $(DISCRETE_OURS) $(DISCRETE_THEIRS)

# A grid that has to be remembered, some hours; the package minigrid is one of the tests' packages.
GRIDS := $(addprefix grid+,cdqn crdqn crqrdqn cr2d2 crdsac crdsac_s)

$(GRIDS): $(VENV)/installed-tests
	$(RUN) offpcc/launch.py --env MiniGrid-MemoryS7-v0 --algo $(word 2,$(subst +, ,$@)) --run_id 1 2 3 --threads 1 \
	  --config discrete/minigrid_memory$(if $(filter %+cr2d2,$@),_r2d2)$(if $(filter %+crdsac %+crdsac_s,$@),_sac).gin \
	  --results results/evidence/discrete --no_video --resume

# Pong as in Tianshou's table, hours on a CPU: a million steps of an expert with random ones among them, and what is
# learned from these, from 100,000 and from 10,000 of them: algorithm, steps, weight of CQL's term. The expert is
# published; make evidence-pong-expert trains it again, in about two hours.
PONG := results/evidence/pong
PONG_EXPERT := results/published_pong/PongNoFrameskip-v4/cqrdqn/1
PONG_DATA := $(addprefix pong+,dbc+1000000 dbcq+1000000 dcql+1000000 dcrr+1000000+0 dcrr+1000000+20 \
  dcql+100000 dcql+10000+1)

evidence-grid: $(GRIDS)
evidence-pong: $(PONG_DATA)

evidence-pong-expert: $(VENV)/installed
	$(RUN) offpcc/launch.py --env PongNoFrameskip-v4 --algo cqrdqn --config evidence/discrete/pong.gin --run_id 1 \
	  --gin "train.stop_return=18" --gin "train.stop_tests=2" --results $(PONG) --no_video --resume

$(PONG)/expert.hdf5: $(VENV)/installed
	mkdir -p $(@D)
	$(RUN) offpcc/launch.py collect --env PongNoFrameskip-v4 --actor $(PONG_EXPERT) --epsilon 0.2 --steps 1000000 \
	  --out $@ --resume

$(PONG_DATA): ALGO = $(word 2,$(subst +, ,$@))
$(PONG_DATA): WEIGHT = $(word 4,$(subst +, ,$@))
$(PONG_DATA): OWNER = $(if $(filter dcrr,$(ALGO)),DiscreteCRR,DiscreteCQL)
$(PONG_DATA): $(PONG)/expert.hdf5
	$(RUN) offpcc/launch.py --env PongNoFrameskip-v4 --algo c$(ALGO) --config discrete/atari_$(ALGO).gin --run_id 1 \
	  --gin "train.num_epochs=5" $(if $(WEIGHT),"$(OWNER).conservative_weight=$(WEIGHT)") \
	  --dataset $< $(if $(filter-out 1000000,$(word 3,$(subst +, ,$@))),--dataset_steps $(word 3,$(subst +, ,$@))) \
	  --results $(PONG)/$(word 3,$(subst +, ,$@))$(addprefix -weight-,$(WEIGHT)) --no_video --resume

$(DISCRETE): $(VENV)/installed
	$(RUN) offpcc/launch.py --env cartpole-p-v0 --algo $(word 2,$(subst +, ,$@)) --run_id 1 2 3 --threads 1 \
	  --config discrete/cartpole$(if $(filter %+r2d2,$@),_r2d2).gin --results results/evidence/discrete --no_video --resume

$(DISCRETE_DATA): $(VENV)/installed
	mkdir -p $(@D)
	$(RUN) offpcc/launch.py collect --env CartPole-v1 --actor random --steps 20000 --out $@ --resume

$(DISCRETE_OURS): $(DISCRETE_DATA)
	$(RUN) offpcc/launch.py $(OF_CHOICES) --threads 1 --no_video --resume

$(DISCRETE_THEIRS): $(DISCRETE_DATA) $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.offline_returns --library $(word 4,$(subst +, ,$@)) $(OF_CHOICES)

# Learning in a model, online beside SAC (`make evidence` trains that), and from recorded data beside others.
IN_A_MODEL := evidence/model_based
MODEL_ONLINE := $(foreach algo,mbpo sac,pendulum-v0+$(algo)+$(IN_A_MODEL)/pendulum_mbpo \
    InvertedPendulum-v5+$(algo)+$(IN_A_MODEL)/inverted_pendulum Hopper-v5+$(algo)+$(IN_A_MODEL)/hopper_mbpo) \
  pendulum-p-v0+rmbpo+$(IN_A_MODEL)/pendulum_mbpo
MODES := aleatoric_penalty epistemic_penalty aleatoric_partitioning epistemic_partitioning
MODEL_OFFLINE := $(foreach algo,$(MODES) sac,hopper-mujoco-v0+$(HOPPER_REPLAY)+$(algo)+$(IN_A_MODEL)/hopper) \
  $(foreach algo,bc td3_bc cql,hopper-mujoco-v0+$(HOPPER_REPLAY)+$(algo)+$(IN_A_MODEL)/hopper_beside) \
  $(foreach algo,rmopo riql rtd3_bc,hopper-mujoco-p-v0+$(HOPPER_REPLAY)+$(algo)+$(IN_A_MODEL)/hopper_p)

# All of them, small, on a recording that trains in minutes.
IN_MODEL := mopo morel combo
MODEL_PENDULUM := $(foreach algo,$(IN_MODEL) neubay $(MODES) sac td3_bc iql cql,pendulum-v0+pendulum_replay+$(algo)+$(IN_A_MODEL)/pendulum_offline) \
  $(foreach algo,$(addprefix r,$(IN_MODEL)) rneubay_s rtd3_bc riql rcql,pendulum-p-v0+pendulum_replay+$(algo)+$(IN_A_MODEL)/pendulum_offline)

# The best two modes from others' recordings, which are to lie in $OFFPCC_DATASETS.
MODEL_OTHERS := $(foreach algo,epistemic_penalty aleatoric_penalty,model+Hopper-v4+hopper-opolo-expert+$(algo) \
  model+HalfCheetah-v4+halfcheetah-opolo-medium+$(algo) model+Walker2d-v4+walker2d-opolo-medium+$(algo))

evidence-models: $(MODEL_ONLINE) $(MODEL_OFFLINE) $(MODEL_PENDULUM) $(MODEL_OTHERS)

$(MODEL_OFFLINE): $(DATA)/$(HOPPER_REPLAY).hdf5
$(MODEL_PENDULUM): $(DATA)/pendulum_replay.hdf5
$(MODEL_ONLINE): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 2,$(subst +, ,$@)) \
	  --config $(word 3,$(subst +, ,$@)).gin --run_id 1 2 3 --threads 1 --results results/evidence/models --no_video --resume

$(MODEL_OFFLINE) $(MODEL_PENDULUM): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 1,$(subst +, ,$@)) --algo $(word 3,$(subst +, ,$@)) --config $(word 4,$(subst +, ,$@)).gin \
	  --dataset $(DATA)/$(word 2,$(subst +, ,$@)).hdf5 --run_id 1 2 3 --threads 1 --results results/evidence/models --no_video --resume

$(MODEL_OTHERS): $(VENV)/installed
	$(RUN) offpcc/launch.py --env $(word 2,$(subst +, ,$@)) --algo $(word 4,$(subst +, ,$@)) --config $(IN_A_MODEL)/hopper.gin \
	  --dataset $(OFFPCC_DATASETS)/$(word 3,$(subst +, ,$@)).hdf5 --run_id 1 2 3 --threads 1 \
	  --results results/evidence/models --no_video --resume

gallery: $(VENV)/installed
	$(RUN) docs/gallery.py results/published/gallery.png

# The pages' generated parts come from the code; the site's generator lives in an environment of its own. With --quiet,
# --strict would not see warnings.
$(DOCS_VENV)/installed: docs/requirements.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 is not installed; name another with make PYTHON=..."; exit 2; }
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install -r docs/requirements.txt
	@touch $@

docs: $(VENV)/installed $(DOCS_VENV)/installed
	$(RUN) docs/generate.py
	$(RUN) docs/stage.py
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

# Needs no package. Links inside the repository are a test.
links:
	$(PYTHON) docs/links.py $(OPTIONS)

# Speed is measured in an environment of its own: beside offpcc's packages it has its peers, on the same gymnasium.
$(BENCH_VENV)/installed: requirements.txt benchmarks/requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 is not installed; name another with make PYTHON=..."; exit 2; }
	test -x $(BENCH) || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH) -m pip install -r requirements.txt
	$(BENCH) -m pip install --no-deps -r benchmarks/requirements.txt
	$(BENCH) -m pip install --no-deps -e .
	@touch $@

# Others of its options, such as --rounds, --threads or --clone, go into OPTIONS.
bench: $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.throughput --cases "$(CASES)" $(OPTIONS)

bench-growth: $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.growth $(OPTIONS)

bench-solve: $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.time_to_solve $(OPTIONS)

bench-bf16: $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.bf16 $(OPTIONS)

bench-checkpoints: $(VENV)/installed
	$(RUN) -m benchmarks.checkpoints $(OPTIONS)

bench-large: $(VENV)/installed
	$(RUN) -m benchmarks.large buffer $(OPTIONS)
	$(RUN) -m benchmarks.large frames --steps 1_000_000 --memory_limit 500_000_000 $(OPTIONS)
	$(RUN) -m benchmarks.large data $(OPTIONS)
	$(RUN) -m benchmarks.large runs $(OPTIONS)

bench-memories: $(BENCH_VENV)/installed
	$(BENCH) -m benchmarks.memories $(OPTIONS)

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(DOCS_VENV) build dist site
