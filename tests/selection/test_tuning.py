"""Tuning in the loader's batches, and from a store without the network."""

import itertools
import types
import weakref

import pytest
import torch
from support.networks import CLASSES, one_thread  # noqa: F401
from support.smooth import classes_of, fitted, small, smooth

from oodles.detectors import ODIN, AdaSCALE, Mahalanobis
from oodles.errors import FileError
from oodles.network.extraction import extract
from oodles.network.perturbation import channel_bounds, fgsm
from oodles.selection import tuning
from oodles.selection.tuning import tune

ROWS, BATCH = 40, 10


class Loader:
    """Batches with a stamp; counts how often it is read."""

    def __init__(self, stamp="one", seed=5, labels=None, class_names=()):
        self.images = small(ROWS, seed=seed, dtype=torch.float32)
        self.labels = classes_of(ROWS) if labels is None else labels
        self.class_names, self.text, self.read = class_names, stamp, 0

    def __iter__(self):
        self.read += 1
        yield from zip(self.images.split(BATCH), self.labels.split(BATCH), strict=True)

    def stamp(self):
        return self.text


@pytest.fixture
def model():
    return smooth(dtype=torch.float32)


def layered(model, **settings):
    """A detector to tune; passes over whole batches are counted from here."""
    detector = fitted(model, Mahalanobis(layers=["first"], **settings))
    whole_batches(model)
    return detector


def whole_batches(model):
    counts = [tally.count(BATCH) for tally in (model.forwards, model.backwards)]
    model.forwards.clear()
    model.backwards.clear()
    return counts


@pytest.mark.parametrize("read", [lambda loader: loader, lambda loader: iter(list(loader))], ids=["often", "once"])
def test_copies_in_the_range_of_all_images_are_made_from_one_batch_at_a_time(model, monkeypatch, read):
    detector, order, given = layered(model), [], []

    def noted(model, inputs, labels, bounds):
        order.append(f"make {len(inputs)}")
        given.append((labels, bounds))
        return fgsm(model, inputs, labels, bounds)

    monkeypatch.setattr(tuning, "fgsm", noted)
    model.first.register_forward_hook(lambda *_: order.append("run"))
    loader = Loader()
    assert tune([detector], model, read(loader)) == ROWS
    made = [place for place, what in enumerate(order) if what == f"make {BATCH}"]
    assert len(made) == ROWS // BATCH
    # one pass for the step that makes a copy, at least one for its features
    assert all(order[here:there].count("run") >= 2 for here, there in itertools.pairwise(made))
    for _, bounds in given:
        assert all(map(torch.equal, bounds, channel_bounds(loader.images)))
    assert torch.equal(torch.cat([labels for labels, _ in given]), loader.labels)


def test_labels_are_those_of_the_models_classes(model, monkeypatch):
    """Class folders are numbered by their names, which may be in another order than the model's classes."""
    names = [f"class {place}" for place in range(CLASSES)]
    model.config = types.SimpleNamespace(id2label=dict(enumerate(reversed(names))))
    detector, given = layered(model), []
    monkeypatch.setattr(tuning, "fgsm", lambda _, inputs, labels, __: given.append(labels) or inputs.map(torch.neg))
    loader = Loader(class_names=tuple(names))
    tune([detector], model, loader)
    assert torch.equal(torch.cat(given), CLASSES - 1 - loader.labels)


def test_only_detectors_that_learn_against_copies_run_their_steps_on_them(model):
    rows = extract(model, [(small(30, dtype=torch.float32), classes_of(30))])
    tune([ODIN(), AdaSCALE().fit(rows), layered(model)], model, Loader())
    batches = ROWS // BATCH
    # two objectives on the images (ODIN's and AdaSCALE's), one to make the copies, none on them
    assert whole_batches(model)[1] == 3 * batches


def test_without_copies_no_image_is_kept(model):
    alive, most = weakref.WeakSet(), 0

    class Batch(torch.Tensor):
        pass

    def batches():
        nonlocal most
        for part in Loader().images.split(BATCH):
            batch = part.clone().as_subclass(Batch)
            alive.add(batch)
            yield batch
            del batch
            most = max(most, len(alive))

    tune([detector := ODIN()], model, batches(), head=False)
    assert detector.tuned
    assert most <= 2


def test_a_second_tuning_reads_no_image_and_does_not_run_the_network(model, tmp_path):
    loader = Loader()
    first, plain = layered(model, epsilon=0.1), layered(model, epsilon=0.1)
    tune([plain], model, loader)
    assert tune([first], model, loader, store=tmp_path) == ROWS
    read = loader.read
    second = layered(model, epsilon=0.1)
    assert tune([second], model, loader, store=tmp_path) == ROWS
    assert (loader.read, model.forwards) == (read, [])
    for other in (first, second):
        assert other.coefficients_.tolist() == plain.coefficients_.tolist()


def test_other_detectors_use_what_is_there(model, tmp_path):
    loader = Loader()
    tune([ODIN(), layered(model)], model, loader, store=tmp_path)
    again = layered(model)
    tune([ODIN()], model, loader, store=tmp_path)
    tune([again], model, loader, store=tmp_path)
    assert whole_batches(model) == [0, 0]
    tune([ODIN(temperature=1.0)], model, loader, store=tmp_path)
    assert whole_batches(model) == [21 * ROWS // BATCH, ROWS // BATCH], "one pass, and one for each of 20 steps"


def test_touched_files_are_compared_and_changed_ones_refused(model, tmp_path):
    tune([layered(model)], model, Loader(), store=tmp_path)
    tune([layered(model)], model, loader := Loader("touched"), store=tmp_path)
    assert (loader.read, whole_batches(model)) == (1, [0, 0]), "read once, the copies are not made again"
    with pytest.raises(FileError, match="held_out was extracted from other inputs"):
        tune([layered(model)], model, Loader("changed", seed=6), store=tmp_path)
    labels = (classes_of(ROWS) + 1) % CLASSES
    with pytest.raises(FileError, match="held_out was extracted from other inputs"):
        tune([layered(model)], model, Loader("relabelled", labels=labels), store=tmp_path)


def test_verification_reads_images_whose_stamp_is_the_same(model, tmp_path):
    tune([layered(model)], model, Loader(), store=tmp_path)
    other = Loader(seed=6)
    tune([layered(model)], model, other, store=tmp_path)
    assert other.read == 0
    with pytest.raises(FileError, match="held_out was extracted from other inputs"):
        tune([layered(model)], model, other, store=tmp_path, verify=True)
    tune([layered(model)], model, Loader(), store=tmp_path, verify=True)
    assert whole_batches(model) == [0, 0]


def test_an_interrupted_tuning_is_continued(model, tmp_path, monkeypatch):
    class Cut(Loader):
        def __iter__(self):
            yield from list(super().__iter__())[:3]
            raise KeyboardInterrupt

    expected = layered(model)
    tune([expected], model, Loader())
    with pytest.raises(KeyboardInterrupt):
        tune([layered(model)], model, Cut(), store=tmp_path)
    made = []

    def stopped(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return fgsm(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "fgsm", stopped)
        with pytest.raises(KeyboardInterrupt):
            tune([layered(model)], model, Loader(), store=tmp_path)
    tune([detector := layered(model)], model, Loader(), store=tmp_path)
    assert detector.coefficients_.tolist() == expected.coefficients_.tolist()
