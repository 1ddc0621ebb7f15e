"""What looks like output and is none goes; whatever else lies in the folder stays."""

from pathlib import Path

from examples import RULES

from fwconvert.folder import RunFolder
from fwconvert.names import job_key
from fwconvert.strays import remove_strays


def test_only_what_is_named_like_output_and_is_not_of_the_run_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.make()
    kept = "edu_fineweb_train_00000_000.bin"
    stay = [
        kept, "index/edu_fineweb_train_00000_000.docs", "manifest.json", "notes.txt", "index/mine.docs",
        "index/notes.txt", "other_train_00000_001.bin", ".fwconvert/plan.json", ".fwconvert/receipts/a.json",
        f".fwconvert/tails/{job_key('kept')}.tail", f".fwconvert/tails/{job_key('kept')}.docs",
    ]  # fmt: skip
    go = [
        "edu_fineweb_train_00001_000.bin", "edu_fineweb_val_00000_000.bin", "edu_fineweb_train_000001.bin",
        "index/edu_fineweb_train_00001_000.docs", ".fwconvert/tails/a.tail", ".fwconvert/tails/a.docs",
    ]  # fmt: skip
    for name in (*stay, *go):
        (tmp_path / name).write_text(name)

    remove_strays(folder, RULES, {kept}, {"kept"})

    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(stay)
