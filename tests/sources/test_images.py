"""Pictures in directories: found as Keras finds them, read at random, the damaged ones named."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from playhead import Dataset
from playhead.errors import CorruptRecord, MissingSource, PipelineError, SourceChanged
from playhead.testing import assert_resumes_exactly, difference

NAMES = ["b/2.png", "b/10.PNG", "b/deep/er/0.jpg", "b/notes.txt", "a/x.gif", "c/0.bmp", "loose.png"]
FOUND = ["a/x.gif", "b/10.PNG", "b/2.png", "b/deep/er/0.jpg", "c/0.bmp"]
LABELS = [0, 1, 1, 1, 2]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "data" / "empty").mkdir()
    return tmp_path / "data"


def picture(pixels, kind="png"):
    pil = pytest.importorskip("PIL.Image")
    data = io.BytesIO()
    pil.fromarray(pixels).save(data, kind)
    return data.getvalue()


def test_files_come_class_by_class_and_by_name(folder):
    ds = Dataset.from_image_folder(folder)
    assert ds.class_names == ("a", "b", "c", "empty")
    expected = [(name.encode(), np.int32(label)) for name, label in zip(FOUND, LABELS, strict=True)]
    assert difference(list(ds), expected) is None
    files, labels = ds.batch(5)[0]
    assert files.tolist() == [name.encode() for name in FOUND]
    assert labels.dtype == np.int32 and labels.tolist() == LABELS
    (record,) = ds.trace(3)
    assert record.file == str(folder / "b" / "deep" / "er" / "0.jpg")
    assert_resumes_exactly(lambda: Dataset.from_image_folder(folder).shuffle(seed=1).batch(2))


def test_class_names_are_there_behind_every_operation_and_where_the_folders_agree(folder):
    ds = Dataset.from_image_folder(folder)
    other = Dataset.from_image_folder(folder, class_names=["empty", "c", "a", "b"])
    unlabelled = Dataset.from_image_folder(folder, labels=None)
    behind = ds.shuffle(seed=1).ignore_errors().map(lambda data, label: label).cache().batch(2)
    assert behind.class_names == ("a", "b", "c", "empty")
    assert Dataset.from_image_folder(folder, on_error="skip").class_names == ds.class_names
    assert Dataset.zip(ds, unlabelled).class_names == ds.concatenate(ds).class_names
    for without in (ds.concatenate(other), unlabelled, Dataset.range(3)):
        with pytest.raises(AttributeError, match="has no 'class_names': they are those of one"):
            without.class_names  # noqa: B018
        assert not hasattr(without, "class_names")


def test_labels_follow_class_names_or_are_given_or_left_out(folder):
    ds = Dataset.from_image_folder(folder, class_names=["empty", "c", "a", "b"])
    assert ds.class_names == ("empty", "c", "a", "b")
    assert [int(label) for _, label in ds] == [1, 2, 3, 3, 3]
    assert ds[0][0] == b"c/0.bmp"
    every = Dataset.from_image_folder(folder, labels=None)
    assert sorted(every) == sorted(n.encode() for n in [*FOUND, "loose.png"])
    numbered = Dataset.from_image_folder(folder, labels=[9, 8, 7, 6, 5, 4])
    assert [int(label) for _, label in numbered] == [9, 8, 7, 6, 5, 4]
    texts = Dataset.from_image_folder(folder, extensions=["txt"])
    assert [element[0] for element in texts] == [b"b/notes.txt"]


def test_files_order_and_labels_are_those_of_keras(tmp_path):
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(0)
    for k, name in enumerate(["10", "9", "B", "a"]):
        for number in (2, 10, 1):
            deep = tmp_path / name / ("sub" if number == 1 else "")
            deep.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (4, 5, 3), np.uint8)
            (deep / f"{number}_{k}.png").write_bytes(picture(pixels))
    theirs = tf.keras.utils.image_dataset_from_directory(
        tmp_path, shuffle=False, batch_size=None, image_size=(4, 5), verbose=False
    )
    ours = Dataset.from_image_folder(tmp_path, decode=True)
    assert ours.class_names == tuple(theirs.class_names)
    assert [record.file for k in range(12) for record in ours.trace(k)] == theirs.file_paths
    for (pixels, label), (image, number) in zip(ours, theirs, strict=True):
        assert int(label) == int(number)
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, image.numpy())


def test_pictures_of_every_kind_are_decoded_to_three_colours(tmp_path):
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    (tmp_path / "a").mkdir()
    for k, kind in enumerate(["png", "bmp"]):
        (tmp_path / "a" / f"{k}.{kind}").write_bytes(picture(pixels, kind))
    (tmp_path / "a" / "2.png").write_bytes(picture(pixels[:, :, 0]))
    ds = Dataset.from_image_folder(tmp_path, decode=True, labels=None)
    found = list(ds)
    assert difference(found[0], pixels) is None and difference(found[1], pixels) is None
    assert difference(found[2], np.repeat(pixels[:, :, :1], 3, axis=2)) is None
    assert repr(ds.element_spec) == "ArraySpec((None, None, 3), uint8)"
    found[0][...] = 9  # it is the consumer's
    assert difference(ds[0], pixels) is None


def test_a_file_that_is_no_picture_is_named_and_can_be_left_out(tmp_path):
    whole = picture(np.zeros((40, 40, 3), np.uint8))
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
    (tmp_path / "a" / "0.png").write_bytes(whole)
    (tmp_path / "a" / "1.png").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    (tmp_path / "b" / "2.png").write_bytes(flipped)
    (tmp_path / "b" / "3.png").write_bytes(b"")
    (tmp_path / "b" / "4.png").write_bytes(whole)
    ds = Dataset.from_image_folder(tmp_path, decode=True)
    for k, name in ((1, "a/1.png"), (2, "b/2.png"), (3, "b/3.png")):
        with pytest.raises(CorruptRecord) as caught:
            ds[k]
        assert caught.value.file == str(tmp_path / name)

    def make():
        return Dataset.from_image_folder(tmp_path, decode=True).ignore_errors()

    it = make().iterator()
    assert [int(label) for _, label in it] == [0, 1]
    assert it.position.cursor["ignored"] == 3
    said = [reason.error for reason in make().ignored()]
    assert said == [reason.error for reason in make().ignored()]  # the same words in every run
    assert said[2].endswith(
        "cannot be decoded: 0 bytes that are no picture (JPEG, PNG, BMP, GIF, WEBP)"
    )
    assert_resumes_exactly(make)


def test_a_file_replaced_cut_or_removed_is_noticed(folder):
    node = Dataset.from_image_folder(folder).node
    (folder / FOUND[1]).write_bytes(b"another size")
    with pytest.raises(SourceChanged) as caught:
        node.gather(np.array([0, 1]))
    assert caught.value.file == str(folder / FOUND[1])
    (folder / FOUND[2]).unlink()
    with pytest.raises(MissingSource):
        node.gather(np.array([2]))


def test_describing_tells_names_sizes_and_bytes_and_no_directory(folder, tmp_path):
    said = Dataset.from_image_folder(folder).operations()
    moved = tmp_path / "moved"
    os.rename(folder, moved)
    assert Dataset.from_image_folder(moved).operations() == said
    renamed = moved / "a" / "y.gif"
    (moved / FOUND[0]).rename(renamed)
    other = Dataset.from_image_folder(moved).operations()
    renamed.write_bytes(b"a/X.gif")  # as many bytes
    more = Dataset.from_image_folder(moved).operations()
    names = ["b", "a", "c", "empty"]
    assert len({str(s) for s in (said, other, more)}) == 3
    assert Dataset.from_image_folder(moved, class_names=names).operations() != more


def test_links_to_files_are_followed_and_links_to_directories_are_not(tmp_path):
    data = tmp_path / "data"
    for name in ("a/deep/0.jpg", "b/folder.png/1.png", "elsewhere/2.gif"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(name.encode())
    (data / "b" / "link.JPG").symlink_to(data / "elsewhere" / "2.gif")
    (data / "b" / "more.jpg").symlink_to(data / "a")
    (data / "b" / "again").symlink_to(data / "b")
    (data / "b" / "itself").symlink_to("itself")
    ds = Dataset.from_image_folder(data, class_names=["b", "a", "elsewhere"])
    names = ["b/link.JPG", "b/folder.png/1.png", "a/deep/0.jpg", "elsewhere/2.gif"]
    assert ds.node.found.names == tuple(names)
    assert ds.node.found.sizes.tolist() == [15, 18, 12, 15]
    assert [int(label) for _, label in Dataset.from_image_folder(f"{data}/../data/")] == [
        0,
        1,
        1,
        2,
    ]


def test_what_cannot_be_found_is_refused(folder, tmp_path):
    with pytest.raises(MissingSource, match="no directory"):
        Dataset.from_image_folder(tmp_path / "nothing")
    with pytest.raises(MissingSource, match="no picture"):
        Dataset.from_image_folder(folder / "b" / "deep" / "er")
    with pytest.raises(PipelineError, match="no directory 'd'; not named: 'c', 'empty'"):
        Dataset.from_image_folder(folder, class_names=["a", "b", "d"])
    with pytest.raises(PipelineError, match="there are 6 pictures"):
        Dataset.from_image_folder(folder, labels=[1, 2])
    with pytest.raises(PipelineError, match="labels is"):
        Dataset.from_image_folder(folder, labels="guessed")


def test_a_source_travels_through_pickle(folder):
    node = Dataset.from_image_folder(folder).node
    copy = pickle.loads(pickle.dumps(node))
    rows = [n.gather(np.array([4, 0])).rows() for n in (node, copy)]
    assert difference(*rows) is None and copy.describe() == node.describe()
    with pytest.raises(IndexError, match="file 5 of 5"):
        node.gather(np.array([5]))
    assert Path(node.found.path(0)).name == "x.gif"
