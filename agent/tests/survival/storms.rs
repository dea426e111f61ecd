//! Kills at moments that nobody chose, under load.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::PathBuf,
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::site::Site;

/// Paths that were asked for.
type Reached = Arc<Mutex<Vec<String>>>;

/// An origin that notes what reaches it; its port.
fn origin() -> (u16, Reached) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let reached = Reached::default();
    let noted = Arc::clone(&reached);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let noted = Arc::clone(&noted);
            thread::spawn(move || {
                let mut answers = stream.try_clone().unwrap();
                let mut heads = BufReader::new(stream).lines();
                while let Some(Ok(line)) = heads.next() {
                    if let Some(path) = line.strip_prefix("GET ") {
                        noted.lock().unwrap().push(path.split(' ').next().unwrap().to_owned());
                    }
                    if line.is_empty()
                        && answers.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    (port, reached)
}

/// What reached the origin is on record, once for each time, with its end; nothing else is there twice either.
fn assert_accounted(site: &Site, reached: &Reached) {
    site.strait(&["kill", "--all"]);
    site.until("the run has ended", |site| !site.strait(&["ps"]).contains("curl"));
    thread::sleep(Duration::from_millis(2500));
    let mut allowed: HashMap<String, usize> = HashMap::new();
    for line in site.records().lines().filter(|line| line.contains("\"phase\":\"decided\"")) {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let url = record["request"]["url"].as_str().or_else(|| record["url"].as_str()).unwrap_or_default();
        if let Some((_, path)) = url.split_once("example:").and_then(|(_, rest)| rest.split_once('/')) {
            *allowed.entry(format!("/{path}")).or_default() += usize::from(record["decision"] == "allow");
        }
    }
    let mut times: HashMap<String, usize> = HashMap::new();
    for path in reached.lock().unwrap().iter() {
        *times.entry(path.clone()).or_default() += 1;
    }
    assert!(times.len() > 500, "{} calls came", times.len());
    // Of what curl tries again on a connection that broke there may be more on record than came.
    let odd: Vec<_> = times
        .iter()
        .filter(|(path, count)| allowed.get(*path).is_none_or(|recorded| recorded < count))
        .take(8)
        .collect();
    assert!(odd.is_empty(), "of {} calls some came that are not on record, such as {odd:?}", times.len());
    site.assert_whole(times.len());
}

fn load(site: &mut Site, port: u16) {
    // A number of its own in each URL.
    let script = format!(
        "i=0; while :; do i=$((i+1)); curl -s -Z --no-progress-meter --parallel-max 12 -m 5 -o /dev/null \
         \"http://origin.example:{port}/$i-[1-300]\"; done"
    );
    site.start_run(&script);
    site.start_run(&script.replace("/$i-", "/b$i-"));
}

#[test]
fn whatever_dies_when_each_call_that_came_through_is_on_record_once() {
    let (port, reached) = origin();
    let mut site = Site::new();
    load(&mut site, port);
    for round in 0_u64..12 {
        let before = reached.lock().unwrap().len();
        site.until("calls come", |_| reached.lock().unwrap().len() > before + 20);
        thread::sleep(Duration::from_millis(round * 37 % 160));
        match round % 4 {
            0 => site.kill_gateway(),
            1 => {
                site.kill_agent();
                thread::sleep(Duration::from_millis(round * 13 % 60));
                site.start_agent();
            }
            2 => {
                site.kill_agent();
                site.kill_gateway();
                site.start_agent();
            }
            _ => {
                site.kill_gateway();
                site.kill_agent();
                site.start_agent();
            }
        }
    }
    assert_accounted(&site, &reached);
}

/// What a spool holds of a hung agent's time is more than its chain keeps in mind.
#[test]
fn an_agent_that_hangs_under_load_and_dies_leaves_nothing_twice() {
    let (port, reached) = origin();
    let mut site = Site::new();
    load(&mut site, port);
    for _ in 0..3 {
        let before = reached.lock().unwrap().len();
        site.until("calls come", |_| reached.lock().unwrap().len() > before + 200);
        site.hang_agent();
        thread::sleep(Duration::from_millis(3500));
        site.kill_agent();
        site.start_agent();
    }
    assert_accounted(&site, &reached);
}

/// A small file system for the log, full when the next agent starts: it comes up, root can end the run, and once there is
/// room everything is on record.
#[test]
fn an_agent_that_starts_with_a_full_disk_comes_up_and_keeps_what_was_spooled() {
    let (port, reached) = origin();
    let mut site = Site::new();
    let disk = Disk::under(&mut site);
    load(&mut site, port);
    site.until("calls come", |_| reached.lock().unwrap().len() > 600);
    disk.fill();
    site.until("nothing more comes", |_| {
        let before = reached.lock().unwrap().len();
        thread::sleep(Duration::from_millis(700));
        reached.lock().unwrap().len() == before
    });
    site.kill_agent();
    site.kill_gateway();
    site.start_agent();
    assert!(site.strait(&["ps"]).contains("curl"), "the run was not adopted");
    disk.free();
    assert_accounted(&site, &reached);
}

/// The state folder as a file system of its own, of 8 MiB.
struct Disk(PathBuf);

impl Disk {
    fn under(site: &mut Site) -> Self {
        let state = site.state();
        site.kill_agent();
        site.kill_gateway();
        let script = "cp -a \"$0\" \"$0.was\" && mount -t tmpfs -o size=8m,mode=0755 none \"$0\" && cp -a \"$0.was/.\" \"$0\"";
        assert!(Command::new("sh").args(["-c", script]).arg(&state).status().unwrap().success());
        site.start_agent();
        Self(state)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        for size in [65_536, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
