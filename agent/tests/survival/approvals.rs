//! Calls that wait for a person, from `curl` in a run to `strait approvals` on the host (A21, A22, cases 83, 85, 87).

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Command, Output},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::site::Site;

const ASK: &str = "@id(\"ask\") @approval(\"writes to the origin\")\npermit (principal, action == Action::\"http\", resource in Host::\"origin.example\");\n";
const PLAIN: &str =
    "@id(\"plain\")\npermit (principal, action == Action::\"http\", resource in Host::\"origin.example\");\n";
const FORBID: &str = "@id(\"no\") @reason(\"frozen\")\nforbid (principal, action == Action::\"http\", resource in Host::\"origin.example\");\n";
/// Runs what is put into its folder as `N.sh`, each in the background.
const SHELL: &str = "n=0; while :; do if [ -e $n.sh ]; then sh $n.sh > $n.out 2> $n.err & n=$((n+1)); else sleep 0.02; fi; done";

/// A site with a run that does what it is told, and an origin that remembers.
struct Desk {
    site: Site,
    origin: u16,
    seen: Arc<Mutex<Vec<String>>>,
    told: usize,
}

impl Desk {
    fn new(policy: &str, more: &str) -> Self {
        let mut site = Site::configured(policy, more);
        site.start_run(SHELL);
        let (origin, seen) = origin();
        Self { site, origin, seen, told: 0 }
    }

    /// Has the run do this; the number of it.
    fn tell(&mut self, script: &str) -> usize {
        let (number, work) = (self.told, self.site.work());
        self.told += 1;
        let script = script
            .replace("ORIGIN", &format!("http://origin.example:{}", self.origin))
            .replace("OTHER", &format!("http://other.example:{}", self.origin));
        fs::write(work.join("next"), script).unwrap();
        fs::rename(work.join("next"), work.join(format!("{number}.sh"))).unwrap();
        number
    }

    /// Has the run call the origin with curl; each answer is a line that ends in its status.
    fn curl(&mut self, arguments: &str) -> usize {
        self.tell(&format!("curl -s -m 60 -w ' %{{http_code}}\\n' {arguments}"))
    }

    /// What that came to.
    fn got(&self, number: usize) -> String {
        let file = format!("{number}.out");
        // The body comes first, then the status.
        let ended = |site: &Site| {
            site.lines(&file)
                .last()
                .and_then(|line| line.rsplit_once(' '))
                .is_some_and(|(_, end)| end.len() == 3)
        };
        self.site.until(&format!("call {number} is answered"), ended);
        self.site.lines(&file).join("\n")
    }

    fn is_waiting(&self, number: usize) -> bool {
        self.site.lines(&format!("{number}.out")).is_empty()
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// All prompts.
    fn all(&self) -> Vec<Value> {
        let text = self.site.strait(&["approvals", "list", "--all", "--json"]);
        serde_json::from_str(&text).expect(&text)
    }

    /// Waits for the one prompt at which so many calls wait.
    fn prompt(&self, waiting: u64) -> String {
        let open = |desk: &Self| {
            let all = desk.all();
            let open: Vec<_> = all.iter().filter(|prompt| prompt["state"] == "waiting").cloned().collect();
            (open.len() == 1 && open[0]["waiting"] == waiting)
                .then(|| open[0]["id"].as_str().unwrap().to_owned())
        };
        self.site.until(&format!("{waiting} calls wait at one prompt"), |_| open(self).is_some());
        open(self).unwrap()
    }

    fn approve(&self, arguments: &[&str]) -> String {
        let output = self.site.command(&[&["approvals", "approve"], arguments].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The lines of events with this name.
    fn events(&self, name: &str) -> Vec<Value> {
        let records = self.site.records();
        let lines = records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|line| line["event"] == name).collect()
    }

    /// Asserts that every call has its two lines, once those that have ended have them.
    fn assert_whole(&self) {
        let count =
            |site: &Site, phase: &str| site.records().matches(&format!("\"phase\":\"{phase}\"")).count();
        self.site.until("no call is open", |site| count(site, "decided") == count(site, "done"));
        self.site.assert_whole(1);
    }

    /// The `done` lines for which this holds, once there are so many: a client has its answer a moment before.
    fn done(&self, count: usize, holds: impl Fn(&Value) -> bool) -> Vec<Value> {
        let all = |site: &Site| -> Vec<Value> {
            let records = site.records();
            let lines = records.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.filter(|line| line["phase"] == "done" && holds(line)).collect()
        };
        self.site
            .until(&format!("{count} calls are on record to their end"), |site| all(site).len() >= count);
        all(&self.site)
    }
}

/// Whether a line is of a call to the origin.
fn is_to_origin(line: &Value) -> bool {
    line["dst"]["name"] == "origin.example"
}

/// Answers every request with its number and remembers method, path and body.
fn origin() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, seen) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
    let all = Arc::clone(&seen);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let seen = Arc::clone(&all);
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let length = head
                    .to_ascii_lowercase()
                    .split_once("content-length: ")
                    .map_or(0, |(_, rest)| rest.split("\r\n").next().unwrap().parse().unwrap());
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                let line = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1");
                seen.lock()
                    .unwrap()
                    .push(format!("{line} {}", String::from_utf8_lossy(&body)).trim_end().to_owned());
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\ndone");
            });
        }
    });
    (port, seen)
}

