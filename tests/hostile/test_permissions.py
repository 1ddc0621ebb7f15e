"""What we make is for others to read at the most, whatever the umask."""

import os
import stat
from pathlib import Path

import bounded
import corpus
import hub_runs
import pytest
from hub_server import REPO, HubServer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has permissions of another kind")

RECIPE = ("--tokenizer", "bytes", "--shard-tokens", 2000, "--workers", 1)
# For the demonstration, which has many tokens: thousands of shards would be made no other way than these.
LARGE_SHARDS = ("--tokenizer", "bytes", "--shard-tokens", 200_000, "--workers", 1)


def run_with(umask: str, *words: object, env: dict[str, str] | None = None) -> bounded.Ended:
    """Run the program with a umask."""
    return bounded.run(*words, env=env, umask=int(umask, 8))


def modes(*roots: Path) -> dict[str, int]:
    """Return the permissions of everything below these folders, and of these."""
    found = [path for root in roots for path in (root, *root.rglob("*"))]
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in found}


@pytest.mark.parametrize("umask", ["000", "027"])
def test_nothing_is_made_that_others_may_write_to(umask: str, tmp_path: Path) -> None:
    """Folders, token shards, records, lock and logs, parts that are left and sources that are kept."""
    made, repository = tmp_path / "made", tmp_path / "repository"
    made.mkdir()
    corpus.equal_sources(repository / "sample", files=2, rows=60)
    pinned, out, keep = made / "pinned.json", made / "new/out", made / "new/keep/there"
    with HubServer(repository) as hub:
        env = hub_runs.environment(hub.endpoint, FWCONVERT_CACHE=str(made / "new/cache"))
        assert run_with(umask, "pin", REPO, "sample", "-o", pinned, env=env).code == 0
    runs = {
        out / "one": ((), out / "one/.fwconvert/sources"),
        out / "two": (("--keep-source", keep), keep / ".parts"),
    }
    for place, (flags, parts) in runs.items():
        with HubServer(repository) as hub:
            hub.fault("close", path="01.parquet", after=1000)
            hub.fault("status", path="01.parquet", times=None)
            words = ("--version", pinned, *RECIPE, "--out", place, "--patience", 1, *flags)
            assert run_with(umask, *words, env=hub_runs.environment(hub.endpoint)).code == 1
        assert [*parts.glob("*.part")], "a part is left"
    assert run_with(umask, "--version", "demo", *LARGE_SHARDS, "--out", made / "new/demo", env=env).code == 0
    left = 0o777 & ~int(umask, 8)

    found = modes(made / "new", pinned)

    folders = {path: mode for path, mode in found.items() if Path(path).is_dir()}
    assert {path: oct(mode) for path, mode in folders.items() if mode != 0o775 & left} == {}
    files = {path: mode for path, mode in found.items() if path not in folders}
    assert {path: oct(mode) for path, mode in files.items() if mode != 0o644 & left} == {}
    assert any(path.endswith("/lock") for path in files)
    assert any("/keep/there/sample/" in path for path in files)
