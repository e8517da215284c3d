"""Models by what their files hold: read, packed, unpacked, and put where the engine reads them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from schemas.envelope import MAX_MESSAGE_BYTES
from schemas.messages import ModelFiles, Sample
from spica_async.engine.model_files import (
    FILES,
    MAX_BYTES,
    MAX_PACKED_BYTES,
    ModelFilesError,
    folder_of,
    leave_namesake,
    models_folder,
    named_by_content,
    own_model,
    pack,
    unpack,
)
from spica_async.places import process_folder

texts = st.fixed_dictionaries(
    {"config.json": st.text()}, optional={name: st.text() for name in FILES[1:]}
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return models_folder()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a model."""
    made = tmp_path / "mine"
    made.mkdir()
    (made / "config.json").write_text('{"layers": 16}')
    return made


def found_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def packed(plain: bytes, sha256: str | None = None) -> ModelFiles:
    """Whatever a sender may say."""
    content = base64.b64encode(zlib.compress(plain)).decode()
    return ModelFiles(sha256=sha256 or hashlib.sha256(plain).hexdigest(), content=content)


class TestDigest:
    @given(texts, texts)
    def test_it_is_that_of_what_comes_back(
        self, one: dict[str, str], other: dict[str, str]
    ) -> None:
        assert unpack(pack(one)) == one
        assert (pack(one).sha256 == pack(other).sha256) == (one == other)

    def test_it_takes_the_files_that_the_engine_reads_and_no_others(self, folder: Path) -> None:
        first = own_model(str(folder))
        assert first is not None
        (folder / "model.safetensors").write_bytes(bytes(1000))
        assert own_model(str(folder)) == first
        digests = {first.sha256}
        for name in FILES:
            (folder / name).write_text('{"another": 1}')
            found = own_model(str(folder))
            assert found is not None
            digests.add(found.sha256)
        assert len(digests) == 1 + len(FILES)

    def test_it_does_not_matter_where_the_folder_lies(self, folder: Path) -> None:
        first = own_model(str(folder))
        assert own_model(str(folder.rename(folder.with_name("elsewhere")))) == first

    def test_it_is_what_a_request_calls_the_model(self) -> None:
        files = pack({"config.json": "{}"})
        sample: Sample = {"model_name": "/home/me/mine", "tp": 4}
        named = named_by_content(sample, files)
        assert files.sha256 in str(named["model_name"])
        assert named["tp"] == 4
        # Nobody can open or fetch anything by that name.
        assert " " in str(named["model_name"])
        assert "/" not in str(named["model_name"])
        assert named_by_content(sample, None) == sample


