"""Training loops written for Opacus, and the same moved to Sottovoce; tests and benchmarks run both.

The text classifier is in the style of HuggingFace: a record is a dict, `forward` takes its entries by name,
the output is an object with attributes.
"""

import time
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, LENGTH, CLASSES = 60, 16, 3
SECONDS = []  # of processor time, of each pass of the last loop


def passes(epochs):
    SECONDS.clear()
    for epoch in range(epochs):
        begin = time.process_time()
        yield epoch
        SECONDS.append(time.process_time() - begin)


def blobs(n, seed):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, n)
    points = np.array([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]])[labels] + 0.45 * draw.standard_normal((n, 2))
    return TensorDataset(torch.as_tensor(points, dtype=torch.float32), torch.as_tensor(labels))


def with_opacus(train_data, test_data, epochs):
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(train_data, batch_size=100)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=3.0,
        target_delta=1e-5,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    model.train()
    for _ in passes(epochs):
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    epsilon = engine.get_epsilon(1e-5)
    model.eval()
    with torch.no_grad():
        right = (model(test_data.tensors[0]).argmax(1) == test_data.tensors[1]).float().mean()
    return float(right), epsilon


def with_sottovoce(train_data, test_data, epochs, rng=None):
    import sottovoce as sv

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(train_data, batch_size=100)
    private = sv.make_private(
        model,
        optimizer,
        loader,
        criterion=criterion,
        budget=sv.Budget(3.0, 1e-5),
        epochs=epochs,
        clip_norm=1.0,
        rng=rng,
    )
    model, optimizer, criterion, loader = private
    model.train()
    for _ in passes(epochs):
        losses = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    epsilon = private.get_epsilon(1e-5)
    model.eval()
    with torch.no_grad():
        right = (model(test_data.tensors[0]).argmax(1) == test_data.tensors[1]).float().mean()
    return float(right), epsilon


class Block(nn.Module):
    """Self-attention made of linear layers, and a feed-forward part."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, h, mask):
        q, k, v = (
            layer(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
        h = self.first(h + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        return self.second(h + self.down(torch.relu(self.up(h))))


class TextClassifier(nn.Module):
    """Tokens and positions, transformer blocks, the mean over the tokens that are there."""

    def __init__(self, width=32, blocks=1, heads=4):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, input_ids, attention_mask):
        places = (attention_mask.cumsum(1) - 1).clamp(min=0)  # as RoBERTa counts them
        h = self.words(input_ids) + self.places(places)
        for block in self.blocks:
            h = block(h, attention_mask)
        there = attention_mask[:, :, None].to(h.dtype)
        mean = (h * there).sum(1) / there.sum(1)
        return SimpleNamespace(logits=self.head(mean), hidden_states=h)


def texts(records, seed):
    """Texts of 8 to 16 words, of which some belong to the class."""
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(records):
        label, length = int(rng.integers(CLASSES)), int(rng.integers(LENGTH // 2, LENGTH + 1))
        ids = rng.integers(1, WORDS, LENGTH)
        own = rng.random(LENGTH) < 0.35
        ids[own] = 1 + 6 * label + rng.integers(0, 6, int(own.sum()))
        mask = (np.arange(LENGTH) < length).astype(np.int64)
        items.append({"input_ids": torch.as_tensor(ids * mask), "attention_mask": torch.as_tensor(mask),
                      "labels": torch.as_tensor(label)})  # fmt: skip
    return items


def accuracy_of(model, items):
    batch = torch.utils.data.default_collate(items)
    labels = batch.pop("labels")
    model.eval()
    with torch.no_grad():
        return float((model(**batch).logits.argmax(1) == labels).float().mean())


def texts_with_opacus(train_data, test_data, epochs, seed):
    from opacus import PrivacyEngine

    torch.manual_seed(seed)
    model = TextClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(train_data, batch_size=100)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=8.0,
        target_delta=1e-5,
        epochs=epochs,
        max_grad_norm=1.0,
    )
    model.train()
    for _ in passes(epochs):
        for batch in loader:
            labels = batch.pop("labels")
            optimizer.zero_grad()
            outputs = model(**batch)
            loss = criterion(outputs.logits, labels)
            loss.backward()
            optimizer.step()
    return accuracy_of(model, test_data), engine.get_epsilon(1e-5)


def texts_with_sottovoce(train_data, test_data, epochs, seed, rng=None):
    import sottovoce as sv

    torch.manual_seed(seed)
    model = TextClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(train_data, batch_size=100)
    private = sv.make_private(
        model,
        optimizer,
        loader,
        criterion=criterion,
        label="labels",
        classes=range(3),
        budget=sv.Budget(8.0, 1e-5),
        epochs=epochs,
        clip_norm=1.0,
        rng=rng,
    )
    model, optimizer, criterion, loader = private
    model.train()
    for _ in passes(epochs):
        for batch, labels in loader:
            optimizer.zero_grad()
            outputs = model(**batch)
            loss = criterion(outputs.logits, labels)
            loss.backward()
            optimizer.step()
    return accuracy_of(model, test_data), private.get_epsilon(1e-5)
