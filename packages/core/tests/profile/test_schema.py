"""What may stand in the files of a profile: the fixtures of every version, and the schemas made from the models."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enginehouse_core.profile.document import read_document
from enginehouse_core.profile.files import read_toml
from enginehouse_core.profile.schema import FILES, schema_files, schema_of
from enginehouse_protocol.errors import ProfileInvalid

REPOSITORY = Path(__file__).resolve().parents[4]
FOLDER = REPOSITORY / "profile-schema"
FIXTURES = FOLDER / "fixtures"


def fixtures(kind: str) -> list[Any]:
    paths = sorted((FIXTURES / kind).glob("*/*.toml"))
    return [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in paths]


@pytest.mark.parametrize("path", fixtures("valid"))
def test_a_valid_file_is_understood(path: Path) -> None:
    assert read_document(path, FILES[path.parent.name]) is not None


@pytest.mark.parametrize("path", fixtures("invalid"))
def test_an_invalid_file_is_refused_with_an_error_that_names_the_key(path: Path) -> None:
    expected = path.read_text("utf-8").splitlines()[0].removeprefix("# ")
    with pytest.raises(ProfileInvalid) as caught:
        read_document(path, FILES[path.parent.name])
    assert caught.value.path == str(path)
    assert caught.value.problem.startswith(expected)
    assert "EXAMPLE" not in caught.value.problem  # no value is repeated: it could be the key


@pytest.mark.parametrize("path", fixtures("golden"))
def test_a_file_of_every_version_means_what_it_always_meant(path: Path) -> None:
    document = read_document(path, FILES[path.parent.name])
    assert document is not None
    assert document.model_dump(mode="json") == json.loads(path.with_suffix(".json").read_text("utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_fixtures_of_every_kind(name: str) -> None:
    for kind in ("valid", "invalid", "golden"):
        assert list((FIXTURES / kind / name).glob("*.toml"))


@pytest.mark.parametrize("name", FILES)
def test_a_schema_knows_every_key_of_the_golden_file_and_requires_no_other(name: str) -> None:
    schema = schema_of(name)
    golden = read_toml(FIXTURES / "golden" / name / "v1.toml") or {}
    assert set(golden) == set(schema["properties"])
    assert set(schema.get("required", [])) <= set(golden)
    assert schema["additionalProperties"] is True


def test_the_schema_offers_both_spellings_of_a_mode() -> None:
    (offered, null) = schema_of("settings")["properties"]["mode"]["anyOf"]
    assert offered["enum"] == ["accept-edits", "accept_edits", "default", "plan", "yolo"]
    assert null == {"type": "null"}


def test_the_schemas_in_the_repository_are_those_of_the_models() -> None:
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.schema.json")}
    assert there == schema_files()


def test_the_generator_notices_a_difference(tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "generate_schemas.py"
    script.parent.mkdir()
    (tmp_path / "profile-schema").mkdir()
    script.write_bytes((REPOSITORY / "scripts" / "generate_schemas.py").read_bytes())

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, str(script), *arguments]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert run("--check").returncode == 1
    assert run().returncode == 0
    assert run("--check").returncode == 0
    schema = tmp_path / "profile-schema" / "settings.v1.schema.json"
    schema.write_text(schema.read_text().replace("integer", "number"))
    (tmp_path / "profile-schema" / "gone.v1.schema.json").write_text("{}")
    checked = run("--check")
    assert checked.returncode == 1
    assert "settings.v1.schema.json differs" in checked.stderr
    assert "gone.v1.schema.json differs" in checked.stderr
    assert run().returncode == 0
    assert run("--check").returncode == 0
