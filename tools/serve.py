"""The built book on localhost."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from tools.project import Project, ToolError

PORT = 8000
# Some systems have other types registered for these, and a browser then refuses to run them.
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm"}


class Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | TYPES


def serve(project: Project) -> None:
    if not (project.html / "index.html").is_file():
        raise ToolError("The book is not built yet: run `make book`.")
    handler = partial(Handler, directory=str(project.html))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    except OSError:  # taken: any free port will do
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with server:
        print(f"The book is at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends this)", flush=True)
        server.serve_forever()
