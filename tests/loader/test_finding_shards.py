"""Which shards a loader serves: those of a run, by its manifest, or those of others, by their names."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
import runner
import zstandard
from loader_oracle import documents, llmc, packed, shuffled, told, windows, write

from fwconvert.errors import ManifestError, NotReady, ShardError, UsageError
from fwconvert.loader import Loader
from fwconvert.loader.shards import Selection, find


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a complete run with validation."""
    folder = tmp_path_factory.mktemp("finished")
    source = corpus.equal_sources(folder / "source", files=3, rows=30)
    assert runner.convert(source, folder / "out", tokenizer="bytes", shard_tokens=2000).complete
    return folder / "out"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Return a run that may be spoilt."""
    return shutil.copytree(finished, tmp_path / "out")


def change_manifest(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))


def names(path: str | Path, **choices: Any) -> list[str]:
    return [file.name for file in find(Selection(path, **choices)).files]


def rows(loader: Loader) -> list[list[int]]:
    return [row for batch in loader for row in batch.tolist()]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_s_shards_are_those_of_the_split_in_order(finished: Path, split: Any) -> None:
    there = sorted(path.name for path in finished.glob(f"*_{split}_*.bin"))

    assert names(finished, split=split) == there
    assert len(there) == 1 if split == "val" else len(there) > 5


def test_what_the_manifest_does_not_name_is_not_served(run: Path) -> None:
    there = names(run)
    (run / "edu_fineweb_train_99999_000.bin").write_bytes(llmc([1, 2, 3]))

    assert names(run) == there


SPOILT: dict[str, Callable[[Path], int | None]] = {
    "missing": lambda path: path.unlink(),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0\0"),
    "another magic": lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:]),
    "fewer tokens": lambda path: path.write_bytes(llmc([1, 2, 3])),
    "tokens of 4 bytes": lambda path: path.write_bytes(llmc([1] * 2000, 4)),
    "a folder": lambda path: path.rename(path.with_suffix(".gone")).parent.joinpath(path.name).mkdir(),
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_shard_that_is_not_right_is_found_before_anything_is_served(run: Path, spoil: str) -> None:
    path = sorted(run.glob("*_train_*.bin"))[5]
    SPOILT[spoil](path)

    with pytest.raises(ShardError, match=path.name):
        Loader(run, seq_len=64)


@pytest.mark.parametrize(("key", "value"), [("tokens", 1999), ("bytes", 5025)])
def test_a_shard_that_its_line_describes_wrongly_is_refused(run: Path, key: str, value: int) -> None:
    change_manifest(run, lambda manifest: manifest["shards"][4].update({key: value}))
    name = json.loads((run / "manifest.json").read_text())["shards"][4]["name"]

    with pytest.raises(ShardError, match=name):
        Loader(run, seq_len=64)


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/passwd", "index/x.bin", ""])
def test_a_line_cannot_lead_elsewhere(run: Path, name: str) -> None:
    change_manifest(run, lambda manifest: manifest["shards"][4].update({"name": name}))

    with pytest.raises(ManifestError, match="not a token shard"):
        Loader(run, seq_len=64)


def test_a_format_of_a_later_version_is_refused(run: Path) -> None:
    change_manifest(run, lambda manifest: manifest["rules"].update({"format": "wonderful"}))

    with pytest.raises(ManifestError, match="wonderful"):
        Loader(run, seq_len=64)


INDEXES: dict[str, Callable[[Path], int | None]] = {
    "missing": lambda path: path.unlink(),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-8]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(8)),
    "not rising": lambda path: path.write_bytes(path.read_bytes()[8:] + bytes(8)),
    "beyond the end": lambda path: path.write_bytes(path.read_bytes()[:-8] + b"\xd0\x07\0\0" + bytes(4)),
}


@pytest.mark.parametrize("spoil", INDEXES)
def test_a_document_index_that_is_not_right_is_refused_by_name(run: Path, spoil: str) -> None:
    path = sorted(run.glob("index/*_train_*.docs"))[3]
    INDEXES[spoil](path)

    with pytest.raises(ShardError, match=path.name):
        rows(Loader(run, seq_len=64, order="documents"))


def unfinished(run: Path) -> None:
    """Make the run look as if the second of its sources failed."""

    def undo(manifest: dict[str, Any]) -> None:
        manifest["headline"]["complete"] = False
        del manifest["jobs"][1]
        manifest["shards"] = [
            line
            for line in manifest["shards"]
            if "_00001_" not in line["name"] and "_00003_" not in line["name"]
        ]

    change_manifest(run, undo)


def test_an_unfinished_run_is_refused_unless_that_is_wanted(run: Path) -> None:
    unfinished(run)

    with pytest.raises(UsageError, match=r"(?s)not complete.*partial=True"):
        Loader(run, seq_len=64)
    assert {name.split("_")[3] for name in names(run, partial=True)} == {"00000", "00002"}
    assert {name.split("_")[3] for name in names(run, follow=True)} == {"00000"}


def test_validation_is_followed_to_its_end_though_the_run_goes_on(run: Path, finished: Path) -> None:
    choices: dict[str, Any] = {"seq_len": 64, "order": "sequential", "split": "val"}
    loader = Loader(finished, **choices)
    loader.skip(1)
    unfinished(run)
    follower = Loader(run, **choices, follow=True, poll=0.01, timeout=0.03)

    assert len(follower) == len(loader)
    assert rows(follower) == rows(Loader(finished, **choices)) != []
    assert rows(Loader(run, **choices, follow=True).resume(loader.state())) == rows(loader)


def test_validation_is_waited_for_while_the_first_source_is_not_done(run: Path) -> None:
    def undo(manifest: dict[str, Any]) -> None:
        manifest["headline"]["complete"] = False
        del manifest["jobs"][0]
        manifest["shards"] = [line for line in manifest["shards"] if "_00000_" not in line["name"]]

    change_manifest(run, undo)
    choices: dict[str, Any] = {"seq_len": 64, "order": "sequential", "split": "val"}

    with pytest.raises(NotReady, match="nothing new"):
        rows(Loader(run, **choices, follow=True, poll=0.01, timeout=0.03))


def test_validation_that_there_is_not_is_not_waited_for(run: Path) -> None:
    unfinished(run)
    change_manifest(
        run, lambda told: told.update(shards=[line for line in told["shards"] if line["split"] == "train"])
    )

    with pytest.raises(UsageError, match="no val shard"):
        Loader(run, seq_len=64, order="sequential", split="val", follow=True)


def test_a_state_of_a_part_of_a_run_does_not_fit_the_whole(run: Path, finished: Path) -> None:
    unfinished(run)
    for order in ("sequential", "shuffled", "documents"):
        state = Loader(run, seq_len=64, partial=True, order=order).state()
        with pytest.raises(UsageError, match="different shards"):
            Loader(finished, seq_len=64, order=order).resume(state)


def test_a_follower_waits_for_where_its_state_was_taken(run: Path, finished: Path) -> None:
    choices: dict[str, Any] = {"seq_len": 64, "order": "sequential"}
    loader = Loader(finished, **choices)
    loader.skip(len(loader) - 1)
    unfinished(run)
    follower = Loader(run, **choices, follow=True, poll=0.01, timeout=0.03).resume(loader.state())

    with pytest.raises(NotReady):
        next(iter(follower))
    shutil.copy(finished / "manifest.json", run)
    assert rows(follower) == rows(loader) != []


def test_a_follower_does_not_mind_that_a_job_is_done_again(run: Path, finished: Path) -> None:
    choices: dict[str, Any] = {"seq_len": 64, "order": "sequential"}
    follower = Loader(run, **choices, follow=True, poll=0.01, timeout=0.03)
    change_manifest(run, lambda manifest: manifest["headline"].update({"complete": False}))
    waiting = Loader(run, **choices, follow=True, poll=0.01, timeout=0.03)
    served: list[Any] = []
    unfinished(run)
    with pytest.raises(NotReady):
        served.extend(batch.tolist() for batch in waiting)
    shutil.copy(finished / "manifest.json", run)
    served.extend(batch.tolist() for batch in waiting)

    assert [row for batch in served for row in batch] == rows(follower) == rows(Loader(finished, **choices))


def test_a_follower_notices_that_the_shards_are_others(run: Path) -> None:
    change_manifest(run, lambda manifest: manifest["headline"].update({"complete": False}))
    follower = Loader(run, seq_len=64, order="sequential", follow=True, poll=0.01, timeout=0.03)
    change_manifest(run, lambda manifest: manifest["shards"][3].update({"sha256": "0" * 64}))

    with pytest.raises(ShardError, match="have changed"):
        rows(follower)


LONG_ENTRY = [("start", "<u8"), ("row", "<u4")]


def test_an_index_whose_entries_are_not_as_wide_as_the_format_says_is_refused(run: Path) -> None:
    for path in run.glob("index/*.docs"):
        entries = np.fromfile(path, [("start", "<u4"), ("row", "<u4")])
        path.write_bytes(entries.astype(LONG_ENTRY).tobytes())

    with pytest.raises(ShardError, match=r"\.docs"):
        next(iter(Loader(run, seq_len=64, order="documents")))


def test_the_long_entries_of_one_stream_are_read(tmp_path: Path) -> None:
    source, out = corpus.equal_sources(tmp_path / "source", files=2, rows=30), tmp_path / "out"
    assert runner.convert(source, out, tokenizer="bytes", format="raw", val_tokens=0).complete
    tokens = np.fromfile(out / "train.bin", "<u2").tolist()
    starts = np.fromfile(out / "index" / "train.docs", LONG_ENTRY)["start"].tolist()
    beginnings = [tokens[start : start + 20] for start in starts]

    served = rows(Loader(out, seq_len=64, order="documents"))
    assert len(served) > 10
    assert all(row[:20] in beginnings for row in served)


def test_a_state_of_one_split_does_not_fit_the_other(finished: Path) -> None:
    for order in ("sequential", "shuffled"):
        state = Loader(finished, seq_len=64, split="val", order=order).state()
        with pytest.raises(UsageError, match="different shards"):
            Loader(finished, seq_len=64, order=order).resume(state)


def pack(path: Path) -> None:
    """Put a compressed shard in the place of a plain one."""
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes())
    path.with_name(path.name + ".zst").write_bytes(frame)
    path.unlink()


def unpack(path: Path) -> None:
    """Put a plain shard beside a compressed one."""
    content = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    path.with_suffix("").write_bytes(content)


def test_compressed_shards_of_a_run_are_served_as_the_others(run: Path, finished: Path) -> None:
    for path in run.glob("*.bin"):
        pack(path)

    for choices in ({"order": "sequential"}, {"order": "shuffled", "split": "val"}):
        made: list[Any] = [Loader(out, seq_len=64, **choices) for out in (run, finished)]  # type: ignore[arg-type]
        assert rows(made[0]) == rows(made[1]) != []


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Return a compressed run of that many training shards, of 2,000 tokens each or more."""
    folder = tmp_path_factory.mktemp("compressed")

    def run(shards: int) -> Path:
        out = folder / str(shards)
        if not out.exists():
            source = folder / f"source{shards}"
            corpus.write(source / "1.parquet", ["x" * 399] * (5 * shards + 1))
            choices: dict[str, Any] = {"shard_tokens": 2000, "val_tokens": 0, "compress": "zstd"}
            assert runner.convert(source, out, tokenizer="bytes", **choices).complete
        assert len([*out.glob("*.zst")]) == shards
        return out

    return run


