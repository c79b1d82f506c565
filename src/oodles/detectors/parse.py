"""Detectors as text, ``react(90)+dice(0.7)+energy``, and fitted detectors back from disk."""

import ast
import difflib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from oodles.calls import Call, read_call, read_expression
from oodles.detectors.adascale import AdaScale
from oodles.detectors.base import KIND, RECORD, SCHEMA, Detector
from oodles.detectors.calibrated import KLMatching, OpenMax, TempScale
from oodles.detectors.combination import Combination, Jury
from oodles.detectors.gaussian import Mahalanobis
from oodles.detectors.geometry import FDBD, NCI, SHE, ExGrad, GradNorm, GradUncertainty
from oodles.detectors.gradient import GODIN, ODIN
from oodles.detectors.logit import LogitDetector, Trio
from oodles.detectors.neighbours import KNN, NNGuide
from oodles.detectors.relatives import RMDS, GaussianMixture, MahalanobisPP
from oodles.detectors.stages import SCORES, SHAPES, SPARSIFIERS, Shape, Sparsifier
from oodles.detectors.subspace import NECO, Residual, ViM
from oodles.detectors.weiper import WeiPer
from oodles.errors import ArgumentError, FileError
from oodles.files import read_record, read_tensors

STAGES: dict[str, Callable[..., Any]] = {
    **{stage.name: stage for stage in (*SHAPES, *SPARSIFIERS)},
    **{function.__name__: function for function in SCORES},
}
"""Every name :func:`parse` knows, in the order they are applied."""


WHOLE_KINDS: tuple[type[Detector], ...] = (
    *(KLMatching, TempScale, OpenMax, GradNorm, GradUncertainty, ExGrad),
    *(Mahalanobis, RMDS, MahalanobisPP, GaussianMixture),
    *(KNN, NNGuide, SHE, ViM, Residual, NECO, FDBD, NCI, WeiPer, AdaScale, ODIN, GODIN, Combination, Trio, Jury),
)
WHOLES: dict[str, type[Detector]] = {kind.__name__.lower(): kind for kind in WHOLE_KINDS}
"""Detectors that stand alone: no chain of stages, or one with a name of its own."""


def parse(text: str) -> Detector:
    """Read a detector: any number of shapes, at most one sparsifier, at most one score (else energy).

    Or one that stands alone: ``odin(1000, 0.004)``, ``mahalanobis``, ``trio``.

    >>> parse("react(90)+dice(0.7)").spec
    'react(90)+dice(0.7)+energy'
    >>> parse("odin(1000, 0.004)").spec
    'odin(epsilon=0.004)'
    """
    terms = _terms(text)
    if len(terms) == 1 and terms[0][0] in WHOLES:
        name, positional, named = terms[0]
        kind = WHOLES[name]
        parameters = inspect.signature(kind).parameters
        arguments = _arguments(text, name, list(parameters), positional, named)
        for each, parameter in parameters.items():
            if parameter.default is parameter.empty and each not in arguments:
                raise ArgumentError(f"{name} in {text!r} lacks {each}")
        return kind(**arguments)
    return _chain(text, terms)


def _chain(text: str, terms: list[Call]) -> LogitDetector:
    shapes: list[Shape] = []
    sparsifiers: list[Sparsifier] = []
    scores: list[Callable[..., Any]] = []
    for name, positional, named in terms:
        if name in WHOLES:
            raise ArgumentError(f"{name} in {text!r} is a whole detector and stands alone; give it by itself")
        if name not in STAGES:
            near = difflib.get_close_matches(name.lower(), (*STAGES, *WHOLES), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join((*STAGES, *WHOLES))}"
            raise ArgumentError(f"{name!r} in {text!r} is no detector or stage; {hint}")
        stage = STAGES[name]
        score = stage in SCORES
        parameters = list(inspect.signature(stage).parameters)[1 if score else 0 :]
        arguments = _arguments(text, name, parameters, positional, named)
        if score:
            scores.append(partial(stage, **arguments) if arguments else stage)
        elif issubclass(stage, Shape):  # type: ignore[arg-type]
            shapes.append(stage(**arguments))
        else:
            sparsifiers.append(stage(**arguments))
    if len(sparsifiers) > 1 or len(scores) > 1:
        raise ArgumentError(f"{text!r} has more than one sparsifier or more than one score; keep one of each")
    return LogitDetector(
        shape=shapes, sparsify=next(iter(sparsifiers), None), **({"score": scores[0]} if scores else {})
    )


