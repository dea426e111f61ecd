//! A tool in whole runs: the token, the credential, the trace.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    sync::{Arc, Mutex},
};

use super::site::Site;

const POLICY: &str =
    "@id(\"api\")\npermit (principal, action == Action::\"http\", resource in Tool::\"api\");\n";
const KEY: &str = "s3cret-of-the-operator";

fn site() -> Site {
    // The credential is resolved when a call needs it: the file may come later.
    let more = "[credentials.key]\nfrom = \"file:BASE/secret\"\nttl = \"1s\"\n\
                [tools.api]\nkind = \"http\"\nurl = \"http://origin.example:ORIGIN/v1\"\ncredential = \"key\"\n";
    let site = Site::configured(POLICY, more);
    let secret = site.work().parent().unwrap().join("secret");
    fs::write(&secret, format!("{KEY}\n")).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    site
}

const CALL: &str =
    "curl -sS -m 5 -w ' %{http_code}\\n' -H \"Authorization: Bearer $STRAIT_TOKEN\" $STRAIT_GATEWAY/http/api";

fn count(site: &Site, file: &str, part: &str) -> usize {
    site.lines(file).iter().filter(|line| line.contains(part)).count()
}

#[test]
fn a_run_calls_a_tool_sees_no_credential_and_its_token_outlives_agent_and_gateway_a1_a2_a26() {
    let mut site = site();
    site.start_run(&format!(
        "env > env; {CALL}/tells?state=open > told 2>&1; while :; do {CALL}/x | tr -d '\\n' >> out; echo >> out; sleep 0.05; done"
    ));
    site.until("calls are answered", |site| count(site, "out", " 200") >= 3);
    let told = site.lines("told").join("\n");
    assert!(told.contains(&format!("Bearer {}", "*".repeat(KEY.len()))), "{told}");
    assert!(told.starts_with("GET /v1/tells?state=open HTTP/1.1"), "{told}");
    let token = site
        .lines("env")
        .iter()
        .find_map(|line| line.strip_prefix("STRAIT_TOKEN=").map(str::to_owned))
        .unwrap();
    assert!(token.starts_with("strait_") && token.len() == 50, "{token}");
    assert!(!site.lines("env").join("\n").contains(KEY));
    site.kill_agent();
    site.until("calls are refused", |site| count(site, "out", " 503") >= 1);
    site.start_agent();
    let before = count(&site, "out", " 200");
    site.until("the token is good with a new agent", |site| count(site, "out", " 200") > before + 2);
    site.kill_gateway();
    let before = count(&site, "out", " 200");
    site.until("the token is good with a new gateway", |site| count(site, "out", " 200") > before + 2);
    site.strait(&["kill", "--all"]);
    site.until("the run is over", |site| site.records().contains("run.ended"));
    let records = site.records();
    for secret in [KEY, token.trim_start_matches("strait_")] {
        assert!(!records.contains(secret), "{secret}");
    }
    for line in records.lines().filter(|line| line.contains("\"stream\":\"trace\"")).take(2) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(
            (&line["type"], &line["tool"], &line["kind"]),
            (&"tool".into(), &"api".into(), &"http".into())
        );
        assert_eq!(
            (&line["args"], &line["decision"], &line["step"]),
            (&"state=open".into(), &"allow".into(), &line["id"])
        );
    }
    let run =
        records.lines().next().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok()).unwrap();
    let trace = site.strait(&["trace", run["run"].as_str().unwrap()]);
    assert!(trace.contains("api") && trace.contains("GET http://origin.example"), "{trace}");
    let json = site.strait(&["trace", run["run"].as_str().unwrap(), "--json"]);
    assert!(
        json.lines().count() > 6 && json.lines().all(|line| line.contains("\"stream\":\"trace\"")),
        "{json}"
    );
    assert!(site.strait(&["log", "--lines", "all"]).contains("api: GET http://origin.example"));
    let host = fs::read_to_string(site.work().parent().unwrap().join("state/host/log.jsonl")).unwrap();
    assert!(host.contains("credential.handed") && !host.contains(KEY));
    site.until("every call has both lines", |site| {
        let of = |phase: &str| site.records().matches(&format!("\"phase\":\"{phase}\"")).count();
        of("decided") == of("done")
    });
    site.assert_records_whole();
}

