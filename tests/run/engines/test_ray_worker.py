"""What a machine of a Ray cluster says of itself, asked without Ray; tests/e2e/test_ray.py asks real ones."""

from dataclasses import replace
from pathlib import Path

import buckets
import child
import msgspec
import pytest

import fwconvert
from fwconvert.job.orders import RunContext
from fwconvert.run.engines import ray_worker
from fwconvert.store import layout
from fwconvert.store.local import open_store
from fwconvert.tokens import registry


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """A session of a run that this machine sees."""
    recipe = fwconvert.recipe(version="10B")
    store = open_store(tmp_path / "out", "session")
    store.prepare()
    store.write(layout.session("session"), b"{}")
    return RunContext(str(tmp_path / "out"), recipe.recipe_id, recipe.rules, "session")


def asked(context: RunContext, seen: Path | str | None = None) -> str:
    return ray_worker.look_around(ray_worker.identity(), ray_worker.Session(context, encodes=True, seen=seen))


def test_a_machine_that_is_as_it_should_be_says_nothing(context: RunContext, tmp_path: Path) -> None:
    (tmp_path / "0.parquet").touch()

    assert asked(context) == asked(context, tmp_path / "0.parquet") == ""
    assert not list((tmp_path / "out" / ".fwconvert" / "temporary").iterdir())


def test_a_machine_with_other_code_or_another_vocabulary_says_so(context: RunContext) -> None:
    told = ray_worker.look_around("fwconvert 9.9.9", None)
    assert "it has another fwconvert than the driver" in told
    assert "driver  fwconvert 9.9.9" in told

    wanted = registry.find("o200k_base")
    folder = Path(context.run) / layout.VOCABULARIES
    folder.mkdir(exist_ok=True)
    (folder / f"{wanted.sha256}.tiktoken").write_bytes(b"another table")
    told = asked(replace(context, rules=msgspec.structs.replace(context.rules, tokenizer="o200k_base")))
    assert told.startswith("it cannot load the tokenizer")
    assert "o200k_base" in told


def test_a_machine_that_does_not_see_the_run_or_the_sources_says_so(
    context: RunContext, tmp_path: Path
) -> None:
    assert "does not see the run" in asked(replace(context, session="another"))
    assert "does not see a file that it is to read" in asked(context, tmp_path / "0.parquet")


def test_a_machine_looks_at_a_run_in_a_bucket_from_its_scratch_folder(tmp_path: Path) -> None:
    code = """
        import sys
        from fwconvert import recipe
        from fwconvert.job.orders import RunContext
        from fwconvert.run.engines.ray_worker import Session, identity, look_around
        from fwconvert.store import layout
        from fwconvert.store.bucket import Bucket
        uri, scratch, has_run = sys.argv[1:]
        if has_run == "True":
            Bucket.at(uri).put(layout.session("session"), b"{}")
            Bucket.at(f"{uri}/of-an-export").put(layout.MANIFEST, b"{}")
        rules = recipe(version="10B", tokenizer="bytes").rules
        context = RunContext(uri, "id", rules, "session", scratch=scratch)
        for seen in (None, f"{uri}/of-an-export", f"{uri}/nowhere"):
            print(look_around(identity(), Session(context, encodes=True, seen=seen)).partition("\\n")[0])
    """
    with buckets.place("rclone", tmp_path / "server") as place:
        # Nothing can be made in the folder that it would take by itself.
        settings = place.environment(FWCONVERT_CACHE="/proc/nowhere")
        given = (place.uri("run"), tmp_path / "scratch")
        assert "does not see the run" in child.run(code, *given, False, **settings)
        looks = child.run(code, *given, True, **settings).splitlines()
        assert looks == ["", "", "it does not see a file that it is to read"]
        alone = {**settings, "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        told = child.run(code, *given, False, **alone)
    assert told.startswith("there are no credentials for the object store")
