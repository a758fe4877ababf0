"""What a run with a bad number tells and keeps."""

import csv
import itertools
import math
import os
import re
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from conftest import rows, run_folder

import offpcc.utils.tensor_files
from offpcc.algorithms.nonfinite import NonFiniteError, bad
from offpcc.core import Batch
from offpcc.data import RecurrentReplayBuffer, ReplayBuffer
from offpcc.training.build import build
from offpcc.training.checkpoint import Checkpoints
from offpcc.training.loggers import Loggers
from offpcc.training.run_dir import RunFolder

NAN = math.nan
CHECKED = ("train.num_epochs=3",)


@pytest.fixture
def spoil(monkeypatch):
    """Have one of a buffer's batches, counted over all of a test, hold a reward that is NaN."""

    def of(buffer, at, last=None):
        sample, drawn = buffer.sample, []

        def spoilt(self):
            batch = sample(self)
            drawn.append(batch)
            if at <= len(drawn) <= (last or at):
                batch.rewards[0, 0, 0] = NAN
            return batch

        monkeypatch.setattr(buffer, "sample", spoilt)

    yield of


def test_what_is_bad_about_a_tensor():
    assert bad(torch.ones(2, 3)) == bad(torch.tensor(1e38)) == bad(torch.ones(0)) == bad(torch.ones(2).int()) == ""
    assert bad(torch.tensor(-math.inf)) == "is -inf"
    x = torch.ones(2, 3)
    x[1, 0], x[1, 2] = NAN, math.inf
    assert bad(x) == "is nan at [1, 0], the first of 2 such numbers in 6"


@pytest.mark.slow
@pytest.mark.parametrize("algo, buffer", [("sac", ReplayBuffer), ("rtd3", RecurrentReplayBuffer)])
def test_a_run_stops_with_one_message_and_goes_on_from_its_checkpoint(
    algo, buffer, quick, tmp_path, spoil, monkeypatch
):
    folder = run_folder(tmp_path, algo=algo)
    assert quick(algo, bindings=CHECKED)[0] == 0
    undisturbed, actor = rows(folder), torch.load(folder / "actor_last.pt", weights_only=True)["weights"]
    folder.rename(tmp_path / "undisturbed")
    with monkeypatch.context() as patched:
        spoil(buffer, 30)
        code, out, err = quick(algo, bindings=CHECKED)
        patched.undo()
        monkeypatch.undo()
    monkeypatch.setenv("OFFPCC_RESULTS", str(tmp_path / "results"))
    assert code == 2 and len(err.splitlines()) == 1 and "Traceback" not in out + err
    assert err.startswith("offpcc: update 30 at step ") and "the batch's rewards is nan at [0, 0, 0]" in err
    assert str(folder / "bad_batch.pt") in err and "`offpcc check --env" in err
    content = torch.load(folder / "bad_batch.pt", weights_only=True)
    assert Batch(**content["batch"]).rewards.isnan().sum() == 1 and content["update"] == 30 and content["step"] >= 250
    assert RunFolder.at(folder).status() == "unfinished" and not list(folder.glob(".*.tmp-*"))
    assert quick(algo, "--resume", bindings=CHECKED)[0] == 0
    assert rows(folder) == undisturbed
    again = torch.load(folder / "actor_last.pt", weights_only=True)["weights"]
    for part, weights in actor.items():
        for name, weight in weights.items():
            assert torch.equal(again[part][name], weight)


def test_a_stop_that_is_the_first_to_meet_one_keeps_batch_and_step(quick, tmp_path, spoil, monkeypatch):
    """As on a GPU, where a bad number is told of some updates later, or when all is saved."""
    on_progress = Checkpoints.on_progress

    def stop(self, run):
        self.experiment.algorithm.nonfinite_guard.is_awaited = False
        if run.loop.num_updates == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        on_progress(self, run)

    monkeypatch.setattr(Checkpoints, "on_progress", stop)
    spoil(ReplayBuffer, 3)
    _, _, err = quick("sac")
    folder = run_folder(tmp_path)
    told = err.splitlines()[0]
    assert re.match(r"offpcc: update 3 at step \d+: the batch's rewards is nan", told) and str(folder) in told
    content = torch.load(folder / "bad_batch.pt", weights_only=True)
    assert Batch(**content["batch"]).rewards.isnan().sum() == 1 and content["step"] > 150
    assert RunFolder.at(folder).status() == "unfinished"