/// What the far end sees: every connection is of the gateway's user, whatever way the run takes.
#[test]
fn nobody_but_the_gateway_is_an_origins_peer_a1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let peers: Arc<Mutex<Vec<u32>>> = Arc::default();
    let kept = Arc::clone(&peers);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            kept.lock().unwrap().push(owner(stream.peer_addr().unwrap().port(), port));
            let _ = stream.read(&mut [0; 4096]);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
        }
    });
    let tool = format!("[tools.api]\nkind = \"http\"\nurl = \"http://origin.example:{port}/v1\"\n");
    let mut site = Site::configured("@id(\"any\")\npermit (principal, action, resource);\n", &tool);
    site.start_run(&format!(
        "{CALL}/x > tool; curl -sS -m 5 http://origin.example:{port}/ > name; \
         curl -sS -m 5 -x $STRAIT_GATEWAY:80 http://origin.example:{port}/ > proxy; \
         curl -sS -m 5 http://127.0.0.1:{port}/ > own 2>&1; echo > over"
    ));
    site.until("the run is over", |site| !site.lines("over").is_empty());
    for file in ["tool", "name", "proxy"] {
        assert!(site.lines(file).join("").starts_with("ok"), "{file}: {:?}", site.lines(file));
    }
    assert!(!site.lines("own").join("").starts_with("ok"), "loopback of the run is its own");
    let gateway = site.gateway().unwrap();
    let gateway = fs::metadata(format!("/proc/{gateway}")).unwrap().uid();
    assert_eq!(*peers.lock().unwrap(), [gateway; 3]);
    assert_ne!(gateway, 0);
}

/// User of the socket that is connected from port `from` to port `to` (`/proc/net/tcp`: addresses are the second and third
/// field, the user is the eighth).
fn owner(from: u16, to: u16) -> u32 {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let (from, to) = (format!(":{from:04X}"), format!(":{to:04X}"));
    let of = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields[1].ends_with(&from) && fields[2].ends_with(&to)).then(|| fields[7].parse().unwrap())
    };
    table.lines().skip(1).find_map(of).expect("no socket of this peer on the host")
}

/// A gateway that dies under a call leaves no step without its last line.
#[test]
fn a_step_whose_gateway_dies_is_ended_by_the_agent() {
    let mut site = site();
    site.start_run(&format!("{CALL}/slow > slow; sleep 60"));
    site.until("the call is under way", |site| site.records().contains("\"stream\":\"trace\""));
    site.kill_gateway();
    let ended = |site: &Site| {
        let records = site.records();
        let gone = |line: &&str| line.contains("GATEWAY_GONE") && line.contains("\"phase\":\"done\"");
        let gone: Vec<&str> = records.lines().filter(gone).collect();
        gone.len() == 2
            && gone
                .iter()
                .any(|line| line.contains("\"stream\":\"trace\"") && line.contains("\"tool\":\"api\""))
    };
    site.until("step and activity are ended", ended);
}

