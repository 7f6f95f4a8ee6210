"""Every operation after every other one."""

from __future__ import annotations

import pytest

OPERATIONS = {
    "repeat": lambda D, ds: ds.repeat(2),
    "skip": lambda D, ds: ds.skip(2),
    "shard": lambda D, ds: ds.shard(2, 1),
    "concatenate": lambda D, ds: ds.concatenate(D.range(100, 103)),
    "zip": lambda D, ds: D.zip(ds, D.range(5)).map(lambda a, b: a * 10 + b),
    "filter": lambda D, ds: ds.filter(lambda x: x % 3 != 1),
    "take_while": lambda D, ds: ds.take_while(lambda x: x % 10 != 9),
    "scan": lambda D, ds: ds.scan(0, lambda count, x: (count + 1, x + 1)),
    "batch whole": lambda D, ds: ds.batch(4, drop_remainder=True).unbatch(),
    "rebatch": lambda D, ds: ds.batch(2).rebatch(5, drop_remainder=True).unbatch(),
    "unique": lambda D, ds: ds.unique(),
    "flat_map": lambda D, ds: ds.flat_map(lambda x: D.range(x % 3)),
    "interleave": lambda D, ds: ds.interleave(
        lambda x: D.range(x, x + x % 4), cycle_length=2, block_length=2
    ),
    "window": lambda D, ds: ds.window(3, shift=2, stride=2).flat_map(lambda window: window),
    "group": lambda D, ds: ds.group_by_window(
        lambda x: x % 2, lambda key, window: window.batch(2), 2
    ).unbatch(),
    "choose": lambda D, ds: D.choose_from_datasets(
        [ds, D.range(50, 53)], D.range(2).repeat(4), False
    ),
}


@pytest.mark.parametrize("second", OPERATIONS)
def test_an_operation_after_every_other_gives_what_tf_data_gives(second, alike):
    unlike = []
    for first in OPERATIONS:
        try:
            alike(lambda D, first=first: OPERATIONS[second](D, OPERATIONS[first](D, D.range(11))))
        except Exception as error:
            unlike.append(f"{second} after {first}: {error!r}")
    assert not unlike, "\n".join(unlike)
