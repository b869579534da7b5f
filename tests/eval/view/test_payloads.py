"""Text of models and strangers is text: forty payloads in every field run nothing and break no page."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser

from eval.view.export import export_site
from eval.view.index import Index
from eval.view.server import SiteServer
from eval.view.site import Site
from retroformer.__main__ import main
from retroformer.coach.stories.runs import open_runs
from retroformer.files.text import storable
from retroformer.method.records import (
    Author,
    ChatMessage,
    FunctionCall,
    Key,
    Message,
    Reflection,
    Sampling,
    Step,
    Task,
    ToolCall,
    Usage,
)
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store
from tests.eval.view.serving import serving
from tests.support.stories import attempt

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><circle r=9 /></svg>",
    "<svg><script>alert(1)</script></svg>",
    '"><script>alert(1)</script>',
    "'><img src=//example.org/x>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus=alert(1) '",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</pre></details></main><h1>Owned</h1>",
    "<!-- <script>alert(1)</script>",
    "]]><script>alert(1)</script>",
    "<iframe src=javascript:alert(1)></iframe>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "javascript:alert(1)",
    "<a href='javascript:alert(1)'>x</a>",
    "<base href=//example.org/>",
    "<meta http-equiv=refresh content='0;url=//example.org'>",
    "<link rel=stylesheet href=//example.org/x.css>",
    "<style>body{display:none}</style>",
    "<object data=//example.org/x></object>",
    "<form action=//example.org><input name=q></form>",
    "<math><mtext><script>alert(1)</script></mtext></math>",
    "<details open ontoggle=alert(1)>",
    "{{ 7*7 }}{{ config }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "${7*7}#{7*7}",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "\u202eevil\u202c\u2066isolate\u2069",
    "zero\u200bwidth\ufeff",
    "..\u2215..\u2215etc\u2215passwd",
    "../../../../etc/passwd",
    "%2e%2e%2f%00",
    "'; DROP TABLE story; --",
    '" OR 1=1 --',
    'words MATCH "x" NEAR/2 ^*',
    "x" * 20_000,
    "\u0001\u0002\x7f\r\n\r\nHTTP/1.1 200 OK",
)
PAGES = ("", "report", "stories", "stories?q=script", "compare?show=neither", "learning", "review")


def write(folder: Path, texts: tuple[str, ...], name: str) -> Path:
    """Write a story for each text, with the text in every field."""
    folder.mkdir(parents=True)
    with closing(Store(f"sqlite:///{folder}/experience.db", storable(name))) as store:
        for number, raw in enumerate(texts):
            text = storable(raw)
            for arm in (f"collect {text}"[:400], f"eval/{text}"[:400]):
                store.declare(arm, {})
                # A name has at most 500 bytes.
                task = Task(id=f"{number} {text}".encode()[:500].decode(errors="ignore"), environment=text, split=text)
                first, retry = Key(arm=arm, task_id=task.id), Key(arm=arm, task_id=task.id, trial=1)
                step = Step(thought=text, action=text, observation=text)
                call = ToolCall(id=text, function=FunctionCall(name=text, arguments=text))
                said = (ChatMessage(role="assistant", content=text, tool_calls=(call,), name=text),)
                played = attempt("look", task=task).model_copy(
                    update={"opening": text, "steps": (step, step), "messages": said}
                )
                reflection = Reflection(
                    text=text,
                    prompt=(Message(role=text, content=text),),
                    author=Author(endpoint=text, model=text, adapter_sha256=text),
                    sampling=Sampling(max_new_tokens=9),
                    usage=Usage(calls=1),
                )
                store.add(
                    [
                        NewTrajectory(first, played),
                        NewReflection(retry, 0, reflection),
                        NewTrajectory(retry, played),
                        NewInvalid(retry, text, Usage()),
                    ]
                )
                store.marks.add(arm, task.id, "leaking", text[:4000])
    return folder


@contextmanager
def served(folder: Path, index: Path) -> Iterator[tuple[Site, str]]:
    with open_runs(folder) as runs:
        sources = list(runs)
        site = Site(sources, Index(sources, index))
        site.index.update()
        with serving(SiteServer(site, 0)) as address:
            yield site, address


def elements(browser: Browser, site: Site, address: str) -> set[str]:
    """Open every page and story; return the names of their elements with those of their attributes."""
    page, seen, complaints, outside = browser.new_page(viewport={"width": 360, "height": 700}), set[str](), [], []
    page.set_default_timeout(120_000)
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: complaints.append(message.text))
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else outside.append(request.url)
    )
    with site.index.connect() as connection:
        stories = [
            dict(row) for row in connection.execute("SELECT run, arm, task FROM story WHERE arm LIKE 'collect%'")
        ]
    paths = [
        *PAGES,
        *(f"{kind}?{urlencode(story)}{at}" for story in stories for kind, at in (("story", ""), ("prompt", "&at=1.0"))),
    ]
    for path in paths:
        answer = page.goto(f"{address}/{path}")
        assert answer is not None
        assert answer.status == 200, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        names = "e => e.map(x => x.localName + ' ' + x.getAttributeNames().filter(n => n != 'open').sort().join(' '))"
        seen |= set(page.eval_on_selector_all("body *", names))
        text = page.inner_text("body")
        assert not set(text) & set("\x1b\x07\x9b\u202e\u2066\u200b\ufeff"), path
        assert "49" not in text or "{{ 7*7 }}" in text, path
    page.close()
    assert complaints == []
    assert outside == []
    return seen


@pytest.mark.slow
def test_no_payload_runs_or_breaks_a_page(browser: Browser, tmp_path: Path) -> None:
    harmless = tuple(f"word {number}\nand more" for number in range(2))
    with served(write(tmp_path / "a", harmless, "plain"), tmp_path / "a.db") as (site, address):
        expected = elements(browser, site, address)
    with served(write(tmp_path / "b", PAYLOADS, PAYLOADS[0]), tmp_path / "b.db") as (site, address):
        assert elements(browser, site, address) - expected == set()


@pytest.mark.slow
def test_no_payload_runs_or_breaks_the_file(browser: Browser, tmp_path: Path) -> None:
    harmless, seen = tuple(f"word {number}\nand more" for number in range(2)), dict[str, set[str]]()
    for name, texts, run in (("harmless", harmless, "plain"), ("hostile", PAYLOADS, PAYLOADS[0])):
        file = tmp_path / f"{name}.html"
        with open_runs(write(tmp_path / name, texts, run)) as runs:
            export_site(runs, file, 100, tmp_path / f"{name}.db")
        seen[name] = elements_of_file(browser, file.as_uri())
    assert seen["hostile"] - seen["harmless"] == set()


def elements_of_file(browser: Browser, url: str) -> set[str]:
    """Open a file and all that is folded in it; return the names of its elements with those of their attributes."""
    page, complaints, requests = browser.new_page(viewport={"width": 360, "height": 700}), list[str](), list[str]()
    page.set_default_timeout(120_000)
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    names = "e => e.map(x => x.localName + ' ' + x.getAttributeNames().filter(n => n != 'open').sort().join(' '))"
    seen = set(page.eval_on_selector_all("body *", names))
    assert not set(page.inner_text("body")) & set("\x1b\x07\x9b\u202e\u2066\u200b\ufeff")
    page.close()
    assert complaints == []
    assert [request for request in requests if not request.startswith("data:")] == [url]
    return seen


def test_no_payload_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "b", PAYLOADS, "plain")
    main(["show", str(folder)])
    main(["show", str(folder), "--task", f"29 {PAYLOADS[29]}"])
    shown = capsys.readouterr().out
    assert "\\u001b[2J" in shown
    assert not set(shown) & set("\x1b\x07\x9b\u202e\u2066\u200b\ufeff\x01\x7f\r")
