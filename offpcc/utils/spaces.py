"""Spaces: images, Dict observations packed into bytes, discrete actions as one-hot vectors. It needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces

from offpcc.utils.errors import UserError

MINIMAL_FRAME = 7  # pixels, as MiniGrid's view; a smaller 3-d observation is a tensor, not an image
OBSERVATION, STATE = "observation", "state"  # keys of a Dict observation with a state
MOST_CHOICES = 64  # whole numbers of a wider range are hardly choices
LARGEST_BOX = 2**26  # largest number of elements of an observation


def has_images(shape: tuple[int, ...]) -> bool:
    """Check whether observations of this shape are images, or Dict observations with an image."""
    return is_image(shape) or (isinstance(shape, DictShape) and bool(shape.images))


def has_vectors(shape: tuple[int, ...]) -> bool:
    """Check whether observations of this shape are vectors, or Dict observations with a vector."""
    return not is_image(shape) if not isinstance(shape, DictShape) else bool(shape.vectors)


def is_image(shape: tuple[int, ...]) -> bool:
    """Check whether observations of this shape are images, with channels first or last."""
    return len(shape) == 3 and sum(size >= MINIMAL_FRAME for size in shape) >= 2


IF_IMAGE = "if it is an image, make it uint8 from 0 to 255 with an axis for channels"
MAKE_IMAGE = f"{IF_IMAGE}; else flatten it"


def images_read_as_vectors(entries: Mapping[str, spaces.Space[Any]]) -> list[str]:
    """Return a text for each entry of a Dict that looks like an image, but is read as a vector."""
    return [
        f"{key!r} is {entry.dtype} of shape {entry.shape}, which is read as a vector"
        for key, entry in entries.items()
        if isinstance(entry, spaces.Box) and may_be_meant_as_image(entry.shape, entry.dtype)
    ]


def may_be_meant_as_image(shape: tuple[int, ...], dtype: Any) -> bool:
    """Check whether an entry of a Dict observation is read as a vector, though its shape is that of an image.

    These are entries like images of another type than uint8, and uint8 entries (height, width) without channels.
    """
    if np.dtype(dtype) == np.uint8:
        return len(shape) == 2 and min(shape) >= MINIMAL_FRAME
    return is_image(shape)


def channels_last(shape: tuple[int, ...]) -> bool:
    """Check whether the shape of an image is (height, width, channels)."""
    return is_image(shape) and shape[-1] < min(shape[:2]) and shape[0] >= MINIMAL_FRAME


def channels_first_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which the library stores observations and passes them to networks."""
    return (shape[2], shape[0], shape[1]) if channels_last(shape) else tuple(shape)


def observed_shape(space: spaces.Space[Any]) -> tuple[int, ...]:
    """Return the shape of an agent's observations as networks read them: of images, of vectors or a `DictShape`."""
    if isinstance(space, PackedDict):
        return space.unpacked_shape if space.state_key is None else observed_shape(space.agent_space)
    return channels_first_shape(space.shape or ())


