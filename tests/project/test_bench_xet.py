"""The Xet storage of the benchmark gives hf_xet itself the right bytes, whole and by ranges."""

import hashlib
import json
import os
import random
from pathlib import Path

import pytest
from bench.measure import child, run
from bench.network import pin
from bench.xet_store import XetHub
from hub_server import COMMIT, REPO, Link, write_files

pytest.importorskip("hf_xet", reason="hf_xet has no wheel for this machine")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="the benchmark wants wait4")

FILES = ("sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet")

# In a process of its own, because hf_xet reads its environment once and keeps threads.
READ = f"""
import json, sys
from hf_xet import XetFileInfo, XetSession
endpoint, hashes, spans = json.loads(sys.argv[1])
route = endpoint + "/api/datasets/{REPO}/xet-read-token/{COMMIT}"
group = XetSession().new_download_stream_group(token_refresh_url=route)
found = [b"".join(group.download_stream(XetFileInfo(hashes[path]), begin, end)) for path, begin, end in spans]
print(json.dumps({{"found": [content.hex() for content in found]}}))
"""


def stored(tmp_path: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """Make a repository and its Xet storage; return the files, and the Xet hash of each."""
    shared = random.Random(1).randbytes(300_000)
    contents = [random.Random(2).randbytes(500_000) + shared, shared + b"text " * 50_000 + shared]
    files = dict(zip(FILES, contents, strict=True))
    write_files(tmp_path / "repository", files)
    paths = [str(tmp_path / "repository" / path) for path in files]
    (tmp_path / "store").mkdir()
    packing = child("bench.xet.upload", files=paths, store=tmp_path / "store")
    hashes = run(["env", f"HF_HOME={tmp_path / 'home'}", *packing], tmp_path).reported
    return files, {path: hashes[str(tmp_path / "repository" / path)] for path in files}


def test_hf_xet_reads_whole_files_and_ranges_of_them(tmp_path: Path) -> None:
    files, hashes = stored(tmp_path)
    spans: list[tuple[str, int, int]] = [(path, 0, len(content)) for path, content in files.items()]
    for path, content in files.items():
        numbers = random.Random(path)
        spans += [
            (path, *sorted(numbers.sample(range(len(content) + 1), 2)))  # type: ignore[misc]
            for _ in range(5)
        ]
        spans += [(path, len(content) - 1, len(content)), (path, 299_999, 300_001)]
    with XetHub(tmp_path / "repository", tmp_path / "store", hashes, 10**9, Link()) as hub:
        told = json.dumps([hub.endpoint, hashes, spans])
        command = [*child("")[:1], "-P", "-c", READ, told]
        found = run(["env", f"HF_HOME={tmp_path / 'home'}", *command], tmp_path).reported["found"]
        asked = [seen.path for seen in hub.log]
    assert [bytes.fromhex(content) for content in found] == [files[path][a:b] for path, a, b in spans]
    assert any("/xorb/" in path for path in asked)
    assert not any("/resolve/" in path or "/blob/" in path for path in asked)


@pytest.mark.parametrize("through_xet", [False, True])
def test_fetching_alone_brings_every_file(tmp_path: Path, through_xet: bool) -> None:
    files, hashes = stored(tmp_path)
    pin(str(tmp_path / "repository"), str(tmp_path / "store" / "pinned.json"))
    (tmp_path / "store" / "hashes.json").write_text(json.dumps(hashes), "utf-8")
    out = tmp_path / "out"
    with XetHub(tmp_path / "repository", tmp_path / "store", hashes, 10**9, Link()) as hub:
        task = child("bench.xet.fetch", store=tmp_path / "store", out=out, through_xet=through_xet)
        run(["env", f"HF_ENDPOINT={hub.endpoint}", f"HF_HOME={tmp_path / 'home'}", *task], tmp_path)
        asked = [seen.path for seen in hub.log]
    for path, content in files.items():
        assert hashlib.sha256((out / path).read_bytes()).digest() == hashlib.sha256(content).digest()
    assert any("/xorb/" in path for path in asked) is through_xet
    assert any("/blob/" in path for path in asked) is not through_xet