def test_skipped_updates_are_a_column(quick, tmp_path, spoil):
    spoil(ReplayBuffer, 12, 15)
    code, _, err = quick("sac", bindings=("train.num_epochs=2", 'SAC.nonfinite="skip"'))
    assert code == 0, err
    with (run_folder(tmp_path) / "progress.csv").open() as file:
        first, second = csv.DictReader(file)
    told = re.findall(r"^offpcc: (\d) of epoch (\d)'s (\d+) updates were skipped, because they met NaN", err, re.M)
    assert sum(int(number) for number, *_ in told) == 4 and err.count("\n") == len(told)
    made = [int(first["update"]), int(second["update"]) - int(first["update"])]
    skipped = [float(row["update/skipped"]) * count for row, count in zip((first, second), made, strict=True)]
    assert sum(skipped) == pytest.approx(4.0)
    assert all(math.isfinite(float(row[name])) for row in (first, second) for name in row if name.startswith("update/"))
    assert not (run_folder(tmp_path) / "bad_batch.pt").exists()


def test_a_run_whose_updates_are_all_skipped_stops(quick, tmp_path, monkeypatch):
    bindings = ("train.num_epochs=2", "SAC.nonfinite='skip'", "Checkpoints.every_steps=100")
    assert quick("sac", bindings=bindings)[0] == 0
    folder = run_folder(tmp_path)
    undisturbed = rows(folder)
    folder.rename(tmp_path / "undisturbed")
    with monkeypatch.context() as patch:
        sample = ReplayBuffer.sample
        bad = lambda self: sample(self)._replace(rewards=torch.full((32, 1, 1), NAN))  # noqa: E731
        patch.setattr(ReplayBuffer, "sample", bad)
        code, out, err = quick("sac", bindings=bindings)
        assert code == 2 and err.count("\n") == 1 and "Traceback" not in out + err
        assert re.match(r"offpcc: all updates of epoch 1 \(\d+\) met NaN or infinity and were skipped", err)
        assert rows(folder) == undisturbed[:1] and RunFolder.at(folder).status() == "unfinished"
        (advice,) = re.findall(r'--resume --gin "(.*)" names the first bad tensor and saves its batch', err)
        code, _, err = quick("sac", "--resume", bindings=(*bindings, advice))
        assert code == 2 and "the batch's rewards is nan" in err and (folder / "bad_batch.pt").exists()
        code, _, err = quick("sac", "--resume", bindings=bindings)
        assert code == 2 and "all updates of epoch 1" in err
    (folder / "checkpoint.pt").unlink()  # of which some updates are skipped already
    (folder / "checkpoint_before.pt").unlink()
    assert quick("sac", "--resume", bindings=bindings)[0] == 0
    assert rows(folder) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "name", "owner"), [("sac", "SAC", "SAC"), ("rsac", "RecurrentSAC", "ActorCritic")], ids=["own", "parents"]
)
def test_a_run_that_stopped_may_skip_from_there_on(algo, name, owner, quick, tmp_path, monkeypatch):
    """It comes to what it would have come to, had it been begun so."""
    buffer, folder = ReplayBuffer if algo == "sac" else RecurrentReplayBuffer, run_folder(tmp_path, algo=algo)
    bindings, skip = ("train.num_epochs=3", "Checkpoints.every=1"), f"{owner}.nonfinite='skip'"

    def run(bad, *extra, bindings=bindings):
        with monkeypatch.context() as patch:
            sample, drawn = buffer.sample, itertools.count(1)

            def spoilt(self):
                batch = sample(self)
                batch.rewards[0, 0, 0] = NAN if next(drawn) == bad else batch.rewards[0, 0, 0]
                return batch

            patch.setattr(buffer, "sample", spoilt)
            return quick(algo, *extra, bindings=bindings)

    assert run(25, bindings=(*bindings, skip))[0] == 0
    folder.rename(tmp_path / "begun_so")
    code, _, err = run(25)
    assert code == 2
    assert f"--resume --gin \"{name}.nonfinite='skip'\"" in err
    (first,) = csv.DictReader((folder / "progress.csv").open())
    code, out, err = run(25 - int(first["update"]), "--resume", bindings=(*bindings, skip))
    assert code == 0, err
    assert f"{skip.replace('=', ' is ')} from here on" in out and "not exact" not in out
    expected, found = (list(csv.DictReader((at / "progress.csv").open())) for at in (tmp_path / "begun_so", folder))
    assert found[0].pop("update/skipped") == "" and float(expected[0].pop("update/skipped")) == 0.0
    for ours, theirs in zip(found, expected, strict=True):
        assert {**ours, **{key: 0 for key in ours if "time/" in key}} == {
            **theirs, **{key: 0 for key in theirs if "time/" in key}
        }  # fmt: skip
    assert sum(float(row.get("update/skipped", 0)) > 0 for row in found) == 1
    for actor in ("actor_last.pt", "actor_best.pt"):
        assert (folder / actor).read_bytes() == (tmp_path / "begun_so" / actor).read_bytes()
    code, out, err = quick(algo, "--resume", bindings=("train.num_epochs=4", "Checkpoints.every=1"))
    assert code == 0, err
    assert "nonfinite is 'raise' from here on" in out and rows(folder)[-1].endswith(",")


