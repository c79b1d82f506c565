"""A small smooth network whose gradient can be checked by finite differences, and data for it."""

import copy

import torch
from reference import gradient as slow
from support.networks import CLASSES, WIDTH, pictures, seeded, spread
from torch import nn
from torch.nn import functional as F

from oodles.detectors.network_detector import layers_of
from oodles.models.deconf import with_head
from oodles.network.extraction import extract


class Counted(torch.autograd.Function):
    """The identity; records the number of rows whenever a gradient passes back through it."""

    @staticmethod
    def forward(ctx, values, tally):
        ctx.tally = tally
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        ctx.tally.append(len(gradient))
        return gradient, None


class Smooth(nn.Module):
    """Two smooth convolutions, pooled, and a linear layer, so that finite differences give its gradient accurately.

    Records the number of rows of every forward and backward pass.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, WIDTH, 3, stride=2)
        self.fc = nn.Linear(WIDTH, CLASSES)
        self.forwards, self.backwards = [], []

    def hidden(self, images):
        return F.softplus(self.second(torch.tanh(self.first(images)))).mean(dim=(2, 3))

    def forward(self, images):
        self.forwards.append(len(images))
        return self.fc(self.hidden(Counted.apply(images, self.backwards)))


def smooth(*, seed=0, dtype=torch.float64):
    return spread(seeded(Smooth, seed)).to(dtype)


def deconf(*, seed=0, dtype=torch.float64):
    """The same with a DeConf-C head whose batch norm has non-trivial statistics."""
    model = seeded(lambda: with_head(Smooth(), "deconf"), seed).eval()
    norm = model.fc.confidence[1]
    norm.running_mean.fill_(0.3)
    norm.running_var.fill_(0.5)
    return model.to(dtype)


def small(rows, *, seed=0, dtype=torch.float64):
    return pictures(rows, seed=seed, size=5).to(dtype)


def classes_of(rows, *, seed=1):
    return torch.randint(CLASSES, (rows,), generator=torch.Generator().manual_seed(seed))


def plain(model, column="logits"):
    """One column of a network as a function of arrays, in float64."""
    double = copy.deepcopy(model).double().eval()
    columns = {
        "logits": double,
        "embedding": double.hidden,
        "layer.first": lambda images: double.first(images).mean(dim=(2, 3)),
        "layer.second": lambda images: double.second(torch.tanh(double.first(images))).mean(dim=(2, 3)),
        "layer.fc.cosine": lambda images: double.fc.cosine(double.hidden(images)),
    }

    def values(images):
        with torch.no_grad():
            return columns[column](torch.from_numpy(images)).numpy()

    return values


def fitted(model, detector, rows=80):
    """The detector fitted on a Smooth network's features of random images with random labels."""
    loader = [(small(rows, seed=11).to(next(model.parameters())), classes_of(rows))]
    return detector.fit(extract(model, loader, layers=layers_of([detector])))


def distance_twin(model, column="embedding", rows=80):
    """The reference for the distances that :func:`fitted` learns, as a function of images."""
    values = plain(model, column)
    nearest = slow.distance(values(small(rows, seed=11).numpy()), classes_of(rows).numpy())
    return lambda images: nearest(values(images))


def sharpness(columns):
    """An objective: the negative of the largest logit."""
    return -columns["logits"].amax(dim=1)