#[test]
fn a21_only_a_call_that_nothing_but_approval_rules_permit_is_held() {
    let mut desk = Desk::new(&format!("{ASK}{PLAIN}"), "");
    let call = desk.curl("ORIGIN/a");
    assert_eq!(desk.got(call), "done 200", "approval and plain: at once");
    desk.site.reload(ASK);
    let held = desk.curl("ORIGIN/b");
    let id = desk.prompt(1);
    assert!(desk.is_waiting(held), "approval only: held");
    desk.site.reload(&format!("{ASK}{FORBID}"));
    let call = desk.curl("ORIGIN/c");
    assert!(desk.got(call).contains("TOOL_CALL_DENIED"), "approval and forbid");
    desk.site.reload("");
    let call = desk.curl("ORIGIN/d");
    assert!(desk.got(call).contains("TOOL_CALL_DENIED"), "none");
    desk.site.reload(ASK);
    desk.approve(&[&id]);
    assert_eq!(desk.got(held), "done 200");
    assert_eq!(desk.seen(), ["GET /a", "GET /b"]);
}

#[test]
fn a22_a_call_waits_and_is_answered_once_a_person_has_approved_that_one_execution() {
    let mut desk = Desk::new(ASK, "");
    let body = "-d '{\"amount\":82}' -H 'Content-Type: application/json' ORIGIN/pay";
    let calls = [desk.curl(body), desk.curl(body)];
    let id = desk.prompt(2);
    let shown = desk.site.strait(&["approvals", "show", &id]);
    for part in [
        "POST http://origin.example:",
        "/pay",
        "| {\"amount\":82}",
        "content-type: application/json",
        "writes to the origin",
        "rules    ask",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let table = desk.site.strait(&["approvals"]);
    assert!(table.contains(&id) && table.contains("2 of 2"), "{table}");
    assert!(desk.seen().is_empty(), "nothing has left");
    let said = desk.approve(&[&id]);
    assert!(said.contains("1 still waiting"), "{said}");
    desk.site.until("one is answered", |_| calls.iter().filter(|call| desk.is_waiting(**call)).count() == 1);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(desk.seen(), ["POST /pay {\"amount\":82}"], "the second needs its own");
    desk.approve(&[&id]);
    assert!(calls.iter().all(|call| desk.got(*call) == "done 200"));
    assert_eq!(desk.seen().len(), 2);
    let again = desk.site.command(&["approvals", "approve", &id]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("NO_PROMPT"), "{again:?}");

    let call = desk.curl(body);
    let id = desk.prompt(1);
    desk.site.strait(&["approvals", "deny", &id, "--note", "use the staging account"]);
    let got = desk.got(call);
    assert!(
        got.ends_with(" 403") && got.contains("APPROVAL_DENIED") && got.contains("use the staging account"),
        "{got}"
    );

    let call = desk.curl(body);
    let id = desk.prompt(1);
    desk.site.reload(&format!("{ASK}{FORBID}"));
    desk.approve(&[&id]);
    let got = desk.got(call);
    assert!(got.ends_with(" 403") && got.contains("TOOL_CALL_DENIED") && got.contains("frozen"), "{got}");
    assert_eq!(desk.seen().len(), 2);

    let granted = desk.events("approval.granted");
    assert_eq!(granted.len(), 3);
    assert_eq!((&granted[0]["facts"]["by"], &granted[0]["facts"]["uid"]), (&"root".into(), &"0".into()));
    assert_eq!((desk.events("call.held").len(), desk.events("approval.denied").len()), (4, 1));
    let events = desk.site.records();
    let leaks: Vec<_> =
        events.lines().filter(|line| line.contains("\"event\":") && line.contains("/pay")).collect();
    assert!(leaks.is_empty(), "no URL in an event: {leaks:?}");
    let done = desk.done(4, is_to_origin);
    let outcomes: Vec<_> =
        done.iter().map(|line| line["approval"]["outcome"].as_str().unwrap_or("none")).collect();
    assert_eq!(outcomes, ["granted", "granted", "denied", "granted"]);
    assert!(
        done.iter().all(|line| line["approval"]["by"] == "root" && line["approval"]["waitedMs"].is_u64())
    );
    desk.assert_whole();
}

/// Case 83.
#[test]
fn case_85_an_approval_serves_the_call_that_was_shown_and_no_other() {
    let mut desk = Desk::new(
        &format!(
            "{ASK}{}",
            ASK.replace("\"ask\"", "\"ask-other\"").replace("origin.example", "other.example")
        ),
        "",
    );
    let pay = |body: &str| format!("-d '{body}' -H 'Content-Type: application/json' ORIGIN/pay");
    let first = desk.curl(&pay("{\"amount\":82}"));
    let id = desk.prompt(1);
    let others: Vec<usize> = [
        pay("{\"amount\":820}"),
        pay("{\"amount\":82.0}"),
        pay("{\"amount\":82,\"to\":\"x\"}"),
        pay("{\"amount\":82}").replace("/pay", "/pay?dry=0"),
        pay("{\"amount\":82}").replace("ORIGIN", "OTHER"),
        format!("{} -H 'X-Amz-Target: Delete'", pay("{\"amount\":82}")),
    ]
    .iter()
    .map(|call| desk.curl(call))
    .collect();
    desk.site.until("each has a prompt of its own", |_| {
        desk.all().iter().filter(|prompt| prompt["state"] == "waiting").count() == 7
    });
    desk.approve(&[&id, "--for-run"]);
    assert_eq!(desk.got(first), "done 200");
    std::thread::sleep(Duration::from_millis(500));
    assert!(others.iter().all(|call| desk.is_waiting(*call)), "case 83: what was shown, not the host");
    assert_eq!(desk.seen(), ["POST /pay {\"amount\":82}"]);
    let same = desk.curl(&pay("{ \"amount\": 82 }"));
    assert_eq!(desk.got(same), "done 200", "for this run, spaces or not");
    // Visible, and revocable.
    let table = desk.site.strait(&["approvals"]);
    assert!(table.contains("granted (run left, by root)"), "{table}");
    desk.site.strait(&["approvals", "deny", &id]);
    let same = desk.curl(&pay("{\"amount\":82}"));
    desk.site.until("it asks again", |_| {
        desk.all().iter().filter(|prompt| prompt["state"] == "waiting").count() == 7
    });
    assert!(desk.is_waiting(same));
    assert_eq!(desk.events("approval.revoked").len(), 1);
}

#[test]
fn case_87_fifty_identical_requests_are_one_prompt() {
    let mut desk = Desk::new(ASK, "");
    let calls: Vec<usize> = (0..50).map(|_| desk.curl("ORIGIN/same")).collect();
    let id = desk.prompt(50);
    let answered = |desk: &Desk| calls.iter().filter(|call| !desk.is_waiting(**call)).count();
    desk.approve(&[&id, "--count", "3"]);
    desk.site.until("three are answered", |_| answered(&desk) == 3);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((answered(&desk), desk.seen().len()), (3, 3));
    desk.approve(&[&id, "--for-run"]);
    desk.site.until("all are answered", |_| answered(&desk) == 50);
    assert_eq!(desk.seen().len(), 50);
    desk.site.strait(&["approvals", "deny", &id]);
    let more: Vec<usize> = (0..5).map(|_| desk.curl("ORIGIN/same")).collect();
    let id = desk.prompt(5);
    desk.site.strait(&["approvals", "deny", &id]);
    assert!(more.iter().all(|call| desk.got(*call).contains("APPROVAL_DENIED")), "one refusal answers all");
    assert_eq!(desk.seen().len(), 50);
    desk.assert_whole();
}

#[test]
fn case_87_an_approval_after_the_client_has_gone_serves_its_retry_once() {
    let mut desk = Desk::new(ASK, "");
    let gone = desk.curl("-m 1 ORIGIN/late");
    assert!(desk.got(gone).ends_with(" 000"), "the client gave up");
    let id = desk.prompt(0);
    let said = desk.approve(&[&id]);
    assert!(said.contains("within 10 minutes"), "{said}");
    assert!(desk.seen().is_empty(), "approving executes nothing by itself");
    let retry = desk.curl("ORIGIN/late");
    assert_eq!(desk.got(retry), "done 200");
    let second = desk.curl("ORIGIN/late");
    desk.prompt(1);
    assert!(desk.is_waiting(second) && desk.seen().len() == 1);
    desk.site.strait(&["kill", "--all"]);
    desk.site.until("its prompt ends with the run", |_| {
        desk.all().iter().any(|prompt| prompt["state"] == "expired: the run ended")
    });
    std::thread::sleep(Duration::from_millis(2500));
    desk.assert_whole();
}

#[test]
fn case_87_headless_refuses_at_once_and_with_nobody_there_time_runs_out() {
    let mut desk = Desk::new(ASK, "[approvals]\nmode = \"refuse\"\n");
    let begun = Instant::now();
    let call = desk.curl("ORIGIN/a");
    assert!(desk.got(call).contains("APPROVAL_UNAVAILABLE"));
    assert!(begun.elapsed() < Duration::from_secs(5) && desk.all().is_empty());
    drop(desk);
    let rules = format!(
        "{ASK}{}",
        ASK.replace("@id(\"ask\")", "@id(\"quick\") @approval_timeout(\"1s\")").replace(
            "resource in Host::\"origin.example\"",
            "resource == Url::\"http://origin.example:PORT/quick\"",
        )
    );
    let mut desk = Desk::new(ASK, "[approvals]\ntimeout = \"4s\"\nper_run = 2\n");
    desk.site.reload(&rules.replace("PORT", &desk.origin.to_string()));
    let (slow, quick) = (desk.curl("ORIGIN/slow"), desk.curl("ORIGIN/quick"));
    desk.site.until("both wait", |_| desk.all().len() == 2);
    let call = desk.curl("ORIGIN/third");
    assert!(desk.got(call).contains("approvals.per_run"), "the cap of a run");
    let got = desk.got(quick);
    assert!(got.ends_with(" 403") && got.contains("APPROVAL_TIMEOUT") && got.contains("within 1 s"), "{got}");
    let got = desk.got(slow);
    assert!(got.contains("APPROVAL_TIMEOUT") && got.contains("within 4 s"), "{got}");
    assert!(desk.seen().is_empty());
    assert!(desk.all().iter().all(|prompt| prompt["state"] == "expired"));
    assert_eq!(desk.events("approval.expired").len(), 2);
}

/// A22.
#[test]
fn a_gateway_or_an_agent_that_is_killed_leaves_nothing_that_could_run_twice() {
    let mut desk = Desk::new(ASK, "");
    let call = desk.curl("ORIGIN/a");
    let first = desk.prompt(1);
    let gateway = desk.site.gateway();
    desk.site.kill_gateway();
    desk.site.until("a new gateway is there", |site| site.gateway().is_some() && site.gateway() != gateway);
    assert!(desk.got(call).ends_with(" 000"), "its connection is gone");
    let ended = |desk: &Desk, id: &str| desk.all().iter().find(|prompt| prompt["id"] == id).cloned().unwrap();
    assert_eq!(ended(&desk, &first)["state"], "expired: the gateway was restarted");
    desk.site.until("calls are held again", |site| site.strait(&["status"]).contains("connected"));
    let call = desk.curl("ORIGIN/b");
    let second = desk.prompt(1);
    desk.site.kill_agent();
    let got = desk.got(call);
    assert!(got.ends_with(" 403") && got.contains("APPROVAL_UNAVAILABLE"), "{got}");
    desk.site.start_agent();
    assert_eq!(ended(&desk, &second)["state"], "expired: the agent was restarted");
    assert!(ended(&desk, &second)["target"].as_str().unwrap().ends_with("/b"), "people can tell what it was");
    for id in [&first, &second] {
        let output = desk.site.command(&["approvals", "approve", id]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    assert!(desk.seen().is_empty());
    let causes: Vec<_> =
        desk.events("approval.expired").iter().map(|event| event["facts"]["cause"].clone()).collect();
    assert_eq!(causes, ["expired: the gateway was restarted", "expired: the agent was restarted"]);
    let call = desk.curl("ORIGIN/c");
    let id = desk.prompt(1);
    desk.approve(&[&id]);
    assert_eq!(desk.got(call), "done 200", "and everything goes on");
    let refused = desk.done(1, |line| line["code"] == "APPROVAL_UNAVAILABLE");
    assert_eq!(refused.len(), 1, "the refused call is on record");
    desk.assert_whole();
}

/// A22, A27.
#[test]
fn a_call_of_a_tool_waits_like_any_other_and_its_step_names_who_approved() {
    let rule = ASK.replace("Host::\"origin.example\"", "Tool::\"api\"");
    let more = "[credentials.key]\nfrom = \"file:BASE/secret\"\n[tools.api]\nkind = \"http\"\n\
                url = \"http://origin.example:ORIGIN/v1\"\ncredential = \"key\"\nheaders = { Accept-Profile = \"fixed\" }\n";
    let mut desk = Desk::new(&rule, more);
    let secret = desk.site.work().parent().unwrap().join("secret");
    fs::write(&secret, "s3cret-of-the-operator\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let call = "-H \"Authorization: Bearer $STRAIT_TOKEN\" -H 'X-Kind: a' $STRAIT_GATEWAY/http/api/tells";
    let first = desk.curl(call);
    let id = desk.prompt(1);
    let shown = desk.site.strait(&["approvals", "show", &id]);
    for part in ["/v1/tells", "via      tool api", "x-kind: a", "accept-profile: fixed"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("authorization"), "the run's token is sent to nobody: {shown}");
    desk.approve(&[&id]);
    let got = desk.got(first);
    assert!(got.starts_with("GET /v1/tells HTTP/1.1") && got.ends_with(" 200"), "{got}");
    let second = desk.curl(call);
    let id = desk.prompt(1);
    desk.site.strait(&["approvals", "deny", &id, "--note", "no"]);
    assert!(desk.got(second).contains("APPROVAL_DENIED"));
    let steps = desk.done(2, |line| line["stream"] == "trace");
    let told: Vec<_> =
        steps.iter().map(|step| (&step["approval"]["outcome"], &step["approval"]["by"])).collect();
    assert_eq!(told, [(&"granted".into(), &"root".into()), (&"denied".into(), &"root".into())]);
    assert_eq!(desk.done(1, is_to_origin).len(), 1, "what was refused has no leg that leaves the host");
}

/// Runs a command line as somebody without an account. Without a group `strait` the socket is root's, so the test opens it.
fn as_second(desk: &Desk, arguments: &[&str]) -> Output {
    let socket = desk.site.run_dir().join("control.sock");
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    let command = desk.site.command(arguments);
    let bin = desk.site.work().join("strait");
    if !bin.exists() {
        assert!(Command::new("cp").arg(command.get_program()).arg(&bin).status().unwrap().success());
    }
    Command::new(bin)
        .args(command.get_args())
        .uid(4_000_321)
        .gid(4_000_321)
        .current_dir("/")
        .output()
        .unwrap()
}

/// A22.
#[test]
fn nobody_but_an_administrator_approves_and_nothing_inside_a_run_does() {
    let mut desk = Desk::new(ASK, "");
    let call = desk.curl("ORIGIN/a");
    let id = desk.prompt(1);
    let listed = as_second(&desk, &["approvals", "list", "--json"]);
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout).trim(),
        "[]",
        "another's prompts are not seen: {listed:?}"
    );
    for arguments in [["approvals", "approve", &id], ["approvals", "deny", &id]] {
        let output = as_second(&desk, &arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("NOT_ADMIN"), "{output:?}");
    }
    let output = as_second(&desk, &["approvals", "show", &id]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("NO_PROMPT"), "{output:?}");
    // Inside, the socket isn't there at all.
    let inside = desk.tell(&format!("ls {} 2>&1 | tr '\\n' ' '; echo ' end'", desk.site.run_dir().display()));
    assert!(desk.got(inside).contains("No such file"), "{}", desk.got(inside));
    // And a process of the run that had got hold of it would be nobody, root or not.
    let run = desk.all()[0]["run"].as_str().unwrap().to_owned();
    let groups = format!(
        "for g in $(find /sys/fs/cgroup -type d -path '*/{}/{run}'); do echo $$ > $g/cgroup.procs; done; exec \"$@\"",
        desk.site.run_dir().file_name().unwrap().to_str().unwrap()
    );
    let command = desk.site.command(&["approvals", "approve", &id]);
    let output = Command::new("sh")
        .args(["-c", &groups, "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("PEER_UNKNOWN"), "{output:?}");
    assert!(desk.is_waiting(call) && desk.seen().is_empty());
    desk.approve(&[&id]);
    assert_eq!(desk.got(call), "done 200", "the control: root outside of it does");
}

/// A22.
#[test]
fn people_are_told_by_the_operators_command_and_shown_what_cannot_deceive_them() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (hook, told) = (folder.path().join("hook"), folder.path().join("told"));
    fs::write(
        &hook,
        format!(
            "#!/bin/sh\necho \"$#\" >> {0}.arguments\ntext=$(cat)\nprintf '%s\\n' \"$text\" >> {0}\n",
            told.display()
        ),
    )
    .unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let more = format!("[approvals]\nnotify = {{ command = [\"{}\", \"one\"] }}\n", hook.display());
    let mut desk = Desk::new(ASK, &more);
    desk.curl("-H 'X-Api-Key: sk-live-0123456789abcdef0123' --data-binary \"$(printf 'to p\\320\\260ypal\\342\\200\\256\\033[2K')\" ORIGIN/pay");
    let id = desk.prompt(1);
    desk.curl("ORIGIN/b");
    desk.site.until("people are told of both", |_| {
        fs::read_to_string(&told).is_ok_and(|text| text.lines().count() == 2)
    });
    let text = fs::read_to_string(&told).unwrap();
    let prompts: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let first = prompts.iter().find(|prompt| prompt["id"] == id.as_str()).unwrap();
    assert_eq!(first["content"], "to p\\u{430}ypal\\u{202e}\\u{1b}[2K");
    assert!(!text.contains("sk-live-0123") && text.contains("[hidden:"), "{text}");
    assert_eq!(
        fs::read_to_string(folder.path().join("told.arguments")).unwrap(),
        "1\n1\n",
        "what was configured, no more"
    );
    let shown = desk.site.strait(&["approvals", "show", &id]);
    assert!(shown.contains("| to p\\u{430}ypal\\u{202e}\\u{1b}[2K"), "{shown}");
    assert!(shown.bytes().all(|byte| byte == b'\n' || (0x20..0x7f).contains(&byte)), "{shown:?}");
}

/// A22: a webhook is a command, the one that the README shows.
#[test]
fn a_webhook_is_told_by_curl() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hook = format!("http://{}/hook", listener.local_addr().unwrap());
    let readme = include_str!("../../README.md");
    let shown = readme.lines().find(|line| line.starts_with("`[\"/usr/bin/curl\"")).unwrap();
    let command = shown.trim_matches(['`', '.']).replace("https://chat.example/hook", &hook);
    let mut desk = Desk::new(ASK, &format!("[approvals]\nnotify = {{ command = {command} }}\n"));
    desk.curl("-d '{\"amount\":82}' ORIGIN/pay");
    let (mut stream, _) = listener.accept().unwrap();
    let mut told = Vec::new();
    let mut buffer = [0; 4096];
    let prompt: Value = loop {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&told));
        told.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&told).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("POST /hook ") && head.contains("application/json"), "{head}");
        if let Ok(prompt) = serde_json::from_str(body) {
            break prompt;
        }
    };
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert_eq!(prompt["id"], desk.prompt(1).as_str());
    assert_eq!(prompt["content"], "{\"amount\":82}");
    // Rows of calls that differ in their bodies alone are told apart.
    desk.curl("-d '{\"amount\":83}' ORIGIN/pay");
    desk.site.until("both are listed", |_| desk.all().len() == 2);
    let table = desk.site.strait(&["approvals"]);
    let calls: BTreeSet<&str> =
        table.lines().filter_map(|line| line.split_once("POST ")).map(|(_, call)| call).collect();
    assert_eq!(calls.len(), 2, "{table}");
}

