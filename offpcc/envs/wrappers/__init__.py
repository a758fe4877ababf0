"""Wrappers of environments.

Gin can apply the wrappers that hide something to any environment, in any order, together with Gymnasium's own::

    make.wrappers = [@DropIndices, @Flicker, @gymnasium.TimeLimit]
    DropIndices.indices = (2,)
    Flicker.probability = 0.1
    gymnasium.TimeLimit.max_episode_steps = 100

All of them can be pickled, even in the middle of an episode, and rebuilt from `env.spec`. Some of Gymnasium's wrappers
do similar things: RescaleAction, DtypeObservation, and FlattenObservation after FrameStackObservation. But they hold
local functions, which cannot be pickled, and they differ in ways that the docstrings here describe.
"""

import gin
from gymnasium import wrappers as gymnasiums

from offpcc.envs.wrappers.base import (
    ActionIndex,
    ActionScale,
    EpisodeReturn,
    Float32Observation,
    MultiDiscreteToDiscrete,
    PackedObservation,
    PackedStateObservation,
    StateObservation,
    UnitAction,
    WithoutState,
    bounds_of,
    raw_actions,
    scale_of,
)
from offpcc.envs.wrappers.grids import OneHotGrid, OneHotObservation
from offpcc.envs.wrappers.observations import (
    Concatenate,
    DropIndices,
    Flicker,
    FrameStackObservation,
    KeepIndices,
    ObservationNoise,
    PreviousAction,
    ReturnToGo,
    num_stacked,
)

__all__ = [
    "ActionIndex",
    "ActionScale",
    "Concatenate",
    "DropIndices",
    "EpisodeReturn",
    "Flicker",
    "Float32Observation",
    "KeepIndices",
    "MultiDiscreteToDiscrete",
    "ObservationNoise",
    "OneHotGrid",
    "OneHotObservation",
    "PackedObservation",
    "PackedStateObservation",
    "PreviousAction",
    "ReturnToGo",
    "StateObservation",
    "UnitAction",
    "WithoutState",
    "bounds_of",
    "num_stacked",
    "raw_actions",
    "scale_of",
]

# Gymnasium's wrappers for partially observable tasks, as `gymnasium.NAME` in gin files. Wrappers that learn during use,
# such as NormalizeObservation, are excluded, because an actor's file would not contain what they learned.
for _wrapper in (
    gymnasiums.ClipReward,
    gymnasiums.DelayObservation,
    gymnasiums.DtypeObservation,
    gymnasiums.FilterObservation,
    gymnasiums.FlattenObservation,
    FrameStackObservation,
    gymnasiums.MaxAndSkipObservation,
    gymnasiums.RescaleObservation,
    gymnasiums.ReshapeObservation,
    gymnasiums.StickyAction,
    gymnasiums.TimeAwareObservation,
    gymnasiums.TimeLimit,
):
    gin.external_configurable(_wrapper, module="gymnasium")
