"""What gin can configure, and what is built again from plain data."""

import functools
import io
import math

import gin
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from offpcc.config.registry import REGISTRY, configurable, from_specification, specification
from offpcc.utils.errors import UserError


@pytest.fixture(autouse=True)
def no_bindings():
    gin.clear_config()
    yield
    gin.clear_config()


@configurable
class ProbeParent:
    def __init__(self, size, *, rate=0.1, names=("a",), part=None):
        self.size, self.rate, self.names, self.part = size, rate, names, part

    def values(self):
        return self.size, self.rate, tuple(self.names), self.part


@configurable
class ProbeChild(ProbeParent):
    def __init__(self, size, *, depth=2, **kwargs):
        super().__init__(size, **kwargs)
        self.depth = depth


@configurable
class ProbeHeir(ProbeChild):
    """Without an `__init__` of its own."""


@configurable
class ProbeOptions:
    """Takes anything, and has no parent that would remember it."""

    def __init__(self, **options):
        self.options = options


class Unregistered:
    pass


# Specifications -------------------------------------------------------------------------------------------------


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("value", [None, True, 3, 2.5, -math.inf, "text", (), (1, (2.0, "x")), {"a": (1,), "b": None}])
def test_plain_data_comes_back(value):
    assert from_specification(through_a_file(specification(value))) == value


def test_numpy_numbers_and_devices_become_plain():
    assert specification(np.float32(0.5)) == 0.5 and type(specification(np.float32(0.5))) is float
    assert specification(np.int64(3)) == 3 and type(specification(np.int64(3))) is int
    assert specification(torch.device("cpu")) == "cpu"


def test_an_object_comes_back_with_all_its_arguments():
    made = ProbeHeir(3, depth=5, names=["x", "y"], part=ProbeParent(1, rate=0.7))
    again = from_specification(through_a_file(specification(made)))
    assert type(again) is ProbeHeir and type(again.part) is ProbeParent
    assert (again.size, again.depth, again.rate, tuple(again.names)) == (3, 5, 0.1, ("x", "y"))
    assert again.part.values() == (1, 0.7, ("a",), None)


def test_arguments_given_by_position_are_remembered():
    assert from_specification(specification(ProbeHeir(7))).size == 7


def test_arguments_without_a_name_in_the_signature_are_remembered():
    assert from_specification(specification(ProbeOptions(a=1, b=(2, 3)))).options == {"a": 1, "b": (2, 3)}


def test_bindings_are_part_of_an_objects_specification():
    gin.parse_config("ProbeParent.rate = 0.9\nProbeChild.depth = 8")
    spec = through_a_file(specification(ProbeHeir(1)))
    gin.clear_config()
    again = from_specification(spec)
    assert (again.rate, again.depth) == (0.9, 8)


def test_references_and_nested_partials_come_back():
    inner = functools.partial(ProbeParent, rate=0.3)
    outer = functools.partial(functools.partial(ProbeChild, depth=4), part=inner, names=("k",))
    builder = from_specification(through_a_file(specification({"reference": ProbeHeir, "partial": outer})["partial"]))
    made = builder(2)
    assert type(made) is ProbeChild and (made.size, made.depth, made.names) == (2, 4, ("k",))
    assert made.part(5).values() == (5, 0.3, ("a",), None)
    assert from_specification(specification(ProbeHeir)) is ProbeHeir


def test_overrides_replace_outermost_arguments_only():
    spec = specification(ProbeParent(1, rate=0.2, part=ProbeParent(2, rate=0.2)))
    again = from_specification(spec, rate=0.6)
    assert (again.rate, again.part.rate) == (0.6, 0.2)


@pytest.mark.parametrize("shape, dtype", [((3,), np.float32), ((84, 84, 3), np.uint8)])
def test_a_box_keeps_shape_and_dtype(shape, dtype):
    low, high = (0, 255) if dtype == np.uint8 else (-2, 2)
    again = from_specification(through_a_file(specification(Box(low, high, shape, dtype))))
    assert (again.shape, again.dtype) == (shape, np.dtype(dtype))


