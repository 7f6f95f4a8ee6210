"""TFRecord files and the `tf.train.Example`s in them, read and written without TensorFlow."""
