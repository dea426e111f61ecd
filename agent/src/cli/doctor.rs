//! `strait doctor`: looks at the host and really tries to leak. Exit code 1 if anything is not as it must be.

use std::{io::Write as _, path::PathBuf, process::ExitCode};

use crate::{
    doctor::examine,
    instance::Instance,
    preflight::{Level, Report},
};

/// Examine the host and every run: tries to leak and must fail.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also check that records can be written in this folder.
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// If the answer can't be printed.
pub fn run(args: &Args, instance: &Instance) -> anyhow::Result<ExitCode> {
    let report = examine(instance, args.log.as_deref());
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(table(&report).as_bytes())?;
    }
    Ok(if report.level() == Level::Failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn table(report: &Report) -> String {
    let width = report.findings.iter().map(|finding| finding.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Degraded => "warn",
            Level::Failed => "FAIL",
        };
        text.push_str(&format!("{mark}  {:width$}  {}\n", finding.name, finding.detail));
        if let Some(fix) = &finding.fix {
            text.push_str(&format!("{:indent$}fix: {fix}\n", "", indent = width + 8));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::Finding;

    #[test]
    fn the_table_lines_up_and_shows_the_fix_below() {
        let findings =
            vec![Finding::ok("root", "yes"), Finding::failed("cgroup v2", "not mounted", "mount it")];
        let text = table(&Report { findings });
        assert_eq!(
            text,
            "ok    root       yes\nFAIL  cgroup v2  not mounted\n                 fix: mount it\n"
        );
    }
}
