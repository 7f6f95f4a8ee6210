"""Names that tf.data and Keras have and playhead has not: what to write instead is said."""

import inspect

import pytest

from playhead import Dataset, write_tfrecords
from playhead.errors import PipelineError, UnequalElements
from playhead.instead import LINES, PICTURES, RECORDS, TABLES


@pytest.mark.parametrize(
    ("made", "argument", "instead"),
    [
        (Dataset.from_image_folder, "image_size", "tf.image.resize"),
        (Dataset.from_image_folder, "validation_split", r"take\(n\) and skip\(n\)"),
        (Dataset.from_image_folder, "label_mode", "labels=None"),
        (Dataset.from_csv, "label_name", r'row\.pop\("y"\)'),
        (Dataset.from_csv, "select_columns", "columns= here"),
        (Dataset.from_lines, "num_parallel_reads", r"prefetch\(\)"),
        (Dataset.from_tfrecords, "filenames", "files is the first argument"),
    ],
)
def test_an_argument_of_tf_data_or_keras_says_what_to_write_instead(made, argument, instead):
    called = rf"Dataset\.{made.__name__}\(\) has no {argument}=: .*{instead}"
    with pytest.raises(TypeError, match=called):
        made("nowhere", **{argument: 1})


def test_what_is_said_of_arguments_is_about_none_that_is_there():
    for made, instead in [
        (Dataset.from_image_folder, PICTURES),
        (Dataset.from_csv, TABLES),
        (Dataset.from_lines, LINES),
        (Dataset.from_tfrecords, RECORDS),
    ]:
        signature = inspect.signature(made)
        assert "files" in signature.parameters or "directory" in signature.parameters
        assert not set(signature.parameters) & set(instead)


def test_an_unknown_argument_is_pythons_own_error_and_names_the_class():
    with pytest.raises(TypeError, match=r"Dataset\.from_csv\(\) got an unexpected .*'colour'"):
        Dataset.from_csv("nowhere", colour=1)


def test_a_file_is_read_the_same_whatever_is_said_of_parallel_reads(tmp_path):
    (path,) = write_tfrecords(Dataset.from_tensor_slices([b"one", b"two"]), tmp_path / "a.tfrecord")
    plain = Dataset.from_tfrecords(path)
    said = Dataset.from_tfrecords(path, num_parallel_reads=-1, buffer_size=1 << 20)
    assert list(said) == [b"one", b"two"]
    assert said.operations() == plain.operations()


def test_what_a_function_of_tensorflow_asks_for_is_answered():
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(AttributeError, match=r"to_tf\(\) makes one; cardinality\(\)"):
        tf.data.experimental.cardinality(Dataset.range(3))
    assert not hasattr(Dataset.range(3), "_variant_tensor")
    for mix in (
        lambda *two: tf.data.Dataset.sample_from_datasets(two),
        lambda *two: tf.data.Dataset.choose_from_datasets(two, tf.data.Dataset.range(2)),
    ):
        with pytest.raises(AttributeError, match=r"wants a tf.data.Dataset, and to_tf\(\) makes"):
            mix(Dataset.range(3), Dataset.range(5))
        assert mix(Dataset.range(3).to_tf(), Dataset.range(5).to_tf()).element_spec is not None
    assert not hasattr(Dataset.range(3).element_spec, "rank")


@pytest.mark.parametrize("op", ["flat_map", "interleave"])
def test_a_dataset_of_tf_data_inside_another_is_told_from_playheads(op, tmp_path):
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    files = Dataset.from_tensor_slices([str(path)])
    with pytest.raises(PipelineError, match=r"help: .*Dataset\.from_lines\(file\).*from_tf\(ds\)"):
        list(getattr(files, op)(tf.data.TextLineDataset))
    assert list(getattr(files, op)(Dataset.from_lines)) == ["one"]


def test_rows_of_unequal_length_are_for_from_sequence_and_padded_batch():
    rows = [[1], [2, 3]]
    for given in (rows, (rows, [0, 1]), {"a": rows}):
        with pytest.raises(UnequalElements, match=r"help: from_sequence\(rows\).*padded_batch"):
            Dataset.from_tensor_slices(given)
    batch, labels = Dataset.from_sequence(list(zip(rows, [0, 1], strict=True))).padded_batch(2)[0]
    assert batch.tolist() == [[1, 0], [2, 3]] and labels.tolist() == [0, 1]
    with pytest.raises(UnequalElements, match="help: return a tuple"):
        Dataset.from_tensor_slices([1, "two"])  # which from_sequence would not batch either


def test_a_ragged_tensor_becomes_a_list_of_its_rows():
    tf = pytest.importorskip("tensorflow")
    ragged = tf.ragged.constant([[1], [2, 3]])
    with pytest.raises(PipelineError, match=r"help: from_sequence\(ragged\.to_list\(\)\)"):
        Dataset.from_tensor_slices(ragged)
    made = Dataset.from_sequence(ragged.to_list()).padded_batch(2)
    assert made[0].tolist() == [[1, 0], [2, 3]]
