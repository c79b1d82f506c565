"""``Features`` and ``Head``: validation, subsets, splits, and saving and loading."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.memory import peak_bytes

from oodles import features as features_module
from oodles import store
from oodles.detectors import Energy, Mahalanobis
from oodles.errors import ArgumentError, DataError, FileError, ShapeError
from oodles.features import Features, Head

ROWS, WIDTH, CLASSES = 23, 6, 4


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_head(seed=1, bias=True):
    return Head(rand(CLASSES, WIDTH, seed=seed), rand(CLASSES, seed=seed + 1) if bias else None)


def make(rows=ROWS, *, seed=0, head=None, layers=True):
    labels = torch.arange(rows) % CLASSES
    inner = {"block.1": rand(rows, 3, seed=seed + 5)} if layers else None
    embedding, head = rand(rows, WIDTH, seed=seed), head or make_head()
    # logits are given, not computed per batch, so that every comparison below can be bit for bit
    return Features(embedding, logits=head(embedding), labels=labels, head=head, layers=inner)


def columns(features):
    return {name: getattr(features, name) for name in ("embedding", "logits", "labels")} | features.layers


def assert_equal(got, wanted):
    mine, theirs = columns(got), columns(wanted)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


# Construction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", ["embedding", "logits", "layer"])
def test_rows_that_are_not_finite_are_counted_and_the_first_is_given(value, column):
    parts = {"embedding": rand(9, WIDTH), "logits": rand(9, CLASSES), "layer": rand(9, 2)}
    parts[column][4, 1] = value
    parts[column][7] = value
    inner = {"inner": parts.pop("layer")}
    with pytest.raises(DataError, match=rf"{column}.*2 of 9 rows.*the first is row 4"):
        Features(**parts, layers=inner)


LABELS = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    ("use", "error", "fact"),
    [
        (lambda: Features(rand(5, WIDTH), labels=LABELS), ShapeError, "embedding 5, labels 3"),
        (lambda: Features(rand(5, WIDTH), logits=rand(6, CLASSES)), ShapeError, "embedding 5, logits 6"),
        (lambda: Features(rand(3, 7), head=make_head()), ShapeError, "embedding has width 7, but the head needs 6"),
        (lambda: Features(logits=rand(3, 9), head=make_head()), ShapeError, "logits has width 9, but the head needs 4"),
        *(
            (
                lambda bad=bad: Features(rand(4, WIDTH), labels=torch.tensor([0, 1, bad, bad]), head=make_head()),
                DataError,
                rf"2 of 4 labels.*0 to 3.*the first is {bad} in row 2",
            )
            for bad in (-1, CLASSES, 99)
        ),
        (lambda: Features(rand(2, WIDTH), labels=torch.tensor([3, -1])), DataError, "the first is -1 in row 1"),
        (lambda: Features(rand(3, WIDTH), labels=torch.zeros(3)), ShapeError, "labels must be integers"),
        (lambda: Features(rand(3, WIDTH), labels=LABELS[:, None]), ShapeError, "labels must be integers"),
        (lambda: Features(torch.empty(0, WIDTH)), DataError, "no rows"),
        (lambda: Features(labels=LABELS), DataError, "embedding or logits"),
        (lambda: Features(torch.zeros(3)), ShapeError, "embedding must be a floating-point tensor"),
        (lambda: Features(torch.zeros(3, 2, 2)), ShapeError, "embedding must be a floating-point tensor"),
        (lambda: Features(LABELS[:, None]), ShapeError, "embedding must be a floating-point tensor"),
        (lambda: Head(torch.zeros(3)), ShapeError, "weight has the shape"),
        (lambda: Head(torch.zeros(3, 4), torch.zeros(2)), ShapeError, r"3 classes need a bias \(3,\), got \(2,\)"),
        (lambda: Head(torch.zeros(1, 4), torch.tensor([torch.nan])), DataError, "bias contains NaN"),
        (lambda: Features(logits=rand(5, CLASSES), class_names="ab"), ArgumentError, "2 class_names .* 4 classes"),
        (lambda: Features(rand(5, WIDTH), head=make_head(), class_names="a"), ArgumentError, "1 class_names .* 4 cl"),
        (lambda: list(make().batches(0)), ArgumentError, "at least 1"),
        (lambda: make()[3], ArgumentError, r"features\[3:4\]"),
        (lambda: Features.concat([make(), make(head=make_head(seed=7))]), ShapeError, "different heads"),
        (lambda: Features.concat([make(), make(head=make_head(bias=False))]), ShapeError, "different heads"),
        (lambda: Features.concat([Features(rand(3, 5)), Features(rand(3, 6))]), ShapeError, "different heads"),
        (lambda: Features.concat([make(), make(layers=False)]), ShapeError, r"their columns \(layer\.block\.1\)"),
        (lambda: Features.concat([]), DataError, "nothing to concatenate"),
        *(
            (lambda fraction=fraction: make(120).split(fraction), ArgumentError, f"fraction={fraction} must lie strict")
            for fraction in (0, 1, -0.1, 1.5, float("nan"))
        ),
        (lambda: make(99).split(), DataError, "rows=99,.* needs 100 rows"),
    ],
)
def test_invalid_arguments_raise_with_the_fact(use, error, fact):
    with pytest.raises(error, match=fact):
        use()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint16, torch.float8_e4m3fn, torch.complex64, torch.bool])
def test_other_types_than_floating_point_of_16_to_64_bits_are_refused(dtype):
    rows = torch.ones(3, WIDTH).to(dtype)
    with pytest.raises(ShapeError, match=rf"^embedding must be a floating-point .*, got {dtype}"):
        Features(rows)
    with pytest.raises(ShapeError, match=rf"^a head's weight is of type {dtype}; convert it"):
        Head(rows)
    with pytest.raises(ShapeError, match=rf"^labels must be integers of shape \(rows,\), got {dtype}"):
        Features(rand(3, WIDTH), labels=rows if dtype == torch.int8 else rows[:, 0])
    features = Features(rand(3, WIDTH))
    for use in (lambda: features.to(dtype=dtype), lambda: features.save("nowhere", dtype=dtype)):
        with pytest.raises(ArgumentError, match=rf"^dtype={dtype} cannot hold features"):
            use()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rows: rows.to_sparse(), "{} is sparse, nested or on the meta device"),
        (lambda rows: rows.to_sparse_csc(), "{} is sparse, nested or on the meta device"),
        (lambda rows: rows.to("meta"), "{} is sparse, nested or on the meta device"),
        (lambda rows: rows.numpy().astype(object), "{} cannot be read as numbers (can't convert np.ndarray"),
        (lambda rows: [[1.0, 2.0], [1.0]], "{} cannot be read as numbers (expected sequence of length 2"),
        (lambda rows: [["a"]], "{} cannot be read as numbers (too many dimensions 'str')"),
    ],
    ids=["sparse", "sparse columns", "meta", "objects", "ragged", "text"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSC tensor support")
def test_values_that_are_no_plain_numbers_are_refused_in_one_line(make, message):
    bad = make(rand(2, WIDTH))
    uses = {
        "embedding": lambda: Features(bad),
        "logits": lambda: Features(rand(2, WIDTH), logits=bad),
        "labels": lambda: Features(rand(2, WIDTH), labels=bad),
        "layer.x": lambda: Features(rand(2, WIDTH), layers={"x": bad}),
        "weight": lambda: Head(bad),
    }
    for name, use in uses.items():
        with pytest.raises(DataError, match="^" + re.escape(message.format(name))) as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_a_small_integer_type_are_compared_with_many_classes(dtype):
    labels = torch.tensor([0, 100, 7], dtype=dtype)
    assert torch.equal(Features(logits=rand(3, 1000), labels=labels).labels, labels)
    with pytest.raises(DataError, match=r"1 of 3 labels .*\(0 to 99\), the first is 100 in row 1"):
        Features(logits=rand(3, 100), labels=labels)


def test_numpy_arrays_are_accepted():
    embedding = np.random.default_rng(0).random((5, 3), dtype=np.float32)
    features = Features(embedding, head=Head(np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.float32)))
    assert torch.equal(features.embedding, torch.from_numpy(embedding))
    assert torch.equal(Energy().score(features), torch.logsumexp(torch.from_numpy(embedding), dim=1))


# Contents -----------------------------------------------------------------------------------------


def test_logits_are_computed_from_the_head_if_they_are_not_given():
    head = make_head()
    features = Features(rand(5, WIDTH), head=head)
    by_hand = torch.stack([head.weight @ row + head.bias for row in features.embedding])
    torch.testing.assert_close(features.logits, by_hand)
    assert features.logits is features.logits, "computed once"


def test_logits_that_the_head_does_not_give_are_refused():
    embedding, head = rand(100, WIDTH), make_head()
    for other in (make_head(seed=5)(embedding), head(embedding).flip(0), head(embedding) + 1):
        with pytest.raises(DataError, match="the head does not give these logits from these embeddings"):
            Features(embedding, logits=other, head=head)
    half = head.to(dtype=torch.float16).to(dtype=torch.float32)(embedding)
    assert len(Features(embedding, logits=half, head=head)) == 100


def test_logits_alone(tmp_path):
    made = Features(logits=rand(5, CLASSES))
    made.save(tmp_path / "store")
    for features in (made, Features.load(tmp_path / "store")):
        assert (features.width, features.classes, len(features)) == (0, CLASSES, 5)
        assert features.embedding.shape == (5, 0)
        assert torch.equal(features.logits, rand(5, CLASSES))
        assert features.head is None
        assert features.labels is None


def test_embedding_alone_has_no_logits():
    features = Features(rand(5, WIDTH))
    assert (features.width, features.classes) == (WIDTH, 0)
    with pytest.raises(DataError, match="neither logits nor a head"):
        _ = features.logits


def test_a_head_without_bias_multiplies_only():
    head = make_head(bias=False)
    embedding = rand(5, WIDTH)
    torch.testing.assert_close(head(embedding), embedding @ head.weight.T)
    assert not head.same_as(make_head())
    assert head.same_as(make_head(bias=False))


def test_features_are_immutable():
    features = make()
    for name in ("embedding", "logits", "labels", "head", "layers", "width", "classes"):
        with pytest.raises(AttributeError):
            setattr(features, name, None)
    features.layers.clear()
    assert list(features.layers) == ["block.1"]
    with pytest.raises(AttributeError):
        features.head.weight = torch.zeros(1, 1)


# Subsets ------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 40), batch=st.integers(1, 50), cuts=st.lists(st.integers(1, 39), max_size=3))
def test_batches_are_all_rows_once_and_in_order(rows, batch, cuts):
    whole = make(rows)
    edges = [0, *sorted({cut for cut in cuts if cut < rows}), rows]
    parts = Features.concat([whole[a:b] for a, b in itertools.pairwise(edges)])
    pieces = list(parts.batches(batch))
    assert all(1 <= len(piece) <= batch for piece in pieces)
    for name, column in columns(whole).items():
        assert torch.equal(torch.cat([columns(piece)[name] for piece in pieces]), column)


@given(
    rows=st.integers(1, 30),
    start=st.none() | st.integers(-35, 35),
    stop=st.none() | st.integers(-35, 35),
    step=st.none() | st.integers(1, 5),
)
def test_slices_are_those_of_the_columns(rows, start, stop, step):
    whole = make(rows)
    parts = whole if rows < 3 else Features.concat([whole[: rows // 2], whole[rows // 2 :]])
    index = slice(start, stop, step)
    wanted = {name: column[index] for name, column in columns(whole).items()}
    if len(wanted["embedding"]) == 0:
        with pytest.raises(DataError, match="selects no rows"):
            parts[index]
        return
    got = columns(parts[index])
    assert len(parts[index]) == len(wanted["embedding"])
    for name, column in wanted.items():
        assert torch.equal(got[name], column), name


@given(picks=st.lists(st.integers(-ROWS, ROWS - 1), min_size=1, max_size=40))
def test_integer_indices_select_rows_in_order_and_may_repeat(picks):
    whole = make()
    got = Features.concat([whole[:9], whole[9:]])[picks]
    for name, column in columns(whole).items():
        assert torch.equal(columns(got)[name], torch.stack([column[row] for row in picks])), name


@given(mask=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS).filter(any))
def test_masks_keep_the_rows_that_are_true(mask):
    whole = make()
    kept = [row for row, keep in enumerate(mask) if keep]
    for given_mask in (torch.tensor(mask), np.array(mask)):
        assert_equal(whole[given_mask], whole[kept])


def test_an_index_into_a_store_copies_only_the_rows_it_takes(tmp_path):
    Features(torch.rand(20_000, 256)).save(tmp_path / "store")
    loaded = Features.load(tmp_path / "store")
    assert len(next(loaded.batches())), "its file is mapped now"
    assert peak_bytes(lambda: loaded[torch.arange(0, 20_000, 100)]) < 2e6 < 20_000 * 256 * 4


@pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3), torch.tensor([[1, 2], [3, 4]])])
def test_an_index_that_is_not_one_dimensional_never_gives_other_shapes(index):
    # a scalar that is not a Python int, or a matrix, is either refused or selects whole rows
    try:
        picked = make()[index]
    except (ArgumentError, ShapeError):
        return
    assert picked.embedding.shape == (len(picked), WIDTH)


def test_slices_share_memory_with_the_whole():
    whole = make()
    assert whole[5:9].embedding.data_ptr() == whole.embedding[5:].data_ptr()
    assert next(whole.batches(4)).embedding.data_ptr() == whole.embedding.data_ptr()


def test_to_converts_floats_and_keeps_labels_and_the_original():
    whole = make()
    double = whole.to(dtype=torch.float64)
    assert double.embedding.dtype == double.logits.dtype == double.head.weight.dtype == torch.float64
    assert double.layers["block.1"].dtype == torch.float64
    assert double.labels.dtype == torch.int64
    assert torch.equal(double.embedding, whole.embedding.double())
    assert whole.embedding.dtype == torch.float32


def test_class_names_and_multilabel_go_with_every_part(tmp_path):
    names = ("ant", "bee", "cat", "dog")
    whole = Features(rand(120, WIDTH), head=make_head(), class_names=names, multilabel=True)
    whole.save(tmp_path / "s")
    parts = [
        whole[3:9],
        whole[[4, 1]],
        whole.to(dtype=torch.float64),
        next(whole.batches(5)),
        *whole.split(),
        Features.concat([whole[:5], whole[5:]]),
        Features.load(tmp_path / "s"),
        Features.load(tmp_path / "s")[100:],
    ]
    for part in parts:
        assert (part.class_names, part.multilabel) == (names, True)
    plain = make()
    plain.save(tmp_path / "plain")
    for part in (plain, plain[:3], Features.load(tmp_path / "plain")):
        assert (part.class_names, part.multilabel) == ((), False)


# On disk ----------------------------------------------------------------------------------------


@pytest.fixture
def small_shards(monkeypatch):
    """Shards of five rows, so that a small set has many files."""
    per_row = WIDTH + CLASSES + 3 + 1
    monkeypatch.setattr(features_module, "SHARD_ELEMENTS", 5 * per_row)


def test_round_trip_in_half_precision_rounds_the_rows_but_not_the_head(tmp_path):
    whole = make()
    whole.save(tmp_path / "store", dtype=torch.float16)
    back = Features.load(tmp_path / "store")
    assert back.embedding.dtype == torch.float16
    assert torch.equal(back.embedding, whole.embedding.half())
    assert torch.equal(back.labels, whole.labels)
    assert back.head.same_as(whole.head)


def test_saving_twice_to_one_folder_is_refused(tmp_path):
    make().save(tmp_path / "store")
    with pytest.raises(FileError):
        make(head=make_head(seed=9)).save(tmp_path / "store")
    with pytest.raises(DataError, match="already holds features"):
        make().save(tmp_path / "store")
    assert_equal(Features.load(tmp_path / "store"), make())


@pytest.mark.usefixtures("small_shards")
def test_many_shards_read_as_one(tmp_path):
    whole = make()
    whole.save(tmp_path / "store")
    assert len(list((tmp_path / "store").glob("shard-*"))) == 5
    back = Features.load(tmp_path / "store")
    assert_equal(back, whole)
    assert_equal(back[3:17], whole[3:17])
    assert_equal(back[[22, 0, 7, 7]], whole[[22, 0, 7, 7]])
    assert torch.equal(torch.cat([piece.logits for piece in back.batches(4)]), whole.logits)


@pytest.mark.usefixtures("small_shards")
def test_a_shard_is_mapped_and_checked_only_when_its_rows_are_used(tmp_path):
    whole = make()
    whole.save(tmp_path / "store")
    altered = tmp_path / "store" / "shard-00002.safetensors"
    altered.write_bytes(altered.read_bytes()[:-1] + b"\xff")
    back = Features.load(tmp_path / "store")
    shard, maps = str(tmp_path / "store" / "shard-00000.safetensors"), Path("/proc/self/maps")
    assert shard not in maps.read_text()
    assert (len(back), back.width, back.classes) == (ROWS, WIDTH, CLASSES)
    assert_equal(back[:10], whole[:10])
    assert shard in maps.read_text()
    assert_equal(back[15:], whole[15:])
    for use in (lambda: back[9:11], lambda: back.embedding, lambda: list(back.batches(3))):
        with pytest.raises(FileError, match=r"shard-00002.safetensors was altered"):
            use()


@pytest.mark.parametrize(
    ("dtype", "value", "most"), [(torch.float16, 7e4, "65504"), (torch.float32, 1e60, r"3.40282e\+38")]
)
def test_numbers_too_large_for_the_type_they_are_saved_in_are_refused(tmp_path, dtype, value, most):
    wide = Features(torch.tensor([[1.0], [value]], dtype=torch.float64))
    with pytest.raises(DataError, match=rf"{most}.*the first is row 1"):
        wide.save(tmp_path / "store", dtype=dtype)
    with pytest.raises(DataError, match="the first is row 1"):
        wide.to(dtype=dtype)
    wide.save(tmp_path / "store", dtype=torch.float64)


# Splits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [100, 101, 104, 137, 1235])
def test_split_holds_out_a_fifth_by_a_fixed_shuffle_in_the_original_order(rows):
    whole = make(rows)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    held_out = set(order[: rows // 5])
    for features in (whole, Features.concat([whole[:7], whole[7:60], whole[60:]])):
        first, second = features.split()
        assert_equal(first, whole[[row for row in range(rows) if row not in held_out]])
        assert_equal(second, whole[[row for row in range(rows) if row in held_out]])
        assert first.head is second.head is whole.head


@given(
    rows=st.integers(100, 130), fraction=st.floats(0, 1, exclude_min=True, exclude_max=True), seed=st.integers(0, 99)
)
def test_split_gives_every_row_to_exactly_one_part(rows, fraction, seed):
    features = Features(torch.arange(rows, dtype=torch.float32)[:, None])
    first, second = (part.embedding.flatten().tolist() for part in features.split(fraction, seed=seed))
    assert sorted(first + second) == list(range(rows))
    assert first == sorted(first)
    assert second == sorted(second)
    assert len(second) == max(1, int(fraction * rows))


@pytest.mark.usefixtures("small_shards")
def test_split_reads_no_shard_of_a_store_until_its_rows_are_used_or_saved(tmp_path, monkeypatch):
    whole = make(120)
    whole.save(tmp_path / "store")
    assert len(list((tmp_path / "store").glob("shard-*"))) == 24
    reads = []
    columns_of = store.Shard.columns

    def recorded(shard):
        reads.append(shard.path.name)
        return columns_of(shard)

    monkeypatch.setattr(store.Shard, "columns", recorded)
    first, second = Features.load(tmp_path / "store").split()
    shapes = [(len(part), part.width, part.classes) for part in (first, second)]
    assert shapes == [(96, WIDTH, CLASSES), (24, WIDTH, CLASSES)]
    assert first.holds("layer.block.1")
    assert reads == []
    next(first.batches())
    ahead = {"shard-00001.safetensors", "shard-00002.safetensors"}  # unless the consumer stops before they begin
    assert {"shard-00000.safetensors"} <= {*reads} <= {"shard-00000.safetensors", *ahead}
    for part, wanted in zip((first, second), whole.split(), strict=True):
        assert_equal(Features.concat(list(part.batches())), wanted)
        assert_equal(part, wanted)
        assert_equal(part[3:9], wanted[3:9])
    first.save(tmp_path / "part")
    assert_equal(Features.load(tmp_path / "part"), whole.split()[0])


def test_predicted_classes_as_labels():
    plain = make()
    assert torch.equal(plain.with_predicted_labels().labels, plain.logits.argmax(dim=1))
    assert plain.with_predicted_labels().accuracy == 1
    unlabelled = Features(plain.embedding, head=plain.head)
    with pytest.raises(
        ShapeError, match=r"labels, which .* does not have; give labels, or .*with_predicted_labels\(\)"
    ):
        Mahalanobis().fit(unlabelled)
    assert Mahalanobis().fit(unlabelled.with_predicted_labels()).fitted
