"""``ForwardPass``: one pass of a network over its inputs gives columns: embedding, logits and inner layers."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oodles.columns import LAYER, Columns
from oodles.data.inputs import Inputs
from oodles.errors import HeadError, OodlesError
from oodles.features import Head
from oodles.network.candidates import LocatedHead
from oodles.network.head import locate_head
from oodles.network.onnx_model import OnnxModel, OnnxTap
from oodles.network.outputs import is_multilabel, logits_of
from oodles.network.probes import rejected
from oodles.network.reductions import read_layer
from oodles.network.taps import Tap, has_convolutions

HeadName = str | Literal[False] | None
"""Name of the last linear layer; None to search for it, False to keep only the logits."""

CPU_ROWS = 32  # batch size of convolutional networks on a CPU, small enough for their activations to stay in the caches


def two_class_head(head: Head) -> Head:
    """A head with one logit z as the head with the logits 0 and z, whose softmax is the sigmoid of z."""
    return Head(F.pad(head.weight, (0, 0, 1, 0)), F.pad(head.full_bias(), (1, 0)))


class Pass(NamedTuple):
    """The result of a pass: the logits exactly as the model returned them, and the columns."""

    output: Tensor
    columns: Columns


class ForwardPass:
    """A network in eval mode, its last layer, which is located on the first batch, and the inner layers to keep.

    With ``optional_head``, a network without a linear head gives a warning and only logits, where it would otherwise
    raise :class:`oodles.errors.HeadError`. ``multilabel`` says whether an input may have several classes; by default
    the model shows it.
    """

    def __init__(
        self,
        network: nn.Module,
        head: HeadName = None,
        layers: Sequence[str] = (),
        *,
        optional_head: bool = False,
        multilabel: bool | None = None,
    ) -> None:
        modules = dict(network.named_modules())
        for name in layers:
            read_layer(name, modules, type(network).__name__)  # a wrong name is refused before anything runs
        self.network = network
        self.head = head
        self.optional_head = optional_head
        self.layers = tuple(layers)
        self.convolutional = has_convolutions(network)
        self.located: LocatedHead | None = None
        self._tap: Tap | OnnxTap | None = None
        self._declared_multilabel = multilabel
        self._outputs = 0  # how many numbers the network returns for an input, once that is known

    def pieces(self, inputs: Inputs, batch_size: int | None = None) -> list[Inputs]:
        """The inputs in batches of the size and memory layout that are fastest for the network."""
        on_cpu = self.convolutional and all(part.device.type == "cpu" for part in inputs.tensors().values())
        pieces = inputs.split(batch_size or (CPU_ROWS if on_cpu else len(inputs)))
        return [piece.map(_channels_last) for piece in pieces] if on_cpu else pieces

    def find_head(self, inputs: Inputs) -> Tap | OnnxTap:
        """A tap on the last layer and the inner ones; the head is located once, on the first inputs."""
        if self._tap is None:
            if self.head is not False:
                self.located = self._locate(inputs)
            points = self.located.points if self.located else ()
            if isinstance(self.network, OnnxModel):
                self._tap = self.network.tap(points)
            else:
                self._tap = Tap(self.network, points, self.layers)
        return self._tap

    def _locate(self, inputs: Inputs) -> LocatedHead | None:
        # outside inference mode, because the head's weights take part in backward passes
        with torch.inference_mode(False), torch.no_grad():
            try:
                if isinstance(self.network, OnnxModel):
                    from oodles.network.onnx_head import locate_graph_head  # which needs onnx

                    return locate_graph_head(self.network, inputs, self.head or None)
                return locate_head(self.network, inputs, self.head or None)
            except HeadError as error:
                if not self.optional_head:
                    raise
                warnings.warn(f"only logits are used, since no linear head was found: {error}", stacklevel=4)
                return None
            except OodlesError:
                raise
            except Exception as error:
                raise rejected(self.network, inputs, error) from error

    @property
    def multilabel(self) -> bool:
        """Whether an input may have several classes: as given, else as the model shows, known after the first batch."""
        if self._declared_multilabel is not None:
            return self._declared_multilabel
        shown = is_multilabel(self.network) or (self.located is not None and self.located.multilabel)
        return shown and self._outputs != 1

    @property
    def single_logit(self) -> bool:
        """Whether the network returns one number for an input, known after the first batch."""
        return self._outputs == 1

    def feature_head(self) -> Head | None:
        """The head that gives the column ``logits`` from the column ``embedding``; None if only logits are kept."""
        head = None if self.located is None else self.located.head
        return two_class_head(head) if head is not None and head.classes == 1 else head

    def run(self, inputs: Inputs) -> Pass:
        """One forward pass."""
        tap = self.find_head(inputs)
        try:
            raw, head_inputs, kept = tap(inputs)
        except OodlesError:
            raise
        except Exception as error:  # whatever the network's own code raises
            raise rejected(self.network, inputs, error) from error
        seen = self._columns(raw, head_inputs, kept)
        if len(seen.output) != len(inputs):
            raise HeadError(f"{type(self.network).__name__} gave {len(seen.output)} rows for {len(inputs)} inputs")
        if self.located is not None:
            self.located.check(seen.columns["embedding"], seen.output)
        if not self._outputs:
            self._examine(*seen)
        return seen

    def trace(self, call: Callable[[nn.Module], Any]) -> Pass:
        """A pass for ``torch.export``, which cannot look at numbers, once :meth:`run` has found and checked the head.

        ``call`` calls the network.
        """
        if self._tap is None:
            raise HeadError(f"the last layer of {type(self.network).__name__} is not known yet; run a batch first")
        return self._columns(*self._tap(call))

    def _columns(self, raw: object, head_inputs: Sequence[Tensor], kept: Mapping[str, Tensor]) -> Pass:
        output = logits_of(raw, None if self.located is None else self.located.item)
        columns = {"logits": output}
        if self.located is not None:
            embedding = self.located.embedding(head_inputs, output)
            columns = {"embedding": embedding, "logits": self.located.logits(embedding, output)}
        if output.shape[1] == 1:
            columns["logits"] = F.pad(columns["logits"], (1, 0))
        return Pass(output, columns | {LAYER + name: activation for name, activation in kept.items()})

    def _examine(self, output: Tensor, columns: Columns) -> None:
        """Report a first output that may be probabilities or sigmoids, or a single logit, taken as two classes."""
        name, outputs = type(self.network).__name__, output.shape[1]
        probable = self.located is None and bool(((output >= 0) & (output <= 1)).all())
        if probable and outputs == 1:
            raise HeadError(
                f"{name} returns one number from 0 to 1 per input, which may be a probability; return the logit"
            )
        if outputs == 1:
            warnings.warn(f"{name} has a single logit z, treated as two classes with logits 0 and z", stacklevel=3)
        elif probable and bool(((output.sum(dim=1) - 1).abs() < 1e-3).all()):
            # of logits, only those of a softmax are all positive and add up to 1 in every row
            warnings.warn(
                f"{name} returns probabilities, used as if they were logits; return the logits instead", stacklevel=3
            )
        elif self._declared_multilabel is None and not self.multilabel and _like_sigmoids(columns["logits"]):
            warnings.warn(
                f"{name} may be multi-label: many inputs have no likely class or several, as with a sigmoid per class; "
                "pass multilabel=True (--multilabel) if an input may have several classes, else multilabel=False",
                stacklevel=3,
            )
        self._outputs = outputs


def _like_sigmoids(logits: Tensor) -> bool:
    """Whether many rows have no positive logit, or several among many negative ones, and some row has a positive one.

    A softmax is free to shift the logits of a row. Descent keeps their mean at 0 and Adam lets it fall, but seldom so
    far that no class is positive. Negative distances never are.
    """
    top, positive = logits.topk(2, dim=1).values, (logits > 0).double().mean(dim=1)
    like = (logits.mean(dim=1) < -1) & ((top[:, 0] < -1) | ((top[:, 1] > 1) & (positive <= 0.1)))
    return float(like.double().mean()) > 0.1 and bool((top[:, 0] > 1).any())


def _channels_last(value: Any) -> Any:
    images = isinstance(value, Tensor) and value.ndim == 4
    return value.contiguous(memory_format=torch.channels_last) if images else value
