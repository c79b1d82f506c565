"""Names of classes: where they come from, and labels of class folders as numbers of the model's classes."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from support import networks
from support.images import PLAIN, write_image
from support.networks import CLASSES, batched, one_thread, pictures, seeded  # noqa: F401
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from oodles.data.loaders import ImageLoader
from oodles.data.readers import open_images
from oodles.errors import ArgumentError, DataError
from oodles.network.extraction import extract
from oodles.network.outputs import class_names, folder_names

NAMES = ("ant", "bee", "cat", "dog", "eel")


def configured(names=None, **settings):
    """A model with a configuration as Hugging Face models have one."""
    model = seeded(networks.Net)
    table = {} if names is None else {"id2label": dict(enumerate(names))}
    model.config = SimpleNamespace(**table, **settings)
    return model


def folders(root, names):
    """Class folders with three images each as a loader."""
    for name, number in itertools.product(names, range(3)):
        write_image(root / name / f"{number}.png", seed=number)
    return ImageLoader(open_images(str(root)), PLAIN, batch_size=4)


def test_names_are_those_given_else_the_configurations_else_the_folders(tmp_path):
    loader = folders(tmp_path / "images", NAMES)
    given = tuple("vwxyz")
    assert extract(seeded(networks.Net), loader).class_names == NAMES
    assert extract(configured(NAMES[::-1]), loader).class_names == NAMES[::-1]
    assert extract(configured(NAMES[::-1]), loader, classes=NAMES).class_names == NAMES
    assert extract(seeded(networks.Net), batched(10, 5), classes=given).class_names == given
    assert extract(seeded(networks.Net), batched(10, 5)).class_names == ()


def test_placeholders_and_incomplete_tables_are_no_names():
    assert class_names(configured([f"LABEL_{place}" for place in range(5)])) == ()
    assert class_names(configured(["LABEL_0", "dog"])) == ("LABEL_0", "dog")
    model = configured()
    model.config.id2label = {1: "ant", 2: "bee"}
    assert class_names(model) == ()
    model.config.id2label = None
    assert class_names(model) == ()


def test_a_torchvision_datasets_classes_are_names_of_folders():
    dataset = TensorDataset(pictures(10), torch.arange(10) % CLASSES)
    dataset.classes = list(NAMES)
    loader = DataLoader(dataset, batch_size=5)
    assert folder_names(loader) == NAMES
    assert extract(seeded(networks.Net), loader).class_names == NAMES
    dataset.classes = 5
    assert folder_names(loader) == ()


def test_names_must_differ_and_be_one_per_class():
    for model, classes, fact in (
        (seeded(networks.Net), ["a", "b", "a"], "classes= has 3 names of which only 2 differ"),
        (seeded(networks.Net), ["a", "b", "c"], "classes= has 3 names, but the model has 5 classes"),
        (configured(NAMES[:3]), None, "has 3 names, but the model has 5 classes"),
    ):
        with pytest.raises(ArgumentError, match=fact):
            extract(model, batched(10, 5), classes=classes)


def test_names_of_a_single_logit_are_those_of_its_two_classes():
    model = seeded(lambda: networks.Headed(lambda m, h: m.fc(h), 1))
    with pytest.warns(UserWarning, match="single logit"):
        assert extract(model, [pictures(6)], classes=["no", "yes"]).class_names == ("no", "yes")


# Labels of class folders ------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("order", [NAMES, NAMES[::-1], ("dog", "ant", "eel", "cat", "bee")])
@pytest.mark.parametrize("present", [NAMES, ("dog", "bee"), ("eel", "ant", "cat")])
def test_labels_are_numbers_of_the_models_classes_by_name(tmp_path, order, present, stored):
    loader = folders(tmp_path / "images", present)
    store = tmp_path / "s" if stored else None
    for model, classes in ((configured(order), None), (seeded(networks.Net), order)):
        features = extract(model, loader, classes=classes, store=store and store / str(classes))
        # folders are read in the order of their names, each with three images
        assert features.labels.tolist() == [order.index(name) for name in sorted(present) for _ in range(3)]
        assert features.class_names == order


def test_a_folder_that_is_no_class_of_the_model_is_refused(tmp_path):
    loader = folders(tmp_path, ("bee", "wasp"))
    with pytest.raises(DataError, match=r"wasp is not a class of Net \(ant, bee, cat, .*labels=False"):
        extract(configured(NAMES), loader)
    assert extract(configured(NAMES), loader, labels=False).labels is None


def test_fewer_folders_than_classes_without_names_are_reported(tmp_path):
    loader = folders(tmp_path, ("bee", "dog"))
    with pytest.warns(UserWarning, match="numbered 0 to 1, but the model has 5 classes"):
        features = extract(seeded(networks.Net), loader)
    assert features.class_names == ()
    assert extract(seeded(networks.Net), loader, labels=False).class_names == ()


def test_a_model_may_say_that_it_is_multi_label():
    model = configured(problem_type="multi_label_classification")
    assert not extract(configured(problem_type="single_label_classification"), batched(10, 5)).multilabel
    assert extract(model, batched(10, 5, classes=CLASSES)).multilabel
    assert not extract(model, batched(10, 5), multilabel=False).multilabel
    assert extract(seeded(networks.Net), batched(10, 5), multilabel=True).multilabel


@pytest.mark.filterwarnings("ignore:.*has a single logit")
@pytest.mark.parametrize(
    "labels", [torch.arange(8.0) % 2, (torch.arange(8.0) % 2)[:, None], (torch.arange(8) % 2)[:, None]]
)
def test_zeros_and_ones_for_a_single_logit_are_labels(labels):
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    assert extract(torch.nn.Linear(4, 1), [(rows, labels)]).labels.tolist() == [0, 1] * 4
    for model, given in ((torch.nn.Linear(4, 3), labels), (torch.nn.Linear(4, 1), labels + 0.5)):
        with pytest.raises(DataError, match="labels must be integers"):
            extract(model, [(rows, given)])


def test_an_accuracy_far_below_the_confidence_is_reported():
    """Folders numbered in another order than the model's classes."""
    model = seeded(lambda: networks.spread(networks.Net()))
    images = pictures(100)
    predicted = model(images).argmax(dim=1)
    assert extract(model, [(images, predicted)]).accuracy == 1
    with pytest.warns(UserWarning, match=r"accuracy by these labels is 0.0%, though its mean .*classes=, --classes"):
        assert extract(model, [(images, (predicted + 1) % CLASSES)]).accuracy == 0
    assert extract(model, [images]).accuracy is None


def trained(loss, labels):
    """A small network, its inputs, and the loss that it was trained with."""
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 6)))
    inputs = pictures(400, size=8).flatten(1)[:, :6]
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss(model(inputs), labels(inputs)).backward()
        optimizer.step()
    return model, inputs


def test_a_model_trained_with_sigmoids_is_reported_unless_multilabel_is_given():
    model, inputs = trained(F.binary_cross_entropy_with_logits, lambda inputs: (inputs > 0.8).float())
    with pytest.warns(UserWarning, match="Sequential may be multi-label: .* pass multilabel=True"):
        assert not extract(model, [inputs]).multilabel
    for given in (True, False):
        assert extract(model, [inputs], multilabel=given).multilabel == given
    model, inputs = trained(F.cross_entropy, lambda inputs: inputs.argmax(dim=1))
    extract(model, [inputs])
