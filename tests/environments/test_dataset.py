"""The dataset loader: sources, splits, rows that survive exactly, and errors by file and row."""

import json
import tracemalloc

import datasets
import pytest

from primebeaker.environments._shared.dataset import expanded_row, load_rows
from primebeaker.errors import UserError


def load(path, split="train"):
    return load_rows("label", str(path), split)


def rows_of(path, split="train"):
    loaded = load(path, split).rows
    return [dict(loaded[number]) for number in range(len(loaded))]


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_survive_whatever_other_rows_look_like(tmp_path):
    rows = [
        {"question": "a", "answer": "p", "web_pages": {"http://x/a": "A"}, "mixed": ["a", 1]},
        {"question": "b", "answer": 3, "web_pages": {"http://x/b": "B"}, "late": {"k": None}, "big": 2**70},
        {"question": "c", "answer": True, "mixed": [{"x": 1.5}, None], "text": "é\ud800"},
    ]
    path = lines(tmp_path / "rows.jsonl", *rows)
    loaded = rows_of(path)
    for number, (row, read) in enumerate(zip(rows, loaded, strict=True)):
        assert read == {**row, "prompt": [{"role": "user", "content": row["question"]}], "example_id": number}
        assert type(read["answer"]) is type(row["answer"])
    # Readers that take the stored form get the same rows.
    assert [expanded_row(row) for row in load(path).rows.to_list()] == loaded
    shuffled = load(path).rows.shuffle(seed=1).select([0, 1, 2])
    assert sorted(row["question"] for row in shuffled) == ["a", "b", "c"]


def test_every_source_gives_the_same_rows(tmp_path):
    rows = [{"question": "a", "answer": "x"}, {"question": "b", "answer": "y"}]
    plain = datasets.Dataset.from_list(rows)
    lines(tmp_path / "rows.jsonl", *rows)
    (tmp_path / "array.json").write_text("\n " + json.dumps(rows))
    (tmp_path / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(json.dumps(row).encode() for row in rows))
    plain.to_parquet(tmp_path / "rows.parquet")
    plain.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": plain, "test": plain}).save_to_disk(str(tmp_path / "saved_dict"))
    folder = tmp_path / "folder" / "data"
    folder.mkdir(parents=True)
    plain.select([0]).to_parquet(folder / "train-00000-of-00002.parquet")
    plain.select([1]).to_parquet(folder / "train-00001-of-00002.parquet")
    for name in ("rows.jsonl", "array.json", "lines.json", "bom.txt", "rows.parquet", "saved", "saved_dict", "folder"):
        assert [(row["question"], row["answer"]) for row in rows_of(tmp_path / name)] == [("a", "x"), ("b", "y")], name


def test_a_misspelt_path_is_never_a_hub_request(tmp_path):
    lines(tmp_path / "rows.jsonl", {"question": "a", "answer": "x"})
    for name in (tmp_path / "row.jsonl", "./nope", "~/nope", "a/b/c", "nope.jsonl", "x/nope.parquet"):
        with pytest.raises(UserError, match="file not found"):
            load(name)
    with pytest.raises(UserError, match=r"did you mean 'rows\.jsonl'"):
        load(tmp_path / "row.jsonl")


