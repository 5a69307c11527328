"""Pipeline stages, page reads and cited URLs."""

import pytest

from primebeaker.environments._shared.commands import browse_of, cat_of, is_fetchable, stage_names, url_is_in_output


@pytest.mark.parametrize(
    ("command", "stages"),
    [
        ("cat", ["cat"]),
        ("/bin/cat x", ["cat"]),
        ("cat | head", ["cat", "head"]),
        ('rg "a|b" | sort', ["rg", "sort"]),
        (r"rg a\|b", ["rg"]),
        ("grep -c x; wc", ["grep", "wc"]),
        ("a && b", ["a", "b"]),
        ("a&b", ["a", "b"]),
        ("(cat)", ["cat"]),
        ("FOO=1 cat", ["FOO=1"]),
        ("head -n 1 > f", ["head"]),
        ('rg "unclosed', ["rg"]),
        ("  ", []),
        ("'my prog' | \"x y\"", ["my prog", "x y"]),
        (r'rg "a\"|b"', ["rg"]),
        ("cat # a | b", ["cat", "b"]),
    ],
)
def test_stages(command, stages):
    assert stage_names(command) == stages


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("browse http://x/a", ("http://x/a", "cat")),
        (" browse  http://x/a | rg a | head ", ("http://x/a", "rg a | head")),
        ("browse http://x/a|head", ("http://x/a", "head")),
        ("browse 'http://x/a'", ("http://x/a", "cat")),
        ("browse a b", None),
        ("browse http://x > f", None),
        ("browse", None),
        ("cat", None),
    ],
)
def test_browse(command, found):
    assert browse_of(command) == found


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("cat asset_1", (["asset_1"], "cat")),
        ("cat a b | rg x", (["a", "b"], "rg x")),
        ("cat -n", (["-n"], "cat")),
        ("cat", None),
        ("cat | head", None),
        ("catx y", None),
    ],
)
def test_cat(command, found):
    assert cat_of(command) == found


@pytest.mark.parametrize("url", ["http://x", "https://x.org/a?b=c#d", "HTTP://x:80/"])
def test_fetchable(url):
    assert is_fetchable(url)


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http:///a", "http://u:p@x/", "file:///etc/passwd", "x", "http://u@x"]
)
def test_not_fetchable(url):
    assert not is_fetchable(url)


@pytest.mark.parametrize(
    ("url", "output", "cited"),
    [
        ("http://x/a", "see http://x/a.", True),
        ("http://x/a", "(http://x/a)", True),
        ("http://x/a", "[t](http://x/a)", True),
        ("http://x/a", "| http://x/a|", True),
        ("http://x/a", {"u": "http://x/a"}, True),
        ("http://x/a_(b)", "http://x/a_(b)", True),
        ("http://x/a_(b)", "(http://x/a_(b))", True),
        ("http://x/a_(b)", "(see http://x/a_(b)).", True),
        ("http://x/a.", "see http://x/a.", False),
        ("http://x/a", "see http://x/ab", False),
        ("ftp://x/a", "ftp://x/a", False),
        ("http://x/a", None, False),
    ],
)
def test_cited_urls(url, output, cited):
    assert url_is_in_output(url, output) is cited
