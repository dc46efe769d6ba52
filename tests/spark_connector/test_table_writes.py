"""Large Arrow batches are divided into pieces that are alike, and nothing of them is lost."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import metatxn
from spark_connector.options import TOPIC_COLUMN
from spark_connector.table_writes import PIECE_BYTES, _by_topic, pieces


@given(rows=st.integers(0, 5000), width=st.integers(0, 5000))
def test_pieces_are_the_batch(rows: int, width: int) -> None:
    batch = pa.RecordBatch.from_pydict({"id": list(range(rows)), "text": ["x" * width] * rows})
    divided = list(pieces(batch))
    assert all(piece.num_rows for piece in divided)
    assert pa.Table.from_batches(divided, batch.schema).equals(pa.Table.from_batches([batch]))


@pytest.mark.parametrize("share", [0.1, 1, 1.05, 2.05, 10.05])
def test_no_piece_is_a_small_rest(share: float) -> None:
    """A rest of a few rows would cost as much as a whole piece, when it is divided, sent and read."""
    rows = round(share * PIECE_BYTES / 100)
    batch = pa.RecordBatch.from_pydict({"text": pa.array(["x" * 95] * rows)})
    sizes = [piece.nbytes for piece in pieces(batch)]
    assert max(sizes) < 2 * PIECE_BYTES
    assert min(sizes) > 0.9 * max(sizes)


def test_a_row_without_a_topic_is_an_error() -> None:
    """It would be in no topic, and the job would succeed."""
    batch = pa.RecordBatch.from_pydict({TOPIC_COLUMN: ["orders", None, "orders"], "id": [1, 2, 3]})
    with pytest.raises(metatxn.InvalidArgument, match="null in 1 rows"):
        list(_by_topic(batch))
