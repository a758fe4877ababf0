"""Wrappers of environments.

Those that hide something can be put on any environment by gin, in any order, beside Gymnasium's own::

    make.wrappers = [@DropIndices, @Flicker, @gymnasium.TimeLimit]
    DropIndices.indices = (2,)
    Flicker.probability = 0.1
    gymnasium.TimeLimit.max_episode_steps = 100

All of them can be pickled, in the middle of an episode too, and rebuilt from `env.spec`. Gymnasium's own that
do similar things (RescaleAction, DtypeObservation, FlattenObservation after FrameStackObservation) hold local
functions, which cannot be pickled, and differ as the docstrings say.
"""

from __future__ import annotations

import gin
from gymnasium import wrappers as gymnasiums

from offpcc.envs.wrappers.base import ActionScale, EpisodeReturn, Float32Observation, UnitAction, action_bounds
from offpcc.envs.wrappers.history import Concatenate, PreviousAction, num_stacked
from offpcc.envs.wrappers.partial_observability import DropIndices, Flicker, KeepIndices, ObservationNoise

__all__ = [
    "ActionScale",
    "Concatenate",
    "DropIndices",
    "EpisodeReturn",
    "Flicker",
    "Float32Observation",
    "KeepIndices",
    "ObservationNoise",
    "PreviousAction",
    "UnitAction",
    "action_bounds",
    "num_stacked",
]

# Gymnasium's own that suit an agent which does not see everything, as `gymnasium.NAME` in gin files. Those that
# learn as they go, such as NormalizeObservation, are not among them: an actor's file would not have what they know.
for _wrapper in (
    gymnasiums.ClipReward,
    gymnasiums.DelayObservation,
    gymnasiums.DtypeObservation,
    gymnasiums.FilterObservation,
    gymnasiums.FlattenObservation,
    gymnasiums.FrameStackObservation,
    gymnasiums.MaxAndSkipObservation,
    gymnasiums.RescaleObservation,
    gymnasiums.ReshapeObservation,
    gymnasiums.StickyAction,
    gymnasiums.TimeAwareObservation,
    gymnasiums.TimeLimit,
):
    gin.external_configurable(_wrapper, module="gymnasium")