def test_a_split_that_is_not_there_lists_what_is(tmp_path):
    plain = datasets.Dataset.from_list([{"question": "a", "answer": "x"}])
    datasets.DatasetDict({"train": plain, "test": plain}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(UserError, match="has the splits train, test"):
        load(tmp_path / "saved", "dev")
    folder = tmp_path / "folder"
    folder.mkdir()
    lines(folder / "train.jsonl", {"question": "a", "answer": "x"})
    with pytest.raises(UserError, match=r"found train\.jsonl"):
        load(folder, "dev")


def test_mixed_splits_in_a_plain_file_choose_rows(tmp_path, caplog):
    base = {"answer": "x"}
    path = lines(
        tmp_path / "rows.jsonl",
        {"question": "1", "split": "train", **base},
        {"question": "2", "split": "test"},
        {"question": "3", **base},
    )
    assert [row["question"] for row in rows_of(path)] == ["1", "3"]
    with pytest.raises(UserError, match="missing or blank"):
        load(path, "test")
    lines(path, {"question": "1", "split": "a", **base}, {"question": "2", "split": "b", **base})
    with pytest.raises(UserError, match=r"the rows say 'a' \(1\), 'b' \(1\)"):
        load(path)
    lines(path, {"question": "1", "split": "test", **base})
    assert len(load(path).rows) == 1
    assert sum("its rows say split 'test'" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "p", "question": "q"}, [{"role": "user", "content": "p"}]),
        ({"prompt": "", "messages": [], "question": " ", "input": "i"}, [{"role": "user", "content": "i"}]),
        (
            {"messages": [{"role": "developer", "content": "s", "name": None}, {"role": "user", "content": "u"}]},
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        ),
        (
            {"prompt": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
            [{"role": "assistant", "tool_calls": [{"id": "1"}]}],
        ),
    ],
)
def test_prompts(tmp_path, row, prompt):
    path = lines(tmp_path / "rows.jsonl", {**row, "answer": "x"})
    assert rows_of(path)[0]["prompt"] == prompt


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "x"}, "prompt: missing or empty; accepted columns are prompt, messages, question, input"),
        ({"prompt": {"a": 1}}, "prompt: expected text or a list of messages, found an object"),
        ({"prompt": [{"role": "bot", "content": "x"}]}, "message 1: role 'bot'"),
        ({"prompt": [{"role": "user"}]}, "message 1: no content"),
        ({"prompt": [{"role": "user", "content": 3}]}, "expected content to be text"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, "give 'prompt'"),
        ({"prompt": "p", "answer": ["x"]}, "answer: expected text, a number or a bool, found a list"),
        ({"prompt": "p", "web_pages": {"http://x": 3}}, "web_pages: http://x: expected page text"),
        ({"prompt": "p", "web_pages_json": "["}, "web_pages_json: expected the JSON text"),
        ({"prompt": "p", "info": "["}, "info: expected an object"),
        ({"prompt": "p", "info": {"oai_tools": []}}, "info: oai_tools is not supported"),
        ([1], "row: expected an object, found a list"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_column(tmp_path, row, says):
    path = lines(tmp_path / "rows.jsonl", {"prompt": "p"}, row)
    with pytest.raises(UserError) as caught:
        load(path)
    assert f"{path}:2: " in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "p"}\n{"prompt": }\n', ":2: column 12: not JSON"),
        ('{"prompt": "p", "answer": "a", "answer": "b"}\n', ":1: answer: given twice in one object; keep one of them"),
        ('{"prompt": "p", "w": {"u": [{"k": 1, "k": 1}]}}\n', ":1: w.u[0].k: given twice in one object"),
        ('{"prompt": "p", "info": "{\\"a\\": 1, \\"a\\": 2}"}\n', ":1: info: the key 'a' is given twice in one object"),
        (
            '{"prompt": "p", "web_pages_json": "{\\"u\\": \\"x\\", \\"u\\": \\"y\\"}"}\n',
            ":1: web_pages_json: the key 'u' is",
        ),
        ('{"prompt": "p", "x": NaN}\n', ":1: x: NaN is no JSON number; write null, or leave the key out"),
        ('{"prompt": "p", "info": {"a": [1, -Infinity]}}\n', ":1: info.a[1]: -Infinity is no JSON number"),
        ('{"prompt": "p", "answer": 1e999}\n', ":1: answer: Infinity is no JSON number"),
        ('{"prompt": "p", "x": 1e999}\n', ":1: x: Infinity is no JSON number"),
        (b'{"prompt": "\xff"}\n', ":1: not UTF-8"),
        ("", "no rows in split 'train'"),
        ("\n\n", "no rows in split 'train'"),
        ("[" * 5000 + "\n", ":1: not JSON"),
    ],
)
def test_broken_files(tmp_path, text, says):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load(path)
    assert says in str(caught.value)


def test_array_and_parquet_rows_count_from_one(tmp_path):
    (tmp_path / "rows.json").write_text('[{"prompt": "p"}, {"x": 1}]')
    with pytest.raises(UserError, match=r"rows\.json row 2: prompt"):
        load(tmp_path / "rows.json")
    (tmp_path / "rows.json").write_text('[{"prompt": "p"}, {"prompt": "p", "answer": NaN}]')
    with pytest.raises(UserError, match=r"rows\.json row 2: answer: NaN is no JSON number"):
        load(tmp_path / "rows.json")
    datasets.Dataset.from_list([{"prompt": "p"}, {"prompt": ""}]).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=r"rows\.parquet row 2: prompt"):
        load(tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text('[{"prompt": "p"}, {"prompt": "p", "answer": "a", "answer": "b"}]')
    with pytest.raises(UserError, match=r"rows\.json row 2: answer: given twice in one object"):
        load(tmp_path / "rows.json")


def test_five_problems_are_named_and_the_rest_counted(tmp_path):
    path = lines(tmp_path / "rows.jsonl", *({"x": number} for number in range(9)))
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(caught.value).count("prompt: missing") == 5
    assert str(caught.value).endswith("and 4 more")


def test_missing_answers(tmp_path, caplog):
    path = lines(tmp_path / "rows.jsonl", {"prompt": "p", "answer": "x"}, {"prompt": "p", "answer": " "})
    with pytest.raises(UserError, match=r":2: answer: missing or blank"):
        load(path)
    lines(path, {"prompt": "p"}, {"prompt": "p", "answer": None})
    assert len(load(path).rows) == 2
    assert sum("no row has an answer" in record.message for record in caplog.records) == 1


def test_own_ids_and_tasks(tmp_path):
    path = lines(
        tmp_path / "rows.jsonl",
        {"prompt": "p", "example_id": "a", "task": "judge", "info": {"task": "x", "k": 1}},
        {"prompt": "p", "example_id": "b"},
    )
    first, second = rows_of(path)
    assert (first["example_id"], first["src_id"], second["example_id"]) == (0, "a", 1)
    assert (first["source_task"], "task" in first) == ("judge", False)
    assert first["info"] == {"source_task": "x", "k": 1}
    lines(path, {"prompt": "p", "example_id": 7}, {"prompt": "p", "example_id": 5})
    assert [row["example_id"] for row in rows_of(path)] == [7, 5]


def test_memory_stays_in_proportion_to_the_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("w") as stream:
        for number in range(4000):
            stream.write(json.dumps({"prompt": f"{number} " + "word " * 800, "answer": "x"}) + "\n")
    load(path)
    tracemalloc.start()
    try:
        load(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * path.stat().st_size
