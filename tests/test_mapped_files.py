# SPDX-License-Identifier: Apache-2.0
"""`relive.mapped_files`: rows outlive the file, and no descriptor stays open."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from processes import num_open_below
from relive.mapped_files import map_readonly


class TestMapReadonly:
    def test_bytes_stay_readable_when_the_file_is_gone(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(bytes(range(200)))
        mapped = map_readonly(path)
        path.unlink()
        view = mapped[50:]
        del mapped
        gc.collect()
        assert view[:3].tolist() == [50, 51, 52]
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1

    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"x" * 5000)
        before = num_open_below(tmp_path)
        mapped = [map_readonly(path) for _ in range(20)]
        assert num_open_below(tmp_path) == before
        assert all(one.sum() == 5000 * ord("x") for one in mapped)

    def test_an_empty_file_is_an_empty_array(self, tmp_path: Path) -> None:
        (tmp_path / "a").touch()
        assert map_readonly(tmp_path / "a").shape == (0,)
        assert map_readonly(tmp_path / "a").dtype == np.uint8

    def test_a_missing_file_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            map_readonly(tmp_path / "a")
