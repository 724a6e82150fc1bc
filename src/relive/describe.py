# SPDX-License-Identifier: Apache-2.0
"""The record of a trajectory that no file has yet."""

from __future__ import annotations

import time
import uuid

from relive.formats.layouts import layout_of
from relive.numbering import Numbering
from relive.record import NOTHING, Record
from relive.snapshot import Snapshot

__all__ = ["describe"]


def describe(snapshot: Snapshot, numbering: Numbering) -> Record:
    """Return the record of a trajectory that no file has yet.

    Args:
        snapshot: The trajectory.
        numbering: Its ids.
    """
    return Record(
        trajectory_id=numbering.next_trajectory_id,
        uuid=str(uuid.uuid4()),
        first_row_id=numbering.next_row_id,
        shape=snapshot.shape,
        num_epochs=snapshot.num_epochs,
        max_episode_length=snapshot.max_episode_length,
        model_weights_id=snapshot.model_weights_id,
        format="",
        layout=layout_of(snapshot),
        texts=snapshot.texts() or NOTHING,
        run_lengths=snapshot.run_lengths(),
        version_range=snapshot.version_range(),
        added_at=time.time(),
    )
