use std::time::{Duration, Instant};

use super::site::Site;

/// Looks another name up once, so that the origin's address isn't the one that a forgetful gateway would give first;
/// then calls the origin for ever. Each line: HTTP status (000 if none), address that the name has, body.
fn probe(site: &Site) -> String {
    format!(
        "curl -s -m 2 -o other http://other.example:{0}/; while :; do curl -s -m 2 -w ' %{{http_code}} %{{remote_ip}}\\n' http://origin.example:{0}/ | tr -d '\\n' >> out; \
         echo >> out; sleep 0.02; done",
        site.origin
    )
}

fn count(site: &Site, status: &str) -> usize {
    site.lines("out").iter().filter(|line| line.contains(&format!(" {status} "))).count()
}

fn settled(site: &mut Site) {
    let script = probe(site);
    site.start_run(&script);
    site.until("calls are answered", |site| count(site, "200") >= 5);
}

/// Waits for more calls with this status than there are now.
fn more(site: &Site, status: &str) {
    let before = count(site, status);
    site.until(&format!("a call ends with {status}"), |site| count(site, status) > before + 2);
}

#[test]
fn a_killed_gateway_is_back_within_a_second_and_leaves_no_half_record() {
    let mut site = Site::new();
    settled(&mut site);
    // The best of three: what the machine does besides is no fault of the gateway's.
    let gaps: Vec<Duration> = (0..3).map(|_| gap(&site)).collect();
    let best = gaps.iter().min().unwrap();
    assert!(*best < Duration::from_secs(1), "calls were answered again only after {gaps:?}");
    more(&site, "200");
    assert_ends_whole(&site);
}

/// Kills the gateway; how long until calls are answered again.
fn gap(site: &Site) -> Duration {
    let first = site.gateway();
    let before = count(site, "200");
    site.kill_gateway();
    let killed = Instant::now();
    site.until("a new gateway answers", |site| site.gateway() != first && count(site, "200") > before + 1);
    killed.elapsed()
}

#[test]
fn without_the_agent_new_calls_are_refused_and_with_a_new_one_the_run_goes_on() {
    let mut site = Site::new();
    settled(&mut site);
    let name = address(&site);
    site.kill_agent();
    site.until("calls are refused", |site| count(site, "503") >= 3);
    assert!(site.lines("out").iter().any(|line| line.contains("RECORD_UNAVAILABLE")));
    site.start_agent();
    let listed = site.strait(&["ps"]);
    assert!(listed.contains("curl"), "the run was not adopted: {listed}");
    more(&site, "200");
    assert_eq!(address(&site), name, "the name means another address now");
    assert_ends_whole(&site);
    assert!(site.strait(&["log", "--lines", "all"]).contains("run.ended"));
}

#[test]
fn with_both_killed_nothing_gets_through_and_both_come_back_to_the_same_names() {
    let mut site = Site::new();
    settled(&mut site);
    let name = address(&site);
    site.kill_agent();
    site.kill_gateway();
    std::thread::sleep(Duration::from_millis(300));
    let passed = count(&site, "200");
    more(&site, "000");
    assert_eq!(count(&site, "200"), passed, "a call got through with agent and gateway dead");
    site.start_agent();
    more(&site, "200");
    assert_eq!(address(&site), name, "the name means another address now");
    assert_ends_whole(&site);
}

#[test]
fn with_the_agent_dead_root_still_kills_and_the_next_agent_records_who_did() {
    let mut site = Site::new();
    settled(&mut site);
    site.kill_agent();
    more(&site, "503");
    let killed = site.strait(&["kill", "--all"]);
    assert!(killed.starts_with("default-"), "{killed}");
    std::thread::sleep(Duration::from_millis(100));
    let written = site.lines("out").len();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(site.lines("out").len(), written, "it went on");
    site.start_agent();
    site.until("the run has ended", |site| !site.strait(&["ps"]).contains("curl"));
    let log = site.strait(&["log", "--json", "--lines", "all"]);
    let ended = log.lines().find(|line| line.contains("run.ended")).expect("the end is on record");
    assert!(ended.contains("\"reason\":\"killed\"") && ended.contains("\"by\":\"root\""), "{ended}");
}

/// Calls for an answer that doesn't end, beside the quick ones.
fn held_open(site: &mut Site) {
    settled(site);
    let url = format!("http://origin.example:{}/slow", site.origin);
    site.start_run(&format!("curl -s -N {url} >> slow"));
    site.until("half an answer has come", |site| !site.lines("slow").is_empty());
}

