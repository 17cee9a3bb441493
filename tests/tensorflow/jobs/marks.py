"""Classes of points, of which only some count: the number of losses differs from batch to batch."""

import os

import keras
import numpy as np
import tensorflow as tf


def build_model(cfg):
    width = int(os.environ.get("JOB_WIDTH", "16"))
    return keras.Sequential(
        [
            keras.layers.Dense(width, activation="gelu", name="up"),
            keras.layers.LayerNormalization(name="norm"),
            keras.layers.Dense(3, name="head"),
        ],
        name="marks",
    )


class Points:
    def __init__(self):
        random = np.random.default_rng(5)
        self.points = random.normal(size=(53, 6)).astype(np.float32)
        self.classes = (self.points[:, 0] > 0).astype(np.int32) + (self.points[:, 1] > 0.5)
        self.counts = random.integers(0, 2, size=53).astype(np.float32)
        self.counts[::3] = 1
        self.spoiled = os.environ.get("JOB_SPOILED")

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        points = self.points[index]
        if self.spoiled in (str(index), "all"):
            points = points * np.float32("nan")
        return points, self.counts[index], self.classes[index]


def build_dataset(cfg, split):
    return Points()


def loss(output, batch):
    _, counts, classes = batch
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, tf.cast(output, tf.float32))
    return tf.reduce_sum(each * counts), tf.reduce_sum(counts)


def forward(model, batch, training=False):
    return model(batch[0], training=training)


def evaluate(output, batch):
    right = tf.argmax(output, -1, tf.int32) == batch[2]
    return {"right": (tf.reduce_sum(tf.cast(right, tf.float32)), tf.size(batch[2]))}
