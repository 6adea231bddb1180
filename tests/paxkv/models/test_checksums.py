"""A checkpoint of which any byte of its weights changed is refused."""

import json
import shutil
from pathlib import Path

import pytest

import paxkv
from paxkv.models.checkpoint import save_checkpoint
from paxkv.models.checksums import check_checksums, write_checksums
from paxkv.models.loading import load_decoder
from tests.paxkv.models.hf_fixtures import decoder_of

SHIPPED = Path(paxkv.__file__).parent / "assets/recall"


@pytest.fixture
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint") / "gpt2"
    save_checkpoint(folder, decoder_of("gpt2"))
    return folder


def payload(folder: Path) -> Path:
    files = [file for file in (folder / "weights").rglob("*") if file.is_file()]
    return max(files, key=lambda file: file.stat().st_size)


def test_two_flipped_bytes_are_refused_by_the_name_of_their_file(folder):
    file = payload(folder)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(data)
    name = file.relative_to(folder).as_posix()
    with pytest.raises(ValueError, match=rf"{name} was changed; copy .* or convert"):
        load_decoder(folder)


def test_a_missing_and_an_added_file_are_one_error(folder):
    file = payload(folder)
    file.rename(file.with_name("other"))
    with pytest.raises(ValueError) as error:
        load_decoder(folder)
    assert f"{file.name} is missing" in str(error.value)
    assert "/other does not belong" in str(error.value)


def test_a_checkpoint_without_checksums_is_incomplete(folder):
    (folder / "checksums.json").unlink()
    with pytest.raises(ValueError, match=r"has no checksums\.json.* incomplete; copy"):
        load_decoder(folder)


@pytest.mark.parametrize("text", ["{}", "[]", "{"])
def test_damaged_checksums_are_named(folder, text):
    (folder / "checksums.json").write_text(text)
    with pytest.raises(ValueError, match=r"checksums\.json"):
        load_decoder(folder)


def test_the_shipped_model_has_its_own_checksums(tmp_path):
    check_checksums(SHIPPED / "weights")
    shutil.copytree(SHIPPED / "weights", tmp_path / "weights")
    write_checksums(tmp_path / "weights")
    sums = json.loads((tmp_path / "checksums.json").read_text())
    assert sums == json.loads((SHIPPED / "checksums.json").read_text())
    assert all(name.startswith("weights/") for name in sums)
