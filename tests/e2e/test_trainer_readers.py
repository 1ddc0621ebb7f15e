"""Runs as the trainers' own code reads them: each window and each document, as the naive writer has them.

Their code runs in processes of its own (tests/support/trainer_code.py); each test starts one, which takes
seconds. What a trainer should see is cut here from the stream by what it is known to do: windows from the
beginning of each token shard, and what fills none is left out.
"""

import json
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
WIDTHS = {"gpt2": ("uint16", 50256), "cl100k_base": ("uint32", 100257)}
TOKENIZERS = pytest.mark.parametrize("tokenizer", WIDTHS)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.varied(tmp_path_factory.mktemp("varied"))


def made(sources: Path, out: Path, kind: str, tokenizer: str, **more: Any) -> Path:
    recipe = {"format": kind, "tokenizer": tokenizer, "shard_tokens": SHARD_TOKENS, **more}
    assert runner.convert(sources, out, **recipe).complete
    return out


def shards(sources: Path, folder: Path, tokenizer: str, side: str = "after") -> dict[str, list[list[int]]]:
    """Return the tokens of each token shard of a split, as the naive writer cuts them."""
    sizes: dict[str, Any] = {"shard_tokens": SHARD_TOKENS, "val_tokens": SHARD_TOKENS}
    naive.convert(sources, folder, tokenizer=tokenizer, eot=side, layout="independent", **sizes)
    paths = sorted(folder.glob("*.bin"))
    kind = {"uint16": "<u2", "uint32": "<u4"}[WIDTHS[tokenizer][0]]
    read = [(path, np.frombuffer(path.read_bytes()[1024:], kind)) for path in paths]
    return {
        split: [tokens.tolist() for path, tokens in read if f"_{split}_" in path.name]
        for split in ("train", "val")
    }