fn lost(site: &Site) -> usize {
    site.records().lines().filter(|line| line.contains("GATEWAY_GONE")).count()
}

#[test]
fn a_call_that_a_killed_gateway_had_open_gets_its_last_line() {
    let mut site = Site::new();
    held_open(&mut site);
    assert_eq!(lost(&site), 0);
    site.kill_gateway();
    site.until("its end is on record", |site| lost(site) >= 1);
    more(&site, "200");
    assert_ends_whole(&site);
}

#[test]
fn a_call_that_was_open_when_both_were_killed_gets_its_last_line_from_the_next_agent() {
    let mut site = Site::new();
    held_open(&mut site);
    site.kill_agent();
    site.kill_gateway();
    site.start_agent();
    site.until("its end is on record", |site| lost(site) >= 1);
    more(&site, "200");
    assert_ends_whole(&site);
}

/// No agent and one that doesn't answer are the same to a call.
#[test]
fn while_the_agent_hangs_calls_are_refused_and_nothing_is_lost_when_it_goes_on() {
    let mut site = Site::new();
    settled(&mut site);
    site.hang_agent();
    site.until("calls are refused", |site| count(site, "503") >= 3);
    site.signal_agent("-CONT");
    more(&site, "200");
    assert_ends_whole(&site);
}

#[test]
fn with_the_agent_hanging_root_still_kills() {
    let mut site = Site::new();
    settled(&mut site);
    site.hang_agent();
    let killed = site.strait(&["kill", "--all"]);
    assert!(killed.starts_with("default-"), "{killed}");
    std::thread::sleep(Duration::from_millis(100));
    let written = site.lines("out").len();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(site.lines("out").len(), written, "it went on");
    site.kill_agent();
    site.start_agent();
    site.until("the run has ended", |site| !site.strait(&["ps"]).contains("curl"));
    let log = site.strait(&["log", "--json", "--lines", "all"]);
    let ended = log.lines().find(|line| line.contains("run.ended")).expect("the end is on record");
    assert!(ended.contains("\"reason\":\"killed\"") && ended.contains("\"by\":\"root\""), "{ended}");
}

/// It holds the listeners, so as long as it lives no other can serve.
#[test]
fn a_gateway_that_hangs_is_replaced_by_the_next_agent() {
    let mut site = Site::new();
    settled(&mut site);
    let first = site.gateway();
    site.hang_gateway();
    site.kill_agent();
    site.start_agent();
    assert_ne!(site.gateway(), first);
    more(&site, "200");
}

#[test]
fn a_start_that_the_agent_died_in_is_ended_by_the_next_and_raises_no_alarm() {
    let mut site = Site::new();
    site.kill_agent();
    site.leave_half_a_start("coder-aaaaaa");
    let verdict = site.strait(&["log", "verify", "--all"]);
    assert!(verdict.contains("BROKEN  coder-aaaaaa"), "{verdict}");
    site.start_agent();
    site.until("the chain is sealed", |site| {
        let verdict = site.strait(&["log", "verify", "--all"]);
        verdict.lines().any(|line| line.starts_with("intact  coder-aaaaaa") && line.contains("sealed"))
    });
    let log = site.strait(&["log", "--json", "--lines", "all"]);
    let ends: Vec<_> = log.lines().filter(|line| line.contains("run.ended")).collect();
    assert!(ends.len() == 1 && ends[0].contains("coder-aaaaaa"), "{ends:?}");
    assert!(ends[0].contains("\"agent\":\"coder\"") && ends[0].contains("\"reason\":\"failed\""), "{ends:?}");
    assert_eq!(site.live_files(), 0);
}

/// Ends the run and looks at what is on record.
fn assert_ends_whole(site: &Site) {
    site.strait(&["kill", "--all"]);
    site.until("the run has ended", |site| !site.strait(&["ps"]).contains("curl"));
    // A run's last records are taken for two seconds after its end.
    std::thread::sleep(Duration::from_millis(2500));
    site.assert_records_whole();
}

/// The address that the origin's name had at the last answered call.
fn address(site: &Site) -> String {
    let lines = site.lines("out");
    let last = lines.iter().rfind(|line| line.contains(" 200 ")).expect("no call was answered");
    let address = last.rsplit(' ').next().unwrap_or_default().to_owned();
    assert_ne!(address, "198.18.0.1", "the other name was to have the first address");
    address
}
