"""Where records lie, one module a kind: how many a second, and how long coming back to a place takes.

A measurement is a pass over all records, or 1.5 s of it, of a pipeline that stands ready; and then some
restarts, whose pipelines are built anew: what a process that has imported everything has to do before its first
batch, at 90 % of a pass. Indexes that playhead keeps beside the files stand there, built in the first round.

A peer's name says where it reads in order, and then it is compared with playhead in order. The others shuffle:
playhead the whole set, tf.data, datasets and webdataset in a buffer. All peers of a case hand out the same.
"""
