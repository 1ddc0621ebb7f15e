"""Runs as the trainers' own code reads them: each window and each document, as the naive writer has them.

Their code runs in processes of its own (tests/support/trainer_code.py). Each test starts one, which takes
seconds, for runs of both widths of token. What a trainer should see is cut here from the stream by what it is
known to do: windows from the beginning of each token shard, and what fills none is left out.
"""

from pathlib import Path
from typing import Any

import corpus
import naive
import numpy as np
import pytest
import runner
import trainer_code

SHARD_TOKENS = 1000
LENGTH = 64
# By tokenizer: the bytes of a token, and the separator.
TOKENIZERS = {"gpt2": (2, 50256), "cl100k_base": (4, 100257)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer_code.need("torch")
    return corpus.varied(tmp_path_factory.mktemp("varied"))


def made(sources: Path, folder: Path, kind: str, **more: Any) -> list[Path]:
    """Convert with each tokenizer; return the folders of the runs."""
    outs = []
    for tokenizer in TOKENIZERS:
        recipe = {"format": kind, "tokenizer": tokenizer, "shard_tokens": SHARD_TOKENS, **more}
        outs.append(folder / tokenizer)
        assert runner.convert(sources, outs[-1], **recipe).complete
    return outs


@pytest.fixture(scope="module")
def shards(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> "Shards":
    return Shards(sources, tmp_path_factory.mktemp("naive"))


class Shards:
    """The tokens of each token shard of a split, as the naive writer cuts them."""

    def __init__(self, sources: Path, folder: Path) -> None:
        self._sources, self._folder = sources, folder

    def of(self, tokenizer: str, split: str, side: str = "after") -> list[list[int]]:
        out = self._folder / f"{tokenizer} {side}"
        if not out.exists():
            sizes: dict[str, Any] = {"shard_tokens": SHARD_TOKENS, "val_tokens": SHARD_TOKENS}
            naive.convert(self._sources, out, tokenizer=tokenizer, eot=side, layout="independent", **sizes)
        paths, kind = sorted(out.glob(f"*_{split}_*.bin")), f"<u{TOKENIZERS[tokenizer][0]}"
        return [np.frombuffer(path.read_bytes()[1024:], kind).tolist() for path in paths]


def windows(parts: list[list[int]], length: int) -> list[list[int]]:
    return [part[at : at + length] for part in parts for at in range(0, len(part) // length * length, length)]


LITDATA = """
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
from litgpt.data import LitData

def dataset(path, shuffle=False):
    return StreamingDataset(path, item_loader=TokensLoader(block_size=50), shuffle=shuffle)

def read(out):
    found = {path: [item.tolist() for item in dataset(out + path)] for path in ("/train", "/val", "")}
    loader = StreamingDataLoader(dataset(out + "/train", shuffle=True), batch_size=1, num_workers=2)
    found["shuffled"] = sorted(batch[0].tolist() for batch in loader)
    lit = LitData(out, split_names=("train", "val"), num_workers=0)
    lit.connect(batch_size=1, max_seq_length=49)
    found["lit train"] = sorted(batch[0].tolist() for batch in lit.train_dataloader())
    found["lit val"] = [batch[0].tolist() for batch in lit.val_dataloader()]
    return found

tell([read(out) for out in sys.argv[1:]])
"""


def test_litdata_and_litgpt_read_each_window_once(sources: Path, shards: Shards, tmp_path: Path) -> None:
    trainer_code.need_wheels()
    outs = made(sources, tmp_path / "made", "litdata")
    # They may be elsewhere by now.
    moved = [out.rename(tmp_path / out.name) for out in outs]

    for tokenizer, found in zip(TOKENIZERS, trainer_code.run(LITDATA, *moved), strict=True):
        train, val = (windows(shards.of(tokenizer, split), 50) for split in ("train", "val"))
        assert len(train) > 100
        assert found["/train"] == found[""] == train
        assert found["/val"] == found["lit val"] == val
        assert found["shuffled"] == found["lit train"] == sorted(train)


MDS = """
from streaming import StreamingDataset

def samples(**where):
    read = StreamingDataset(batch_size=1, shuffle=False, **where)
    return [read[at]["tokens"].tolist() for at in range(len(read))]

tell([
    [samples(local=out, split="train"), samples(local=out, split="val"), samples(remote=out, local=out + "2")]
    for out in sys.argv[1:]
])
"""


def test_streaming_reads_each_sample_once(sources: Path, shards: Shards, tmp_path: Path) -> None:
    """From the folder, and fetched from it as from a bucket, by the list of the folder itself."""
    trainer_code.need_wheels()
    outs = made(sources, tmp_path, "mds", sequence_length=LENGTH)

    for tokenizer, (train, val, fetched) in zip(TOKENIZERS, trainer_code.run(MDS, *outs), strict=True):
        assert train == fetched == windows(shards.of(tokenizer, "train"), LENGTH)
        assert val == windows(shards.of(tokenizer, "val"), LENGTH)
        assert len(train) > 100


NEMO = """
from nemo_automodel.components.datasets.llm.nanogpt_dataset import NanogptDataset, load_bin_shard
from itertools import islice
from pathlib import Path

def read(out, bos):
    paths = sorted(Path(out).glob("*_train_*.bin"))
    given = {"file_pattern": [str(path) for path in paths], "seq_len": 20}

    def some(**more):
        # It never ends, and serves shards in order.
        return [sample["input_ids"] for sample in islice(NanogptDataset(**given, **more), 250)]

    found = {"tokens": [load_bin_shard(path).tolist() for path in paths], "plain": some()}
    found["aligned"] = some(align_to_bos=True, bos_token=bos)
    for path in paths:
        path.with_suffix(".bos.idx").unlink()
    found["scanned"] = some(align_to_bos=True, bos_token=bos)
    return found

tell([read(out, bos) for out, bos in zip(sys.argv[1:], (50256, 100257))])
"""


def test_nemo_automodel_finds_documents_by_the_index(sources: Path, shards: Shards, tmp_path: Path) -> None:
    """With the index it takes the same samples as by looking at each token, which it does without."""
    trainer_code.need_wheels()
    outs = made(sources, tmp_path, "nemo")

    for tokenizer, found in zip(TOKENIZERS, trainer_code.run(NEMO, *outs), strict=True):
        assert found["tokens"] == shards.of(tokenizer, "train", "before")
        assert found["aligned"] == found["scanned"] != found["plain"]
        assert all(sample[0] == TOKENIZERS[tokenizer][1] for sample in found["aligned"])


MEGATRON = """
# The whole of megatron.core takes as long as all else here, and these modules need none of it.
import json, types, megatron
bare = types.ModuleType("megatron.core")
bare.__path__ = [path + "/core" for path in megatron.__path__]
sys.modules["megatron.core"] = bare
import megatron.core.parallel_state  # before utils, which imports it
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import get_blend_from_list
from pathlib import Path

def read(out):
    listed = json.loads(Path(out, ".fwconvert/megatron.json").read_text())
    blends = {split: get_blend_from_list(listed[split]) for split in ("train", "valid")}
    documents = {}
    for split, (prefixes, _) in blends.items():
        opened = [IndexedDataset(prefix) for prefix in prefixes]
        documents[split] = [[one[at].tolist() for at in range(len(one))] for one in opened]
        assert all(one.document_indices.tolist() == [*range(len(one) + 1)] for one in opened)
    return [listed["test"], blends, documents]

tell([read(out) for out in sys.argv[1:]])
"""


def test_megatron_core_takes_the_list_as_it_is(sources: Path, shards: Shards, tmp_path: Path) -> None:
    """Prefixes and their weights, the tokens, which its own reader then opens; after a move, too."""
    trainer_code.need("megatron.core")
    made(sources, tmp_path / "first", "megatron")
    (tmp_path / "first").rename(tmp_path / "moved")
    # Found complete but for the list, which has the place of the run.
    outs = made(sources, tmp_path / "moved", "megatron")

    for out, (test, blends, documents) in zip(outs, trainer_code.run(MEGATRON, *outs), strict=True):
        assert test == []
        for split, name in (("train", "train"), ("valid", "val")):
            prefixes, weights = blends[split]
            tokens = shards.of(out.name, name)
            assert prefixes == [str(path.with_suffix("")) for path in sorted(out.glob(f"*_{name}_*.bin"))]
            assert weights == [len(part) for part in tokens]
            assert [[token for document in one for token in document] for one in documents[split]] == tokens
            assert_documents(documents[split], TOKENIZERS[out.name][1])
        assert len({*blends["train"][1]}) > 1  # The last one took in another.


def assert_documents(parts: list[list[list[int]]], eos: int) -> None:
    """Assert that documents end with the separator; the last of a part may go on in the next."""
    assert all(eos not in document[:-1] for part in parts for document in part)
    assert all(document[-1] == eos for part in parts for document in part[:-1])


OLMO = """
from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig

def read(out, eos, dtype):
    config = NumpyFSLDatasetConfig(
        tokenizer=TokenizerConfig(vocab_size=100278, eos_token_id=eos, pad_token_id=100277),
        paths=[out + "/*_train_*.bin"], expand_glob=True, sequence_length=50, generate_doc_lengths=True,
        work_dir=out + "-work", dtype=dtype,
    )
    found = config.build()
    found.prepare()
    return [[found[at]["input_ids"].tolist(), found[at]["doc_lens"].tolist()] for at in range(len(found))]

tell([read(sys.argv[1], 50256, "uint16"), read(sys.argv[2], 100257, "uint32")])
"""


def test_olmo_core_reads_each_window_and_where_documents_end(
    sources: Path, shards: Shards, tmp_path: Path
) -> None:
    trainer_code.need_wheels()
    outs = made(sources, tmp_path, "megatron")

    for tokenizer, found in zip(TOKENIZERS, trainer_code.run(OLMO, *outs), strict=True):
        assert [tokens for tokens, _ in found] == windows(shards.of(tokenizer, "train"), 50)
        for tokens, lengths in found:
            ends = [at + 1 for at, token in enumerate(tokens) if token == TOKENIZERS[tokenizer][1]]
            ends = ends if ends[-1:] == [50] else [*ends, 50]
            assert lengths == [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


DATATROVE = """
from datatrove.utils.dataset import DatatroveFolderDataset

def read(out, size):
    # It goes on by a token more than it is asked for, which divides a shard here.
    found = DatatroveFolderDataset(
        out, 49, filename_pattern="*.ds", recursive=False, token_size=size, return_positions=True
    )
    items = [found[at] for at in range(len(found))]
    return [[item["input_ids"].tolist(), item["positions"].tolist()] for item in items]

tell([read(out, size) for out, size in zip(sys.argv[1:], (2, 4))])
"""


def test_datatrove_reads_the_tokens_and_where_documents_begin(sources: Path, tmp_path: Path) -> None:
    trainer_code.need("datatrove")
    outs = made(sources, tmp_path, "datatrove", layout="contiguous", val_tokens=0)

    for tokenizer, found in zip(TOKENIZERS, trainer_code.run(DATATROVE, *outs), strict=True):
        eot = TOKENIZERS[tokenizer][1]
        paths = sorted(sources.glob("*.parquet"))
        streams = [naive.read(path, naive.encoder(tokenizer), eot, "after") for path in paths]
        assert [tokens for tokens, _ in found] == windows([naive.concatenate(streams).tokens], 50)
        for tokens, positions in found:
            wanted: list[int] = []
            for before in [eot, *tokens[:-1]]:
                wanted.append(0 if before == eot else wanted[-1] + 1)
            assert positions == wanted


DATASETS = """
from datasets import load_dataset

def read(out):
    files = {"train": out + "/*_train_*.parquet", "validation": out + "/*_val_*.parquet"}
    whole = load_dataset("parquet", data_files=files, cache_dir=out + "-cache")
    streamed = load_dataset("parquet", data_files=files, streaming=True)
    return [{split: [row["input_ids"] for row in one[split]] for split in files} for one in (whole, streamed)]

tell([read(out) for out in sys.argv[1:]])
"""


def test_datasets_reads_a_row_for_each_document(sources: Path, shards: Shards, tmp_path: Path) -> None:
    """As TRL and HF Trainer load it: whole, and streamed."""
    trainer_code.need_wheels()
    outs = made(sources, tmp_path, "parquet")

    for tokenizer, (whole, streamed) in zip(TOKENIZERS, trainer_code.run(DATASETS, *outs), strict=True):
        assert whole == streamed
        for split, name in (("train", "train"), ("validation", "val")):
            tokens = [token for part in shards.of(tokenizer, name) for token in part]
            assert [token for row in whole[split] for token in row] == tokens
            # A row is a document, or what a token shard has of one.
            cuts = sum(part[-1] != TOKENIZERS[tokenizer][1] for part in shards.of(tokenizer, name))
            assert all(TOKENIZERS[tokenizer][1] not in row[:-1] for row in whole[split])
            assert sum(row[-1] != TOKENIZERS[tokenizer][1] for row in whole[split]) == cuts
        assert len(whole["train"]) > 100