def test_a_library_user_gets_the_error(spoil):
    spoil(ReplayBuffer, 5)
    learner = build("pendulum-v0", "sac", algorithm={"hidden_dims": (8,)}, buffer={"batch_size": 4})
    settings = {"num_epochs": 1, "num_steps_per_epoch": 60, "num_test_episodes_per_epoch": 0, "update_after": 30}
    with pytest.raises(NonFiniteError, match=r"update 5 at step 35: the batch's rewards .*`save\(file\)`") as caught:
        learner.train(Loggers([]), **settings)
    assert caught.value.batch.rewards.isnan().any()
    learner.train(Loggers([]), **settings)
    assert learner.loop.epoch == 1
    learner.close()


def test_a_saved_batch_is_plain_and_a_full_disk_is_told(tmp_path, monkeypatch):
    large = torch.zeros(1_000_000)
    batch = Batch(large[:6].view(1, 2, 3), *(large[:1].view(1, 1, 1) for _ in range(5)), *(large[:1].view(1, 1),) * 2)
    error, file = NonFiniteError(1_204, "the loss is nan", "mend it", batch).at(12_040), tmp_path / "bad_batch.pt"
    error.save(file)
    assert str(error) == error.message and error.message.startswith("update 1,204 at step 12,040: the loss is nan")
    assert str(file) in error.message and file.stat().st_size < 20_000, "not all that the batch is a view of"
    content = torch.load(file, weights_only=True)
    assert (content["kind"], content["update"], content["step"]) == ("bad_batch", 1_204, 12_040)
    assert Batch(**content["batch"]).observations.shape == (1, 2, 3)
    error.save(tmp_path / "missing" / "bad_batch.pt")
    assert "could not be written" in error.message
    monkeypatch.setattr(offpcc.utils.tensor_files, "replacing", lambda file, before: nullcontext(Path("/dev/full")))
    error.save(file)
    assert "could not be written" in error.message and "No space left" in error.message


def test_a_bad_batch_is_not_taken_for_an_actor(tmp_path):
    (tmp_path / "bad_batch.pt").touch()
    (tmp_path / "mine.pt").touch()
    assert RunFolder.at(tmp_path).actor() == tmp_path / "mine.pt"
