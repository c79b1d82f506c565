"""Small classifiers written by hand: heads in unusual forms, unusual inputs and outputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from support.head_survey import Architecture, Finished, Inputs
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from oodles.models import DeConf

WIDTH, CLASSES, COLUMNS = 8, 5, 12


def vectors(rows: int, generator: torch.Generator) -> Tensor:
    """Rows of a table."""
    return torch.randn(rows, COLUMNS, generator=generator)


class Classifier(nn.Module):
    """One hidden layer, and a head that is a function of this module and of the embedding."""

    def __init__(self, head: Callable[[Any, Tensor], Any], outputs: int = CLASSES, **layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.ReLU())
        self.fc = nn.Linear(WIDTH, outputs)
        self.head = head
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, rows: Tensor) -> Any:
        return self.head(self, self.body(rows))


def plain(self: Classifier, embedding: Tensor) -> Tensor:
    return self.fc(embedding)


def _by_hand(name: str, make: Callable[[], nn.Module], inputs: Inputs = vectors, **more: Any) -> Architecture:
    return Architecture("by hand", name, make, inputs, **more)


def _form(name: str, head: Callable[[Any, Tensor], Any], outputs: int = CLASSES, **more: Any) -> Architecture:
    """A form of head that needs no layer but ``fc``."""
    return _by_hand(name, lambda: Classifier(head, outputs), **more)


def _with_layers(name: str, head: Callable[[Any, Tensor], Any], **layers: tuple[Any, ...]) -> Architecture:
    """A form of head that needs more linear layers, given by their arguments."""
    return _by_hand(name, lambda: Classifier(head, **{key: nn.Linear(*given) for key, given in layers.items()}))


# Inputs -----------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(COLUMNS, WIDTH, batch_first=True)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, sequences: PackedSequence) -> Tensor:
        _, (state, _) = self.lstm(sequences)
        return self.fc(state[-1])


class EveryStep(Recurrent):
    """Every step is classified, and the logits of the last returned."""

    def forward(self, sequences: Tensor) -> Tensor:
        return self.fc(self.lstm(sequences)[0])[:, -1]


def packed(rows: int, generator: torch.Generator) -> PackedSequence:
    """Sequences of different lengths, not sorted by length."""
    lengths = [3 + (2 * row) % 5 for row in range(rows)]
    return pack_sequence([torch.randn(t, COLUMNS, generator=generator) for t in lengths], enforce_sorted=False)


def sequences(rows: int, generator: torch.Generator) -> Tensor:
    """Sequences of one length."""
    return torch.randn(rows, 6, COLUMNS, generator=generator)


class Table(nn.Module):
    """A category and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.category = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Linear(COLUMNS + 4, WIDTH), nn.ReLU())
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, category: Tensor, numbers: Tensor) -> Tensor:
        return self.fc(self.body(torch.cat([self.category(category), numbers], dim=1)))


class WideAndDeep(Table):
    """A linear layer on the numbers beside the network."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(COLUMNS, CLASSES)

    def forward(self, category: Tensor, numbers: Tensor) -> Tensor:
        return super().forward(category, numbers) + self.wide(numbers)


def table(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randint(7, (rows,), generator=generator), vectors(rows, generator)


def named_table(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    return dict(zip(("category", "numbers"), table(rows, generator), strict=True))


def _lightning() -> nn.Module:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Classifier(plain)

        def forward(self, rows: Tensor) -> Tensor:
            return self.network(rows)

    return Module()


INPUTS = [
    _by_hand("LSTM on packed sequences", Recurrent, packed),
    _by_hand("LSTM, every step classified, the last returned", EveryStep, sequences),
    _by_hand("table with two inputs, by position", Table, table),
    _by_hand("table with two inputs, by name", Table, named_table),
    _by_hand("table, wide and deep", WideAndDeep, table),
    _by_hand("Lightning module", _lightning),
]

# Outputs ----------------------------------------------------------------------------------------------------------


def _last_column(logits: Tensor) -> Tensor:
    return logits[:, 1:]


SOFTMAX = partial(torch.softmax, dim=1)
OUTPUTS = [
    _form("(embedding, logits)", lambda self, x: (x, self.fc(x)), answer=lambda output: output[1]),
    _form(
        "dict of an embedding and scores",
        lambda self, x: {"embedding": x, "scores": self.fc(x)},
        answer=lambda output: output["scores"],
    ),
    _by_hand(
        "dict of the logits of two tasks",
        lambda: Classifier(lambda self, x: {"colour": self.fc(x), "shape": self.other(x)}, other=nn.Linear(WIDTH, 3)),
        answer=lambda output: output["colour"],
        named_head="fc",
    ),
    _form("single logit", plain, 1, finish=_last_column),
    _form(
        "single logit, shape (n,)",
        lambda self, x: self.fc(x)[:, 0],
        1,
        finish=_last_column,
        remedy=lambda network: Finished(network, lambda numbers: numbers[:, None]),
    ),
    _form("single probability", lambda self, x: self.fc(x).sigmoid(), 1, finish=lambda z: z[:, 1:].sigmoid()),
    _form("sigmoid, multi-label", lambda self, x: self.fc(x).sigmoid(), finish=torch.sigmoid),
    _form("softmax", lambda self, x: self.fc(x).softmax(dim=1), finish=SOFTMAX),
    _form("softmax after a temperature", lambda self, x: (self.fc(x) / 0.3).softmax(dim=1), finish=SOFTMAX),
    _form("log-softmax", lambda self, x: self.fc(x).log_softmax(dim=1), finish=partial(torch.log_softmax, dim=1)),
]

# Forms of the head ------------------------------------------------------------------------------------------------


def _cosine(embedding: Tensor, weight: Tensor) -> Tensor:
    return F.normalize(embedding) @ F.normalize(weight).T


def _gated(self: Any, embedding: Tensor) -> Tensor:
    gate = self.gate(embedding).sigmoid()
    return gate * self.fc(embedding) + (1 - gate) * self.other(embedding)


class Ensemble(nn.Module):
    """The mean of three networks."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList(Classifier(plain) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([member(rows) for member in self.members]).mean(dim=0)


