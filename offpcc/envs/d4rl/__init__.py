"""D4RL's names as environments: ``gymnasium.make("hopper-medium-v2")``, once `offpcc.envs` is imported.

Each is the task that its data was recorded in, and gives that data (see `recorded_task`). Where today's simulators
differ from D4RL's, the difference is mended, so that observations, actions and rewards are those of the data:

* Hopper, HalfCheetah and Walker2d are Gymnasium's -v4 as they are; the bullet bodies those of `offpcc.envs`.
* Ant is Gymnasium's -v4 of 27 numbers, followed by 84 zeros (see `ant`).
* Adroit's hands are those of gymnasium-robotics, with D4RL's rewards and ends (see `hands`).
* Maze2D and AntMaze are those of gymnasium-robotics in D4RL's mazes and coordinates, with D4RL's starts, goals and
  rewards, and AntMaze's body with D4RL's motors (see `mazes`).

`simulators` makes them. No module here is imported before an environment is made.
"""
