//! Odd spellings of URLs: asked of `explain`, and sent by a run to the gateway, byte for byte.

use std::{collections::BTreeMap, fs};

use crate::site::Site;

/// Rules on everything that a spelling could hide. Nothing else is permitted.
const POLICY: &str = r#"
@id("public")
permit (principal, action == Action::"http", resource in Host::"origin.example")
when { context.path like "/public/*" && context.method == "GET" };
@id("secret")
forbid (principal, action == Action::"http", resource)
when { context.path like "/public/secret*" };
@id("search")
permit (principal, action == Action::"http", resource in Host::"origin.example")
when { context.path == "/search" && context.query.hasTag("q") && context.query.getTag("q") == ["ok"] };
@id("encoded")
permit (principal, action == Action::"http", resource in Host::"origin.example")
when { context.path == "/@scope%2Fname" };
@id("idn")
permit (principal, action == Action::"http", resource in Domain::"xn--bcher-kva.example")
when { context.path like "/public/*" };
"#;

/// Authorities without port: the origin in spellings of its name, others, and none.
const HOSTS: &[&str] = &[
    "origin.example",
    "ORIGIN.Example",
    "origin.example.",
    "origin.example..",
    ".origin.example",
    "origin..example",
    "%6frigin.example",
    "XN--BCHER-KVA.example",
    "user@origin.example",
    "origin.example@other.example",
    "other.example",
    "evilorigin.example",
    "localhost",
    "metadata.google.internal",
    "127.0.0.1",
    "0x7f.1",
    "2130706433",
    "[::1]",
    "[::ffff:127.0.0.1]",
];

/// What follows the authority.
const PATHS: &[&str] = &[
    "/public/a",
    "/public/../public/secret",
    "/public/%2e%2e/secret",
    "/public/%73ecret",
    "/public/x/..%2fsecret",
    "/public/..;/secret",
    "/public/.%2E/public/./b",
    "/public//secret",
    "//public/a",
    "/public%2fa",
    "/PUBLIC/a",
    "/public/%252e%252e/a",
    "/public/a\\..\\b",
    "/public/a%00",
    "/../public/a",
    "/@scope%2fname",
    "/@scope/name",
    "/search?q=ok",
    "/search?q=%6f%6b",
    "/search?q=ok&q=no",
    "/search?Q=ok",
    "/search?q=ok%",
    "?q=ok",
    "",
];

/// Ports, where the origin's own is `{}`.
const PORTS: &[&str] = &[":{}", ":0{}", ":", ":0", ":65536", ":{}x"];

/// Sends each line of `urls` to the gateway as a proxy and writes what became of it into `answers`.
const CLIENT: &str = r#"
import json, re, socket
answers = open("answers", "w")
for url in open("urls", encoding="utf-8").read().split("\n"):
    host = re.split("[/?]", url.split("://", 1)[1], maxsplit=1)[0]
    gateway = socket.create_connection(("strait.internal", 80), 10)
    gateway.sendall(f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = b""
    while more := gateway.recv(65536):
        answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ")[1].decode()
    answers.write((json.loads(body)["error"]["code"] if status != "200" else "permit") + "\n")
answers.close()
open("finished", "w").close()
"#;

/// Case 84: no difference over more than two hundred spellings.
#[test]
fn case_84_explain_and_the_gateway_agree_about_odd_spellings() {
    let mut site = Site::with(POLICY);
    let urls = urls(site.origin);
    fs::write(site.work().join("urls"), urls.join("\n")).unwrap();
    fs::write(site.work().join("client.py"), CLIENT).unwrap();
    site.start_run("python3 client.py 2>errors || { cat errors; touch finished; }");
    site.until("every URL is answered", |site| site.work().join("finished").exists());
    let answers = site.lines("answers");
    assert_eq!(answers.len(), urls.len(), "{:?}", site.lines("errors"));
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    let mut differences = Vec::new();
    for (url, live) in urls.iter().zip(&answers) {
        let explained = explained(&site, url);
        if explained != *live {
            differences.push(format!("`{url}`: explain says {explained}, the gateway {live}"));
        }
        *seen.entry(live).or_default() += 1;
    }
    // What clients send as an A-label, people may write as they say it.
    assert_eq!(explained(&site, &format!("http://b\u{fc}cher.example:{}/public/a", site.origin)), "permit");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // Each way to end occurs, so none of them is the answer to everything.
    for (code, least) in
        [("permit", 20), ("TOOL_CALL_DENIED", 50), ("MALFORMED_REQUEST", 50), ("NAME_REFUSED", 2)]
    {
        assert!(seen.get(code).is_some_and(|times| *times >= least), "{code}: {seen:?}");
    }
}

/// Every host with a few paths and every path with a few hosts.
fn urls(port: u16) -> Vec<String> {
    let mut urls = Vec::new();
    for host in HOSTS {
        for path in PATHS.iter().take(5) {
            urls.push(format!("http://{host}:{port}{path}"));
        }
    }
    for path in PATHS {
        for host in ["origin.example", "oriGin.example.", "xn--bcher-kva.example", "other.example"] {
            urls.push(format!("HTTP://{host}:{port}{path}"));
        }
    }
    for written in PORTS {
        let port = written.replace("{}", &port.to_string());
        urls.push(format!("http://origin.example{port}/public/a"));
        urls.push(format!("http://[::1]{port}/public/a"));
    }
    assert!(urls.len() >= 200, "{}", urls.len());
    urls
}

/// `permit` or the code of the refusal.
fn explained(site: &Site, url: &str) -> String {
    let said =
        site.strait(&["policy", "explain", "--agent", "default", "--json", "--http", &format!("GET {url}")]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("`{url}`: {said}"));
    match said["verdict"]["decision"].as_str() {
        Some("refuse") => said["verdict"]["code"].as_str().unwrap().to_owned(),
        Some(decision) => decision.to_owned(),
        None => panic!("`{url}`: {said}"),
    }
}
