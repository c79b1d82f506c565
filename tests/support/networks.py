"""Small classifiers with heads of every kind, and images and labels for them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

WIDTH, CLASSES = 8, 5


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread for every file that imports this: networks this small are slower with more, much so on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pictures(rows: int, *, seed: int = 0, size: int = 8) -> Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))


def batched(rows: int, batch: int, *, seed: int = 0, classes: int = CLASSES) -> list[tuple[Tensor, Tensor]]:
    images = pictures(rows, seed=seed)
    labels = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(seed + 1))
    return list(zip(images.split(batch), labels.split(batch), strict=True))


def interrupted(batches: Iterable[Any], error: BaseException | None = None) -> Iterator[Any]:
    """A loader that gives these batches and then fails."""
    yield from batches
    raise error or KeyboardInterrupt


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build a model from a seed without changing the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def spread(model: nn.Module) -> nn.Module:
    """Spread the logits of an untrained ``fc`` like those of a trained one, with both signs for every class."""
    model.eval()
    with torch.no_grad():
        hidden = model.hidden(pictures(64, seed=99))
        model.fc.weight.mul_(30)
        model.fc.bias.copy_(-F.linear(hidden, model.fc.weight).mean(dim=0))
    return model


class Body(nn.Module):
    """Two convolutions with a batch norm; returns a ReLU feature map of ``WIDTH`` channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, WIDTH, 3, stride=2)
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return F.relu(self.conv2(F.relu(self.bn1(self.conv1(images)))))

    def pooled(self, images: Tensor) -> Tensor:
        return self(images).mean(dim=(2, 3))


class Net(nn.Module):
    """The ordinary classifier; the others replace its head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.fc = nn.Linear(WIDTH, CLASSES)

    def hidden(self, images: Tensor) -> Tensor:
        return self.body.pooled(images)

    def forward(self, images: Tensor) -> Any:
        return self.fc(self.hidden(images))


class DenseNetLike(nn.Module):
    """Concatenating blocks, batch norm, pooling, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.grow = nn.ModuleList([nn.Conv2d(4 + 4 * i, 4, 3, padding=1) for i in range(3)])
        self.norm = nn.BatchNorm2d(16)
        self.classifier = nn.Linear(16, CLASSES)

    def hidden(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for conv in self.grow:
            x = torch.cat([x, F.relu(conv(x))], dim=1)
        return F.relu(self.norm(x)).mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.hidden(images))


class ReturnsDict(Net):
    def forward(self, images: Tensor) -> Any:
        hidden = self.hidden(images)
        return {"hidden": hidden, "logits": self.fc(hidden)}


class ConvAfterPool(Net):
    """A 1x1 convolution on a pooled 1x1 map, then flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, images: Tensor) -> Any:
        return self.fc(self.hidden(images)[:, :, None, None]).flatten(1)


class ConvBeforePool(ConvAfterPool):
    """A 1x1 convolution on the map, then mean pooling: still one affine map of the pooled embedding."""

    def forward(self, images: Tensor) -> Any:
        return self.fc(self.body(images)).mean(dim=(2, 3))


class NoBias(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, CLASSES, bias=False)


class Matmul(Net):
    def __init__(self) -> None:
        super().__init__()
        del self.fc
        self.weight = nn.Parameter(torch.randn(CLASSES, WIDTH))
        self.bias = nn.Parameter(torch.randn(CLASSES))

    def forward(self, images: Tensor) -> Any:
        return self.hidden(images) @ self.weight.T + self.bias


class Addmm(Matmul):
    def forward(self, images: Tensor) -> Any:
        return torch.addmm(self.bias, self.hidden(images), self.weight.T)


class Tied(Net):
    """The head's weight is that of an ``nn.Embedding``, used through ``F.linear``."""

    def __init__(self) -> None:
        super().__init__()
        del self.fc
        self.names = nn.Embedding(CLASSES, WIDTH)

    def forward(self, images: Tensor) -> Any:
        return F.linear(self.hidden(images), self.names.weight)


class WeightNormed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc = weight_norm(nn.Linear(WIDTH, CLASSES))
        with torch.no_grad():
            self.fc.parametrizations.weight.original0.mul_(3)


class Scaled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.25))

    def forward(self, images: Tensor) -> Any:
        return self.scale * super().forward(images)


class Offset(Net):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.linspace(-1, 2, CLASSES))

    def forward(self, images: Tensor) -> Any:
        return super().forward(images) + self.offset


