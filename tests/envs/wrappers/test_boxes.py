import numpy as np
import pytest
from counting import Counter
from gymnasium.spaces import Box, Discrete

from offpcc.envs.wrappers import KeepIndices, PreviousAction


@pytest.mark.parametrize("space", [Discrete(3), Box(0, 255, (1, 4, 4), np.uint8)])
def test_wrappers_of_vectors_refuse_others(space):
    with pytest.raises(ValueError, match="KeepIndices needs a Box with 1 axis"):
        KeepIndices(Counter(space), [0])
    with pytest.raises(ValueError, match="PreviousAction needs a Box with 1 axis"):
        PreviousAction(Counter(space))
