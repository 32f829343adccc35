"""CSV, Parquet and frames become the same arrays on every node, or are refused by column and row."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from shoal.core.algorithm.learner import TrainConfig
from shoal.core.errors import InvalidJob, ShoalError, StorageFailed
from shoal.extras import install_hint
from shoal.learn import ArrayLearner, SklearnLearner, TorchLearner
from shoal.learn.arrays.array_batches import ArraySource
from shoal.learn.data.batches import BatchOptions, source_of
from shoal.learn.data.table import table

ROWS: dict[str, list[Any]] = {
    "outcome": ["ill", "well", "ill"],
    "weight": [70.5, None, 62.0],
    "age": [50, 61, 33],
    "sex": ["f", "m", "f"],
    "smokes": [True, False, True],
}
GIVEN: dict[str, Any] = {
    "categories": {"sex": ["m", "f", "x"], "smokes": [False, True]},
    "classes": ["well", "ill"],
    "fill": {"weight": 65},
}
X = [[50, 0, 1, 0, 0, 1, 70.5], [61, 1, 0, 0, 1, 0, 65], [33, 0, 1, 0, 0, 1, 62]]


def csv_file(folder: Path, rows: dict[str, list[Any]] = ROWS) -> Path:
    path = folder / "rows.csv"
    lines = [
        ",".join(rows),
        *(",".join("" if v is None else str(v) for v in row) for row in zip(*rows.values(), strict=True)),
    ]
    path.write_text("\ufeff" + "\r\n".join(lines) + "\r\n\r\n")
    return path


def parquet_file(folder: Path) -> Path:
    pq.write_table(pa.table(ROWS), folder / "rows.parquet")
    return folder / "rows.parquet"


SOURCES: dict[str, Any] = {
    "pandas": lambda folder: pd.DataFrame(ROWS),
    "pandas-types": lambda folder: pd.DataFrame(ROWS).convert_dtypes().astype({"sex": "category", "age": "Int16"}),
    "polars": lambda folder: pl.DataFrame(ROWS).with_columns(pl.col("sex").cast(pl.Categorical)),
    "pyarrow": lambda folder: pa.table(ROWS),
    "datasets": lambda folder: datasets.Dataset.from_dict(ROWS),
    "mapping": lambda folder: ROWS,
    "parquet": parquet_file,
    "parquet-text": lambda folder: str(parquet_file(folder)),
    "csv": csv_file,
}


@pytest.mark.parametrize("source", SOURCES)
def test_all_sources_give_the_same_arrays(source: str, tmp_path: Path) -> None:
    """Columns by name, categories and classes as declared."""
    given = dict(GIVEN)
    if source == "csv":
        given["categories"] = {**GIVEN["categories"], "smokes": ["False", "True"]}
    x, y = table(SOURCES[source](tmp_path), "outcome", **given)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert x.tolist() == X
    assert y.tolist() == [1, 0, 1]


def test_columns_come_in_the_given_order() -> None:
    x, y = table(ROWS, "age", columns=["smokes", "weight"], fill=0)
    assert x.tolist() == [[1, 70.5], [0, 0], [1, 62]]
    assert (y.dtype, y.tolist()) == (np.float32, [50, 61, 33])


def test_the_order_of_columns_in_a_file_does_not_matter(tmp_path: Path) -> None:
    turned = dict(reversed(ROWS.items()))
    given = {**GIVEN, "categories": {**GIVEN["categories"], "smokes": ["False", "True"]}}
    assert table(csv_file(tmp_path, turned), "outcome", **given)[0].tolist() == X


@pytest.mark.parametrize(
    ("change", "given", "message", "hint"),
    [
        ({}, {"fill": None}, "'weight' has no value in row 1 .1 row of 3.", r"fill={'weight': …}"),
        ({}, {"categories": {"sex": ["m", "f"]}, "fill": 0, "columns": ["smokes", "sex", "age"]}, "", ""),
        ({}, {"categories": {"smokes": [False, True]}}, "'sex' holds texts .'f', 'm'.", r"categories={'sex': \[…\]}"),
        (
            {"sex": ["f", "d", "m"]},
            {},
            r"'sex' has 'd' in row 1, none of its categories \['m'",
            "same order",
        ),
        ({"sex": ["f", None, "m"]}, {}, "'sex' has no value in row 1", r"fill={'sex': …}"),
        ({"outcome": ["ill", None, "well"]}, {}, "the target 'outcome' has no value in row 1", "leave such rows out"),
        ({"outcome": ["ill", "odd", "well"]}, {}, r"'outcome' has 'odd' in row 1, none of its classes", "same order"),
        ({}, {"classes": None}, "the target 'outcome' holds texts, such as 'ill'", "declare classes"),
        ({"when": [np.datetime64("2026-01-01")] * 3}, {}, "'when' holds datetime64", "turn it into numbers"),
        ({}, {"columns": ["age", "hight"]}, "no column 'hight'", "it has outcome, weight"),
        ({}, {"columns": []}, "no column but 'outcome'", "nothing to learn from"),
    ],
)
def test_what_nodes_could_read_otherwise_is_refused(change: Any, given: Any, message: str, hint: str) -> None:
    rows = {name: np.array(column) if name == "when" else column for name, column in (ROWS | change).items()}
    arguments = {name: value for name, value in (GIVEN | given).items() if value is not None}
    if not message:
        assert table(rows, "outcome", **arguments)[0].shape == (3, 4)
        return
    with pytest.raises(InvalidJob, match=message) as caught:
        table(rows, "outcome", **arguments)
    assert caught.value.code == "learner.table"
    assert re.search(hint, caught.value.hint)


def test_a_missing_category_is_filled_by_one() -> None:
    x, _ = table({"sex": ["f", None], "y": [0, 1]}, "y", categories={"sex": ["m", "f"]}, fill={"sex": "m"})
    assert x.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(InvalidJob, match="'sex' has no value"):
        table({"sex": ["f", None], "y": [0, 1]}, "y", categories={"sex": ["m", "f"]}, fill=0)


@pytest.mark.parametrize("kind", ["string", "category", "Int64"])
def test_pandas_own_mark_for_missing_values(kind: str) -> None:
    values = [3, None, 4] if kind == "Int64" else ["f", None, "m"]
    frame = pd.DataFrame({"a": pd.Series(values, dtype=kind), "y": [1, 2, 3]})
    with pytest.raises(InvalidJob, match="'a' has no value in row 1"):
        table(frame, "y", categories=None if kind == "Int64" else {"a": ["f", "m"]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not name the columns"),
        ("1,2,3\n4,5,6\n", "does not name the columns"),
        ("a,a\n1,2\n", "does not name the columns"),
        ("a,b\n1,2,3\n", "line 2: 3 cells for 2 columns"),
        ("a,b\n", "has no row but the first"),
    ],
)
def test_a_file_without_form_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InvalidJob, match=message):
        table(tmp_path / "a.csv", "a")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"cannot read .*gone\.csv"):
        table(tmp_path / "gone.csv", "a")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InvalidJob, match=r"cannot read .*bad\.parquet"):
        table(tmp_path / "bad.parquet", "a")
    (tmp_path / "bad.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(StorageFailed, match=r"cannot read .*bad\.csv"):
        table(tmp_path / "bad.csv", "a")
    with pytest.raises(InvalidJob, match=r"must end|a\.xls is not a table"):
        table("a.xls", "a")
    with pytest.raises(InvalidJob, match="int is not a table"):
        table(7, "a")


def test_tabs_separate_too(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("b\ta\n 1\t2\n\t4\n")
    x, y = table(tmp_path / "a.tsv", "a", fill=9)
    assert (x.tolist(), y.tolist()) == ([[1], [9]], [2, 4])


def test_parquet_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet_file(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ShoalError, match=r"rows\.parquet needs pyarrow") as caught:
        table(path, "outcome")
    assert caught.value.hint == install_hint("tables")


COLUMNS = {"a": [0.0, 1, 2, 3], "b": [1, 0, 1, 0]}
FRAMES = [pd.DataFrame(COLUMNS), pl.DataFrame(COLUMNS)]


@pytest.mark.parametrize("frame", FRAMES, ids=["pandas", "polars"])
def test_learners_take_frames_whose_parts_are_told(frame: Any) -> None:
    """Inputs and target apart; a whole frame does not say which is which."""

    def slope(p: Any, batch: Any) -> Any:
        return 0.0, {"w": batch[0].T @ (batch[0] @ p["w"] - batch[1])}

    data = (frame[["a"]], frame["b"])
    learners = [
        lambda data: TorchLearner(lambda: nn.Linear(1, 2), data),
        lambda data: SklearnLearner(SGDClassifier(), data, classes=[0, 1]),
        lambda data: ArrayLearner(lambda seed: {"w": np.zeros(1)}, data, gradient=slope),
    ]
    for make in learners:
        assert make(data).train(TrainConfig(batch_size=2)).weight == 4
        with pytest.raises(InvalidJob, match=r"a DataFrame is not training data") as caught:
            make(frame)
        assert "table(frame, target=…)" in caught.value.hint
    batch = next(TorchLearner(lambda: nn.Linear(1, 2), data).train_data.epoch(0, None)).data
    assert (batch[0].dtype, batch[1].dtype) == (torch.float32, torch.int64)
    with pytest.raises(InvalidJob, match="text and objects"):
        TorchLearner(lambda: nn.Linear(1, 2), (pd.DataFrame(ROWS)[["sex"]], frame["b"]))


def test_datasets_are_taken_as_rows() -> None:
    """A row of lists is a row of tensors, or of arrays; a format of one's own stays."""
    rows = datasets.Dataset.from_dict({"x": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "y": [1, 0, 1]})
    for given in (rows, rows.with_format("torch")):
        batch = next(source_of(given, BatchOptions(torch.device("cpu"))).epoch(2, None)).data
        assert (batch["x"].tolist(), batch["y"].tolist()) == ([[0, 1], [2, 3]], [1, 0])
    batch = next(ArraySource(rows).epoch(2, None))
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[0, 1], [2, 3]], [1, 0])
    turned = rows.with_transform(lambda some: {"z": [torch.tensor(1.0) for _ in some["y"]]})
    assert set(next(source_of(turned, BatchOptions(torch.device("cpu"))).epoch(2, None)).data) == {"z"}
    with pytest.raises(InvalidJob, match="inputs and targets"):
        SklearnLearner(SGDClassifier(), rows, classes=[0, 1])
