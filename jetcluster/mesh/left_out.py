"""A node that its cluster was rescued without: what it is told, and the mark that keeps its store from coming back.

Nodes of the old majority may come back with their stores, all of them: by what they know they may elect leaders and
take messages. The first member of the rescued cluster that one of them meets refuses it and says why
(`cluster.meta_rescue`). It then stops, and the mark has it refuse to start again with that store.

One that has been up since before the rescue and follows a leader is not among those: it was declared lost by mistake,
on the other side of a partition. Ending the majority because of that would make things worse, so it says what has
happened, and goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from jetcluster.files import Files, read_text, write_durably

FILE: Final = "LEFT-OUT"
"""In the JetStream folder."""


def mark(directory: Path, text: str, files: Files = os) -> None:
    """Durable once this returns. Raises OSError."""
    write_durably(directory / FILE, text, files)


def marked(directory: Path, files: Files = os) -> str:
    """Why this store must not be used; "" when it may be. Raises OSError."""
    try:
        return read_text(directory / FILE, files, errors="replace").strip()
    except FileNotFoundError:
        return ""


def advice(directory: Path, said: str) -> str:
    """For the log of the node that was left out."""
    return (
        f"this store is of before: {said}. The node must not come back with it, all that it promised is void. Move "
        f"{directory} away: it then starts empty, as a new member that takes the place of the old one. What only this "
        'store has is still in it (docs/membership.md, "A majority is lost")'
    )


def two_clusters(said: str) -> str:
    """For the log of a node that was up when the cluster was rescued without it."""
    return (
        f"there are two clusters: {said}, while this node was up and its side had a leader. Both go on and take "
        "messages. Decide which one is right, stop the nodes of the other one and start them with empty stores"
    )
