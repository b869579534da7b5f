"""Time of every kind of page of the viewer on a large run, the time of its index, and the memory of the server.

    python -m benchmarks.viewer [--attempts 100000] [--long 2000] [--repeats 30] [--folder DIR]

The server is a process of its own, `retroformer view`, asked over HTTP by one client as a browser asks it. The first
request of each page counts, too. A page is asked under several addresses, such as other filters or other stories, and
the table gives the median, the maximum, the server's CPU time, which other work on the machine changes little, and the
largest answer. "While facts arrive" are pages asked while another process adds a story every half second.
"""

import argparse
import http.client
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import urlencode

from benchmarks.viewer_store import BUSHY, LONG, RUNS, Facts, Size, Writer, write_store
from retroformer.arm_names import COLLECT
from retroformer.records import Key, Task
from retroformer.store import NewTrajectory, Store

MOST_MILLISECONDS = 300
MOST_MIB = 300
SEED = 0


class Figures(NamedTuple):
    """Cost of a kind of page."""

    milliseconds: list[float]
    cpu: float
    """CPU milliseconds of the server per request."""
    kib: float


def pages(writer: Writer, size: Size) -> Mapping[str, Sequence[str]]:
    """Return addresses of each kind of page."""
    short = max(1, size.attempts // len(RUNS) // 12)
    drawn = random.Random(SEED)
    table = {
        "all stories": [{}],
        "stories, filtered": [
            {"run": "alpha", "arm": COLLECT, "outcome": "solved later"},
            {"sign": "positive"},
            {"flag": "truncated"},
            {"mark": "wrong"},
        ],
        "stories, sorted": [{"sort": name} for name in ("attempts", "best", "worst", "tokens")],
        "stories, deep page": [{"page": "500"}, {"page": "500", "sort": "best"}, {"page": "99999", "sort": "worst"}],
        "stories, search": [
            {"q": writer.common_word},
            {"q": writer.rare_word},
            {"q": f"{writer.common_word} {writer.rare_word}", "sort": "best"},
            {"q": "nowhere"},
        ],
    }
    numbers = [drawn.randrange(short) for _ in range(4)]
    some = [{"run": "beta", "arm": COLLECT, "task": f"task-{number:06}"} for number in numbers]
    long = [{"run": RUNS[0], "arm": LONG, "task": f"long-{drawn.randrange(size.long_stories):06}"} for _ in range(4)]
    bushy = {"run": RUNS[0], "arm": LONG, "task": BUSHY}
    listed = [{**story, "list_sort": "best", "list_sign": "positive"} for story in some]
    ppo, warm = ("alpha: eval/trained (2 seeds)", "alpha: eval/warm")
    return {
        "overview": ["/"],
        **{name: [_address("/stories", query) for query in queries] for name, queries in table.items()},
        "story": [_address("/story", story) for story in some],
        "story in a sorted list": [_address("/story", story) for story in listed],
        "story in a search": [_address("/story", {**story, "list_q": writer.common_word}) for story in some],
        "long story": [_address("/story", story) for story in long],
        "tree of 13 long attempts": [_address("/story", bushy), _address("/story", {**bushy, "at": "2.3"})],
        "prompt": [_address("/prompt", {**story, "at": "1.0"}) for story in [*some[:1], *long[:1], bushy]],
        "compare": ["/compare", _address("/compare", {"a": ppo, "b": warm, "show": "won"})],
        "learning": [_address("/learning", {"run": run}) for run in RUNS],
        "review": ["/review", "/review?verdict=wrong"],
        "version": ["/version"],
    }


def _address(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


LIVE = ("/version", "/", "/stories", "/stories?sort=best")
"""Pages that are asked while facts arrive."""


class Server:
    """A running `retroformer view`, and a client that keeps its connection."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process = process
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def ask(self, path: str) -> tuple[float, str]:
        """Return the milliseconds of a request with its answer."""
        begin = time.perf_counter()
        self._client.request("GET", path)
        answer = self._client.getresponse()
        body = answer.read()
        took = (time.perf_counter() - begin) * 1000
        if answer.status != 200:
            sys.exit(f"{path}: {answer.status} {re.sub('<[^>]+>', ' ', body.decode())[:500]}")
        return took, body.decode()

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_mib(self) -> float:
        """Largest resident memory so far."""
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        return int(peak) / 1024

    def wait_for_index(self) -> None:
        """Wait until all stories are indexed."""
        while True:
            _, page = self.ask("/stories")
            if "Reading the stories" not in page and ">0 stories" not in page:
                return
            time.sleep(0.5)

    def measure(self, paths: Sequence[str], repeats: int) -> Figures:
        before = self.cpu_seconds
        answers = [self.ask(path) for path in islice(cycle(paths), max(repeats, len(paths)))]
        cpu = (self.cpu_seconds - before) * 1000 / len(answers)
        largest = max(len(page.encode()) for _, page in answers) / 1024
        return Figures([took for took, _ in answers], cpu, largest)


@contextmanager
def serving(run: Path, cache: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "retroformer", "view", str(run), "--port", "0"]
    environment = os.environ | {"RETROFORMER_CACHE": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield Server(process, int(process.stdout.readline().strip().rpartition(":")[2]))
    finally:
        process.terminate()
        process.wait()


@contextmanager
def arriving(run: Path, writer: Writer) -> Iterator[None]:
    """Add a story to the run every half second until the end of the `with` block."""
    stopped = threading.Event()

    def add() -> None:
        with closing(Store(f"sqlite:///{run}/experience.db", RUNS[0])) as store:
            store.declare(COLLECT, {"loop": {"memory": 3}})
            number = time.time_ns()
            while not stopped.wait(0.5):
                number += 1
                task = Task(id=f"new-{number}", environment="benchmark", split="train")
                key = Key(arm=COLLECT, task_id=task.id)
                facts: Facts = [NewTrajectory(key, writer.attempt(task, 10, 200, solved=False))]
                store.add(facts)

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=100_000, help="short attempts, about")
    parser.add_argument("--long", type=int, default=2000, help="stories of two attempts with 50 steps each")
    parser.add_argument("--repeats", type=int, default=30, help="requests of each kind of page")
    parser.add_argument("--folder", type=Path, help="folder in which the run is created and kept")
    chosen = parser.parse_args(arguments)
    size = Size(chosen.attempts, chosen.long)
    with tempfile.TemporaryDirectory() as folder:
        run = chosen.folder or Path(folder) / "run"
        writer = Writer(SEED) if (run / "experience.db").exists() else write_store(run, size, SEED)
        report(run, Path(folder) / "cache", writer, size, chosen.repeats)


def report(run: Path, cache: Path, writer: Writer, size: Size, repeats: int) -> None:
    """Measure and print the table; end with status 1 if a limit is exceeded."""
    print(f"store: {(run / 'experience.db').stat().st_size / 1e6:,.0f} MB", flush=True)
    with serving(run, cache) as server:
        begin = time.perf_counter()
        server.wait_for_index()
        (index,) = (cache / "view").glob("*.db")
        figures = {"seconds": time.perf_counter() - begin, "CPU": server.cpu_seconds, "MB": index.stat().st_size / 1e6}
        print(f"index: {', '.join(f'{value:,.0f} {unit}' for unit, value in figures.items())}", flush=True)
        print(f"peak memory: {server.peak_mib:.0f} MiB", flush=True)
        print(f"{'page':28} {'median ms':>9} {'max ms':>7} {'CPU ms':>7} {'KiB':>7}")
        slowest = max(shown(name, server.measure(paths, repeats)) for name, paths in pages(writer, size).items())
        with arriving(run, writer):
            slowest = max(slowest, shown("while facts arrive", server.measure(LIVE, 4 * repeats)))
        print(f"peak memory: {server.peak_mib:.0f} MiB")
        if slowest > MOST_MILLISECONDS or server.peak_mib > MOST_MIB:
            sys.exit(f"The limits are {MOST_MILLISECONDS} ms and {MOST_MIB} MiB.")


def shown(name: str, figures: Figures) -> float:
    """Print a row of the table; return the longest time."""
    times = figures.milliseconds
    print(f"{name:28} {median(times):9.0f} {max(times):7.0f} {figures.cpu:7.0f} {figures.kib:7.0f}", flush=True)
    return max(times)


if __name__ == "__main__":
    main(sys.argv[1:])
