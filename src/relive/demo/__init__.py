# SPDX-License-Identifier: Apache-2.0
"""The demo: soft actor-critic on a Gymnasium environment, fed by a relive buffer.

It is also an example to copy from. Read the files in this order::

    settings.py      what a run is told
    sac.py           the agent: two networks and one update; knows nothing of relive
    rollout.py       envs -> parts -> channel -> collector -> trajectories, in two threads
    train.py         the loop: take a trajectory, add it, sample, learn, publish weights
    saves.py         what a run leaves on disk, and how it goes on from there
    history.py       how far a run has come, and what it has reached on the way
    evaluation.py    returns: of the evaluation episodes and of the training episodes
    environments.py  making the environment, or saying why it cannot be
    progress.py      what the person at the terminal, or reading a log, sees
    plot.py          the learning curve as a picture
    interrupt.py     Ctrl+C as a question that the loop asks
    report.py        what a run says in the end
    run.py           one run from the first folder to the closing words

Start it with `relive demo`.
"""

from __future__ import annotations

__all__: list[str] = []
