"""Measures `offpcc convert rl-unplugged` on a synthetic shard: time, peak memory, and size of the data set.

Its pictures are bricks, a ball, a paddle and a score on a still background. The transitions are in random order.

python benchmarks/convert_atari.py --transitions 500000 --folder /tmp/shard
"""

import argparse
import gzip
import io
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

from offpcc.data.convert.tfrecord import MASK, crcs

SHARD = "Breakout/run_1-00000-of-00100"


def pngs(number, generator):
    """Yield the pictures of a game, one after another."""
    background = np.zeros((84, 84), np.uint8)
    background[:8], background[:, :4], background[:, -4:] = 142, 142, 142
    bricks, digits = np.ones((6, 19), bool), generator.integers(0, 2, (10, 5, 3)).astype(np.uint8) * 200
    x, y, dx, dy, paddle, score = 40.0, 50.0, 1.3, 1.7, 40, 0
    for step in range(number):
        frame = background.copy()
        for row in range(6):
            shades = np.where(bricks[row], 90 + 15 * row, 0).astype(np.uint8).repeat(4)
            frame[18 + 3 * row : 21 + 3 * row, 4:80] = shades
        x, y = x + dx, y + dy
        dx, dy = (-dx if not 5 < x < 77 else dx), (-dy if not 10 < y < 78 else dy)
        row, column = int(y - 18) // 3, int(x - 4) // 4
        if 0 <= row < 6 and 0 <= column < 19 and bricks[row, column]:
            bricks[row, column], dy, score = False, -dy, score + 1
        if step % 1500 == 1499:
            bricks[:], score = True, 0
        for place, digit in enumerate(f"{score:03d}"):
            frame[1:6, 10 + 5 * place : 13 + 5 * place] = digits[int(digit)]
        paddle = int(np.clip(paddle + generator.integers(-3, 4), 6, 66))
        frame[79:81, paddle : paddle + 10] = 200
        frame[
            int(np.clip(y, 9, 80)) : int(np.clip(y, 9, 80)) + 2, int(np.clip(x, 4, 78)) : int(np.clip(x, 4, 78)) + 2
        ] = 200
        out = io.BytesIO()
        Image.fromarray(frame).save(out, "PNG", compress_level=6)
        yield out.getvalue()


def varint(number):
    """Return a number in protobuf's code."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def entry(key, kind, items):
    return message(1, message(1, key.encode()) + message(2, message(kind, b"".join(message(1, one) for one in items))))


def write(path, number):
    """Write a shard of `number` transitions."""
    generator = np.random.default_rng(0)
    seen = list(pngs(number + 4, generator))
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=6) as file:
        for chunk in np.array_split(generator.permutation(number), max(number // 1000, 1)):
            contents = []
            for place in chunk.tolist():
                floats = [struct.pack("<f", value) for value in (place % 9 == 0, place % 1500 != 1499, 30.0)]
                features = [entry("o_t", 1, seen[place : place + 4]), entry("o_tp1", 1, seen[place + 1 : place + 5])]
                features += [
                    entry(key, 2, [one]) for key, one in zip(("r_t", "d_t", "episode_return"), floats, strict=True)
                ]
                features += [entry(key, 3, [varint(place % 4)]) for key in ("a_t", "a_tp1")]
                features.append(entry("episode_id", 3, [varint(place // 1500)]))
                contents.append(message(1, b"".join(features)))
            lengths = [struct.pack("<Q", len(content)) for content in contents]
            for length, content, one, other in zip(lengths, contents, crcs(lengths), crcs(contents), strict=True):
                checks = [
                    struct.pack("<I", (crc >> 15 | crc << 17 & 2**32 - 1) + MASK & 2**32 - 1) for crc in (one, other)
                ]
                file.write(length + checks[0] + content + checks[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=500_000)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    shard, out = options.folder / "datasets" / SHARD, options.folder / "buffers" / f"{SHARD}.hdf5"
    if not shard.exists():
        write(shard, options.transitions)
    folders = ["--dataset_dir", options.folder / "datasets", "--buffer_dir", options.folder / "buffers"]
    command = [sys.executable, "-m", "offpcc.launch", "convert", "rl-unplugged", "--task", "Breakout", *folders]
    out.unlink(missing_ok=True)
    start = time.monotonic()
    subprocess.run([str(word) for word in command], check=True)
    seconds, used = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak, cpu = used.ru_maxrss * 1024, used.ru_utime + used.ru_stime
    sizes = shard.stat().st_size, out.stat().st_size
    print(f"{seconds:.0f} s, {cpu:.0f} s of CPU time, peak memory {peak:,} bytes")
    print(f"shard {sizes[0]:,} bytes, data set {sizes[1]:,} bytes")
    print(f"ratio {sizes[1] / sizes[0]:.2f}")


if __name__ == "__main__":
    main()
