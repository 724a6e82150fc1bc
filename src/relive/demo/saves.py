# SPDX-License-Identifier: Apache-2.0
"""What a run of the demo leaves on disk, and how it goes on from there.

::

    relive-demo/
      buffer/                 the buffer's own store, written while the run goes on
      saves/000003/buffer/    a checkpoint of the buffer
      saves/000003/agent.pt   agent, optimisers, random states, counters; written last
      learning_curve.png

A save is complete once its agent.pt is there, and only then the one before it is removed: a
run that is killed at any moment leaves a save to go on from.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relive import TrajectoryReplayBuffer, files
from relive.errors import (
    CorruptFileError,
    FormatVersionError,
    MissingFileError,
    StorageWriteError,
    StoreExistsError,
)
from relive.locks import LOCK_NAME

__all__ = ["RunFolder"]

_VERSION = 1
_AGENT_FILE = "agent.pt"
_SAVE_NAME = re.compile(r"\d{6}")
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path
    """Where it lies; created when something is first written."""

    @property
    def buffer(self) -> Path:
        """Return where the buffer stores trajectories."""
        return self.path / "buffer"

    @property
    def saves(self) -> Path:
        """Return the folder of the saves."""
        return self.path / "saves"

    @property
    def curve(self) -> Path:
        """Return where the learning curve lies."""
        return self.path / "learning_curve.png"

    def check_free(self, *, overwrite: bool) -> None:
        """Make sure that a new run would not mix with an old one, or with anything else.

        Args:
            overwrite: Whether a run in the folder may be replaced.

        Raises:
            StoreExistsError: It is no folder, a run has written here, or other things lie here.
            StorageWriteError: The disk refused.
        """
        if not files.exists(self.path):
            return
        if not self.path.is_dir():
            raise StoreExistsError(
                f"{str(self.path)!r} is no folder, but a run needs one; give another with --dir",
                path=str(self.path),
            )
        if self._holds_a_run():
            if overwrite:
                return
            raise StoreExistsError(
                f"folder {str(self.path)!r} holds a run of the demo, but a new run needs one "
                "without; add --resume to go on with that run, --overwrite to start again, "
                "or --dir for another folder",
                path=str(self.path),
            )
        try:
            names = files.list_names(self.path)
        except OSError as error:
            raise _refused(self.path, error) from error
        if names:
            shown = ", ".join(map(repr, names[:_MOST_NAMES])) + ", ..." * (len(names) > _MOST_NAMES)
            raise StoreExistsError(
                f"folder {str(self.path)!r} holds {shown} and no run of the demo, but a new run "
                "needs an empty folder; give another with --dir",
                path=str(self.path),
            )

    def _holds_a_run(self) -> bool:
        return files.exists(self.buffer / LOCK_NAME) or bool(self._complete_saves())

    def remove_saves(self) -> None:
        """Forget the saves and the curve; the buffer's store is left to the buffer.

        Raises:
            StorageWriteError: The disk refused.
        """
        try:
            for save in self._save_folders():
                files.remove_folder(save)
            files.remove(self.curve)
        except OSError as error:
            raise _refused(self.saves, error) from error

    def newest_save(self) -> Path:
        """Return the newest complete save.

        Raises:
            MissingFileError: There is none.
        """
        if complete := self._complete_saves():
            return complete[-1]
        raise MissingFileError(
            f"folder {str(self.path)!r} has no complete save of the demo, but --resume needs one; "
            "leave --resume out to start a run, with --overwrite if one was cut short here",
            path=str(self.saves),
        )

    def write_save(self, buffer: TrajectoryReplayBuffer, state: dict[str, Any]) -> Path:
        """Save the buffer and everything else that the run needs to go on.

        Args:
            buffer: Saved as a checkpoint beside the state.
            state: Tensors and plain containers.

        Returns:
            The folder of the save.

        Raises:
            StorageWriteError: The disk refused; the save before this one is untouched.
        """
        import torch

        earlier = self._save_folders()
        save = self.saves / f"{1 + max([int(each.name) for each in earlier], default=0):06d}"
        buffer.save_checkpoint(str(save / "buffer"))
        try:
            files.write_atomic(
                save / _AGENT_FILE,
                lambda file: torch.save({"version": _VERSION, **state}, file),
                sync=False,
            )
            for each in earlier:
                files.remove_folder(each)
        except OSError as error:
            raise _refused(save, error) from error
        return save

    def read_state(self, save: Path) -> dict[str, Any]:
        """Read back the state that `write_save` was given.

        Raises:
            CorruptFileError: The file is cut, or not ours.
            FormatVersionError: It is of a version that this release does not know.
        """
        import torch

        path = save / _AGENT_FILE
        try:
            state = torch.load(io.BytesIO(files.read_bytes(path)), weights_only=True)
            version = state.pop("version")
        except Exception as error:  # torch names no class for what it raises on foreign bytes
            raise CorruptFileError(
                f"file {str(path)!r} is not a readable save of the demo: {error}; "
                "start again with --overwrite",
                path=str(path),
            ) from error
        if version != _VERSION:
            raise FormatVersionError(
                f"file {str(path)!r} has version {version!r}, but this release reads {_VERSION}; "
                "resume with the release that wrote it",
                path=str(path),
            )
        return dict(state)

    def _complete_saves(self) -> list[Path]:
        return [each for each in self._save_folders() if files.exists(each / _AGENT_FILE)]

    def _save_folders(self) -> list[Path]:
        if not files.exists(self.saves):
            return []
        names = files.list_names(self.saves)
        return [self.saves / name for name in names if _SAVE_NAME.fullmatch(name)]


def _refused(path: Path, error: OSError) -> StorageWriteError:
    return StorageWriteError(
        f"{str(path)!r} could not be written: {error.strerror}; "
        "free space or choose another folder with --dir",
        path=str(path),
        errno=error.errno,
    )
