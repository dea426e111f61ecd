//! The rows of model calls: whole answers, and streams whose chunks say when they were sent.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{
    gateways::{LITELLM, PORTKEY},
    measure::{Reading, Wrk, cpu_us, running_us},
    peers::NGINX,
    site::{Site, Subject},
};
use crate::lab::internet::{BENCH, MODEL};

/// Streams that run together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) count: u32,
    /// Between the chunks of one, microseconds.
    pub(super) pace_us: u32,
}

/// One stream at the pace of a fast model.
pub(super) const ONE: Streams = Streams { count: 1, pace_us: 5_000 };
/// As many as a busy host has, 2,500 chunks a second.
pub(super) const FIFTY: Streams = Streams { count: 50, pace_us: 20_000 };
/// A thousand chunks a second in one stream, and the same in a thousand: what a chunk costs depends on how many come
/// at once, so only loads of the same rate compare.
const NARROW: Streams = Streams { count: 1, pace_us: 1_000 };
const WIDE: Streams = Streams { count: 1000, pace_us: 1_000_000 };
/// The shortest time in which the processor's use by a thousand chunks a second can be told.
const LONG_ENOUGH: u32 = 4;

/// What `strait-load` prints of streams.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Flow {
    count: f64,
    p50_us: f64,
    p99_us: f64,
    #[serde(rename = "firstP50Us")]
    first_p50_us: f64,
    #[serde(rename = "firstP99Us")]
    first_p99_us: f64,
}

/// Makes wrk ask for a chat completion, with a kilobyte of question.
pub(super) fn script() -> String {
    let question = "x".repeat(900);
    format!(
        "wrk.method = \"POST\"\nwrk.headers[\"Content-Type\"] = \"application/json\"\n\
         wrk.headers[\"Authorization\"] = \"Bearer \" .. (os.getenv(\"STRAIT_TOKEN\") or \"none\")\n\
         wrk.headers[\"x-portkey-provider\"] = \"openai\"\n\
         wrk.headers[\"x-portkey-custom-host\"] = \"http://{}:{MODEL}/v1\"\n\
         wrk.body = '{{\"model\":\"gpt-5-mini\",\"messages\":[{{\"role\":\"user\",\"content\":\"{question}\"}}]}}'\n",
        BENCH.1
    )
}

/// `HOST:PORT` and path under which a subject answers chat completions.
fn place(on: Subject) -> (String, &'static str) {
    const PATH: &str = "/v1/chat/completions";
    match on {
        Subject::Strait => ("strait.internal:80".to_owned(), "/model/bench/v1/chat/completions"),
        Subject::Nginx => (format!("127.0.0.1:{NGINX}"), PATH),
        Subject::LiteLlm => (format!("127.0.0.1:{LITELLM}"), PATH),
        Subject::Portkey => (format!("127.0.0.1:{PORTKEY}"), PATH),
        _ => (format!("{}:{MODEL}", BENCH.1), PATH),
    }
}

/// Calls of a model one after another on each connection, and what a call costs these processes, microseconds. Also holds
/// the records against the load: every call decided, and what it used counted.
fn calls(site: &Site, on: Subject, connections: u32, pids: &[u32]) -> Result<(Wrk, f64)> {
    let (to, path) = place(on);
    let url = format!("http://{}{path}", to.trim_end_matches(":80"));
    let line = format!("wrk -t1 -c{connections} -d{}s --latency -s model.lua {url}", site.seconds);
    let runs = site.installation.runs()?;
    let before = cpu_us(pids);
    let wrk = Wrk::read(&mut site.shell(on, &line))?;
    if wrk.count == 0.0 {
        bail!("no call was answered");
    }
    let used = cpu_us(pids) - before;
    if on == Subject::Strait {
        let (decided, counted) = site.newest_calls(&runs)?;
        // wrk doesn't count the calls that it breaks off at the end.
        let sent = wrk.count..=wrk.count + f64::from(connections);
        let on_record =
            |calls: usize| u32::try_from(calls).is_ok_and(|calls| sent.contains(&f64::from(calls)));
        if !on_record(decided) || !on_record(counted) {
            bail!("{} calls, but {decided} decided and {counted} counted on record", wrk.count);
        }
    }
    Ok((wrk, used / wrk.count))
}

/// Median of a call.
pub(super) fn call(site: &Site, on: Subject) -> Result<Reading> {
    let pids = site.pids(on);
    let (wrk, cpu) = calls(site, on, 1, &pids)?;
    let cpu_us = (!pids.is_empty()).then_some(cpu);
    Ok(Reading { value: wrk.p50_us, count: wrk.count, cpu_us, ..Reading::default() })
}

/// Processor time of the gateway for a call.
pub(super) fn gateway_cpu(site: &Site, on: Subject) -> Result<Reading> {
    let (wrk, cpu) = calls(site, on, 16, &site.gateway_pids())?;
    Ok(Reading { value: cpu, count: wrk.count, ..Reading::default() })
}