class TestReading:
    @pytest.mark.parametrize("name", ["mine", "./mine", "Qwen/Qwen3-32B", "", "\0", "a" * 5000])
    def test_what_is_no_absolute_path_is_an_id(
        self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder.parent)
        assert own_model(name) is None

    def test_a_folder_without_a_configuration_is_no_model(self, tmp_path: Path) -> None:
        assert own_model(str(tmp_path)) is None
        assert own_model(str(tmp_path / "missing")) is None

    def test_a_name_that_no_file_can_have_is_refused(self) -> None:
        with pytest.raises(ModelFilesError, match="file name too long"):
            own_model("/" + "a" * 300)

    def test_what_is_no_text_is_named(self, folder: Path) -> None:
        (folder / "hf_quant_config.json").write_bytes(b"\xff\xfe")
        with pytest.raises(ModelFilesError, match=r"hf_quant_config\.json: not a UTF-8 text"):
            own_model(str(folder))

    def test_what_is_no_file_is_named(self, folder: Path) -> None:
        os.mkfifo(folder / "preprocessor_config.json")
        with pytest.raises(ModelFilesError, match=r"preprocessor_config\.json: not a file"):
            own_model(str(folder))

    def test_what_is_too_large_is_named(self, folder: Path) -> None:
        with (folder / "config.json").open("wb") as file:
            file.truncate(MAX_BYTES + 1)
        with pytest.raises(ModelFilesError, match=r"config\.json: .* more than 16,777,216 bytes"):
            own_model(str(folder))

    def test_what_cannot_be_made_small_is_refused(self, folder: Path) -> None:
        (folder / "config.json").write_text(random.Random(1).randbytes(2**20).hex())
        with pytest.raises(ModelFilesError, match="524,288 bytes when compressed"):
            own_model(str(folder))

    def test_the_largest_that_is_taken_goes_into_a_message(self, folder: Path) -> None:
        text = random.Random(1).randbytes(MAX_PACKED_BYTES - 2000).hex()
        (folder / "config.json").write_text(text[: len(text) * 7 // 8])
        files = own_model(str(folder))
        assert files is not None
        assert len(files.content) > MAX_PACKED_BYTES
        # A sample, and the places where a trace may be fetched, have room beside it.
        assert len(files.model_dump_json()) < MAX_MESSAGE_BYTES - 256 * 1024


class TestUnpacking:
    @pytest.mark.parametrize(
        ("files", "problem"),
        [
            (packed(b'{"config.json": "{}"}', "0" * 64), "not 0000"),
            (packed(b'{"config.json": "{}", "../x": ""}'), "not those of a model"),
            (packed(b'{"config.json": {}}'), "not those of a model"),
            (packed(b'{"hf_quant_config.json": "{}"}'), "not those of a model"),
            (packed(b"[" * 100_000), "not those of a model"),
            (packed(bytes(2 * MAX_BYTES + 1)), "too large"),
            (ModelFiles(sha256="0" * 64, content="*"), "cannot be unpacked"),
            (ModelFiles(sha256="0" * 64, content="AAAA"), "cannot be unpacked"),
            (ModelFiles(sha256="0" * 64, content=""), "too large, or not whole"),
        ],
    )
    def test_what_nobody_has_packed_is_refused(self, files: ModelFiles, problem: str) -> None:
        with pytest.raises(ModelFilesError, match=problem):
            folder_of(files)
        assert not models_folder().exists()


class TestFolder:
    @given(texts)
    def test_it_holds_just_the_files(self, one: dict[str, str]) -> None:
        folder = folder_of(pack(one))
        assert {p.name: p.read_bytes().decode() for p in folder.iterdir()} == one
        assert folder_of(pack(one)) == folder

    def test_each_model_has_its_own(self) -> None:
        one, other = pack({"config.json": "1"}), pack({"config.json": "2"})
        assert folder_of(one) != folder_of(other)
        assert found_in(folder_of(one)) == {"config.json": "1"}

    @pytest.mark.parametrize("name", FILES)
    @pytest.mark.parametrize("content", [None, "other"])
    def test_what_has_become_of_it_is_mended(self, name: str, content: str | None) -> None:
        files = pack({"config.json": "1", "hf_quant_config.json": "2"})
        folder = folder_of(files)
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).write_text(content)
        assert folder_of(files) == folder
        assert found_in(folder) == {"config.json": "1", "hf_quant_config.json": "2"}
        assert list(models_folder().iterdir()) == [folder]

    def test_whatever_lies_in_its_place_makes_room(self, cache: Path) -> None:
        files = pack({"config.json": "1"})
        (cache / files.sha256 / "config.json").mkdir(parents=True)
        assert found_in(folder_of(files)) == {"config.json": "1"}
        other = pack({"config.json": "2"})
        (cache / other.sha256).touch()
        assert found_in(folder_of(other)) == {"config.json": "2"}

    def test_another_process_may_be_faster(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = pack({"config.json": "1"})
        rename = Path.rename

        def late(self: Path, target: Path) -> Path:
            if target == cache / files.sha256 and not target.exists():
                target.mkdir()
                (target / "config.json").write_text("1")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", late)
        with capture_logs() as said:
            assert folder_of(files) == cache / files.sha256
        assert said == []

    def test_what_nobody_has_used_for_long_goes(self, cache: Path) -> None:
        old, used = pack({"config.json": "old"}), pack({"config.json": "used"})
        long_ago = time.time() - 40 * 24 * 3600
        for files in (old, used):
            os.utime(folder_of(files), (long_ago, long_ago))
        folder_of(used)
        folder_of(pack({"config.json": "new"}))
        assert not (cache / old.sha256).exists()
        assert (cache / used.sha256).exists()

    def test_without_a_cache_it_is_this_process_s_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        files = pack({"config.json": "1"})
        with capture_logs() as said:
            folder = folder_of(files)
        assert found_in(folder) == {"config.json": "1"}
        assert folder.is_relative_to(tempfile.gettempdir())
        assert [line["event"] for line in said] == ["model_not_kept"]

    def test_with_no_place_at_all_it_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_folder: None
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
        with pytest.raises(ModelFilesError, match="can be written nowhere"):
            folder_of(pack({"config.json": "1"}))

    @pytest.fixture
    def own_folder(self) -> Iterator[None]:
        process_folder.cache_clear()
        yield
        process_folder.cache_clear()


class TestNamesakes:
    def test_a_folder_that_is_called_as_the_model_is_left_behind(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        leave_namesake("Qwen/Qwen3-32B")
        assert Path.cwd() == tmp_path
        (tmp_path / "Qwen" / "Qwen3-32B").mkdir(parents=True)
        leave_namesake("Qwen/Qwen3-32B")
        assert not Path("Qwen/Qwen3-32B").exists()


def test_the_files_are_read_as_they_are(folder: Path) -> None:
    text = json.dumps({"a": "ä\r\n"}, ensure_ascii=False) + "\r\n"
    (folder / "config.json").write_bytes(text.encode())
    files = own_model(str(folder))
    assert files is not None
    assert (folder_of(files) / "config.json").read_bytes() == text.encode()
