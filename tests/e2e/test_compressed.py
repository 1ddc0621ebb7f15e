"""Compressed shards hold what the others hold, byte for byte, and everything that reads runs reads them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest
import runner
import zstandard

import fwconvert
from fwconvert.cli import main
from fwconvert.errors import ShardError, UsageError
from fwconvert.inspection.verify import verify
from fwconvert.loader import Loader
from fwconvert.options import Options

BASE: dict[str, Any] = {"tokenizer": "bytes", "shard_tokens": 1000}
FORMATS: dict[str, dict[str, Any]] = {
    "llmc": {**BASE},
    "npy": {**BASE, "format": "npy", "layout": "contiguous"},
    "raw": {"tokenizer": "bytes", "format": "raw", "val_tokens": 700},
    "uint32": {"tokenizer": "cl100k_base", "shard_tokens": 300, "eot": "after", "last": "keep"},
    # One full shard, which takes in all tails.
    "absorbed": {**BASE, "shard_tokens": 20_000, "val_tokens": 0},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.varied(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def run_of(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a finished run; made once."""
    made: dict[tuple[str, str], Path] = {}

    def find(name: str, compress: str = "zstd") -> Path:
        if (name, compress) not in made:
            out = made[name, compress] = tmp_path_factory.mktemp("run") / "out"
            assert runner.convert(source, out, compress=compress, **FORMATS[name]).complete
        return made[name, compress]

    return find


def unpacked(path: Path) -> bytes:
    """Return the content of one frame, which must tell its size and have a checksum."""
    raw = path.read_bytes()
    told = zstandard.get_frame_parameters(raw)
    assert told.has_checksum
    content = zstandard.ZstdDecompressor().decompress(raw, allow_extra_data=False)
    assert told.content_size == len(content)
    return content


@pytest.mark.parametrize("name", FORMATS)
def test_the_content_is_that_of_the_plain_run(name: str, run_of: Callable[..., Path]) -> None:
    plain, packed = run_of(name, "none"), run_of(name)
    wanted = {path.name: path.read_bytes() for path in plain.iterdir() if path.suffix in (".bin", ".npy")}

    found = {path.name: unpacked(path) for path in packed.iterdir() if path.suffix == ".zst"}

    assert found == {f"{file}.zst": content for file, content in wanted.items()}
    assert sorted(path.suffix for path in packed.iterdir() if path.is_file()).count(".zst") == len(wanted)
    indexes = (
        {path.name: path.read_bytes() for path in (out / "index").iterdir()} for out in (plain, packed)
    )
    assert next(indexes) == next(indexes)


