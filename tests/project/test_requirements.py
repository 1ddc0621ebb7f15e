"""The lists in scripts/requirements/, made by scripts/lock: complete, right everywhere, without addresses."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

SOURCE = Path(__file__).parents[2]
PURPOSES = ("run", "test", "fuzz", "everything")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = {
    "Linux": ("linux", "posix", "x86_64"),
    "Linux on ARM": ("linux", "posix", "aarch64"),
    "macOS": ("darwin", "posix", "arm64"),
    "macOS on Intel": ("darwin", "posix", "x86_64"),
    "Windows": ("win32", "nt", "AMD64"),
}


class Machine(NamedTuple):
    system: str
    python: str

    def wants(self, requirement: Requirement) -> bool:
        """Tell whether the requirement is one here."""
        platform, name, machine = SYSTEMS[self.system]
        here = {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_system": self.system.split()[0],
            "platform_machine": machine,
            "sys_platform": platform,
            "os_name": name,
        }
        return requirement.marker is None or requirement.marker.evaluate(here)


MACHINES = [Machine(system, python) for system in SYSTEMS for python in PYTHONS]


def entries(purpose: str) -> Iterator[tuple[Requirement, list[str]]]:
    """Yield each requirement of a list with its hashes."""
    text = (SOURCE / f"scripts/requirements/{purpose}.txt").read_text("utf-8").replace("\\\n", "")
    for line in text.splitlines():
        if line and not line.lstrip().startswith("#"):
            wanted, *hashes = re.split(r" +--hash=", line)
            yield Requirement(wanted), hashes


def chosen(purpose: str, machine: Machine) -> dict[str, Version]:
    """Return what a machine installs; a package that is listed twice for it is an error."""
    here = [requirement for requirement, _ in entries(purpose) if machine.wants(requirement)]
    found: dict[str, Version] = {
        canonicalize_name(each.name): Version(str(each.specifier).removeprefix("==")) for each in here
    }
    assert len(found) == len(here)
    return found


def asked(purpose: str) -> Iterator[Requirement]:
    """Yield what pyproject.toml says is needed."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text("utf-8"))

    def group(name: str) -> Iterator[str]:
        for entry in project["dependency-groups"][name]:
            yield from [entry] if isinstance(entry, str) else group(entry["include-group"])

    yield from map(Requirement, [*project["project"]["dependencies"], *group(purpose)])


@pytest.mark.parametrize("purpose", PURPOSES)
def test_every_package_has_one_version_and_its_hashes(purpose: str) -> None:
    for requirement, hashes in entries(purpose):
        assert re.fullmatch(r"==[0-9][^,*]*", str(requirement.specifier)), requirement
        assert requirement.url is None
        assert hashes
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), requirement


@pytest.mark.parametrize("purpose", PURPOSES)
def test_no_list_says_where_packages_are_had(purpose: str) -> None:
    text = (SOURCE / f"scripts/requirements/{purpose}.txt").read_text("utf-8")
    assert "://" not in text
    assert {*re.findall(r"--[a-z-]+", text)} == {"--hash"}


@pytest.mark.parametrize("machine", MACHINES, ids=" with ".join)
def test_the_lists_fit_the_project_and_each_other_on_every_machine(machine: Machine) -> None:
    smaller: dict[str, Version] = {}
    for purpose in PURPOSES:
        found = chosen(purpose, machine)
        for requirement in asked(purpose):
            if machine.wants(requirement):
                assert found[canonicalize_name(requirement.name)] in requirement.specifier
        assert smaller.items() <= found.items()
        smaller = found


def test_only_who_fuzzes_waits_for_the_fuzzer_and_nobody_for_cuda() -> None:
    names = {purpose: {requirement.name for requirement, _ in entries(purpose)} for purpose in PURPOSES}
    assert [purpose for purpose in PURPOSES if "atheris" in names[purpose]] == ["fuzz", "everything"]
    assert [purpose for purpose in PURPOSES if "torchdata" in names[purpose]] == ["everything"]
    assert [name for name in names["everything"] if re.match("cuda|nvidia|torch$|triton", name)] == []


def test_no_package_of_this_environment_lacks_another() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_workflow_tries_each_python_that_the_lists_are_for() -> None:
    workflow = (SOURCE / ".github/workflows/test.yml").read_text("utf-8")
    (pythons,) = re.findall(r"python: \[(.*)\]", workflow)
    assert tuple(re.findall(r'"([0-9.]+)"', pythons)) == PYTHONS
    assert re.findall(r"run: (.*)", workflow) == ["scripts/test"]
