"""Runs and sources in Google Cloud Storage and in Azure, as far as they can be had on loopback."""

import sys
from pathlib import Path

import buckets
import child
import corpus
import other_stores
import pytest
import runner
from torture import s3

if sys.platform != "linux":
    pytest.skip("the servers and the proxy were tried on Linux alone", allow_module_level=True)

SHAPE = ("--tokenizer", "bytes", "--shard-tokens", "3000", "--val-tokens", "1000", "--workers", "1")


@pytest.mark.parametrize("store", [other_stores.google, other_stores.azure])
def test_a_run_that_is_killed_in_another_store_than_s3_goes_on_and_can_be_used(
    store: other_stores.Having, tmp_path: Path
) -> None:
    sources, whole = tmp_path / "sources", tmp_path / "whole"
    for number in range(2):
        corpus.write(sources / f"{number}.parquet", corpus.documents(number * 100, 60))
    runner.assert_tidy_end(
        runner.command_line("--source", sources, "--out", whole, *SHAPE, capture_output=True), 0
    )
    with store(tmp_path / "store") as place:
        uri, words = place.uri("run"), ("--source", sources, "--out", place.uri("run"), *SHAPE)
        plan = s3.Plan("kill after", 1, lambda method, path: method == "PUT" and "receipts" in path)
        code, said = buckets.finished(place.start(*words, plan=plan))
        assert (code, plan.happened) == (-9, 1), said
        place.proxy.plan = s3.Plan()
        # It takes over the notice of the one that was killed, and another session renews its own.
        assert "done: all 2 sources" in place.good(*words)
        assert "already complete" in place.good(*words)
        assert place.tree("run") == runner.tree(whole)
        assert "no problems" in place.good("verify", uri)
        renews = """
            import sys, time
            from fwconvert.store import lease
            from fwconvert.store.local import open_store
            lease._BEAT_SECONDS = 0.05
            with open_store(sys.argv[1], "ours").lock() as held:
                first = held._version
                deadline = time.monotonic() + 60
                while held._version == first and time.monotonic() < deadline:
                    time.sleep(0.02)
                print(held._version != first)
        """
        assert child.run(renews, uri, **place.environment()).strip() == "True"

        other = place.uri("sources")
        for name in ("0.parquet", "1.parquet"):
            put = "import sys; from fwconvert.store.bucket import Bucket; from pathlib import Path;"
            put += "Bucket.at(sys.argv[1]).put(sys.argv[2], Path(sys.argv[3]).read_bytes())"
            child.run(put, other, name, sources / name, **place.environment())
        place.good("--source", other, "--out", tmp_path / "fetched", *SHAPE)
        assert runner.tree(tmp_path / "fetched") == runner.tree(whole)

        missing = place.run("verify", place.uri("run").replace(s3.BUCKET, "nobody"))
        assert missing.returncode == 1
        assert "there is no such bucket" in missing.stderr
