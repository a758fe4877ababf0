"""Episodes that are gathered on the device beside those that are gathered as ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_device import DEVICES, LOOKS, STORY, counted, identical, play
from pushing import ACTIONS, recorded, space_of

from offpcc.data import RecurrentReplayBuffer


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    **STORY,
    **LOOKS,
    capacity=st.integers(1, 5),
    segment_len=st.sampled_from([None, 1, 2, 3, 10]),
    burn_in=st.integers(0, 4),
)
def test_batches_are_the_same(device, capacity, segment_len, burn_in, **story):
    options = {"capacity": capacity, "segment_len": segment_len, "burn_in": 0 if segment_len is None else burn_in}

    def make(*spaces, **arguments):
        return RecurrentReplayBuffer(*spaces, batch_size=12, device=device, **options, **arguments)

    play(make, **story)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_only_new_episodes_go_over(frame_stack):
    """An episode takes a row for each frame; all are copied again where the tape becomes too short."""
    space, options = space_of("numbers", frame_stack), {"capacity": 4, "batch_size": 8, "frame_stack": frame_stack}
    buffer, without = (
        RecurrentReplayBuffer(space, ACTIONS, on_device=on_device, **options) for on_device in (True, False)
    )
    lengths = [2, 3, 1, 3, 2, 4, 1, 3, 2, 5, 1, 3] * 2
    episodes = recorded(*[(length, "both", frame_stack) for length in lengths])
    copies_again = 0
    with counted() as copied:
        for number, episode in enumerate(episodes, 1):
            rows_before = buffer.device_copy.num_rows
            for pushed in episode.pushes():
                for one in (buffer, without):
                    one.push(*pushed)
                if number > 1 and not (pushed.terminated or pushed.truncated):
                    assert identical(buffer.sample(), without.sample())
                    assert not copied, "the episode has not ended"
            assert identical(buffer.sample(), without.sample())
            grew = buffer.device_copy.num_rows > rows_before
            copies_again += grew
            new = lengths[max(number - 4, 0) : number] if grew else lengths[number - 1 : number]
            assert copied == [length + frame_stack for length in new]
            del copied[:]
    assert 2 <= copies_again <= 4
    assert buffer.num_written > 2 * buffer.device_copy.num_rows, "the tape began anew"
