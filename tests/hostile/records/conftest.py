"""The runs that are spoilt, and who reads their records."""

import shutil
from collections.abc import Callable
from pathlib import Path

import corpus
import engines
import pytest
import receipt_files
import runner
from spoiled_runs import BAD, CHOICES, Reader, Run, Runs, copy_of

from fwconvert import records
from fwconvert.shards import shard
from fwconvert.sources import catalog
from fwconvert.store import layout, run_manifest, saved_recipe, sessions
from fwconvert.store.local import LocalStore
from fwconvert.store.receipts import JoinReceipt, Quarantined, Receipt


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    base = tmp_path_factory.mktemp("runs")
    sources = corpus.equal_sources(base / "sources", files=3, rows=30)
    assert runner.convert(sources, base / "finished", engine=engines.inline(), **CHOICES).complete
    tree = runner.tree(base / "finished")

    good = (sources / BAD).read_bytes()
    (sources / BAD).write_bytes(bytes(len(good)))
    assert not runner.convert(sources, base / "halted", engine=engines.inline(), **CHOICES).complete
    (sources / BAD).write_bytes(good)
    # The one whose source was replaced is no finished run for whoever compares times.
    assert runner.convert(sources, base / "finished", engine=engines.inline(), **CHOICES).untouched
    return Runs(Run(base / "finished", sources, tree), Run(base / "halted", sources, tree))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_bytes(b"precious")
    return folder


@pytest.fixture(scope="module")
def readers(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    base = tmp_path_factory.mktemp("readers")
    done, halted = copy_of(runs.finished, base / "out"), copy_of(runs.halted, base / "halted")
    folder, recipe = done.folder, saved_recipe.read_plan(done.folder)
    manifest = base / "m.json"
    manifest.write_bytes(records.encode(recipe.source))
    job, join = next(folder.local(layout.RECEIPTS).glob("00*")), next(folder.local(layout.JOINS).iterdir())
    quarantined = next(halted.folder.local(layout.QUARANTINE).iterdir())
    token_shard = min(done.out.glob("*.bin"))
    index = folder.local(layout.index(token_shard.name))

    alone = LocalStore(base / "alone")  # Beside other records a plan is made again from them.
    alone.prepare()
    shutil.copy(folder.local(layout.PLAN), alone.local(layout.PLAN))

    def read_plan() -> object:
        saved_recipe.adopt(alone, recipe)
        saved_recipe.known_sources(alone, recipe)
        return saved_recipe.read_plan(alone)

    found: dict[str, tuple[Path, Callable[[], object]]] = {
        "source manifest": (manifest, lambda: catalog.find(str(manifest))),
        "receipt": (job, lambda: receipt_files.read(job, Receipt, recipe.recipe_id)),
        "join receipt": (join, lambda: receipt_files.read(join, JoinReceipt, recipe.recipe_id)),
        "quarantine record": (quarantined, lambda: records.read(quarantined, Quarantined)),
        "plan": (alone.local(layout.PLAN), read_plan),
        "session": (next(folder.local(layout.SESSIONS).iterdir()), lambda: sessions.all_of(folder)),
        "run manifest": (folder.local(layout.MANIFEST), lambda: run_manifest.read(folder)),
        "token shard": (token_shard, lambda: shard.read_tokens(token_shard, "uint16").tobytes()),
        "document index": (index, lambda: shard.read_index(index).tobytes()),
    }
    return {name: Reader(path, path.read_bytes(), read) for name, (path, read) in found.items()}