@pytest.mark.parametrize("value", [Unregistered(), Unregistered, len, [Unregistered()], {"a": Unregistered()}])
def test_what_cannot_be_written_is_told(value):
    with pytest.raises(UserError, match=r"offpcc\.configurable"):
        specification(value)


@pytest.mark.parametrize("spec", [{"class": "NobodyKnows", "arguments": {}}, {"reference": "NobodyKnows"}])
def test_an_unknown_class_is_named(spec):
    with pytest.raises(UserError, match=r"NobodyKnows.*import"):
        from_specification(spec)


# configurable ---------------------------------------------------------------------------------------------------


def test_bindings_of_a_parent_reach_its_children_whose_own_win():
    gin.parse_config("ProbeParent.rate = 0.5\nProbeChild.rate = 0.6\nProbeChild.names = ('b',)")
    assert ProbeParent(1).rate == 0.5 and ProbeParent(1).names == ("a",)
    for cls in (ProbeChild, ProbeHeir):
        assert cls(1).rate == 0.6 and cls(1).names == ("b",), cls
    gin.parse_config("ProbeHeir.rate = 0.7")
    assert (ProbeParent(1).rate, ProbeChild(1).rate, ProbeHeir(1).rate) == (0.5, 0.6, 0.7)


def test_arguments_win_over_bindings():
    gin.parse_config("ProbeParent.rate = 0.5\nProbeHeir.depth = 9")
    made = ProbeHeir(1, rate=0.1, depth=3)
    assert (made.rate, made.depth) == (0.1, 3)


def test_the_operative_config_makes_the_same_object():
    gin.parse_config(
        "ProbeParent.rate = 0.5\nProbeParent.names = ('n', 'm')\nProbeChild.depth = 6\nProbeHeir.size = 4\n"
        "ProbeParent.part = @ProbeParent"
    )
    made = ProbeHeir()
    config = gin.operative_config_str()
    gin.clear_config()
    with pytest.raises(TypeError):
        ProbeHeir()
    gin.parse_config(config)
    again = ProbeHeir()
    assert again.values() == made.values() == (4, 0.5, ("n", "m"), ProbeParent)
    assert again.depth == made.depth == 6


def test_a_registered_class_stays_itself():
    assert ProbeChild.__name__ == "ProbeChild" and ProbeChild.__module__ == __name__
    assert isinstance(ProbeHeir(1), ProbeParent)
    assert "__init__" in vars(ProbeHeir) and ProbeHeir.__doc__ == "Without an `__init__` of its own."


def test_a_class_that_a_notebook_defines_again_replaces_the_first():
    made = []
    for default in (1, 2):

        class Again:
            def __init__(self, value: int = default) -> None:
                self.value = value

        made.append(configurable(Again))
    gin.parse_config("Again.value = 7")
    assert [cls().value for cls in made] == [7, 7] and REGISTRY["Again"] is made[1]


def test_a_binding_names_the_class_that_a_notebook_defined_last():
    for default in (1, 2):

        @configurable
        class Bound:
            def __init__(self, value: int = default) -> None:
                self.value = value

        @configurable
        def named(default: int = default) -> int:
            return default

        if default == 1:
            gin.parse_config(["ProbeParent.part = @Bound()", "ProbeParent.names = [@named]"])
        made = ProbeParent(1)
        assert type(made.part) is Bound and (made.part.value, made.names[0]()) == (default, default)


def test_a_parameter_of_the_parent_that_is_declared_again_is_told(capsys):
    @configurable
    class DeclaresAgain(ProbeParent):
        def __init__(self, size: int, *, rate: float = 0.5, other: int = 3, **kwargs: object) -> None:
            super().__init__(size, rate=rate, **kwargs)

    told = capsys.readouterr().err
    assert told == (
        "offpcc: DeclaresAgain declares rate again, a parameter of ProbeParent, so bindings of ProbeParent.rate have "
        "no effect on DeclaresAgain; remove rate from its signature and pass on **kwargs\n"
    )
