"""Blocks behind each other, with a plan to share their layers, on samples of different lengths."""

import torch
import torch.nn.functional as F
from torch import nn

PADDING = -100
LENGTH, WIDTH, LAYERS = 6, 8, 4

TP_PLAN = {"layers.*.up": "colwise", "layers.*.down": "rowwise", "embedding": "rowwise"}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build_model(cfg):
    return Stack()


def build_dataset(cfg, split):
    generator = torch.Generator().manual_seed(7)
    samples = []
    for _ in range(53):
        tokens = torch.randint(16, (LENGTH,), generator=generator)
        target = (tokens * 3 + 1) % 16
        target[int(torch.randint(1, LENGTH + 1, (), generator=generator)) :] = PADDING
        samples.append((tokens, target))
    return samples


def loss(output, batch):
    target = batch[1]
    total = F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=PADDING, reduction="sum")
    return total, (target != PADDING).sum()


def evaluate(output, batch):
    return {"right": ((output.argmax(-1) == batch[1]).sum(), (batch[1] != PADDING).sum())}