class BatchNormed(Net):
    """``fc`` and then a batch norm that is almost, but not quite, the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(CLASSES)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.linspace(-1e-3, 1e-3, CLASSES))
            self.norm.running_var.copy_(torch.linspace(0.998, 1.003, CLASSES))

    def forward(self, images: Tensor) -> Any:
        return self.norm(super().forward(images))


class InPlace(Net):
    """Modifies the head's output in place."""

    def forward(self, images: Tensor) -> Any:
        return super().forward(images).mul_(2).add_(1)


class TwoHeads(Net):
    """The mean of two heads on two embeddings, as in distilled transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, CLASSES)

    def hidden(self, images: Tensor) -> Tensor:
        maps = self.body(images)
        return torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)

    def forward(self, images: Tensor) -> Any:
        first, second = self.hidden(images).chunk(2, dim=1)
        return (self.fc(first) + self.other(second)) / 2


class Softmax(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images).softmax(dim=1)


class LogSoftmax(Net):
    def forward(self, images: Tensor) -> Any:
        return F.log_softmax(super().forward(images), dim=-1)


class Transformer(nn.Module):
    """Patches as tokens through ``nn.TransformerEncoder``; the first token is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=2, dim_feedforward=16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def hidden(self, images: Tensor) -> Tensor:
        return self.encoder(self.patch(images).flatten(2).transpose(1, 2))[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.hidden(images))


class TokenMean(Transformer):
    """Every token is classified, then the logits averaged: one affine map of the mean token."""

    def hidden(self, images: Tensor) -> Tensor:
        return self.encoder(self.patch(images).flatten(2).transpose(1, 2)).mean(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(self.patch(images).flatten(2).transpose(1, 2))).mean(dim=1)


class FunctionalTransformer(Transformer):
    """A functional head after modules whose linear operations are fused or not depending on active hooks."""

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(self.hidden(images), self.head.weight, self.head.bias)


class Headed(Net):
    """The ordinary classifier with any head: ``answer(model, embedding)`` is what it returns."""

    def __init__(self, answer: Callable[[Any, Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, classes)
        self.answer = answer

    def forward(self, images: Tensor) -> Any:
        return self.answer(self, self.hidden(images))


class LinearEmbedding(Headed):
    """The same with an embedding that is itself the output of a linear layer, without a ReLU."""

    def __init__(self, answer: Callable[[Any, Tensor], Any], classes: int = CLASSES) -> None:
        super().__init__(answer, classes)
        self.neck = nn.Linear(WIDTH, WIDTH)

    def hidden(self, images: Tensor) -> Tensor:
        return self.neck(super().hidden(images))


class LowRank(nn.Module):
    """A linear layer with a low-rank update beside it, as LoRA adds one."""

    def __init__(self, scale: float, *, bias: bool = True, update: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, CLASSES, bias=bias)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, CLASSES, bias=False)
        self.scale = scale
        if not update:
            nn.init.zeros_(self.up.weight)

    def forward(self, embedding: Tensor) -> Tensor:
        return self.base(embedding) + self.scale * self.up(self.down(embedding))


class CosineSimilarity(Net):
    """Cosine head by ``F.cosine_similarity``, without any linear operation."""

    def forward(self, images: Tensor) -> Any:
        return 10 * F.cosine_similarity(self.hidden(images)[:, None], self.fc.weight[None], dim=2)


class CosinePerClass(Net):
    """One cosine after another, which is not recognised as a cosine head."""

    def forward(self, images: Tensor) -> Any:
        hidden = self.hidden(images)
        return torch.stack([F.cosine_similarity(hidden, row[None]) for row in self.fc.weight], dim=1)


class Sigmoid(Net):
    def forward(self, images: Tensor) -> Any:
        return super().forward(images).sigmoid()


class Prototypes(Net):
    def forward(self, images: Tensor) -> Any:
        return -torch.cdist(self.hidden(images), self.fc.weight)


class Stochastic(Net):
    """Dropout applied functionally, and therefore active in eval mode."""

    def forward(self, images: Tensor) -> Any:
        return self.fc(F.dropout(self.hidden(images), 0.5))


class FinalReLU(Net):
    def forward(self, images: Tensor) -> Any:
        return F.relu(super().forward(images))


class SqueezeNetLike(ConvAfterPool):
    """1x1 convolution, ReLU, mean pooling: not an affine map because of the ReLU."""

    def forward(self, images: Tensor) -> Any:
        return F.relu(self.fc(self.body(images))).mean(dim=(2, 3))


class Compiled(nn.Module):
    """A wrapper like the one ``torch.compile`` returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model

    def forward(self, images: Tensor) -> Any:
        return self._orig_mod(images)