@pytest.mark.parametrize("order", ["shuffled", "documents"])
def test_more_compressed_shards_than_are_kept_are_served_in_sequence_only(
    compressed: Callable[[int], Path], order: Any
) -> None:
    assert rows(Loader(compressed(4), seq_len=64, order=order)) != []
    assert rows(Loader(compressed(5), seq_len=64, order="sequential")) != []
    with pytest.raises(UsageError, match=r"(?s)fwconvert export .*/5 --compress none -o NEW.*'sequential'"):
        Loader(compressed(5), seq_len=64, order=order)


def test_compressed_shards_of_others_are_not_advised_to_be_exported(tmp_path: Path) -> None:
    write(tmp_path, told([100] * 5))
    for path in tmp_path.glob("*.bin"):
        pack(path)

    with pytest.raises(UsageError, match=r"zstd -d \*\.zst") as refused:
        Loader(tmp_path, seq_len=9)
    assert "export" not in str(refused.value)
    for path in tmp_path.glob("*.zst"):
        unpack(path)
    assert rows(Loader(tmp_path, seq_len=9)) == shuffled(windows(told([100] * 5), 9), 0, 0)


@pytest.mark.parametrize("kept", [True, False])
def test_a_compressed_run_that_was_unpacked_by_hand_is_served_plain(
    compressed: Callable[[int], Path], tmp_path: Path, kept: bool
) -> None:
    packed_run = compressed(5)
    out = shutil.copytree(packed_run, tmp_path / "out")
    state = Loader(out, seq_len=64, order="sequential").state()
    for path in out.glob("*.zst"):
        unpack(path)
        if not kept:
            path.unlink()

    assert {Path(name).suffix for name in names(out)} == {".bin"}
    served = rows(Loader(out, seq_len=64, order="sequential").resume(state))
    assert served == rows(Loader(packed_run, seq_len=64, order="sequential")) != []
    assert sorted(rows(Loader(out, seq_len=64))) == sorted(served)
    assert rows(Loader(out, seq_len=64, order="documents")) != []


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize("spoil", [half, lambda content: content + b"\0\0", lambda _: llmc([1, 2, 3])])
def test_an_unpacked_shard_is_held_to_the_line_of_the_compressed(
    compressed: Callable[[int], Path], tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    out = shutil.copytree(compressed(5), tmp_path / "out")
    path = min(out.glob("*.zst"))
    unpack(path)
    plain = path.with_suffix("")
    plain.write_bytes(spoil(plain.read_bytes()))

    with pytest.raises(ShardError, match=f"{plain.name}\n"):
        Loader(out, seq_len=64, order="sequential")


@pytest.mark.parametrize("kind", ["npy", "raw", "megatron", "datatrove"])
@pytest.mark.parametrize("eot", ["before", "after"])
def test_runs_of_every_format_are_served(tmp_path: Path, kind: str, eot: str) -> None:
    source = corpus.varied(tmp_path / "source")
    choices: dict[str, Any] = {} if kind == "raw" else {"shard_tokens": 1000, "last": "keep"}
    choices |= {"tokenizer": "bytes", "val_tokens": 0, "eot": eot}
    assert runner.convert(source, tmp_path / "out", format=kind, **choices).complete
    out = tmp_path / "out"
    paths = sorted(path for path in out.iterdir() if path.suffix in {".npy", ".bin", ".ds"})
    shards = [np.load(path) if kind == "npy" else np.fromfile(path, "<u2") for path in paths]
    size, layout = (10**9, "contiguous") if kind == "raw" else (1000, "independent")
    right = documents(source, shard_tokens=size, layout=layout, eot=eot, last="keep")

    assert rows(Loader(out, seq_len=50, order="sequential")) == windows([s.tolist() for s in shards], 50)
    assert rows(Loader(out, seq_len=50, order="documents")) == packed(shuffled(right, 0, 0), 50)


def test_folders_of_others_are_served_by_their_names(tmp_path: Path) -> None:
    shards = told([100, 50])
    write(tmp_path, shards)
    write(tmp_path, told([70]), split="val")
    (tmp_path / "notes.txt").write_text("train")
    (tmp_path / "interval_training.bin").write_bytes(b"no shard")
    (tmp_path / ".fineweb_train_000009.bin").write_bytes(b"half a shard")
    (tmp_path / "train").mkdir()

    assert names(tmp_path) == ["fineweb_train_000001.bin", "fineweb_train_000002.bin"]
    assert names(tmp_path, split="val") == ["fineweb_val_000001.bin"]
    assert rows(Loader(tmp_path, seq_len=9, order="sequential")) == windows(shards, 9)


def test_numpy_files_and_nanogpt_s_are_served_too(tmp_path: Path) -> None:
    shards = told([100, 50])
    (tmp_path / "npy").mkdir()
    (tmp_path / "raw").mkdir()
    for number, tokens in enumerate(shards, 1):
        np.save(tmp_path / "npy" / f"edufineweb_train_{number:06d}.npy", np.array(tokens, np.uint16))
    np.array(shards[0], "<u2").tofile(tmp_path / "raw/train.bin")
    np.array(shards[1], "<u2").tofile(tmp_path / "raw/val.bin")

    assert rows(Loader(tmp_path / "npy", seq_len=9, order="sequential")) == windows(shards, 9)
    for split, tokens in zip(("train", "val"), shards, strict=True):
        loader = Loader(tmp_path / "raw", seq_len=9, order="sequential", split=split)  # type: ignore[arg-type]
        assert rows(loader) == windows([tokens], 9)


def test_a_raw_run_without_its_manifest_is_not_served_as_what_it_is_not(tmp_path: Path) -> None:
    source, out = corpus.varied(tmp_path / "source"), tmp_path / "out"
    choices: dict[str, Any] = {"format": "raw", "tokenizer": "cl100k_base", "val_tokens": 300}
    assert runner.convert(source, out, **choices).complete
    served = rows(Loader(out, seq_len=9, order="sequential"))
    (out / "manifest.json").unlink()

    with pytest.raises(ShardError, match=r"(?s)train\.bin.*raw='uint32'"):
        Loader(out, seq_len=9)
    assert rows(Loader(out, seq_len=9, order="sequential", raw="uint32")) == served


def test_a_pattern_or_a_file_is_served_as_it_is_named(tmp_path: Path) -> None:
    write(tmp_path, told([100, 50, 30]))

    assert len(names(f"{tmp_path}/fineweb_*_00000[12].bin")) == 2
    assert names(tmp_path / "fineweb_train_000003.bin") == ["fineweb_train_000003.bin"]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_a_pattern_serves_only_the_split(finished: Path, tmp_path: Path, split: Any, is_packed: bool) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    if is_packed:
        for path in out.glob("*.bin"):
            pack(path)
    choices: dict[str, Any] = {"seq_len": 64, "order": "sequential", "split": split}

    served = rows(Loader(f"{out}/*.bin*", **choices))
    assert served == rows(Loader(finished, **choices)) != []
    assert names(f"{out}/*.bin*", split=split) == sorted(path.name for path in out.glob(f"*_{split}_*.bin*"))


def test_a_pattern_over_nanogpt_s_files_serves_one_of_them(tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        np.arange(100, dtype="<u2").tofile(tmp_path / name)

    assert names(f"{tmp_path}/*.bin") == ["train.bin"]
    assert names(f"{tmp_path}/*.bin", split="val") == ["val.bin"]


def touch(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(llmc([*range(100)]))


# What is there, and of it what a pattern over all serves as train and as val; None: it is refused.
PATTERNS: dict[str, tuple[list[str] | None, list[str] | None]] = {
    "shard_1.bin shard_2.bin": (["shard_1.bin", "shard_2.bin"], None),
    "shard_1.bin shard_2.bin val.bin": (["shard_1.bin", "shard_2.bin"], ["val.bin"]),
    "a_train_1.bin b_train_1.bin": (["a_train_1.bin", "b_train_1.bin"], None),
    "a_val_1.bin": (None, ["a_val_1.bin"]),
    "a_train_1.bin a_validation_1.bin": (["a_train_1.bin"], ["a_validation_1.bin"]),
    "training_1.bin valid_1.bin": (["training_1.bin"], ["valid_1.bin"]),
    "train-set_val_1.bin val-set_train_1.bin": (["val-set_train_1.bin"], ["train-set_val_1.bin"]),
    "a_train_1.bin a_val_1.bin tokenizer.bin": (None, ["a_val_1.bin"]),
    "interval_1.bin trainer_2.bin": (["interval_1.bin", "trainer_2.bin"], None),
    "train/1.bin val/2.bin": (["1.bin"], ["2.bin"]),
    "train/1.bin validation/2.bin other/3.bin": (None, ["2.bin"]),
}


@pytest.mark.parametrize("there", PATTERNS)
def test_what_a_pattern_serves_is_told_by_the_names(tmp_path: Path, there: str) -> None:
    touch(tmp_path, *there.split())
    pattern = f"{tmp_path}/*/*.bin" if "/" in there else f"{tmp_path}/*.bin"

    for split, wanted in zip(("train", "val"), PATTERNS[there], strict=True):
        if wanted is not None:
            assert names(pattern, split=split) == wanted
        else:
            with pytest.raises(UsageError, match=r"(?s)'(train|val)'.*\.bin.*(name|match) "):
                names(pattern, split=split)


@pytest.mark.parametrize("pattern", ["a_train_*.bin", "a_train_1.bin", "train/*.bin", "train/1.bin"])
def test_training_data_is_not_served_as_validation(tmp_path: Path, pattern: str) -> None:
    touch(tmp_path, "a_train_1.bin", "a_val_1.bin", "train/1.bin", "val/1.bin")
    validation = pattern.replace("train", "val")

    assert len(names(tmp_path / pattern)) == len(names(tmp_path / validation, split="val")) == 1
    with pytest.raises(UsageError, match=r"(?s)has 'val' in its name.*pass split='train'"):
        Loader(tmp_path / pattern, seq_len=9, split="val")
    with pytest.raises(UsageError, match=r"(?s)has 'train' in its name.*pass split='val'"):
        Loader(tmp_path / validation, seq_len=9)


def test_a_file_that_does_not_say_what_it_is_is_what_the_caller_says(tmp_path: Path) -> None:
    touch(tmp_path, "held_out.bin", "odd[1].bin")

    for name in ("held_out.bin", "odd[1].bin"):
        assert names(tmp_path / name) == names(tmp_path / name, split="val") == [name]


def test_files_of_one_name_in_several_folders_are_all_served_in_one_order(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{folder}/1.bin" for folder in "cadb"))
    pack(tmp_path / "d/1.bin")

    found = find(Selection(f"{tmp_path}/*/1.bin*")).files
    assert [f"{file.path.parent.name}/{file.name}" for file in found] == [
        "a/1.bin", "b/1.bin", "c/1.bin", "d/1.bin.zst",
    ]  # fmt: skip


def test_a_shard_that_is_there_twice_is_served_once(tmp_path: Path) -> None:
    write(tmp_path, told([100]))
    path = tmp_path / "fineweb_train_000001.bin"
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes())
    path.with_name(path.name + ".zst").write_bytes(frame)

    assert names(tmp_path) == [path.name]
    path.unlink()
    assert names(tmp_path) == [f"{path.name}.zst"]


def test_shards_of_different_types_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, told([100, 50]))
    (tmp_path / "fineweb_train_000002.bin").write_bytes(llmc([1] * 50, 4))

    with pytest.raises(ShardError, match=r"fineweb_train_000002\.bin"):
        find(Selection(tmp_path))


@pytest.mark.parametrize("path", ["nowhere", "some/*.bin", "."])
def test_nothing_to_serve_is_the_caller_s_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=r"(?s)(there is no|no token shard in).*a run's folder"):
        find(Selection(path))


@pytest.mark.parametrize("path", ["", "*.bin", "nowhere/*.bin", "fineweb_train_000001.bin"])
def test_only_a_run_can_be_followed(tmp_path: Path, path: str) -> None:
    write(tmp_path, told([100]))

    with pytest.raises(UsageError, match=r"(?s)cannot be followed.*--out"):
        Loader(tmp_path / path, seq_len=9, order="sequential", follow=True)