def load_detector(path: str | Path) -> Detector:
    """Read a detector that :meth:`Detector.save` wrote; anything altered, newer or unexpected is refused."""
    folder = Path(path)
    record = read_record(folder / RECORD, kind=KIND, schema=SCHEMA)
    state = read_tensors(folder, record["tensors"])
    detector = parse(record["spec"])
    try:
        detector.load_state_dict(state)
    except RuntimeError as error:
        detail = str(error).splitlines()[-1].strip()
        raise FileError(f"{folder / record['tensors']['file']} does not hold a fitted {detector}: {detail}") from None
    lacking = _lacking(detector)
    if lacking:
        raise FileError(
            f"{folder / record['tensors']['file']} does not hold a fitted {detector}: {', '.join(lacking)} missing"
        )
    return detector


def default_detector() -> Detector:
    """What is used where no detector is named: the one that docs/default-detector.md arrives at."""
    return Jury()


def detector_list() -> list[Detector]:
    """One of each that works on embeddings: the paper's, the others, then the paper's ablations, at usual settings."""
    texts = [
        *("msp", "max_logit", "energy", "entropy", "gen", "doctor"),
        *("react(90)", "vra(60)", "ash_p(90)", "ash_b(90)", "ash_s(90)", "scale(85)", "lts(95)"),
        *("dice(0.9)", "react(90)+dice(0.9)", "dice(0.9)+msp", "trio"),
        *(name for name, kind in WHOLES.items() if kind not in (AdaScale, ODIN, GODIN, Combination, Trio)),
    ]
    ablations = [stage for stage in SPARSIFIERS if stage.name != "dice"]
    return [parse(text) for text in texts] + [LogitDetector(sparsify=stage()) for stage in ablations]


def _lacking(detector: Detector) -> list[str]:
    """Buffers nobody has filled; a state dict does not list them, so loading cannot miss them by itself."""
    members = [part for part in detector.modules() if isinstance(part, Detector) and part is not detector]
    theirs = {id(module) for member in members for module in member.modules()}
    learned = [
        f"{name}.{buffer}" if name else buffer
        for name, module in detector.named_modules()
        for buffer, value in module._buffers.items()
        if value is None and buffer not in detector.tunes and id(module) not in theirs
    ]
    own = (learned if detector.learns_from else []) + ([] if detector.tuned else list(detector.tunes))
    return own + [name for member in members for name in _lacking(member)]


def _terms(text: str) -> list[Call]:
    try:
        node = read_expression(text)
        terms: list[Call] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            terms.append(read_call(node.right))
            node = node.left
        return [read_call(node), *reversed(terms)]
    except (ValueError, AttributeError):
        raise ArgumentError(f"{text!r} is no detector; write e.g. 'react(90)+dice(0.7)+energy'") from None


def _arguments(
    text: str, name: str, parameters: list[str], positional: list[Any], named: dict[str, Any]
) -> dict[str, Any]:
    """The values by the name of their parameter."""
    if len(positional) > len(parameters):
        takes = ", ".join(parameters) or "nothing"
        raise ArgumentError(f"{name} takes {takes}, not {len(positional)} values, in {text!r}")
    arguments = dict(zip(parameters, positional, strict=False))
    twice = next((key for key in named if key in arguments), None)
    if twice is not None:
        raise ArgumentError(f"{name} in {text!r} is given {twice} twice")
    arguments |= named
    strange = [key for key in arguments if key not in parameters]
    if strange:
        raise ArgumentError(f"{name} has no {strange[0]!r} in {text!r}; it takes {', '.join(parameters)}")
    _check_values(name, arguments)
    return arguments


def _check_values(name: str, arguments: dict[str, Any]) -> None:
    for key, value in arguments.items():
        if key in ("by", "per", "layer", "how") and isinstance(value, str):
            continue
        if key == "layer":
            raise ArgumentError(f"{name}({key}={str(value)[:40]!r}): a name was expected")
        if key in ("layers", "detectors"):
            if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
                raise ArgumentError(f"{name}({key}={str(value)[:40]!r}): names in brackets were expected")
            continue
        if key == "std" and isinstance(value, list | tuple):
            _check_values(name, {f"{key}[{place}]": item for place, item in enumerate(value)})
            continue
        if key == "epsilon" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
            raise ArgumentError(f"{name}({key}={str(value)[:40]!r}): a number was expected")