ANOTHER = (WIDTH, CLASSES)
FORMS = [
    _form("cosine, a normalised product", lambda self, x: _cosine(x, self.fc.weight)),
    _form("cosine, times a scale", lambda self, x: 16 * _cosine(x, self.fc.weight)),
    _form("cosine by `F.cosine_similarity`", lambda self, x: F.cosine_similarity(x[:, None], self.fc.weight, dim=2)),
    _form(
        "cosine, divided by both norms",
        lambda self, x: x @ self.fc.weight.T / (x.norm(dim=1, keepdim=True) * self.fc.weight.norm(dim=1)),
    ),
    _form(
        "cosine by `torch.einsum`",
        lambda self, x: torch.einsum("nd,cd->nc", F.normalize(x), F.normalize(self.fc.weight)),
    ),
    _form("temperature after the head", lambda self, x: self.fc(x) / 1.7),
    _form("class priors after the head", lambda self, x: self.fc(x) + torch.linspace(-1, 1, CLASSES)),
    _with_layers(
        "LoRA beside the head",
        lambda self, x: self.fc(x) + 2 * self.up(self.down(x)),
        down=(WIDTH, 2, False),
        up=(2, CLASSES, False),
    ),
    _with_layers("mean of two heads", lambda self, x: (self.fc(x) + self.other(x.square())) / 2, other=ANOTHER),
    _by_hand("mean of three networks", Ensemble),
    _form("some columns of the head", lambda self, x: self.fc(x)[:, [0, 2, 3]]),
    _form("product with the weights on the left", lambda self, x: (self.fc.weight @ x.T).T),
    _by_hand(
        "1-D convolution",
        lambda: Classifier(lambda self, x: self.conv(x[:, :, None])[:, :, 0], conv=nn.Conv1d(WIDTH, CLASSES, 1)),
    ),
    _with_layers("mixture of two heads, gated by the input", _gated, other=ANOTHER, gate=(WIDTH, 1)),
    _by_hand("DeConf (Generalized ODIN)", lambda: Classifier(plain, fc=DeConf(WIDTH, CLASSES))),
    _form("prototypes by `torch.cdist`", lambda self, x: -torch.cdist(x, self.fc.weight)),
    _form("prototypes, squared distances", lambda self, x: -(x[:, None] - self.fc.weight).square().sum(dim=2)),
    _form("RBF kernel", lambda self, x: torch.exp(-(x[:, None] - self.fc.weight).square().mean(dim=2))),
    _with_layers(
        "random Fourier features (SNGP)",
        lambda self, x: self.out(self.wide(x).cos()),
        wide=(WIDTH, 32),
        out=(32, CLASSES),
    ),
    _form("ReLU after the head", lambda self, x: self.fc(x).relu()),
    _form("tanh after the head", lambda self, x: 30 * torch.tanh(self.fc(x) / 30)),
]

# Kinds of module --------------------------------------------------------------------------------------------------


def _float_network() -> nn.Module:
    return nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


MODULES = [
    _by_hand("torch.compile", lambda: torch.compile(_float_network(), backend="eager")),
    _by_hand("torch.fx", lambda: torch.fx.symbolic_trace(_float_network())),
    _by_hand(
        "TorchScript",
        lambda: torch.jit.trace(_float_network().eval(), torch.zeros(2, COLUMNS)),
        remedy=lambda _: _float_network(),
    ),
    _by_hand(
        "quantised",
        lambda: torch.ao.quantization.quantize_dynamic(_float_network().eval(), {nn.Linear}),
        remedy=lambda _: _float_network(),
    ),
    _form(
        "stochastic: dropout in eval mode", lambda self, x: self.fc(F.dropout(x)), remedy=lambda _: Classifier(plain)
    ),
]

BY_HAND = [*INPUTS, *OUTPUTS, *FORMS, *MODULES]
