"""Train the smallest of language models with the loader; stop at any step and go on as if nothing had been.

python scripts/train_bigram.py OUT bigram.npz 100    # a run of --tokenizer bytes: the first 100 steps
python scripts/train_bigram.py OUT bigram.npz 200    # the next 100, from what was saved
"""

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fwconvert.loader import Loader, inputs_and_targets


def train(logits: NDArray[np.float64], windows: NDArray[np.int64]) -> float:
    """Predict each token from the one before it, take a step down the gradient; return the loss before it."""
    x, y = (part.ravel() for part in inputs_and_targets(windows))
    chances = np.exp(logits[x] - logits[x].max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log(chances[np.arange(len(y)), y]).mean()
    chances[np.arange(len(y)), y] -= 1
    np.subtract.at(logits, x, 50 / len(y) * chances)
    return float(loss)


if __name__ == "__main__":
    out, save, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    loader, logits, step = Loader(out, seq_len=64, batch=8), np.zeros((257, 257)), 0
    if save.exists():
        saved = np.load(save)
        logits, step = saved["logits"], int(saved["step"])
        loader.resume(json.loads(str(saved["state"])))
    while step < steps:
        for windows in loader:  # an epoch, or what is left of it
            step += 1
            if windows.max() >= len(logits):
                sys.exit(f"token {windows.max()} is not in the table: make the run with --tokenizer bytes")
            print(step, repr(train(logits, windows.astype(np.int64))))
            if step == steps:
                break
    with save.open("wb") as file:  # np.savez would add .npz to a name
        np.savez(file, logits=logits, step=step, state=json.dumps(loader.state()))
