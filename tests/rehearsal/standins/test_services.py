"""The stand-ins of services, each a process, asked by LiteRegistry's own clients."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from literegistry import ServerRegistry, get_kvstore
from literegistry_tool_client import (
    FetchClient,
    JudgeClient,
    RewardModelClient,
    SearchClient,
    TerminalExecutionClient,
)

from primebeaker.errors import UserError
from primebeaker.rehearsal.standins.services.apps import verdict
from primebeaker.rehearsal.standins.services.corpus import Ranking, documents_of

#: Kind -> the name it registers under.
NAMES = {"web-search": "search", "judge": "judge", "model": "/weka/models/reward", "terminal": "terminal"}


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URL of each stand-in, as it stands in the registry."""
    folder = tmp_path_factory.mktemp("standins")
    registry = f"sqlite://{folder}/registry.sqlite3"
    processes = {}
    for kind, name in NAMES.items():
        words = [kind, f"--name={name}", f"--registry={registry}", f"--folder={folder / kind}"]
        processes[kind] = subprocess.Popen(
            [sys.executable, "-m", "primebeaker.rehearsal.standins.services", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    try:
        for process in processes.values():
            assert re.match(r"stand-in .+ serves .+ on port \d+", process.stdout.readline())
        roster = asyncio.run(ServerRegistry(store=get_kvstore(registry)).roster())["servers"]
        yield {
            **{entry["metadata"]["kind"]: entry["uri"] for entry in roster},
            "names": {entry["metadata"]["kind"]: entry["metadata"]["model_path"] for entry in roster},
            "folder": str(folder),
        }
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.communicate(timeout=60)


def test_real_clients_are_answered_and_counted(addresses) -> None:
    async def ask() -> tuple:
        search = f"{addresses['web-search']}/search"
        return await asyncio.gather(
            SearchClient(search).execute(query="echo of a rehearsal", num_results=2),
            FetchClient(local_search_server_url=search).execute(url="https://example.org/any"),
            JudgeClient(f"{addresses['judge']}/judge").execute(
                input="q", output="It is 42.", rubrics=["The answer is: 42", "The answer is: 43"], model="m"
            ),
            RewardModelClient(NAMES["model"], f"{addresses['model']}/classify").execute(
                messages=[{"role": "assistant", "content": "x" * 200}]
            ),
            TerminalExecutionClient(f"{addresses['terminal']}/terminal").execute(
                command="grep b | wc -l", contents="a\nb\n"
            ),
        )

    assert addresses["names"] == NAMES
    found, page, judged, scored, ran = asyncio.run(ask())
    assert found["success"] is True
    assert [hit["title"] for hit in found["data"]["organic"]] == ["Stand-in: echo", "Stand-in: rehearsal"]
    assert page["data"] == {
        "title": "https://example.org/any",
        "content": "A stand-in page of a rehearsal.",
        "url": "https://example.org/any",
    }
    assert [judgment["label"] for judgment in judged["judgments"]] == ["pass", "fail"]
    assert scored["data"][0]["probs"] == [0.5, 0.5]
    assert (ran["stdout"].strip(), ran["exit_code"]) == ("1", 0)
    calls = {kind: Path(addresses["folder"], kind, "calls.jsonl").read_text().splitlines() for kind in NAMES}
    assert {kind: len(lines) for kind, lines in calls.items()} == {
        "web-search": 2,
        "judge": 1,
        "model": 1,
        "terminal": 1,
    }
    assert json.loads(calls["judge"][0]) == {"path": "/judge", "status": 200}


@pytest.mark.parametrize(
    ("output", "rubric", "label"),
    [
        ("The bird is  Heron 7.", "The final answer is: heron 7", "pass"),
        ("A carp.", "The final answer is: heron 7", "fail"),
        ("", "The final answer is: heron 7", "fail"),
        ("It names three causes and two remedies.", "Names three causes", "pass"),
        ("Something else.", "Names three causes", "fail"),
        ("", "", "fail"),
    ],
)
def test_the_judge_looks_for_the_words_of_the_rubric(output: str, rubric: str, label: str) -> None:
    assert verdict(output, rubric) == label


def test_documents_are_ranked_by_rare_words_and_named_as_the_real_service_does(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    rows = [{"id": "x", "text": "grey heron"}, {"contents": "grey carp, grey pike"}, {"docid": "z", "content": "moss"}]
    corpus.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    documents = documents_of(corpus)
    assert [one["docid"] for one in documents] == ["x", "2", "z"]
    ranking = Ranking(documents)
    assert [name for name, _ in ranking.search("grey heron", 5)] == ["x", "2"]
    assert [name for name, _ in ranking.search("grey heron", 1)] == ["x"]
    assert ranking.search("nothing of it", 5) == []


@pytest.mark.parametrize("line", ["no JSON", "[]", '{"title": "no text"}'])
def test_a_corpus_that_the_real_service_would_refuse_is_told_with_its_line(line: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(f'{{"contents": "a"}}\n{line}\n')
    with pytest.raises(UserError, match=rf"^{re.escape(str(corpus))}:2: expected "):
        documents_of(corpus)