/// Calls that a second of processor time is good for.
pub(super) fn calls_a_cpu_second(site: &Site, on: Subject) -> Result<Reading> {
    let (wrk, cpu) = calls(site, on, 16, &site.pids(on))?;
    if cpu <= 0.0 {
        bail!("{on:?} used no processor time that can be told");
    }
    Ok(Reading { value: 1e6 / cpu, count: wrk.count, cpu_us: Some(cpu), ..Reading::default() })
}

/// Median of a chunk's way, and its 99th percentile.
pub(super) fn chunk(site: &Site, on: Subject, streams: Streams) -> Result<Reading> {
    let (flow, cpu) = flow(site, on, "streams", streams, site.seconds)?;
    Ok(Reading { value: flow.p50_us, count: flow.count, cpu_us: cpu, p99: Some(flow.p99_us) })
}

/// Median of the time to the first chunk.
pub(super) fn first(site: &Site, on: Subject) -> Result<Reading> {
    let (flow, _) = flow(site, on, "firsts", NARROW, site.seconds)?;
    Ok(Reading {
        value: flow.first_p50_us,
        count: flow.count,
        p99: Some(flow.first_p99_us),
        ..Reading::default()
    })
}

/// What a chunk costs in one of a thousand streams, as a multiple of what it costs in one.
pub(super) fn flatness(site: &Site, on: Subject) -> Result<Reading> {
    let seconds = site.seconds.max(LONG_ENOUGH);
    let cost = |streams| {
        let (flow, cpu) = flow(site, on, "streams", streams, seconds)?;
        let cpu = cpu.filter(|cpu| *cpu > 0.0).context("no processor time can be told")?;
        anyhow::Ok((flow, cpu))
    };
    let ((_, narrow), (_, fifty), (flow, wide)) =
        (cost(NARROW)?, cost(Streams { count: 50, pace_us: 50_000 })?, cost(WIDE)?);
    eprintln!("bench: {on:?}: a chunk costs {narrow:.1}, {fifty:.1}, {wide:.1} µs in 1, 50, 1,000 streams");
    let value = wide.max(fifty) / narrow;
    Ok(Reading { value, count: flow.count, cpu_us: Some(wide), ..Reading::default() })
}

/// Runs streams; gives what their client measured, and the processor time of the subject for a chunk, microseconds,
/// while all of them flowed.
fn flow(site: &Site, on: Subject, verb: &str, streams: Streams, seconds: u32) -> Result<(Flow, Option<f64>)> {
    let ((to, path), Streams { count, pace_us }) = (place(on), streams);
    let line = format!(
        "exec ./strait-load {verb} --to {to} --path {path} --streams {count} --pace {pace_us} --seconds {seconds}"
    );
    let pids = site.pids(on);
    let log = site.log(verb);
    let mut command = site.shell(on, &line);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(fs::File::create(&log)?);
    let mut child = command.spawn().context("the load client can't be started")?;
    let out = child.stdout.take().context("the load client has no output")?;
    let read = follow(BufReader::new(out), &pids);
    let status = child.wait()?;
    let (flow, used) = match read {
        Ok(read) if status.success() => read,
        read => {
            let why = fs::read_to_string(&log).unwrap_or_default();
            let odd = read.err().map(|error| error.to_string()).unwrap_or_default();
            bail!("the load client failed ({status}): {odd}: {}", why.trim());
        }
    };
    Ok((flow, (!pids.is_empty()).then_some(used / flow.count)))
}

/// Reads what the client says, and what the processes use between `flowing` and `over`.
fn follow(mut out: impl BufRead, pids: &[u32]) -> Result<(Flow, f64)> {
    let mut at = |word: &str| {
        let mut line = String::new();
        out.read_line(&mut line)?;
        if line.trim() != word {
            bail!("`{word}` was due, not `{}`", line.trim());
        }
        Ok(running_us(pids))
    };
    let before = at("flowing")?;
    let used = at("over")? - before;
    let mut rest = String::new();
    out.read_to_string(&mut rest)?;
    Ok((serde_json::from_str(rest.trim())?, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_followed_in_order() {
        let figures = r#"{"count":4,"seconds":1.0,"streams":2,"p50Us":50.5,"p99Us":99.0,"firstP50Us":7.0,"firstP99Us":8.0}"#;
        let (flow, used) = follow(format!("flowing\nover\n{figures}\n").as_bytes(), &[]).unwrap();
        assert_eq!((flow.count, flow.p50_us, flow.first_p99_us, used), (4.0, 50.5, 8.0, 0.0));
        assert!(follow(format!("over\n{figures}\n").as_bytes(), &[]).is_err());
        assert!(follow("flowing\nover\n".as_bytes(), &[]).is_err());
    }
}