@pytest.mark.parametrize("name", FORMATS)
def test_verify_proves_it_and_notices_a_flipped_bit(name: str, run_of: Callable[..., Path]) -> None:
    out = run_of(name)
    report = verify(out)
    assert report.problems == ()
    assert report.tokens == sum(line.tokens for line in _manifest(out).shards)
    shard = max(out.glob("*train*.zst"))
    raw = shard.read_bytes()
    try:
        for at in (5, len(raw) // 2, len(raw) - 1):
            shard.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
            assert any(problem.file == shard.name for problem in verify(out).problems)
        shard.write_bytes(raw[:-1])
        assert any(problem.file == shard.name for problem in verify(out).problems)
    finally:
        shard.write_bytes(raw)
    assert verify(out).problems == ()


def test_workers_and_threads_change_no_byte(
    source: Path, run_of: Callable[..., Path], tmp_path: Path
) -> None:
    flags = {"compress": "zstd", **FORMATS["llmc"]}
    for number, words in enumerate((["--threads", "3", "--workers", "1"], ["--workers", "2"])):
        runner.assert_tidy_end(runner.run(source, tmp_path / str(number), *words, **flags), 0)
        assert runner.tree(tmp_path / str(number)) == runner.tree(run_of("llmc"))


def test_a_run_that_was_killed_goes_on(source: Path, run_of: Callable[..., Path], tmp_path: Path) -> None:
    flags = {"compress": "zstd", "workers": 1, **FORMATS["llmc"]}
    site = tmp_path / "site"
    site.mkdir()
    # The first worker dies when it has packed its third shard.
    (site / "sitecustomize.py").write_text(
        "import os, signal\n"
        "from fwconvert.shards import zstd\n"
        "real, calls = zstd.zip_file, [0]\n"
        "def zip_file(*given):\n"
        "    real(*given)\n"
        "    calls[0] += 1\n"
        f"    mark = {str(tmp_path / 'happened')!r}\n"
        "    if calls[0] == 3 and not os.path.exists(mark):\n"
        "        open(mark, 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "zstd.zip_file = zip_file\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{runner.REPOSITORY}"}
    words = runner.command(source, tmp_path / "out", **flags)
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (tmp_path / "happened").exists()
    assert ended.returncode == 0, ended.stderr
    assert runner.tree(tmp_path / "out") == runner.tree(run_of("llmc"))
    assert runner.litter(tmp_path / "out") == []


@pytest.mark.parametrize("name", ["llmc", "raw", "uint32"])
def test_show_reads_it(name: str, run_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for compress in ("none", "zstd"):
        out = run_of(name, compress)
        shard = min(path.name for path in out.iterdir() if "train" in path.name)
        assert main(["show", str(out), shard]) == 0
        assert main(["show", str(out), "--document", "3"]) == 0
        shown.append(capsys.readouterr().out.replace(".zst", ""))
    assert shown[0] == shown[1]


# More than a few shards are served in sequence only.
SERVED = [(name, "sequential") for name in ("llmc", "npy", "raw", "uint32")]
SERVED += [(name, order) for name in ("raw", "absorbed") for order in ("shuffled", "documents")]


@pytest.mark.parametrize(("name", "order"), SERVED)
def test_the_loader_reads_it(name: str, order: Any, run_of: Callable[..., Path]) -> None:
    served = [
        np.concatenate([*Loader(run_of(name, compress), seq_len=16, batch=4, order=order)])
        for compress in ("none", "zstd")
    ]
    assert np.array_equal(served[0], served[1])
    assert len(served[0]) > 10


def test_the_loader_refuses_a_damaged_one(run_of: Callable[..., Path], tmp_path: Path) -> None:
    shard = min(run_of("llmc").glob("*train*.zst"))
    (tmp_path / shard.name).write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(ShardError, match=shard.name):
        [*Loader(tmp_path, seq_len=16, batch=4, order="sequential")]


CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("llmc", "none", {"compress": "zstd"}),
    ("llmc", "zstd", {"compress": "none"}),
    ("llmc", "zstd", {"shard_tokens": 333}),
    ("llmc", "zstd", {"format": "megatron"}),
    ("raw", "zstd", {"format": "npy", "shard_tokens": 500}),
]


@pytest.mark.parametrize(("name", "compress", "changes"), CHANGES, ids=str)
def test_an_export_packs_and_unpacks(
    name: str,
    compress: str,
    changes: dict[str, Any],
    run_of: Callable[..., Path],
    source: Path,
    tmp_path: Path,
) -> None:
    wanted = {**FORMATS[name], "compress": compress, **changes}
    if changes.get("format") == "megatron":
        wanted["compress"] = "none"
    assert runner.convert(source, tmp_path / "direct", **wanted).complete

    fwconvert.export(run_of(name, compress), tmp_path / "out", Options(workers=1), **changes)

    assert runner.tree(tmp_path / "out") == runner.tree(tmp_path / "direct")


@pytest.mark.parametrize("format_name", ["megatron", "datatrove"])
def test_what_no_trainer_could_read_is_refused(format_name: Any, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--compress"):
        runner.convert(source, tmp_path / "out", format=format_name, compress="zstd", **BASE)
    assert not (tmp_path / "out").exists()


def test_another_zstd_is_another_recipe(source: Path, run_of: Callable[..., Path]) -> None:
    words = runner.command(source, run_of("llmc"), compress="zstd", **FORMATS["llmc"])[3:]
    ended = _with_zstd((1, 0, 0), words)
    assert ended.returncode == 2
    assert "zstd 1.0.0" in ended.stderr


def _with_zstd(version: tuple[int, int, int], words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command as if zstd had this version."""
    code = f"""if True:
        import sys, zstandard
        zstandard.ZSTD_VERSION = {version}
        from fwconvert.cli import main
        sys.exit(main({words!r}))
    """
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_an_export_says_the_zstd_that_makes_it_and_not_that_of_its_run(
    source: Path, run_of: Callable[..., Path], tmp_path: Path
) -> None:
    export = ["export", str(run_of("llmc")), "--shard-tokens", "333", "--workers", "1", "-o"]
    assert _with_zstd((1, 0, 0), [*export, str(tmp_path / "new")]).returncode == 0
    assert _manifest(tmp_path / "new").rules.compress == "zstd 1.0.0, level 3"

    wanted = {**FORMATS["llmc"], "shard_tokens": 333, "compress": "zstd"}
    direct = runner.command(source, tmp_path / "direct", workers=1, **wanted)[3:]
    assert _with_zstd((1, 0, 0), direct).returncode == 0
    assert runner.tree(tmp_path / "new") == runner.tree(tmp_path / "direct")


def test_an_export_is_not_gone_on_with_by_another_zstd(run_of: Callable[..., Path], tmp_path: Path) -> None:
    export = ["export", str(run_of("llmc")), "--shard-tokens", "333", "-o", str(tmp_path / "out")]
    assert main(export) == 0
    next((tmp_path / "out" / runner.PRIVATE / "receipts").iterdir()).unlink()
    before = runner.state(tmp_path / "out")

    ended = _with_zstd((1, 0, 0), export)

    assert ended.returncode == 2
    assert "another recipe" in ended.stderr
    assert "zstd 1.0.0" in ended.stderr
    assert runner.state(tmp_path / "out") == before


def _manifest(out: Path) -> Any:
    from fwconvert.store import run_manifest  # noqa: PLC0415
    from fwconvert.store.local import LocalStore  # noqa: PLC0415

    return run_manifest.read(LocalStore(out))
