//! Runs a load generator and reads what it found; reads what a process used.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::exec;

/// What a load came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// The row's figure, in its unit.
    pub(super) value: f64,
    /// CPU time of the subject, microseconds a request or query.
    pub(super) cpu_us: Option<f64>,
    /// How many requests or queries.
    pub(super) count: f64,
    /// The 99th percentile of what `value` is the median of.
    pub(super) p99: Option<f64>,
}

/// What `strait-load` prints.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Load {
    pub(super) count: f64,
    pub(super) seconds: f64,
    pub(super) bytes: f64,
    pub(super) p50_us: f64,
}

impl Load {
    pub(super) fn read(command: &mut Command) -> Result<Self> {
        let printed = exec::read(command)?;
        let line =
            printed.lines().rfind(|line| line.starts_with('{')).context("the load client printed nothing")?;
        Ok(serde_json::from_str(line)?)
    }
}

/// What wrk prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wrk {
    pub(super) per_second: f64,
    pub(super) p50_us: f64,
    pub(super) count: f64,
}

impl Wrk {
    pub(super) fn read(command: &mut Command) -> Result<Self> {
        Self::parse(&exec::read(command)?)
    }

    fn parse(printed: &str) -> Result<Self> {
        if let Some(line) = printed.lines().find(|line| line.contains("Non-2xx")) {
            bail!("not every answer was 200: {}", line.trim());
        }
        let after = |key: &str| printed.lines().find_map(|line| line.trim().strip_prefix(key)).map(str::trim);
        let per_second = after("Requests/sec:").context("wrk printed no rate")?.parse()?;
        let p50 = duration_us(after("50%").context("wrk printed no median")?)?;
        let count = printed
            .lines()
            .find_map(|line| line.trim().split_once(" requests in "))
            .context("wrk counts nothing")?;
        Ok(Self { per_second, p50_us: p50, count: count.0.parse()? })
    }
}

/// `85.00us`, `1.20ms`, `1.00s`.
fn duration_us(text: &str) -> Result<f64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 = text.strip_suffix(unit).unwrap_or(text).parse()?;
    Ok(match unit {
        "us" => number,
        "ms" => number * 1e3,
        "s" => number * 1e6,
        _ => bail!("`{text}` is no duration"),
    })
}

/// What dnsperf prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dnsperf {
    pub(super) per_second: f64,
    pub(super) average_us: f64,
    pub(super) count: f64,
}

impl Dnsperf {
    pub(super) fn read(command: &mut Command) -> Result<Self> {
        Self::parse(&exec::read(command)?)
    }

    fn parse(printed: &str) -> Result<Self> {
        let after = |key: &str| {
            let line = printed
                .lines()
                .find_map(|line| line.trim().strip_prefix(key))
                .with_context(|| format!("no `{key}`"));
            Ok::<_, anyhow::Error>(line?.trim().split(' ').next().unwrap_or_default().parse::<f64>()?)
        };
        if !printed.lines().any(|line| line.contains("NOERROR") && line.contains("(100.00%)")) {
            bail!("not every answer was NOERROR: {printed}");
        }
        Ok(Self {
            per_second: after("Queries per second:")?,
            average_us: after("Average Latency (s):")? * 1e6,
            count: after("Queries completed:")?,
        })
    }
}

/// CPU time that processes have used so far, microseconds.
pub(super) fn cpu_us(pids: &[u32]) -> f64 {
    let ticks = pids.iter().filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Fields after the command's name, which may hold spaces: utime and stime are the 12th and 13th of them.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
        Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
    });
    // USER_HZ is 100 on every Linux that Strait runs on.
    ticks.sum::<f64>() * 10_000.0
}

/// CPU time that the threads of processes have used so far, microseconds. Finer than [`cpu_us`], which counts ticks of
/// 10 ms, but without threads that have ended: for what runs on threads that stay.
pub(super) fn running_us(pids: &[u32]) -> f64 {
    let threads = pids.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).ok()).flatten();
    let used = threads.flatten().filter_map(|thread| {
        // The first field is the time on the processor, nanoseconds (sched-stats.rst of the kernel).
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<f64>().ok()
    });
    used.sum::<f64>() / 1e3
}

/// A field of `/proc/PID/status` in MiB, summed over processes: `VmRSS`, `VmHWM`.
pub(super) fn memory_mib(pids: &[u32], field: &str) -> f64 {
    let kib = pids.iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()
    });
    kib.sum::<f64>() / 1024.0
}

/// Processes of an executable.
pub(super) fn pids(executable: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered =
        entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    numbered
        .filter(|(_, proc)| fs::read_link(proc.join("exe")).is_ok_and(|exe| exe == executable))
        .map(|(pid, _)| pid)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_read_and_refusals_are_no_speed() {
        let printed = "  Latency Distribution\n     50%   85.00us\n     99%    1.20ms\n  24690 requests in 2.00s, 5.1MB read\n\
            Requests/sec:  12345.67\n";
        let expect = Wrk { per_second: 12345.67, p50_us: 85.0, count: 24690.0 };
        assert_eq!(Wrk::parse(printed).unwrap(), expect);
        assert!(Wrk::parse(&format!("{printed}  Non-2xx or 3xx responses: 3\n")).is_err());
    }

    #[test]
    fn dnsperf_is_read_and_failures_are_no_speed() {
        let printed = "  Queries completed:    1000 (100.00%)\n  Response codes:       NOERROR 1000 (100.00%)\n\
              Queries per second:   98765.4\n\n  Average Latency (s):  0.000046 (min 0.00001, max 0.001)\n";
        let read = Dnsperf::parse(printed).unwrap();
        assert_eq!((read.per_second, read.count), (98765.4, 1000.0));
        assert!((read.average_us - 46.0).abs() < 1e-6);
        assert!(Dnsperf::parse(&printed.replace("NOERROR", "SERVFAIL")).is_err());
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration_us("1.20ms").unwrap(), 1200.0);
        assert!(duration_us("1.20h").is_err());
    }
}