def channels_first(observation: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return `observation` (..., *shape) with the channels of an image first."""
    return np.moveaxis(observation, -1, -3) if channels_last(shape) else observation


# Dict observations ----------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One entry of a Dict observation.

    Attributes:
        key: its key; keys of nested Dicts are joined by "/".
        shape: (channels, height, width) of an image, (F,) of a vector.
        first: index of its first number among the F numbers of `PackedDict.unpack`.
    """

    key: str
    shape: tuple[int, ...]
    first: int

    @property
    def columns(self) -> slice:
        """Its numbers among those of `PackedDict.unpack`."""
        return slice(self.first, self.first + math.prod(self.shape))


class DictShape(tuple[int, ...]):
    """Shape (F,) of an unpacked Dict observation: the numbers of all vectors, then the pixels of all images.

    Attributes:
        vectors: the entries that are vectors.
        images: the entries that are images.
    """

    vectors: tuple[Part, ...]
    images: tuple[Part, ...]

    def __new__(cls, vectors: tuple[Part, ...], images: tuple[Part, ...]) -> DictShape:
        """Return the shape of these entries."""
        shape = super().__new__(cls, [sum(math.prod(part.shape) for part in vectors + images)])
        shape.vectors, shape.images = vectors, images
        return shape

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return the arguments of `__new__`, for copies."""
        return self.vectors, self.images

    def __repr__(self) -> str:
        """Return the entries with their shapes."""
        return ", ".join(f"{part.key} {part.shape}" for part in self.parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """All entries, vectors first."""
        return self.vectors + self.images

    @property
    def num_numbers(self) -> int:
        """The numbers of all vectors, which come first."""
        return sum(part.shape[0] for part in self.vectors)

    @property
    def number_names(self) -> list[str]:
        """The names of these numbers, such as "'place' 0", for messages."""
        return [f"{part.key!r} {place}" for part in self.vectors for place in range(part.shape[0])]


class PackedDict(spaces.Box):
    """Space of packed Dict observations: one uint8 array (D,), the bytes of all vectors, then those of all images.

    Buffers, recordings and datasets store these bytes, which take as much memory as the entries themselves. Networks
    see them as float32 numbers, see `unpack`. An entry becomes a vector or an image:

    - an image: a Box of uint8 with three axes, with channels first or last, and 7 or more pixels high and wide;
    - a vector of float32: any other Box, flattened; `MultiBinary`;
    - a vector of zeros and ones: `Discrete` and `MultiDiscrete`, one-hot.

    Vectors and images are in the order of their keys.

    Args:
        space: the Dict space, which may contain further Dict spaces.
        state_key: the key of an entry, a vector, that only critics read; None if the agent sees all entries.
    """

    def __init__(self, space: spaces.Dict, state_key: str | None = None) -> None:
        self.dict_space, self.state_key = space, state_key
        given = sorted(entries_of(space), key=lambda entry: entry[0])
        self.entries = dict(given)
        for key in self.entries:
            above = [key[:place] for place in range(len(key)) if key[place] == "/"]
            if len(self.entries) < len(given) or not key.strip("./") or key.strip("/") != key or "//" in key:
                raise UserError(f"the key {key!r} of a Dict observation cannot name an entry; choose another one")
            if any(one in self.entries for one in above):
                raise UserError(f"the key {key!r} of a Dict observation begins with another entry's key; rename it")
        vectors, images, first = [], [], 0
        for key, entry in self.entries.items():
            if not _is_image_space(entry):
                vectors.append(Part(key, (_vector_size(key, entry),), first))
                first += vectors[-1].shape[0]
        for key, entry in self.entries.items():
            if _is_image_space(entry):
                images.append(Part(key, channels_first_shape(entry.shape or ()), first))
                first += math.prod(images[-1].shape)
        if not first:
            raise UserError("a Dict observation has no numbers; give it one entry or more")
        self.unpacked_shape = DictShape(tuple(vectors), tuple(images))
        if first > LARGEST_BOX:
            raise UserError(f"a Dict observation has {first:,} numbers, more than {LARGEST_BOX:,}; show fewer")
        self.num_vector_bytes = 4 * self.unpacked_shape.num_numbers
        self.state_part = next((part for part in vectors if part.key == state_key), None)
        if state_key is not None and (self.state_part is None or len(self.entries) == 1):
            fault = "is no vector" if self.state_part is None else "is the only entry, so the agent would see nothing"
            raise UserError(f"the state {state_key!r} of a Dict observation {fault}; name another entry")
        super().__init__(0, 255, (self.num_vector_bytes + first - self.unpacked_shape.num_numbers,), np.uint8)

    def __eq__(self, other: object) -> bool:
        """Compare the Dict spaces, and which entry is the state."""
        if not isinstance(other, PackedDict) or self.state_key != other.state_key:
            return False
        return bool(self.dict_space == other.dict_space)

    def is_like(self, other: PackedDict) -> bool:
        """Check whether both spaces pack the same vectors and images; choices are vectors."""
        return self.unpacked_shape.parts == other.unpacked_shape.parts

    def __hash__(self) -> int:
        """Return the hash of the shape."""
        return hash(self.shape)

    def __repr__(self) -> str:
        """Return the Dict space as text."""
        return f"PackedDict({self.dict_space})"

    def __reduce__(self) -> Any:
        """Return how to build the space again, for copies and other processes."""
        return type(self), (self.dict_space, self.state_key)

    @property
    def agent_space(self) -> spaces.Box:
        """The space of what the agent sees, without the state: see `without_state`."""
        space = without_state(self.dict_space, self.state_key)
        if isinstance(space, spaces.Dict):
            return PackedDict(space)
        if _is_image_space(space):
            return cast(spaces.Box, space)
        return float32_box(space)

    def split_state(self, packed: Any) -> tuple[Any, Any]:
        """Return packed observations (..., D), an array or a tensor, as those of `agent_space`, and the states.

        Observations are (..., *agent_space.shape), where images have channels first, and states (..., S), float32.
        """
        assert self.state_part is not None
        first, stop, lead = 4 * self.state_part.columns.start, 4 * self.state_part.columns.stop, packed.shape[:-1]
        rest, bytes_of_state = [packed[..., :first], packed[..., stop:]], packed[..., first:stop]
        space = self.agent_space
        if isinstance(packed, np.ndarray):
            floats: Any = np.float32
            observations: Any = np.concatenate(rest, -1)
            states = np.ascontiguousarray(bytes_of_state).view(floats)
        else:
            import torch  # here, because worker processes do without it

            observations, floats = torch.cat(rest, -1), torch.float32
            states = bytes_of_state.clone(memory_format=torch.contiguous_format).view(floats)
        if isinstance(space, PackedDict):
            return observations, states
        observations = observations if space.dtype == np.uint8 else observations.view(floats)
        return observations.reshape(*lead, *channels_first_shape(space.shape)), states

    def pack(self, observation: Mapping[str, Any], axes: tuple[int, ...] = ()) -> np.ndarray:
        """Return the bytes (*axes, D) of an observation of the Dict space, as the environment returns it.

        Every entry has the leading `axes`, such as (N,) for N observations at once. Images may be of any integers from
        0 to 255.

        Raises:
            ValueError: an entry is missing, or has another shape than its space; or a number is NaN or infinite.
        """
        given = dict(entries_of(observation))
        if missing := [key for key in self.entries if key not in given]:
            raise ValueError(f"{missing[0]!r} is missing")
        shape, packed = self.unpacked_shape, []
        if shape.vectors:
            numbers = [self._vector(part.key, given[part.key], axes) for part in shape.vectors]
            packed.append(np.concatenate(numbers, -1).view(np.uint8))
        for part in shape.images:
            image, space = np.asarray(given[part.key]), self.entries[part.key]
            if image.dtype.kind in "iu" and image.dtype != np.uint8 and (image == image.astype(np.uint8)).all():
                image = image.astype(np.uint8)
            if image.shape != (*axes, *(space.shape or ())) or image.dtype != np.uint8:
                raise ValueError(_unlike(part.key, image, space))
            packed.append(channels_first(image, space.shape or ()).reshape(*axes, -1))
        return np.concatenate(packed, -1)

    def _vector(self, key: str, given: Any, axes: tuple[int, ...]) -> np.ndarray:
        """Return one entry as float32 (*axes, F)."""
        space, array = self.entries[key], np.asarray(given)
        if array.shape != (*axes, *(space.shape or ())) or array.dtype.kind not in "biuf":
            raise ValueError(_unlike(key, array, space))
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            sizes = np.ravel(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)
            chosen = array.reshape(*axes, -1) - np.ravel(space.start)
            if array.dtype.kind == "f":
                raise ValueError(f"{key!r} is {array.dtype}, but its space, {space}, has integers")
            if (chosen < 0).any() or (chosen >= sizes).any():
                raise ValueError(f"{key!r} holds a choice outside of its space, {space}")
            return np.concatenate([one_hot(chosen[..., i], n) for i, n in enumerate(sizes)], -1)
        with np.errstate(over="ignore"):
            vector = array.reshape(*axes, -1).astype(np.float32)
        if not np.isfinite(vector).all():
            raise ValueError(f"{key!r} holds {vector[~np.isfinite(vector)][0]}")
        return vector

    def unpack(self, packed: Any) -> Any:
        """Return packed observations (..., D), an array or a tensor, as float32 (..., F), with pixels in [0, 1].

        The numbers of all vectors come first, then the pixels of all images; see `DictShape`.
        """
        numbers, pixels = packed[..., : self.num_vector_bytes], packed[..., self.num_vector_bytes :]
        if not isinstance(packed, np.ndarray):
            import torch  # here, because worker processes do without it

            pixels = pixels.float().div_(255.0)
            if not self.num_vector_bytes:
                return pixels
            numbers = numbers.clone(memory_format=torch.contiguous_format).view(torch.float32)  # aligned to 4 bytes
            return torch.cat([numbers, pixels], -1)
        numbers = np.ascontiguousarray(numbers).view(np.float32)
        return np.concatenate([numbers, pixels.astype(np.float32) / np.float32(255.0)], -1)

    def split(self, packed: np.ndarray) -> dict[str, np.ndarray]:
        """Return packed observations (..., D) as arrays by key: vectors in float32, images in uint8, channels first."""
        numbers = np.ascontiguousarray(packed[..., : self.num_vector_bytes]).view(np.float32)
        parts = {part.key: numbers[..., part.columns] for part in self.unpacked_shape.vectors}
        start = self.num_vector_bytes - self.unpacked_shape.num_numbers
        for part in self.unpacked_shape.images:
            pixels = packed[..., start + part.first : start + part.columns.stop]
            parts[part.key] = pixels.reshape(*packed.shape[:-1], *part.shape)
        return parts


def without_state(space: spaces.Dict, key: str | None) -> Any:
    """Return a Dict space without one entry.

    If only the entry "observation" is left, and it is a vector or an image as environments show them, return its space.
    """
    rest = {name: entry for name, entry in space.items() if name != key}
    only = rest[OBSERVATION] if list(rest) == [OBSERVATION] else None
    is_plain = isinstance(only, spaces.Box) and (
        (len(only.shape) == 1 and (only.dtype.kind == "f" or only.dtype == np.uint8)) or _is_image_space(only)
    )
    return only if is_plain else spaces.Dict(rest)


def float32_box(space: Any) -> spaces.Box:
    """Return a Box in float32 with the bounds of another Box; bounds beyond those of float32 become infinite."""
    with np.errstate(over="ignore"):  # some tasks use the largest float64 for "no bound"
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)


class OneHot(spaces.Box):
    """Discrete actions as one-hot vectors (A,), float32, as networks, buffers and previous actions use them."""

    def __init__(self, discrete: spaces.Discrete) -> None:
        self.discrete = discrete
        super().__init__(0.0, 1.0, (int(discrete.n),), np.float32)

    def __eq__(self, other: object) -> bool:
        """Compare the spaces of the environments."""
        return isinstance(other, OneHot) and bool(self.discrete == other.discrete)

    def __hash__(self) -> int:
        """Return the hash of the number of actions."""
        return hash(self.shape)

    def __repr__(self) -> str:
        """Return the space as text."""
        return f"OneHot({self.discrete})"

    def __reduce__(self) -> Any:
        """Return how to build the space again, for copies and other processes."""
        return type(self), (self.discrete,)

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """Return a random action."""
        return random_action(self, self.np_random)

    def contains(self, x: Any) -> bool:
        """Check whether `x` is a vector of zeros and a single one."""
        return super().contains(x) and float(np.sum(x)) == float(np.max(x)) == 1.0


def action_size(space: spaces.Space[Any]) -> int:
    """Return the size A of an action as networks read it: its numbers, or the number of discrete actions."""
    return int(space.n) if isinstance(space, spaces.Discrete) else math.prod(space.shape or (1,))


def random_action(space: spaces.Space[Any], generator: np.random.Generator) -> np.ndarray:
    """Return a random action as networks read it, (A,) in float32: uniform in [-1, 1], or one-hot."""
    size = action_size(space)
    if isinstance(space, OneHot | spaces.Discrete):
        return one_hot(generator.integers(size), size)
    return generator.uniform(-1.0, 1.0, size).astype(np.float32)


def one_hot(choices: Any, num: int) -> np.ndarray:
    """Return whole numbers (...) from 0 to `num` - 1 as one-hot vectors (..., num) in float32."""
    rows: np.ndarray = np.asarray(choices)[..., None] == np.arange(num)
    return rows.astype(np.float32)


def packed_space(space: Any, name: str) -> PackedDict | None:
    """Return a given space of Dict observations, packed; None if none is given."""
    if space is None:
        return None
    if not isinstance(space, spaces.Dict):
        raise UserError(f"{name}: observation_space is {space}, but it is for Dict observations only; leave it out")
    return PackedDict(space)


def _unlike(key: str, array: np.ndarray, space: spaces.Space[Any]) -> str:
    return f"{key!r} is {array.dtype} of shape {array.shape}, but its space is {space}"


def entries_of(observation: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of a Dict observation or a Dict space, and of those in it, with their keys joined by "/"."""
    for key, value in observation.items():
        if isinstance(value, Mapping):
            yield from entries_of(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _is_image_space(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and is_image(space.shape)


def _vector_size(key: str, space: spaces.Space[Any]) -> int:
    """Return how many numbers an entry has as a vector."""
    if isinstance(space, spaces.Box) and len(space.shape) > 3:
        raise UserError(
            f"the entry {key!r} of a Dict observation has the shape {space.shape}; put stacked images into the "
            f"channels of one, or use an agent with memory, such as crsac"
        )
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return math.prod(space.shape or (1,))
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return sum(int(size) for size in space.nvec.ravel())
    if space.dtype is not None and space.dtype.kind == "U":
        raise UserError(
            f"the entry {key!r} of a Dict observation is a text, which networks do not read; leave it out: bind "
            f"make.wrappers = [@gymnasium.FilterObservation] and gymnasium.FilterObservation.filter_keys = [names of "
            f"the other entries]. For MiniGrid, make.wrappers = [@OneHotGrid] does this; in Python, "
            f"make={{'wrappers': [OneHotGrid]}}"
        )
    raise UserError(
        f"the entry {key!r} of a Dict observation is {space}, but an entry has to be a Box, Discrete, MultiDiscrete or "
        f"MultiBinary; convert it by gymnasium.wrappers.TransformObservation"
    )
