"""``Guard``: a model, a detector and a threshold in one module that also says when not to trust the model."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import msgspec
import torch
from torch import Tensor, nn

from oodles.calibration import Threshold, check_id_rate
from oodles.data.batches import LABEL_KEYS, BatchReader, LabelsAt, first_rows
from oodles.data.conversion import preprocessing_record
from oodles.data.inputs import Inputs
from oodles.data.transforms import image_transform
from oodles.deploy.export import Exportable, export_guard, noise_images, refuse_steps
from oodles.deploy.exported import ExportedGuard
from oodles.deploy.saving import load_guard, save_guard
from oodles.deploy.verdict import Verdict
from oodles.detectors import Detector
from oodles.detectors.base import (
    INPUTS,
    check_fitted,
    check_head,
    check_multilabel,
    extra_columns,
    float_buffer,
)
from oodles.detectors.network_detector import layers_of, needs_head, needs_network, steps_of
from oodles.detectors.parsing import as_detector
from oodles.errors import ArgumentError, DataError, FileError, HeadError, ShapeError
from oodles.explanation.explaining import Explanation, explain
from oodles.features import MAX_NAMES, Features
from oodles.functional import label_probability
from oodles.network.extraction import extract
from oodles.network.fingerprints import model_fingerprint
from oodles.network.forward import ForwardPass, HeadName, Pass
from oodles.network.onnx_model import OnnxModel, as_model
from oodles.network.outputs import class_names
from oodles.network.perturbation import run_with_steps
from oodles.network.self_test import Probe, SelfTest, image_probe, probe_like, repeat_self_test, take_self_test
from oodles.network.taps import eval_mode, has_convolutions, needs_eval, unwrap
from oodles.records.files import Key, Record
from oodles.records.html import html_table
from oodles.selection.fitting import fit_and_calibrate
from oodles.selection.tuning import tune
from oodles.steps import Step

MAX_ROWS = 64  # that an export is tried on
MAX_CLASSES = 1000  # whose logits a saved guard keeps for its self-test


class Guard(nn.Module):
    """A model, a detector and a threshold: returns the model's logits bit for bit, the label, the score and ``is_id``.

    The model is put in eval mode, and every part of it is in eval mode during a call. Its last linear layer is found at
    the first batch; pass the ``head`` that ``extract`` was given, if any. It must have the width that the detector was
    fitted on. Several threads may call one guard. ``is_id`` is ``score >= threshold``, and the score of an input whose
    embedding, logits or score are not finite, in the precision of the detector, is NaN, so such an input is never
    in-distribution. ``preprocessing`` says how images were resized and normalised: a
    :class:`~oodles.data.transforms.Transform`, or what :func:`oodles.data.conversion.as_transform` makes one of. It is
    saved with the guard, so that ``oodles score`` treats images the same way. ``classes`` are the names of the model's
    classes, in order; by default those in ``model.config.id2label``. ``multilabel`` says whether an input may have
    several classes; by default what the model shows.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> guard = Guard.fit(model, [torch.randn(400, 4)], detector="knn")
    >>> guard(torch.full((1, 4), torch.nan)).is_id  # what cannot be scored is never ID
    tensor([False])
    """

    def __init__(
        self,
        model: nn.Module | str | Path,
        detector: Detector,
        threshold: Threshold,
        *,
        head: HeadName = None,
        preprocessing: Any = None,
        classes: Sequence[str] | None = None,
        multilabel: bool | None = None,
    ) -> None:
        super().__init__()
        model = as_model(model)
        check_fitted(detector)
        if head is False and needs_head(detector):
            raise ArgumentError(f"{detector} needs embeddings, which head=False leaves out; give head=None or its name")
        if not isinstance(threshold, Threshold):
            raise ArgumentError(f"threshold={threshold!r} is not a Threshold; make one with calibrate(id_scores)")
        self.model = model
        self.detector = detector
        self.threshold = threshold
        self.head: HeadName = head
        self.preprocessing: Record | None = preprocessing_record(preprocessing)
        self.class_names = class_names(unwrap(model), None, classes)
        self.multilabel = multilabel
        self._reader = BatchReader(unwrap(model))
        self._columns = (*INPUTS, *extra_columns(detector))
        self._steps: tuple[Step, ...] = ()  # set with the forward pass, as is the buffer below
        self._like: Tensor | None = None
        self._forward: ForwardPass | None = None
        self._parts = tuple(model.modules())  # to look at their modes at every call
        self._probe: Probe | None = None
        self._loader: Iterable[Any] | None = None  # of ID inputs, to try an export on
        self.eval()

    @classmethod
    def fit(
        cls,
        model: nn.Module | str | Path,
        train: Iterable[Any],
        *,
        calibration: Iterable[Any] | None = None,
        detector: str | Detector | None = None,
        id_rate: float = 0.95,
        head: HeadName = None,
        labels: LabelsAt = True,
        classes: Sequence[str] | None = None,
        multilabel: bool | None = None,
        device: torch.device | str | None = None,
        preprocessing: Any = None,
    ) -> "Guard":
        """A guard for ``model`` from ID inputs alone: fits the detector (the default one if None) and its threshold.

        ``model`` is a module, or the path of an ONNX file.
        ``train`` are inputs to fit on, ``calibration`` ID inputs that the model was not trained on, for the threshold.
        Without them a fifth of the training rows is set aside for that, which accepts fewer new inputs than asked for,
        because a network fits its training data better than new data. ``detector`` may be text, such as ``"knn"``. If
        the model has no linear head, the default is made of detectors that need only logits. ``labels``, ``classes``
        and ``multilabel`` are those of :func:`oodles.extract`; ``preprocessing`` is taken from ``train`` if that is an
        :class:`oodles.data.loaders.ImageLoader`.
        """
        check_id_rate(id_rate)
        if calibration is train:
            raise ArgumentError("calibration= is the same loader as train; give inputs that fit has not seen, or None")
        model = as_model(model)
        chosen = None if detector is None else as_detector(detector)
        if calibration is None and chosen is not None and needs_network(chosen):
            raise ArgumentError(f"{chosen} needs more of the network than embeddings; give calibration images")
        layers = () if chosen is None else layers_of([chosen])
        options: dict[str, Any] = {"device": device, "labels": labels, "classes": classes, "multilabel": multilabel}
        probes: list[Probe | None] = []
        features = extract(
            model,
            train,
            head=head,
            layers=layers,
            optional_head=head is None and (chosen is None or not needs_head(chosen)),
            on_batch=lambda number, inputs: None if number else probes.append(probe_like(inputs)),
            preprocessing=preprocessing,
            **options,
        )
        options |= {"head": False if features.head is None else head, "multilabel": features.multilabel}
        held_out: Callable[[Detector], Features] | None = None
        if calibration is not None:

            def held_out(fitted: Detector) -> Features:
                tune([fitted], model, calibration, **options)
                return extract(model, calibration, layers=layers, steps=steps_of([fitted]), **options)

        fitted, threshold = fit_and_calibrate(features, chosen, calibration=held_out, id_rate=id_rate)
        guard = cls(
            model,
            fitted,
            threshold,
            head=options["head"],
            preprocessing=preprocessing_record(preprocessing, train),
            classes=features.class_names,
            multilabel=features.multilabel,
        )
        guard._loader = train if calibration is None else calibration
        guard._probe = probes[0]
        return guard

    def __repr__(self) -> str:
        return f"Guard({type(self.model).__name__}, {self.detector.spec}, score >= {self.threshold.value:.7g})"

    def _repr_html_(self) -> str:
        rows: Record = {
            "model": type(self.model).__name__,
            "detector": self.detector.spec,
            **self.threshold.as_record(),
        }
        rows |= {"classes": ", ".join(self.class_names[:MAX_NAMES]), "preprocessing": self.preprocessing}
        return html_table("Guard", rows.items())

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: a guard is for inference only."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """After a move to another device or precision, the last layer has to be found again."""
        self._forward = None
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    __call__: "Callable[..., Verdict[Tensor]]"  # that of nn.Module may return anything

    def forward(self, *inputs: Any, **named: Any) -> Verdict[Tensor]:
        """Label, score and decision for each input, from one forward pass plus those of the detector's input steps.

        The arguments are those of the model, ``guard(images)`` or ``guard(**tokens)``, or one batch as a loader gives
        it; labels are ignored.
        """
        logits, seen = self._run(inputs, named)
        columns = [seen[name] if name in seen else logits.new_empty(len(logits), 0) for name in self._columns]
        # scores are computed where and as the detector was fitted, whatever device and precision the model runs in
        like = columns[0].float() if self._like is None else self._like
        kind = logits.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            used = [column.to(like) for column in columns]
            score = self.detector(*used)
        # what is not finite, perhaps only since the cast, gets NaN even if a shape clips it to an ordinary number;
        # zero times a number is zero unless that is NaN or infinite: a third of the operations of isfinite
        score = (score + torch.cat([*used, score[:, None]], dim=1).mul(0).sum(dim=1)).to(logits.device)
        # a model with a softmax at its end does not return the logits of its classes
        classes, several = seen["logits"], self._forward is not None and self._forward.multilabel
        probability = label_probability(classes, multilabel=several)
        decision = self.threshold.p_values(score), self.threshold.is_id(score)
        return Verdict(logits, classes.argmax(dim=-1), probability, score, *decision)

    @torch.no_grad()
    def _run(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Pass:
        """The model's logits and the columns that the detector scores from."""
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and not inputs[0].is_nested:
            self._check_images(inputs[0])
        if len(inputs) == 1 and not named:
            batch, _ = self._reader.split(inputs[0])
        else:
            batch = Inputs(inputs, {name: value for name, value in named.items() if name not in LABEL_KEYS})
        with eval_mode(self.model) if needs_eval(self._parts) else nullcontext():
            seen = run_with_steps(self._forward_pass(batch), batch, self._steps)
        count, classes = len(self.class_names), seen.columns["logits"].shape[1]
        if count not in (0, classes):
            raise ArgumentError(f"classes= has {count} names, but the model has {classes} classes; name each of them")
        return seen

    def _check_images(self, images: Tensor) -> None:
        if images.ndim == 0 or len(images) == 0:
            raise DataError("the guard was given no images; give at least one")
        if images.ndim == 3 and has_convolutions(self.model):
            raise DataError(f"one image {tuple(images.shape)} was given; add a batch dimension: guard(image[None])")

    def _forward_pass(self, inputs: Inputs) -> ForwardPass:
        """The last layer is found once; a detector that needs only logits works without it."""
        if self._forward is not None:
            return self._forward
        network, layers = unwrap(self.model), layers_of([self.detector])
        forward = ForwardPass(network, self.head, layers, multilabel=self.multilabel)
        try:
            forward.find_head(inputs)
        except HeadError:
            if needs_head(self.detector):
                raise
            forward = ForwardPass(network, False, layers, multilabel=self.multilabel)
        shape, found_head = self.detector.shape_, forward.feature_head()
        if found_head is not None:
            found = (found_head.width, found_head.classes)
            want = found if shape is None else tuple(shape.tolist())
            if want != found:
                fact = f"was fitted on (width, classes) {want}, this model has {found}"
                raise ShapeError(f"{self.detector} {fact}; fit it on this model's features")
            check_head(self.detector, found_head)
        if forward.multilabel:
            check_multilabel(self.detector)
        self._probe = self._probe or probe_like(inputs)
        self._steps = steps_of([self.detector])
        self._like = float_buffer(self.detector)
        self._forward = forward  # last, because another thread may use all three as soon as it is there
        return forward

    def explain(self, *inputs: Any, train: Features | None = None, **named: Any) -> list[Explanation]:
        """Why each input is accepted or rejected, see :class:`oodles.explanation.explaining.Explanation`.

        With ``train``, the features that the detector was fitted on, nearest training rows are named by their number.
        """
        _, seen = self._run(inputs, named)
        head = None if self._forward is None else self._forward.feature_head()
        features = Features.unvalidated(seen, head)
        return explain(self.detector, features, self.threshold, classes=self.class_names, train=train)

    def save(self, path: str | Path, *, key: Key | None = None) -> None:
        """Write detector and threshold to the folder ``path``, without the model itself.

        A fingerprint of the model's weights and hyperparameters is kept, and its answers to noise of the inputs' shape,
        so the guard can only be loaded with that model or a copy of it in half precision. Replacing an earlier guard is
        a single atomic step, also while others load it. ``key``, at least 16 secret bytes or the file that holds them,
        signs the guard: checksums find accidents, but anybody who alters a file can also compute its checksum.
        """
        model, about = model_fingerprint(self.model), (self.preprocessing, self.class_names, self.multilabel)
        probe = self._probe or image_probe(self.preprocessing)
        test = None if probe is None else take_self_test(self.model, probe, self._answers)
        record = None if test is None else msgspec.to_builtins(test)
        save_guard(Path(path), self.detector, self.threshold, model, self.head, *about, record, key=key)

    def export(
        self,
        path: str | Path,
        *,
        inputs: Iterable[Any] | None = None,
        overwrite: bool = False,
    ) -> ExportedGuard:
        """Write model, preprocessing, detector and threshold as one ONNX graph that runs without torch.

        ``path`` ends in ``.zip``. With preprocessing, the graph takes uint8 pixels of any size, otherwise the model's
        own inputs. torch and onnxruntime are compared on up to 64 inputs of the loader ``inputs``, by default those
        that :meth:`fit` was given, and made-up ones if there are none; if they differ, nothing is written. Returns the
        guard as it was written, see :meth:`open`.
        """
        device = next((part.device for part in (*self.parameters(), *self.buffers())), torch.device("cpu"))
        if device.type != "cpu":
            raise ArgumentError(f"the guard is on {device}; move it to the CPU before an export: guard.cpu()")
        refuse_steps(self.detector)
        rows, origin = self._rows_to_try(inputs)
        if isinstance(self.model, OnnxModel):  # whose inputs have names of their own
            rows = Inputs((), self.model.by_name(rows.args, rows.kwargs))
        with eval_mode(self.model):
            self(*rows.args, **rows.kwargs)  # finds the last layer, and checks it
            forward = self._forward_pass(rows)
            exportable = Exportable(
                lambda part: self(*part.args, **part.kwargs),
                lambda part: self.explain(*part.args, **part.kwargs),
                forward,
                self.detector,
                self.threshold,
                self.preprocessing,
                self.class_names,
                forward.multilabel,
                model_fingerprint(self.model),
            )
            return export_guard(exportable, Path(path), rows, origin, overwrite=overwrite)

    def _rows_to_try(self, loader: Iterable[Any] | None) -> tuple[Inputs, str]:
        """Inputs that torch and onnxruntime are compared on, and what they are."""
        chosen = self._loader if loader is None else loader
        if chosen is not None and (loader is not None or iter(chosen) is not chosen):
            return first_rows(self._reader, chosen, MAX_ROWS), "given inputs"
        transform = image_transform(self.preprocessing)
        if transform is not None:
            return noise_images(transform, MAX_ROWS), "noise"
        if self._probe is None:
            raise ArgumentError("nothing is known of the model's inputs; give some: export(path, inputs=loader)")
        return self._probe.inputs(torch.device("cpu")), "noise"

    @staticmethod
    def open(path: str | Path, *, device: str = "cpu", threads: int | None = None) -> ExportedGuard:
        """A guard that :meth:`export` wrote, without its model and without torch; see :class:`ExportedGuard`."""
        return ExportedGuard.open(path, device=device, threads=threads)

    def _answers(self, probe: Probe, precision: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """Logits, of the first classes if there are very many, and scores for a probe; the guard stays as it was."""
        device = next(self.model.parameters(), torch.empty(0)).device
        known, inputs = self._forward, probe.inputs(device, precision)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they belong to the first batch
            try:
                verdict = self(*inputs.args, **inputs.kwargs)
            finally:
                self._forward = known
        return verdict.logits[:, :MAX_CLASSES].cpu().float(), verdict.score.cpu().float()

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | str | Path, *, key: Key | None = None) -> "Guard":
        """A saved guard with its model; another model is refused, and with a ``key`` what was not signed with it."""
        return cls.restore(path, as_model(model), *load_guard(Path(path), key))

    @classmethod
    def restore(
        cls, path: str | Path, model: nn.Module, detector: Detector, threshold: Threshold, record: Record
    ) -> "Guard":
        """A guard from what :func:`oodles.deploy.saving.load_guard` read in ``path``, tried on its model."""
        test = None if record["self_test"] is None else msgspec.convert(record["self_test"], SelfTest)
        known = record["model"] is None or record["model"] == model_fingerprint(model)
        if not known and test is not None and test.torch != torch.__version__:
            known = test.weights == model_fingerprint(model, hyperparameters=False)
        rounded = not known and test is not None and model_fingerprint(model) in test.copies
        if not known and not rounded:
            raise FileError(f"{path} guards another model: the weights or hyperparameters differ; use that model")
        guard = cls(
            model,
            detector,
            threshold,
            head=record["head"],
            preprocessing=record["preprocessing"],
            classes=record["class_names"] or None,
            multilabel=record["multilabel"],
        )
        if test is not None:
            repeat_self_test(test, model, guard._answers, rounded, path)
            guard._probe = Probe(test.args, test.kwargs)
        return guard
