//! The rows of the bench table: what is measured, on whom, and what we want of it.

use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    measure::{Dnsperf, Load, Reading, Wrk, cpu_us, memory_mib},
    model,
    peers::{BULK, DNSMASQ, SQUID, SQUID_BUMP, TINYPROXY, UNBOUND},
    report::Cells,
    site::{Site, Subject},
};
use crate::{exec, interrupt, lab::internet::BENCH};

/// What we want of a row.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    /// At least so many times the other's figure.
    AtLeast(f64, Subject),
    /// At most so much above the other's figure.
    Added(f64, Subject),
    /// At most.
    AtMost(f64),
    /// At most so many times the other's figure.
    Times(f64, Subject),
}

type Measure = fn(&Site, Subject) -> Result<Reading>;

/// A row.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) shows_cpu: bool,
    pub(super) goal: Goal,
    subjects: &'static [Subject],
    measure: Measure,
}

use Subject::{Direct, Dnsmasq, LiteLlm, Nginx, Portkey, Runc, Squid, Strait, Tinyproxy, Unbound};

const fn row(id: &'static str, what: &'static str, unit: &'static str, goal: Goal) -> Row {
    Row { id, what, unit, shows_cpu: false, goal, subjects: &[Strait], measure: |_, _| bail!("no measure") }
}

impl Row {
    const fn on(mut self, subjects: &'static [Subject], measure: Measure) -> Self {
        self.subjects = subjects;
        self.measure = measure;
        self
    }

    const fn with_cpu(mut self) -> Self {
        self.shows_cpu = true;
        self
    }
}

pub(super) const ROWS: &[Row] = &[
    // Before the loads: what both processes hold while nothing happens.
    row("R1", "resident memory of agent and gateway, idle", "MiB", Goal::AtMost(60.0))
        .on(&[Squid, Strait], resident),
    row("H1", "HTTP, 16 connections", "requests/s", Goal::AtLeast(1.5, Squid))
        .on(&[Direct, Squid, Tinyproxy, Strait], |site, on| http(site, on, 16))
        .with_cpu(),
    row("H1b", "HTTP, 64 connections", "requests/s", Goal::AtLeast(1.5, Squid))
        .on(&[Direct, Squid, Tinyproxy, Strait], |site, on| http(site, on, 64))
        .with_cpu(),
    row("H2", "HTTP, 1 connection, median", "µs", Goal::Added(120.0, Direct))
        .on(&[Direct, Squid, Tinyproxy, Strait], http_latency),
    row("H3", "intercepted TLS, 16 connections", "requests/s", Goal::AtLeast(0.2, Direct))
        .on(&[Direct, Squid, Strait], tls_kept)
        .with_cpu(),
    row("H4", "new intercepted connection, median", "µs", Goal::Added(600.0, Direct))
        .on(&[Direct, Squid, Strait], tls_new),
    row("M1", "call of an MCP tool with 2 KB, median", "µs", Goal::Added(150.0, Direct))
        .on(&[Direct, Strait], mcp_call)
        .with_cpu(),
    row("L1", "call of a model with an answer of 2 KB, median", "µs", Goal::Added(120.0, Direct))
        .on(&[Direct, Nginx, LiteLlm, Portkey, Strait], model::call)
        .with_cpu(),
    row("L1b", "calls of a model, 16 connections", "calls/CPU second", Goal::AtLeast(100.0, LiteLlm))
        .on(&[LiteLlm, Strait], model::calls_a_cpu_second),
    row("L1c", "calls of a model, 16 connections", "calls/CPU second", Goal::AtLeast(10.0, Portkey))
        .on(&[Nginx, Portkey, Strait], model::calls_a_cpu_second),
    row("L1d", "CPU of the gateway for a call of a model, 16 connections", "µs", Goal::AtMost(50.0))
        .on(&[Strait], model::gateway_cpu),
    row("L2", "a chunk on its way, 1 stream, median", "µs", Goal::Added(100.0, Direct))
        .on(&[Direct, Nginx, Strait], |site, on| model::chunk(site, on, model::ONE))
        .with_cpu(),
    row("L2b", "first chunk of a stream, median", "µs", Goal::Added(500.0, Direct))
        .on(&[Direct, Nginx, Strait], model::first),
    row("L2c", "a chunk on its way, 50 streams, median", "µs", Goal::Times(1.15, Nginx))
        .on(&[Direct, Nginx, Strait], |site, on| model::chunk(site, on, model::FIFTY))
        .with_cpu(),
    row("L2d", "CPU of a chunk in 1,000 streams or 50, of that in 1", "times", Goal::AtMost(1.25))
        .on(&[Nginx, Strait], model::flatness),
    row("T1", "TCP stream of 2 GiB", "GB/s", Goal::AtLeast(2.0, Squid))
        .on(&[Direct, Squid, Tinyproxy, Strait], bulk),
    row("T2", "memory growth by a body of 2 GiB", "MiB", Goal::AtMost(8.0)).on(&[Squid, Strait], growth),
    row("D1", "lookups, names known", "queries/s", Goal::AtLeast(0.8, Unbound))
        .on(&[Unbound, Dnsmasq, Strait], |site, on| dns(site, on, "-c 8 -q 64 -T 1").map(|(rate, _)| rate))
        .with_cpu(),
    row("D2", "one lookup at a time, average", "µs", Goal::AtMost(65.0))
        .on(&[Unbound, Dnsmasq, Strait], |site, on| {
            dns(site, on, "-c 1 -q 1 -T 1").map(|(_, latency)| latency)
        }),
    row("E1", "a kernel hook of a connect, average of all calls", "ns", Goal::AtMost(250.0))
        .on(&[Strait], kernel_hooks),
    row("C1", "start to end of `true`, median of 10", "ms", Goal::Added(40.0, Runc))
        .on(&[Runc, Strait], run_start),
    row("S1", "start to ready with a thousand policies", "ms", Goal::AtMost(150.0)).on(&[Strait], ready),
];

