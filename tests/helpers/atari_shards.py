"""Writes recordings of Atari games byte by byte, without code of offpcc: TFRecord shards, and Dopamine's logs."""

import gzip
import io
import struct
import zlib

import numpy as np

SIDE = 84


TABLE = []
for _number in range(256):
    for _ in range(8):
        _number = _number >> 1 ^ (0x82F63B78 if _number & 1 else 0)
    TABLE.append(_number)


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked(content):
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def record(content):
    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + masked(content)


def varint(number):
    number &= 2**64 - 1
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def feature(value, packed=True):
    """A list of bytes, an array of floats or an array of integers."""
    if isinstance(value, list):
        return message(1, b"".join(message(1, item) for item in value))
    if value.dtype.kind == "f":
        numbers, wire, kind = [struct.pack("<f", number) for number in value], 5, 2
    else:
        numbers, wire, kind = [varint(int(number)) for number in value], 0, 3
    if packed:
        return message(kind, message(1, b"".join(numbers)))
    return message(kind, b"".join(varint(1 << 3 | wire) + number for number in numbers))


def example(features, packed=True):
    entries = [
        message(1, message(1, key.encode()) + message(2, feature(value, packed))) for key, value in features.items()
    ]
    return message(1, b"".join(entries))


def png(frame, kind=0):
    """A gray picture; `kind` of the filter of each row: 0 none, 1 differences to the left, 2 to the row above."""
    rows = frame.astype(np.uint8)
    if kind == 1:
        rows = np.diff(rows, axis=1, prepend=np.uint8(0))
    if kind == 2:
        rows = np.diff(rows, axis=0, prepend=np.zeros((1, rows.shape[1]), np.uint8))
    raw = b"".join(bytes([kind]) + row.tobytes() for row in rows)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", frame.shape[1], frame.shape[0], 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def frames(number, seed=0):
    """Pictures (number, 84, 84) of a square that moves over a still background."""
    background = np.random.default_rng(seed).integers(0, 60, (7, 7)).astype(np.uint8).repeat(12, 0).repeat(12, 1)
    out = np.repeat(background[None], number, 0)
    for step in range(number):
        row, column = 3 * step % 70, (5 * step + seed) % 70
        out[step, row : row + 8, column : column + 8] = 200 + step % 50
    return out


def transition(stack, after, action=1, reward=1.0, discount=1.0, episode=-7, episode_return=3.0, kind=0):
    """Features of a shuffled transition from 4 frames and the newest one after them."""
    seen = [*stack, after]
    features = {
        "o_t": [png(frame, kind) for frame in seen[:4]],
        "o_tp1": [png(frame, kind) for frame in seen[1:]],
        "a_t": np.array([action]),
        "a_tp1": np.array([0]),
        "r_t": np.array([reward], np.float32),
        "d_t": np.array([discount], np.float32),
        "episode_id": np.array([episode]),
        "episode_return": np.array([episode_return], np.float32),
    }
    return features


def episode(seen, actions, rewards, is_terminal=True, number=0, num_steps=None):
    """Features of a whole episode; `rewards` are those of the game, and its returns have `num_steps` of them."""
    discounts = np.ones(len(actions), np.float32)
    discounts[-1] = 0.0 if is_terminal else 1.0
    rewards = np.asarray(rewards, np.float32)
    features = {
        "checkpoint_idx": np.array([3]),
        "episode_idx": np.array([number]),
        "episode_return": np.array([rewards[:num_steps].sum()], np.float32),
        "clipped_episode_return": np.array([np.clip(rewards[:num_steps], -1, 1).sum()], np.float32),
        "observations": [png(frame) for frame in seen],
        "actions": np.asarray(actions),
        "unclipped_rewards": rewards,
        "clipped_rewards": np.clip(rewards, -1, 1),
        "discounts": discounts,
    }
    return features


def write_shard(path, examples, packed=True):
    """Write a GZIP TFRecord file of examples, given by their features."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(record(example(features, packed)) for features in examples)
    path.write_bytes(gzip.compress(content, mtime=0))
    return path


def shuffled_shard(path, number=24, num_actions=4, every=6, packed=True):
    """Write a shard of transitions; each sixth one terminates. Return their frames (number, 5, 84, 84)."""
    seen = np.stack([frames(5, seed) for seed in range(number)])
    examples = [
        transition(
            each[:4], each[4], action=place % num_actions, reward=place % 3 - 1.0,
            discount=float((place + 1) % every != 0),
            episode=-(place % 4) - 1, episode_return=float(place % 4), kind=place % 3,
        )
        for place, each in enumerate(seen)
    ]  # fmt: skip
    write_shard(path, examples, packed)
    return seen


def ordered_shard(path, lengths=(30, 25, 1), num_actions=4, last_terminates=True):
    """Write a shard of episodes of so many steps; return the frames of each, one more than steps.

    The last row of an episode has its last observation, and an action and a reward that mean nothing.
    """
    seen = [frames(length + 1, seed) for seed, length in enumerate(lengths)]
    examples = [
        episode(
            each, [*np.arange(length) % num_actions, 77], [*np.arange(length) % 3 * 2.0, 5.0],
            last_terminates or number + 1 < len(lengths), number, length,
        )
        for number, (each, length) in enumerate(zip(seen, lengths, strict=True))
    ]  # fmt: skip
    write_shard(path, examples)
    return seen


def write_replay(folder, terminals, number=0, num_actions=4, **changes):
    """Write the four files of Dopamine's logs; return the frames."""
    folder.mkdir(parents=True, exist_ok=True)
    length = len(terminals)
    arrays = {
        "observation": frames(length),
        "action": (np.arange(length) % num_actions).astype(np.int32),
        "reward": (np.arange(length) % 2).astype(np.float32),
        "terminal": np.asarray(terminals, np.uint8),
    } | changes
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        (folder / f"$store$_{name}_ckpt.{number}.gz").write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    return arrays["observation"]
