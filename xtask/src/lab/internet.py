"""The demo's internet: small real servers on invented public addresses, inside a network namespace of its own.

Usage: internet.py DIR, where DIR holds cert.pem, key.pem, git/demo.git and zone.json
({"names": {name: address}, "served": [address]}).
Prints "ready" once everything listens. Appends what reaches a server to DIR/seen.jsonl, one object a line: the
demo compares that with Strait's records.
"""

import base64, hashlib, io, json, os, socket, ssl, struct, subprocess, sys, tarfile, threading, zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DIR = sys.argv[1]
TOLD = json.load(open(os.path.join(DIR, "zone.json")))
ZONE, SERVED = TOLD["names"], TOLD["served"]
SEEN = open(os.path.join(DIR, "seen.jsonl"), "a", buffering=1)
LOCK = threading.Lock()


def seen(**what):
    with LOCK:
        SEEN.write(json.dumps(what) + "\n")


def wheel():
    """A wheel of one module; pip wants its records to agree with the content."""
    files = {
        "strait_demo.py": b"GREETING = 'a wheel that came through the gate'\n",
        "strait_demo-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: strait-demo\nVersion: 1.0\n",
        "strait_demo-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    record += "strait_demo-1.0.dist-info/RECORD,,\n"
    files["strait_demo-1.0.dist-info/RECORD"] = record.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarball():
    """An npm package of one module."""
    files = {
        "package/package.json": json.dumps({"name": "strait-demo", "version": "1.0.0", "main": "index.js"}).encode(),
        "package/index.js": b"module.exports = 'a package that came through the gate'\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


WHEEL, TARBALL = wheel(), tarball()
WHEEL_PATH, TARBALL_PATH = "/files/strait_demo-1.0-py3-none-any.whl", "/strait-demo/-/strait-demo-1.0.0.tgz"


class Site(BaseHTTPRequestHandler):
    """Every name is a site of its own, told apart by Host."""

    protocol_version = "HTTP/1.1"

    def answer(self, status, body, kind="text/plain"):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self):
        host = (self.headers.get("Host") or "").split(":")[0]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        tls = isinstance(self.connection, ssl.SSLSocket)
        seen(server="http", name=host, method=self.command, path=self.path, tls=tls)
        site = getattr(self, "site_" + host.split(".")[0], self.site_www)
        site(path, query, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def site_www(self, path, query, body):
        self.answer(200, f"hello from {self.headers.get('Host')}{path}\n")

    def site_api(self, path, query, body):
        self.answer(200, json.dumps({"items": [1, 2, 3], "method": self.command}) + "\n", "application/json")

    def site_pypi(self, path, query, body):
        if path == "/simple/strait-demo/":
            digest = hashlib.sha256(WHEEL).hexdigest()
            name = os.path.basename(WHEEL_PATH)
            self.answer(200, f'<!DOCTYPE html><a href="{WHEEL_PATH}#sha256={digest}">{name}</a>', "text/html")
        elif path == WHEEL_PATH:
            self.answer(200, WHEEL, "application/octet-stream")
        else:
            self.answer(404, "no such page\n")

    def site_npm(self, path, query, body):
        if path == "/strait-demo":
            dist = {
                "tarball": "https://" + self.headers["Host"] + TARBALL_PATH,
                "shasum": hashlib.sha1(TARBALL).hexdigest(),
                "integrity": "sha512-" + base64.b64encode(hashlib.sha512(TARBALL).digest()).decode(),
            }
            version = {"name": "strait-demo", "version": "1.0.0", "dist": dist}
            packument = {"name": "strait-demo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            self.answer(200, json.dumps(packument), "application/json")
        elif path == TARBALL_PATH:
            self.answer(200, TARBALL, "application/octet-stream")
        else:
            self.answer(404, "{}", "application/json")

    def site_git(self, path, query, body):
        """Git's own smart-HTTP server, as CGI."""
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": os.path.join(DIR, "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "demo",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(headers.pop("Status", "200 OK").split()[0])
        self.answer(status, content, headers.get("Content-Type", "text/plain"))

    def log_message(self, *_):
        pass


class Web(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass  # A handshake that a client broke off; the demo sees it at the client.


def serve_web(address, port, context):
    server = Web((address, port), Site)
    if context:
        # The handshake belongs to the connection's thread, not to accept.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def dns_answer(query):
    """Answers A from the zone, nothing for other types of a known name, NXDOMAIN for other names."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += 1 + query[at]
    question = query[12 : at + 5]
    kind = struct.unpack(">H", query[at + 1 : at + 3])[0]
    name = ".".join(labels).lower()
    seen(server="dns", name=name, type=kind)
    address = ZONE.get(name)
    if address is None:
        return query[:2] + struct.pack(">HHHHH", 0x8583, 1, 0, 0, 0) + question
    if kind != 1:
        return query[:2] + struct.pack(">HHHHH", 0x8580, 1, 0, 0, 0) + question
    record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return query[:2] + struct.pack(">HHHHH", 0x8580, 1, 1, 0, 0) + question + record


def serve_dns(address):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))

    def loop():
        while True:
            query, peer = server.recvfrom(4096)
            try:
                server.sendto(dns_answer(query), peer)
            except (IndexError, struct.error):
                continue

    threading.Thread(target=loop, daemon=True).start()


def serve_echo(address):
    server = socket.create_server((address, 7))

    def echo(connection):
        seen(server="echo", name="echo.example.com")
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def loop():
        while True:
            connection, _ = server.accept()
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()


def serve_datagrams(address):
    """A port no run may reach: whatever comes is seen."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 9999))

    def loop():
        while True:
            server.recvfrom(4096)
            seen(server="udp", name=address)

    threading.Thread(target=loop, daemon=True).start()


def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(DIR, "cert.pem"), os.path.join(DIR, "key.pem"))
    for address in SERVED:
        serve_web(address, 80, None)
        serve_web(address, 443, context)
        serve_datagrams(address)
    serve_dns(ZONE["ns.example.com"])
    serve_echo(ZONE["echo.example.com"])
    print("ready", flush=True)
    sys.stdin.read()  # Until the demo goes away.


main()