/// Measures a row on each of its subjects in turn, round by round, and takes medians.
///
/// # Errors
/// If a load fails or the bench was interrupted.
pub(super) fn measure(row: &Row, site: &Site, rounds: u32) -> Result<Cells> {
    let mut readings: Vec<(Subject, Vec<Reading>)> =
        row.subjects.iter().map(|on| (*on, Vec::new())).collect();
    for _ in 0..rounds {
        for (on, readings) in &mut readings {
            interrupt::check()?;
            if site.has(*on) {
                readings.push((row.measure)(site, *on).with_context(|| format!("{} on {on:?}", row.id))?);
            }
        }
    }
    Ok(readings.into_iter().map(|(on, readings)| (on, median(readings))).collect())
}

fn median(mut readings: Vec<Reading>) -> Option<Reading> {
    readings.sort_by(|a, b| a.value.total_cmp(&b.value));
    readings.get(readings.len() / 2).copied()
}

/// Runs a load and adds what the subject's processes used for it.
fn with_cpu(site: &Site, on: Subject, load: impl FnOnce() -> Result<(f64, f64)>) -> Result<Reading> {
    let pids = site.pids(on);
    let before = cpu_us(&pids);
    let (value, count) = load()?;
    let used = cpu_us(&pids) - before;
    Ok(Reading {
        value,
        count,
        cpu_us: (!pids.is_empty() && count > 0.0).then_some(used / count),
        ..Reading::default()
    })
}

fn wrk(site: &Site, on: Subject, connections: u32) -> Command {
    let (name, address) = BENCH;
    let target = match on {
        Squid => format!("-s forward.lua http://127.0.0.1:{SQUID}"),
        Tinyproxy => format!("-s forward.lua http://127.0.0.1:{TINYPROXY}"),
        Strait => format!("http://{name}/s"),
        _ => format!("http://{address}/s"),
    };
    site.shell(on, &format!("wrk -t1 -c{connections} -d{}s --latency {target}", site.seconds))
}

/// Also holds the records against the load: as many decided as done, and none missing.
fn http(site: &Site, on: Subject, connections: u32) -> Result<Reading> {
    let runs = site.installation.runs()?;
    let reading = with_cpu(site, on, || {
        let wrk = Wrk::read(&mut wrk(site, on, connections))?;
        Ok((wrk.per_second, wrk.count))
    })?;
    if on == Strait {
        let (decided, done) = site.newest_requests(&runs)?;
        // wrk doesn't count the requests that it breaks off at the end.
        let counted = reading.count..=reading.count + f64::from(connections);
        if decided != done || !counted.contains(&f64::from(u32::try_from(decided)?)) {
            bail!("{} requests, but {decided} decided and {done} done on record", reading.count);
        }
    }
    Ok(reading)
}

fn http_latency(site: &Site, on: Subject) -> Result<Reading> {
    with_cpu(site, on, || Wrk::read(&mut wrk(site, on, 1)).map(|wrk| (wrk.p50_us, wrk.count)))
}

