"""One extraction for several detectors, and stores that later ones use again."""

import pytest
import torch
from support.networks import interrupted, one_thread  # noqa: F401
from support.smooth import classes_of, small, smooth
from support.snapshots import same

from oodles.detectors import ODIN
from oodles.errors import ArgumentError, FileError
from oodles.network import storing
from oodles.network.extraction import extract, extract_each
from oodles.steps import Step
from oodles.store import is_store, read_manifest

ROWS = 12
SMALL, LARGE = (ODIN(epsilon=size).steps() for size in (0.1, 0.2))


def loader_of(rows=ROWS, batch=ROWS, seed=0):
    return list(zip(small(rows, seed=seed).split(batch), classes_of(rows).split(batch), strict=True))


def passes(model):
    """The forward and backward passes of all rows since the last call; the search for the last layer has fewer."""
    counts = [len([rows for rows in tally if rows == ROWS]) for tally in (model.forwards, model.backwards)]
    model.forwards.clear()
    model.backwards.clear()
    return counts


def run(model, wanted, store=None, loader=None):
    return extract_each(model, loader or loader_of(), wanted, store=store)


@pytest.fixture
def model():
    return smooth()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "set"


def test_everything_is_extracted_in_one_pass_and_one_more_for_each_step(model, store):
    wanted = [((), ()), (["first"], ()), ((), SMALL), (["first", "second"], LARGE)]
    found = run(model, wanted, store)
    assert passes(model) == [3, 1], "both steps have the same objective, so one gradient serves them"
    assert all(part is found[0] for part in found)
    assert set(found[0].layers) == {"first", "second", SMALL[0].name, LARGE[0].name}
    in_memory = run(model, wanted)
    for name, column in found[0].layers.items():
        assert torch.equal(in_memory[3].layers[name], column)


def test_a_store_with_more_is_used_as_it_is(model, store):
    (whole,) = run(model, [(["first", "second"], SMALL)], store)
    passes(model)
    for wanted in (((), ()), (["second"], ()), (["second", "first"], ()), (["first"], SMALL)):
        (part,) = run(model, [wanted], store)
        same(part, whole)
        same(extract(model, loader_of(), layers=wanted[0], steps=wanted[1], store=store), whole)
    assert passes(model) == [0, 0]


def test_only_what_is_missing_is_extracted(model, store):
    run(model, [(["first"], SMALL)], store)
    passes(model)
    plain, old, new = run(model, [((), ()), (["first"], SMALL), (["second"], ())], store)
    assert passes(model) == [1, 0], "the step is not run again"
    assert (plain is old, set(new.layers)) == (True, {"second"})
    run(model, [(["second"], ()), ((), LARGE)], store)
    assert passes(model) == [2, 1], "nor is the layer, in a store of its own"
    run(model, [(["second"], ()), ((), LARGE), (["first"], ())], store)
    assert passes(model) == [0, 0]
    assert len(list(store.parent.glob("passes/*/set"))) == 2


def test_a_step_learned_from_other_rows_is_another_step(model, store):
    def moved(identity):
        return Step("s", lambda columns: columns["logits"].amax(dim=1), 0.1, identity=identity)

    run(model, [((), [moved("one")])], store)
    passes(model)
    run(model, [((), [moved("two")])], store)
    assert passes(model) == [2, 1]
    with pytest.raises(ArgumentError, match="two detectors fitted on different rows need the step 's'"):
        run(model, [((), [moved("one")]), ((), [moved("two")])])


def test_another_model_or_other_inputs_are_refused_also_for_what_was_added(model, store):
    run(model, [((), ())], store)
    run(model, [(["first"], ())], store)
    for wanted in (((), ()), (["first"], ())):
        with pytest.raises(FileError, match="another model"):
            run(smooth(seed=1), [wanted], store)
        with pytest.raises(FileError, match="extracted from other inputs"):
            run(model, [wanted], store, loader_of(seed=3))
        with pytest.raises(FileError, match="extracted from other inputs"):
            run(model, [wanted], store, [*loader_of(), *loader_of(seed=3)])


def test_an_unfinished_store_is_continued_by_what_began_it_and_left_alone_by_others(model, store, monkeypatch):
    monkeypatch.setattr(storing, "SHARD_ELEMENTS", 1)
    batches, wanted = loader_of(3 * ROWS), (["first"], SMALL)
    with pytest.raises(KeyboardInterrupt):
        run(model, [wanted], store, interrupted(batches[:2]))
    passes(model)
    (other,) = run(model, [(["second"], ())], store, batches)
    assert passes(model) == [3, 0]
    assert set(other.layers) == {"second"}
    assert not read_manifest(store)["complete"]
    (resumed,) = run(model, [wanted], store, batches)
    assert passes(model) == [2, 1], "only the last batch"
    (whole,) = run(model, [wanted], None, batches)
    same(resumed, whole)


def test_nothing_is_left_of_an_extraction_that_fails_at_once(model, store):
    with pytest.raises(ArgumentError, match="nowhere"):
        run(model, [(["nowhere"], ())], store)
    assert not is_store(store)