/// Case 93.
#[test]
fn a_token_is_good_from_its_own_run_alone_and_dies_with_it_a2_a4() {
    let mut site = site();
    site.start_run("echo $STRAIT_TOKEN > token; while [ ! -e over ]; do sleep 0.05; done");
    site.until("the first run has told its token", |site| {
        site.lines("token").first().is_some_and(|line| line.len() == 50)
    });
    let call =
        "curl -sS -m 5 -w ' %{http_code}\\n' -H \"x-api-key: $(cat token)\" $STRAIT_GATEWAY/http/api/x";
    site.start_run(&format!(
        "{call} > one; {CALL}/x > own; while [ ! -e gone ]; do sleep 0.05; done; {call} > two"
    ));
    site.until("the second run has called", |site| !site.lines("own").is_empty());
    assert!(site.lines("one").join("").contains("TOKEN_ADDRESS_MISMATCH"), "{:?}", site.lines("one"));
    assert_eq!(site.lines("own").last().unwrap(), " 200", "positive control");
    site.until("both logs have the event", |site| {
        site.records().matches("\"event\":\"token.address_mismatch\"").count() == 2
    });
    fs::write(site.work().join("over"), "").unwrap();
    site.until("the first run is over", |site| site.records().contains("run.ended"));
    fs::write(site.work().join("gone"), "").unwrap();
    site.until("the second run has called again", |site| !site.lines("two").is_empty());
    assert!(site.lines("two").join("").contains("TOKEN_UNKNOWN"), "{:?}", site.lines("two"));
    let host = site.strait(&["status"]);
    assert!(!host.contains("strait_"), "{host}");
}

/// A33: a credential that can't be had refuses the call, says what to do, and is there again without a restart.
#[test]
fn a_credential_that_others_can_read_is_refused_and_mended_without_a_restart_a33() {
    let mut site = site();
    let secret = site.work().parent().unwrap().join("secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    site.start_run(&format!("while :; do {CALL}/x | tr -d '\\n' >> out; echo >> out; sleep 0.1; done"));
    site.until("calls are refused", |site| count(site, "out", "CREDENTIAL_UNAVAILABLE") >= 1);
    assert!(count(&site, "out", "chmod 600") >= 1 && count(&site, "out", " 200") == 0);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    site.until("calls are answered", |site| count(site, "out", " 200") >= 1);
    // A reload takes effect for live runs.
    let config = site.work().parent().unwrap().join("etc/strait.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + "[agents.default]\ntools = []\n").unwrap();
    let said = site.strait(&["reload"]);
    assert!(said.contains("live"), "{said}");
    site.until("the tool isn't this agent's any more", |site| {
        count(site, "out", "agents.default.tools") >= 1
    });
}

/// What scripts ask, with the exit code saying the same.
#[test]
fn check_reload_and_verify_answer_in_json() {
    let site = site();
    let ask = |arguments: &[&str]| {
        let output = site.command(arguments).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
        (output.status.code(), lines.collect::<Vec<_>>())
    };
    let (code, said) = ask(&["check", "--json"]);
    assert_eq!((code, said.len(), &said[0]["ok"]), (Some(0), 1, &true.into()), "{said:?}");
    assert_eq!((&said[0]["policyFiles"], said[0]["digest"].as_str().map(str::len)), (&1.into(), Some(64)));
    let (code, said) = ask(&["reload", "--json"]);
    assert_eq!((code, &said[0]["ok"]), (Some(0), &true.into()), "{said:?}");
    let (code, said) = ask(&["log", "verify", "--all", "--json"]);
    assert_eq!(
        (code, &said[0]["chain"], &said[0]["intact"]),
        (Some(0), &"host".into(), &true.into()),
        "{said:?}"
    );
    fs::write(site.work().parent().unwrap().join("etc/policies/read.cedar"), "permit nothing").unwrap();
    for command in ["check", "reload"] {
        let (code, said) = ask(&[command, "--json"]);
        assert_eq!((code, &said[0]["ok"]), (Some(1), &false.into()), "{command}: {said:?}");
        assert!(said[0]["error"].as_str().unwrap().contains("read.cedar"), "{said:?}");
    }
    let log = site.state().join("host/log.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, text.replacen("agent.started", "agent.stopped", 1)).unwrap();
    let (code, said) = ask(&["log", "verify", "--all", "--json"]);
    assert_eq!((code, &said[0]["intact"], &said[0]["line"]), (Some(1), &false.into(), &1.into()), "{said:?}");
    fs::write(&log, text).unwrap();
}