fn mcp_call(site: &Site, on: Subject) -> Result<Reading> {
    let url = match on {
        Strait => "http://strait.internal/mcp/bench".to_owned(),
        _ => format!("http://{}/mcp", BENCH.1),
    };
    let line = format!("wrk -t1 -c1 -d{}s --latency -s tool.lua {url}", site.seconds);
    with_cpu(site, on, || Wrk::read(&mut site.shell(on, &line)).map(|wrk| (wrk.p50_us, wrk.count)))
}

/// The load client's way to the origin, as the subject has it.
fn load(site: &Site, on: Subject, verb: &str, port: u16, proxy: u16) -> String {
    let (name, address) = BENCH;
    let way = match on {
        Strait => String::new(),
        Direct => format!("--at {address}"),
        _ => format!("--proxy 127.0.0.1:{proxy}"),
    };
    // A proxy without a resolver of its own is given the address.
    let host = if on == Tinyproxy { address } else { name };
    format!("./strait-load {verb} --host {host} --port {port} --seconds {} {way}", site.seconds)
}

fn tls_kept(site: &Site, on: Subject) -> Result<Reading> {
    with_cpu(site, on, || {
        let line = load(site, on, "keep-alive", 443, SQUID_BUMP);
        let done = Load::read(&mut site.shell(on, &format!("{line} --ca {}", site.anchor(on))))?;
        Ok((done.count / done.seconds, done.count))
    })
}

fn tls_new(site: &Site, on: Subject) -> Result<Reading> {
    with_cpu(site, on, || {
        let line = load(site, on, "new", 443, SQUID_BUMP);
        let done =
            Load::read(&mut site.shell(on, &format!("{line} --connections 1 --ca {}", site.anchor(on))))?;
        Ok((done.p50_us, done.count))
    })
}

const GIB2: u64 = 2 * 1024 * 1024 * 1024;

fn bulk(site: &Site, on: Subject) -> Result<Reading> {
    let proxy = if on == Tinyproxy { TINYPROXY } else { SQUID };
    with_cpu(site, on, || {
        let line = load(site, on, &format!("bulk --bytes {GIB2}"), BULK, proxy);
        let done = Load::read(&mut site.shell(on, &line))?;
        Ok((done.bytes / done.seconds / 1e9, done.bytes))
    })
}

/// Peak of the subject's memory during the transfer, less what it had before.
fn growth(site: &Site, on: Subject) -> Result<Reading> {
    let pids = site.pids(on);
    let before = memory_mib(&pids, "VmRSS");
    for pid in &pids {
        // 5 resets the peak (proc(5)).
        fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    }
    let (name, address) = BENCH;
    let url = format!("http://{name}:{BULK}/{GIB2}");
    let get = match on {
        Squid => format!(
            "curl -sSf -o /dev/null -w '%{{size_download}}' -x http://127.0.0.1:{SQUID} {}",
            url.replace(name, address)
        ),
        _ => format!("curl -sSf -o /dev/null -w '%{{size_download}}' {url}"),
    };
    let got: u64 = exec::read(&mut site.shell(on, &get))?.trim().parse()?;
    if got != GIB2 {
        bail!("{got} bytes arrived instead of {GIB2}");
    }
    let value = (memory_mib(&pids, "VmHWM") - before).max(0.0);
    Ok(Reading { value, count: 1.0, ..Reading::default() })
}

/// Rate, and latency of the same load.
fn dns(site: &Site, on: Subject, how: &str) -> Result<(Reading, Reading)> {
    let server = match on {
        Unbound => format!("-s 127.0.0.1 -p {UNBOUND}"),
        Dnsmasq => format!("-s 127.0.0.1 -p {DNSMASQ}"),
        _ => "-s $(sed -n 's/^nameserver //p' /etc/resolv.conf | head -n 1)".to_owned(),
    };
    // The first pass makes every name known.
    let script = format!(
        "dnsperf {server} -d names -n 1 >/dev/null && dnsperf {server} -d names -l {} {how}",
        site.seconds
    );
    let mut latency = Reading::default();
    let rate = with_cpu(site, on, || {
        let done = Dnsperf::read(&mut site.shell(on, &script))?;
        latency = Reading { value: done.average_us, count: done.count, ..Reading::default() };
        Ok((done.per_second, done.count))
    })?;
    Ok((rate, latency))
}