/// Opens a thousand connections, makes a call on each that needs nobody, then one that does, and waits for the answers.
const THOUSAND: &str = "import os, socket, time
name = 'origin.example'
port = PORT
address = socket.gethostbyname(name)
head = ' HTTP/1.1\\r\\nHost: %s:%d\\r\\nContent-Type: text/plain\\r\\nContent-Length: 2\\r\\n\\r\\nok' % (name, port)
sockets = []
for n in range(1000):
    s = socket.create_connection((address, port))
    s.sendall(b'PUT /' + head.encode())
    got = s.recv(4096)
    while not got.endswith(b'done'): got += s.recv(4096)
    sockets.append(s)
open('open', 'w').write('yes')
while not os.path.exists('go'): time.sleep(0.05)
for n, s in enumerate(sockets): s.sendall(b'POST /n%d' % (n % 90) + head.encode())
answers = sum(s.recv(12) == b'HTTP/1.1 200' for s in sockets)
open('answers', 'w').write('%d\\n' % answers)
";

fn resident(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn a_thousand_calls_wait_in_little_memory() {
    let plain = PLAIN.replace(";\n", "\nwhen { context.method == \"PUT\" };\n");
    let mut desk = Desk::new(&format!("{ASK}{plain}"), "");
    let script = THOUSAND.replace("PORT", &desk.origin.to_string());
    fs::write(desk.site.work().join("thousand.py"), script).unwrap();
    let processes = [desk.site.gateway().unwrap(), desk.site.agent()];
    let all = || processes.map(resident);
    let before = all();
    desk.tell("python3 thousand.py");
    desk.site.until("the connections are there", |site| site.lines("open") == ["yes"]);
    assert_eq!(desk.seen().len(), 1000, "the control: what needs nobody isn't held");
    let idle = all();
    fs::write(desk.site.work().join("go"), "").unwrap();
    let waiting =
        |desk: &Desk| desk.all().iter().map(|prompt| prompt["waiting"].as_u64().unwrap()).sum::<u64>();
    desk.site.until("a thousand wait", |_| waiting(&desk) == 1000);
    let held = all();
    let each = |from: [usize; 2], to: [usize; 2], at: usize| to[at].saturating_sub(from[at]) / 1000;
    let costs = each(idle, held, 0) + each(idle, held, 1);
    println!(
        "bytes of a held call: {} in the gateway, {} in the agent; of its open connection: {} and {}",
        each(idle, held, 0),
        each(idle, held, 1),
        each(before, idle, 0),
        each(before, idle, 1)
    );
    assert!(costs <= 16 * 1024, "{costs} bytes for each held call");
    let prompts = desk.all();
    let ids =
        prompts.iter().filter(|prompt| prompt["state"] == "waiting").map(|prompt| prompt["id"].as_str());
    let ids: Vec<&str> = ids.map(Option::unwrap).collect();
    assert_eq!(ids.len(), 90);
    for id in ids {
        desk.approve(&[id, "--for-run"]);
    }
    desk.site.until("all are answered", |site| site.lines("answers") == ["1000"]);
    assert_eq!(desk.seen().len(), 2000);
}
