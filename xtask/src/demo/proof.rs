//! What the instance can prove of itself: that enforcement and records are whole, and that it is noticed if they aren't.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::lab::installation::Installation;

/// Shows each proof; how many failed.
pub(super) fn all(installation: &Installation) -> Result<usize> {
    println!();
    let mut shown = Shown { installation, failed: 0 };
    shown.command(&["doctor"], true, "doctor tries to leak and can't");
    shown.links_removed()?;
    shown.command(&["log", "verify", "--all"], true, "the records are whole");
    shown.byte_flipped()?;
    shown.command(&["log", "verify", "--all"], true, "flipped back, they are whole again");
    Ok(shown.failed)
}

struct Shown<'a> {
    installation: &'a Installation,
    failed: usize,
}

impl Shown<'_> {
    /// A command of the instance that must succeed, or must not; shows its most telling line.
    fn command(&mut self, arguments: &[&str], succeeds: bool, what: &str) {
        let outcome = self.installation.strait().args(arguments).output();
        let (holds, text) = match &outcome {
            Ok(output) => {
                (output.status.success() == succeeds, String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Err(error) => (false, error.to_string()),
        };
        let bad = |line: &&str| line.contains("BROKEN") || line.starts_with("FAIL");
        let line = text.lines().find(bad).or_else(|| text.lines().last()).unwrap_or_default();
        // What must fail says so in words that would look like the demo's own.
        let line = if succeeds { line.to_owned() } else { format!("it says: {line}") };
        self.line(holds, what, &line);
    }

    fn line(&mut self, holds: bool, what: &str, line: &str) {
        let line: String = line.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(100).collect();
        if holds {
            println!("  proved     {what:<46} {line}");
        } else {
            self.failed += 1;
            println!("  FAILED     {what:<46} {line}");
        }
    }

    /// A run loses every kernel program that is attached to it: nothing leaves, `doctor` says so, and the agent attaches
    /// them again and has it on record.
    fn links_removed(&mut self) -> Result<()> {
        let mut run = self
            .installation
            .strait()
            .args(["run", "--agent", "demo", "--", "sh", "-c"])
            .arg("echo up; sleep 1; curl -sS --max-time 1 http://93.184.215.10/ 2>/dev/null; echo status $?; sleep 4")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(run.stdout.take().context("no output")?);
        let mut up = String::new();
        output.read_line(&mut up)?;
        let pins = newest(&self.installation.bpffs().join("run"))?;
        for pin in fs::read_dir(&pins)? {
            fs::remove_file(pin?.path())?;
        }
        self.command(&["doctor"], false, "every link of a run removed: doctor says so");
        let mut rest = String::new();
        output.read_to_string(&mut rest)?;
        run.wait()?;
        let held = up == "up\n" && rest.contains("status ") && !rest.contains("status 0");
        self.line(held, "and nothing leaves the run", &format!("curl ended with {}", rest.trim()));
        let name = pins.file_name().and_then(|name| name.to_str()).context("no name")?;
        let noticed = self.recorded(name, "enforcement.degraded")?;
        self.line(noticed, "the agent attaches them again, on record", "enforcement.degraded");
        Ok(())
    }

    /// Whether a run has an event on record, or gets it within some seconds.
    fn recorded(&self, run: &str, event: &str) -> Result<bool> {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if self.installation.records(run)?.contains(event) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(false)
    }

    /// One bit of a record is changed, and changed back.
    fn byte_flipped(&mut self) -> Result<()> {
        let runs = self.installation.runs()?;
        let name = runs.first().context("no run has records")?;
        let file = self.installation.record_file(name);
        let whole = fs::read(&file)?;
        let mut changed = whole.clone();
        let at = changed.len() / 2;
        let Some(byte) = changed.get_mut(at) else { bail!("`{}` is empty", file.display()) };
        *byte ^= 1;
        fs::write(&file, &changed)?;
        self.command(&["log", "verify", "--all"], false, "a bit of a record flipped: verify names the line");
        fs::write(&file, &whole)?;
        Ok(())
    }
}

/// The folder that was made last.
fn newest(folder: &Path) -> Result<PathBuf> {
    let made = |path: &PathBuf| {
        fs::metadata(path).and_then(|found| found.created().or_else(|_| found.modified())).ok()
    };
    let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    entries.max_by_key(made).with_context(|| format!("no run has pins in `{}`", folder.display()))
}