/// The kernel's own account of its programs while a run connects and is refused, as often one as the other: the
/// average over every call of every hook on the way. The hooks are named with their averages on the console, the
/// costliest first.
fn kernel_hooks(site: &Site, _: Subject) -> Result<Reading> {
    const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";
    const CONNECTS: &str = "import socket\nname = socket.gethostbyname('bench.example.com')\nfor n in range(2000):\n  \
        for to in (name, '192.0.2.1'):\n   s = socket.socket()\n   try: s.connect((to, 80))\n   \
        except OSError: pass\n   s.close()\n";
    let before = fs::read_to_string(SWITCH)?;
    fs::write(SWITCH, "1")?;
    let measured = (|| {
        let first = hook_times(site)?;
        exec::read(&mut site.shell(Strait, &format!("python3 -c \"{CONNECTS}\"")))?;
        Ok::<_, anyhow::Error>((first, hook_times(site)?))
    })();
    fs::write(SWITCH, before)?;
    let (first, last) = measured?;
    let mut hooks = last
        .into_iter()
        .map(|(id, hook)| hook.since(first.get(&id)))
        // A hook that hardly ran isn't on the way.
        .filter(|hook| hook.calls >= 1000.0)
        .collect::<Vec<_>>();
    hooks.sort_by(|a, b| b.average().total_cmp(&a.average()));
    let named: Vec<_> = hooks
        .iter()
        .map(|hook| format!("{} {:.0} ns × {:.0}", hook.name, hook.average(), hook.calls))
        .collect();
    eprintln!("bench: E1 hooks: {}", named.join(", "));
    let (time, calls) =
        hooks.iter().fold((0.0, 0.0), |(time, calls), hook| (time + hook.time, calls + hook.calls));
    if calls == 0.0 {
        bail!("no kernel program of the instance ran");
    }
    Ok(Reading { value: time / calls, count: calls, ..Reading::default() })
}

/// What a kernel program of the instance has cost.
#[derive(Clone, Debug)]
struct Hook {
    name: String,
    /// Run time, ns.
    time: f64,
    calls: f64,
}

impl Hook {
    fn since(self, earlier: Option<&Self>) -> Self {
        let (time, calls) = earlier.map_or((0.0, 0.0), |earlier| (earlier.time, earlier.calls));
        Self { time: self.time - time, calls: self.calls - calls, ..self }
    }

    fn average(&self) -> f64 {
        self.time / self.calls
    }
}

/// The instance's programs by id.
fn hook_times(site: &Site) -> Result<BTreeMap<u64, Hook>> {
    let printed = exec::read(Command::new("bpftool").args(["--json", "--bpffs", "prog", "show"]))?;
    let programs: Vec<serde_json::Value> = serde_json::from_str(&printed)?;
    let pins = site.installation.bpffs().display().to_string();
    let ours = |program: &&serde_json::Value| {
        let pinned = program.get("pinned").and_then(serde_json::Value::as_array);
        pinned.is_some_and(|pinned| {
            pinned.iter().any(|pin| pin.as_str().is_some_and(|pin| pin.starts_with(&pins)))
        })
    };
    let number = |program: &serde_json::Value, key: &str| {
        program.get(key).and_then(serde_json::Value::as_f64).unwrap_or(0.0)
    };
    let hooks = programs.iter().filter(ours).filter_map(|program| {
        let name = program.get("name")?.as_str()?.to_owned();
        let (time, calls) = (number(program, "run_time_ns"), number(program, "run_cnt"));
        Some((program.get("id")?.as_u64()?, Hook { name, time, calls }))
    });
    Ok(hooks.collect())
}

fn run_start(site: &Site, on: Subject) -> Result<Reading> {
    let mut times = Vec::new();
    for n in 0..10 {
        let mut command = match on {
            Runc => {
                let mut runc = Command::new("runc");
                runc.arg("run")
                    .arg("--bundle")
                    .arg(site.bare_bundle()?)
                    .arg(format!("bare-{}-{n}", std::process::id()));
                runc
            }
            _ => site.shell(on, "exec true"),
        };
        let started = Instant::now();
        exec::read(&mut command)?;
        times.push(Reading { value: millis(started.elapsed()), count: 1.0, ..Reading::default() });
    }
    median(times).context("nothing was measured")
}

fn ready(site: &Site, _: Subject) -> Result<Reading> {
    Ok(Reading { value: millis(site.start_another()?), count: 1.0, ..Reading::default() })
}

fn resident(site: &Site, on: Subject) -> Result<Reading> {
    Ok(Reading { value: memory_mib(&site.pids(on), "VmRSS"), count: 1.0, ..Reading::default() })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
