"""A small model hub on loopback: the part of the Hugging Face Hub's API that pushes and pulls use, kept in memory.

Repositories have commits; large files travel by Git LFS. Writing and reading what is private takes the token.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_four-words-nobody-reads"
_LARGE = (".safetensors", ".parquet")
_RESOLVE = re.compile(r"/(?P<datasets>datasets/)?(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>[^?]+)")
_API = re.compile(
    r"/api/(?P<kind>model|dataset)s/(?P<repo>[^/]+/[^/]+?)(?:/(?P<what>\w+)/(?P<revision>[^/?]+))?(?:\?.*)?"
)
_BATCH = re.compile(r"/(?P<datasets>datasets/)?(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch")


@dataclass
class Repository:
    """Commits of a repository, each with the bytes of all its files."""

    private: bool
    commits: list[dict[str, bytes]] = field(default_factory=lambda: [{}])
    large: set[str] = field(default_factory=set)

    def hash_of(self, number: int) -> str:
        return hashlib.sha1(f"{id(self)} {number}".encode()).hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return the hash and the files of a commit; None if there is no such revision."""
        for number in reversed(range(len(self.commits))):
            if revision in ("main", self.hash_of(number)):
                return self.hash_of(number), self.commits[number]
        return None


class LocalHub:
    """Repositories by type and name, and what clients asked for."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.held = ""
        """Name of a file whose content is held back until `released`."""
        self.released = threading.Event()
        self.url = ""

    def files(self, kind: str, repo: str) -> dict[str, bytes]:
        """Return the files of the newest commit."""
        return self.repositories[kind, repo].commits[-1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def log_message(self, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _serve(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        body = self._body()
        for pattern, answer in _ROUTES:
            if match := pattern.fullmatch(self.path):
                answer(self, match, body)
                return
        self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while length := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    @property
    def _is_known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _repository(self, kind: str, repo: str, *, to_write: bool = False) -> Repository | None:
        """Return a repository that the client may use, or answer that there is none."""
        repository = self.hub.repositories.get((kind, repo))
        if repository is None or ((to_write or repository.private) and not self._is_known):
            self._refuse(HTTPStatus.NOT_FOUND, "RepoNotFound")
            return None
        return repository

    def create(self, match: re.Match[str], body: bytes) -> None:
        asked = json.loads(body)
        name, kind = f"{asked['organization']}/{asked['name']}", asked.get("type", "model")
        if not self._is_known:
            self._refuse(HTTPStatus.UNAUTHORIZED, "", f"{self.headers.get('Authorization')} may not write")
            return
        url = f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        exists = (kind, name) in self.hub.repositories
        if not exists:
            private = asked.get("private") or asked.get("visibility") == "private"
            self.hub.repositories[kind, name] = Repository(bool(private))
        self._answer({"url": url, "name": name, "id": name}, HTTPStatus.CONFLICT if exists else HTTPStatus.OK)

    def validate(self, match: re.Match[str], body: bytes) -> None:
        is_card = json.loads(body)["content"].startswith("---\n")
        self._answer({"errors": [] if is_card else [{"message": "no metadata"}], "warnings": []})

    def api(self, match: re.Match[str], body: bytes) -> None:
        what, kind, repo = match["what"], match["kind"], match["repo"]
        repository = self._repository(kind, repo, to_write=self.command == "POST")
        if repository is None:
            return
        if what == "preupload":
            asked = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": p, "uploadMode": "lfs" if p.endswith(_LARGE) else "regular"} for p in asked]
            self._answer({"files": [mode | {"shouldIgnore": False} for mode in modes]})
        elif what == "commit":
            self._commit(repository, f"{kind}s/{repo}".removeprefix("models/"), body)
        elif (commit := repository.at(match["revision"] or "main")) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        elif what == "tree":
            listed = ({"type": "file", "path": name, "oid": name, "size": len(c)} for name, c in commit[1].items())
            self._answer(list(listed))
        else:
            siblings = [{"rfilename": name} for name in commit[1]]
            self._answer(
                {"id": repo, "sha": commit[0], "private": repository.private, "siblings": siblings, "tags": []}
            )

    def _commit(self, repository: Repository, path: str, body: bytes) -> None:
        files = dict(repository.commits[-1])
        for operation in map(json.loads, body.splitlines()):
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
                repository.large.add(value["path"])
        repository.commits.append(files)
        oid = repository.hash_of(len(repository.commits) - 1)
        url = f"{self.hub.url}/{path}/commit/{oid}"
        self._answer({"success": True, "commitOid": oid, "commitUrl": url, "hookOutput": ""})

    def batch(self, match: re.Match[str], body: bytes) -> None:
        objects = [
            file | {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{file['oid']}"}}}
            for file in json.loads(body)["objects"]
        ]
        self._answer({"transfer": "basic", "objects": objects})

    def store(self, match: re.Match[str], body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != match["oid"]:
            self._refuse(HTTPStatus.BAD_REQUEST, "", "the content has another hash")
            return
        self.hub.objects[match["oid"]] = body
        self._answer({})

    def resolve(self, match: re.Match[str], body: bytes) -> None:
        repository = self._repository("dataset" if match["datasets"] else "model", match["repo"])
        if repository is None:
            return
        commit = repository.at(match["revision"])
        if commit is None or match["file"] not in commit[1]:
            self._refuse(HTTPStatus.NOT_FOUND, "EntryNotFound" if commit else "RevisionNotFound")
            return
        content = commit[1][match["file"]]
        is_large = match["file"] in repository.large
        etag = (hashlib.sha256 if is_large else hashlib.sha1)(content).hexdigest()
        self.send_response(HTTPStatus.OK)
        for name, value in (("ETag", f'"{etag}"'), ("X-Repo-Commit", commit[0]), ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if match["file"] == self.hub.held:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.hub.requests.append(f"HELD {match['file']}")
            self.hub.released.wait(60)
            self.close_connection = True
            return
        self.wfile.write(content)

    def _answer(self, content: Any, status: HTTPStatus = HTTPStatus.OK, **headers: str) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: HTTPStatus, code: str, message: str = "refused") -> None:
        self._answer({"error": message}, status, **({"X_Error_Code": code} if code else {}), X_Error_Message=message)


_ROUTES: tuple[tuple[re.Pattern[str], Callable[[_Handler, re.Match[str], bytes], None]], ...] = (
    (re.compile(r"/api/repos/create"), _Handler.create),
    (re.compile(r"/api/validate-yaml"), _Handler.validate),
    (_API, _Handler.api),
    (_BATCH, _Handler.batch),
    (re.compile(r"/lfs/(?P<oid>[0-9a-f]{64})"), _Handler.store),
    (_RESOLVE, _Handler.resolve),
)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Run a hub until the block ends."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
