"""D4RL's dataset names as environments, such as ``gymnasium.make("hopper-medium-v2")``.

Importing `offpcc.envs` registers them. Each one is the task that its data was recorded in, and can load that data (see
`RecordedTask`). Today's simulators differ from D4RL's. The modules here correct the differences, so that observations,
actions and rewards match the data:

* Hopper, HalfCheetah and Walker2d are Gymnasium's -v4, unchanged. The bullet bodies are those of `offpcc.envs`.
* Ant is Gymnasium's -v4 with 27 numbers, followed by 84 zeros.
* Adroit's hands are those of gymnasium-robotics, with D4RL's rewards and ends of episodes.
* Maze2D and AntMaze are those of gymnasium-robotics, with D4RL's mazes, coordinates, starts, goals and rewards. The
  body of AntMaze has D4RL's motors (see `mazes`).

`make` builds them. Importing `offpcc.envs` imports only `catalog` of the modules here.
"""
