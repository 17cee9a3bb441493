"""The GPT of `...tasks.gpt` in Keras: the same architecture, text and loss."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...config import Config
from ...tasks.corpus import text
from ...tasks.gpt_size import VALID_SHARE, VOCABULARY, Size, chosen


def dense(width: int, name: str, std: float = 0.02, **more: Any) -> Any:
    """A linear layer without bias whose weights are drawn with a deviation of `std`."""
    drawn = keras.initializers.RandomNormal(stddev=std)
    return keras.layers.Dense(width, use_bias=False, kernel_initializer=drawn, name=name, **more)


def norm(name: str) -> Any:
    """A layer norm without bias."""
    return keras.layers.LayerNormalization(epsilon=1e-5, center=False, name=name)


class Block(keras.layers.Layer):
    """Attention and MLP, each behind a norm and beside the residual."""

    def __init__(self, size: Size, name: str) -> None:
        super().__init__(name=name)
        self.heads = size.heads
        # What is added to the residual is scaled down, so that depth does not widen its spread.
        narrow = 0.02 / math.sqrt(2 * size.layers)
        self.attention_norm, self.mlp_norm = norm("attention_norm"), norm("mlp_norm")
        self.qkv, self.out = dense(3 * size.width, "qkv"), dense(size.width, "out", narrow)
        self.up, self.down = dense(4 * size.width, "up"), dense(size.width, "down", narrow)

    def call(self, x: Any) -> Any:
        """(batch, time, width) -> the same."""
        x = x + self.attend(self.attention_norm(x))
        return x + self.down(tf.nn.gelu(self.up(self.mlp_norm(x)), approximate=True))

    def attend(self, x: Any) -> Any:
        """Causal self-attention: (batch, time, width) -> the same."""
        batch, time, width = tf.unstack(tf.shape(x))
        parts = tf.reshape(self.qkv(x), [batch, time, self.heads, 3, width // self.heads])
        q, k, v = tf.unstack(tf.transpose(parts, [3, 0, 2, 1, 4]))
        scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(x.shape[-1] // self.heads)
        past = tf.linalg.band_part(tf.ones([time, time], tf.bool), -1, 0)
        weights = tf.nn.softmax(tf.where(past, tf.cast(scores, tf.float32), -np.inf))
        mixed = tf.matmul(tf.cast(weights, v.dtype), v)
        return self.out(tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), tf.shape(x)))


class Gpt(keras.Model):
    """Bytes in, logits of the next byte out."""

    def __init__(self, size: Size, sequence_length: int) -> None:
        super().__init__(name="gpt")
        drawn = keras.initializers.RandomNormal(stddev=0.02)
        self.embedding = keras.layers.Embedding(VOCABULARY, size.width, drawn, name="embedding")
        self.position = keras.layers.Embedding(sequence_length, size.width, drawn, name="position")
        self.blocks = [Block(size, f"block_{number}") for number in range(size.layers)]
        self.norm = norm("norm")
        self.head = dense(VOCABULARY, "head")

    def call(self, tokens: Any) -> Any:
        """(batch, time) of integers -> (batch, time, vocabulary)."""
        x = self.embedding(tokens) + self.position(tf.range(tf.shape(tokens)[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Windows:
    """Consecutive pieces of a text: pairs of (bytes, the same shifted by one)."""

    def __init__(self, letters: Any, sequence_length: int) -> None:
        self.letters = letters
        self.width = sequence_length

    def __len__(self) -> int:
        return max(len(self.letters) - 1, 0) // self.width

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        start = index * self.width
        piece = self.letters[start : start + self.width + 1].astype(np.int32)
        return piece[:-1], piece[1:]


def build_model(cfg: Config) -> Gpt:
    """See `..contract`."""
    return Gpt(chosen(cfg), cfg.sequence_length)


def build_dataset(cfg: Config, split: str) -> Windows:
    """See `..contract`."""
    joined = text(cfg.data_dir)
    letters: Any = None
    if isinstance(joined, bytearray):
        letters = np.frombuffer(joined, np.uint8)
    else:
        letters = np.memmap(joined, np.uint8, "r")
    border = int(len(letters) * (1 - VALID_SHARE))
    return Windows(letters[:border] if split == "train" else letters[border:], cfg.sequence_length)


def loss(output: Any, batch: Any) -> tuple[Any, Any]:
    """Cross-entropy summed over all bytes."""
    target = batch[1]
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(target, tf.cast(output, tf.float32))
    return tf.reduce_sum(each), tf.size(target)


def evaluate(output: Any, batch: Any) -> dict[str, tuple[Any, Any]]:
    """How many bytes were guessed right."""
    right = tf.argmax(output, -1, tf.int32) == batch[1]
    return {"accuracy": (tf.reduce_sum(tf.cast(right, tf.float32)), tf.size(batch[1]))}
