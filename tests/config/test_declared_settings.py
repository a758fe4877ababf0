"""Settings that gin binds: their values, rules, and what a run's config keeps of them."""

import dataclasses

import gin
import pytest

import offpcc
from offpcc.config import loading
from offpcc.config.hyperparameters import hyperparameters
from offpcc.config.settings import Settings, settings
from offpcc.config.validation import PositiveInteger, rules_of
from offpcc.data.offline import DatasetOptions
from offpcc.envs.make import EnvOptions
from offpcc.envs.wrappers import DropIndices
from offpcc.training.models.training import ModelTraining
from offpcc.training.online import OnlineOptions
from offpcc.training.spec import CheckpointOptions, PartOptions
from offpcc.utils.errors import UserError


@settings("Kettle")
class KettleOptions(Settings):
    """Settings of a kettle.

    Args:
        litres: how much it holds.
        lid: its lid.
    """

    litres: PositiveInteger = 2
    lid: object = None


@gin.configurable
def kettle_lid(size):
    """Return a lid."""
    return size


@pytest.fixture(autouse=True)
def as_before():
    with loading.same_bindings():
        loading.take_used()
        yield


def test_values_come_from_python_then_from_gin_then_from_the_class():
    offpcc.configure(None, "Kettle.litres = 5")
    assert (KettleOptions().litres, KettleOptions.from_gin().litres) == (2, 5)
    assert KettleOptions.from_gin({"litres": 7}).litres == 7
    assert KettleOptions.from_gin({"lid": 1}).values() == {"litres": 5, "lid": 1}


def test_a_rule_holds_wherever_the_value_comes_from():
    offpcc.configure(None, "Kettle.litres = 0")
    for make in (
        KettleOptions.from_gin,
        lambda: KettleOptions(litres=0),
        lambda: dataclasses.replace(KettleOptions(), litres=0),
    ):
        with pytest.raises(UserError, match=r"Kettle\.litres is 0; it has to be a whole number, 1 or more"):
            make()


def test_values_in_use_are_written_with_the_names_of_classes():
    offpcc.configure(None, "Kettle.lid = [@DropIndices]")
    assert KettleOptions.from_gin().lid == [gin.get_configurable("DropIndices")]
    assert "Kettle.lid = [@DropIndices]" in loading.operative()
    assert "Kettle.litres = 2" in loading.operative()


def test_macros_stay_in_the_values_in_use():
    """Else a run's config binds a macro that nothing reads, and cannot be read again."""
    offpcc.configure(None, "size = 5", "Kettle.litres = %size", "Kettle.lid = {'height': %size}")
    found = KettleOptions.from_gin()
    assert (found.litres, found.lid) == (5, {"height": 5})
    text = loading.operative()
    assert "Kettle.litres = %size" in text and "Kettle.lid = {'height': %size}" in text
    loading.take_used()
    KettleOptions.from_gin({"litres": 7})
    assert "Kettle.litres = 7" in loading.operative()


def test_a_class_that_gin_cannot_build_is_a_message():
    offpcc.configure(None, "Kettle.lid = @kettle_lid()")
    with pytest.raises(UserError, match=r"the bindings of Kettle cannot be read: .*without parentheses"):
        KettleOptions.from_gin()


@pytest.mark.parametrize(
    "cls", [CheckpointOptions, DatasetOptions, EnvOptions, ModelTraining, OnlineOptions, PartOptions, KettleOptions]
)
def test_each_setting_has_its_meaning_and_its_default(cls):
    found = {one.name: one for one in hyperparameters(cls)}
    assert [*found] == [f"{cls.gin_name}.{field.name}" for field in dataclasses.fields(cls)]
    assert all(one.meaning for one in found.values())
    assert all(rule.holds(cls().values()[name]) for name, rule in rules_of(cls).items())


def test_hints_have_the_names_of_gin():
    with pytest.raises(UserError, match=r"make has no parameter 'max_episode_steps'; in offpcc that is make\.kwargs"):
        offpcc.configure(None, "make.max_episode_steps = 5")


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        KettleOptions().litres = 3


def test_a_wrapper_is_no_setting_of_a_kettle():
    with pytest.raises(TypeError, match="wrappers"):
        KettleOptions(wrappers=[DropIndices])