def windows(parts: list[list[int]], length: int) -> list[list[int]]:
    return [part[at : at + length] for part in parts for at in range(0, len(part) // length * length, length)]


LITDATA = """
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
from litgpt.data import LitData

def dataset(path, shuffle=False):
    return StreamingDataset(path, item_loader=TokensLoader(block_size=50), shuffle=shuffle)

out = sys.argv[1]
found = {path: [item.tolist() for item in dataset(out + path)] for path in ("/train", "/val", "")}
loader = StreamingDataLoader(dataset(out + "/train", shuffle=True), batch_size=1, num_workers=2)
found["shuffled"] = sorted(batch[0].tolist() for batch in loader)
lit = LitData(out, split_names=("train", "val"), num_workers=0)
lit.connect(batch_size=1, max_seq_length=49)
found["lit train"] = sorted(batch[0].tolist() for batch in lit.train_dataloader())
found["lit val"] = [batch[0].tolist() for batch in lit.val_dataloader()]
tell(found)
"""


@TOKENIZERS
def test_litdata_and_litgpt_read_each_window_once(tokenizer: str, sources: Path, tmp_path: Path) -> None:
    trainer_code.need("litdata", "litgpt", "lightning_utilities")
    out = made(sources, tmp_path / "out", "litdata", tokenizer)
    parts = shards(sources, tmp_path / "naive", tokenizer)
    # It may be elsewhere by now.
    out = out.rename(tmp_path / "moved")

    found = trainer_code.run(LITDATA, out)

    train, val = (windows(parts[split], 50) for split in ("train", "val"))
    assert len(train) > 100
    assert found["/train"] == found[""] == train
    assert found["/val"] == found["lit val"] == val
    assert found["shuffled"] == found["lit train"] == sorted(train)


MDS = """
from streaming import StreamingDataset

out, copy = sys.argv[1:]

def samples(**where):
    read = StreamingDataset(batch_size=1, shuffle=False, **where)
    return [read[at]["tokens"].tolist() for at in range(len(read))]

tell([samples(local=out, split="train"), samples(local=out, split="val"), samples(remote=out, local=copy)])
"""


@TOKENIZERS
def test_streaming_reads_each_sample_once(tokenizer: str, sources: Path, tmp_path: Path) -> None:
    """From the folder, and fetched from it as from a bucket, by the list of the folder itself."""
    trainer_code.need("streaming", "xxhash", "catalogue")
    out = made(sources, tmp_path / "out", "mds", tokenizer, sequence_length=LENGTH)
    parts = shards(sources, tmp_path / "naive", tokenizer)

    train, val, fetched = trainer_code.run(MDS, out, tmp_path / "copy")

    assert train == fetched == windows(parts["train"], LENGTH)
    assert val == windows(parts["val"], LENGTH)
    assert len(train) > 100


NEMO = """
from nemo_automodel.components.datasets.llm.nanogpt_dataset import NanogptDataset, load_bin_shard
from itertools import islice
from pathlib import Path

out, bos = Path(sys.argv[1]), int(sys.argv[2])
paths = sorted(out.glob("*_train_*.bin"))
given = {"file_pattern": [str(path) for path in paths], "seq_len": 20}

def some(**more):
    # It never ends, and serves shards in order.
    return [sample["input_ids"] for sample in islice(NanogptDataset(**given, **more), 250)]

found = {"tokens": [load_bin_shard(path).tolist() for path in paths], "plain": some()}
found["aligned"] = some(align_to_bos=True, bos_token=bos)
for path in paths:
    path.with_suffix(".bos.idx").unlink()
found["scanned"] = some(align_to_bos=True, bos_token=bos)
tell(found)
"""


@TOKENIZERS
def test_nemo_automodel_finds_documents_by_the_index(tokenizer: str, sources: Path, tmp_path: Path) -> None:
    """With the index it takes the same samples as by looking at each token, which it does without."""
    trainer_code.need("nemo_automodel")
    out = made(sources, tmp_path / "out", "nemo", tokenizer)
    parts = shards(sources, tmp_path / "naive", tokenizer, "before")

    found = trainer_code.run(NEMO, out, WIDTHS[tokenizer][1])

    assert found["tokens"] == parts["train"]
    assert found["aligned"] == found["scanned"] != found["plain"]
    assert all(sample[0] == WIDTHS[tokenizer][1] for sample in found["aligned"])


OLMO = """
import numpy as np
from olmo_core.data import NumpyFSLDatasetConfig, TokenizerConfig

ids = TokenizerConfig(vocab_size=100278, eos_token_id=int(sys.argv[2]), pad_token_id=100277)
config = NumpyFSLDatasetConfig(
    tokenizer=ids, paths=[sys.argv[1]], expand_glob=True, sequence_length=50, generate_doc_lengths=True,
    work_dir=sys.argv[3], dtype="uint16" if sys.argv[2] == "50256" else "uint32",
)
read = config.build()
read.prepare()
tell([[read[at]["input_ids"].tolist(), read[at]["doc_lens"].tolist()] for at in range(len(read))])
"""


@TOKENIZERS
def test_olmo_core_reads_each_window_and_where_documents_end(
    tokenizer: str, sources: Path, tmp_path: Path
) -> None:
    trainer_code.need("olmo_core", "dataclass_extensions")
    out = made(sources, tmp_path / "out", "megatron", tokenizer)
    parts = shards(sources, tmp_path / "naive", tokenizer)
    eos = WIDTHS[tokenizer][1]

    found = trainer_code.run(OLMO, f"{out}/*_train_*.bin", eos, tmp_path)

    wanted = windows(parts["train"], 50)
    assert [tokens for tokens, _ in found] == wanted
    for tokens, lengths in found:
        ends = [at + 1 for at, token in enumerate(tokens) if token == eos]
        ends = ends if ends[-1:] == [50] else [*ends, 50]
        assert lengths == [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


@pytest.mark.filterwarnings("ignore")  # of others
def test_megatron_core_takes_the_list_as_it_is(sources: Path, tmp_path: Path) -> None:
    """Weights and prefixes, as its own function reads them, and its own reader opens; after a move too."""
    pytest.importorskip("torch", reason="torch is not installed, which megatron-core needs")
    utils: Any = pytest.importorskip("megatron.core.datasets.utils", reason="megatron-core is not installed")
    from megatron.core.datasets.indexed_dataset import IndexedDataset  # noqa: PLC0415

    out = made(sources, tmp_path / "out", "megatron", "gpt2", last="keep")
    for place in (out, tmp_path / "moved"):
        if place != out:
            out.rename(place)
            made(sources, place, "megatron", "gpt2", last="keep")  # Found complete but for the list.
        listed = json.loads((place / runner.PRIVATE / "megatron.json").read_text())
        assert listed["test"] == []
        for split, name in (("train", "train"), ("valid", "val")):
            prefixes, weights = utils.get_blend_from_list(listed[split])
            assert prefixes == [str(path.with_suffix("")) for path in sorted(place.glob(f"*_{name}_*.bin"))]
            tokens = [sum(IndexedDataset(prefix).sequence_lengths) for prefix in prefixes]
            assert weights == tokens
    assert len({*weights}) == 1 < len({*utils.get_blend_from_list(listed["train"])[1]})


@TOKENIZERS
@pytest.mark.filterwarnings("ignore")  # of others
def test_datasets_reads_a_row_for_each_document(tokenizer: str, sources: Path, tmp_path: Path) -> None:
    """As TRL and HF Trainer load it: whole, and streamed."""
    pytest.importorskip("datasets", reason="datasets is not installed")
    out = made(sources, tmp_path / "out", "parquet", tokenizer)
    parts = shards(sources, tmp_path / "naive", tokenizer)
    code = """
from datasets import load_dataset
files = {"train": sys.argv[1] + "/*_train_*.parquet", "validation": sys.argv[1] + "/*_val_*.parquet"}
whole = load_dataset("parquet", data_files=files, cache_dir=sys.argv[2])
streamed = load_dataset("parquet", data_files=files, streaming=True)
tell([{split: [row["input_ids"] for row in read[split]] for split in files} for read in (whole, streamed)])
"""

    whole, streamed = trainer_code.run(code, out, tmp_path / "cache")

    assert whole == streamed
    for split, name in (("train", "train"), ("validation", "val")):
        assert [token for row in whole[split] for token in row] == [t for part in parts[name] for t in part]
        # A row is a document, or what a token shard has of one.
        assert all(WIDTHS[tokenizer][1] not in row[:-1] for row in whole[split])
    assert len(whole["train"]) > 100
