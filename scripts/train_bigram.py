"""Train the smallest of language models with the loader; stop at any step and go on as if nothing had been.

python scripts/train_bigram.py OUT --steps 100 --save bigram.npz                     # the first 100 steps
python scripts/train_bigram.py OUT --steps 200 --save bigram.npz --resume            # the next 100

A token is predicted from the one before it: a table of logits, trained by
gradient descent. Its state is the table, the step and the loader's few numbers.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fwconvert.loader import Loader, inputs_and_targets

RATE = 50.0


def main() -> int:
    """Train up to a step, print each loss, and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--steps", metavar="N", type=int, default=100)
    parser.add_argument("--tokens", metavar="N", type=int, default=257, help="size of the vocabulary")
    parser.add_argument("--batch", metavar="N", type=int, default=8)
    parser.add_argument("--save", metavar="FILE", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    loader = Loader(given.out, seq_len=64, batch=given.batch)
    logits, step = np.zeros((given.tokens, given.tokens)), 0
    if given.resume:
        saved = np.load(given.save)
        logits, step = saved["logits"], int(saved["step"])
        loader.resume(json.loads(str(saved["state"])))
    while step < given.steps:
        for windows in loader:
            step += 1
            print(step, repr(train(logits, windows.astype(np.int64))))
            if step == given.steps:
                break
    np.savez(given.save, logits=logits, step=step, state=json.dumps(loader.state()))
    return 0


def train(logits: NDArray[np.float64], windows: NDArray[np.int64]) -> float:
    """Take a step down the gradient; return the loss before it."""
    x, y = (part.ravel() for part in inputs_and_targets(windows))
    chances = np.exp(logits[x] - logits[x].max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    loss = -np.log(chances[np.arange(len(y)), y]).mean()
    chances[np.arange(len(y)), y] -= 1
    np.subtract.at(logits, x, RATE / len(y) * chances)
    return float(loss)


if __name__ == "__main__":
    sys.exit(main())
