//! Records as rows that fit the terminal.

use std::io::{self, Write};

use jiff::tz::TimeZone;
use strait_contract::redact::redact_text;

use crate::log::read::Entry;

/// Width assumed where there is no terminal, columns.
const WIDE: usize = 160;
const LEAST: usize = 60;

/// Columns of the terminal behind `out`.
pub(super) fn width(out: &io::Stdout) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Rows under one heading.
pub(super) struct Table {
    width: usize,
    run: usize,
    zone: TimeZone,
    begun: bool,
}

impl Table {
    pub(super) fn new(width: Option<usize>) -> Self {
        let width = width.unwrap_or(WIDE).max(LEAST);
        Self { width, run: if width >= 100 { 18 } else { 12 }, zone: TimeZone::system(), begun: false }
    }

    pub(super) fn row(&mut self, entry: &Entry, out: &mut impl Write) -> io::Result<()> {
        if !self.begun {
            self.begun = true;
            self.line(["TIME", "RUN", "KIND", "VERDICT", "WHAT"].map(str::to_owned), "WHY", out)?;
        }
        let run = entry.text("run").unwrap_or("(host)").to_owned();
        let kind = entry.text("kind").unwrap_or("event").to_owned();
        let verdict = match entry.text("phase") {
            Some("done") => "done".to_owned(),
            _ => entry.text("decision").unwrap_or("").to_owned(),
        };
        self.line([self.time(entry.ts_ms), run, kind, verdict, what(entry)], &why(entry), out)
    }

    fn time(&self, ms: i64) -> String {
        let at =
            jiff::Timestamp::from_millisecond(ms).unwrap_or_default().to_zoned_datetime(self.zone.clone());
        at.strftime("%m-%d %H:%M:%S").to_string()
    }

    fn line(&self, columns: [String; 5], why: &str, out: &mut impl Write) -> io::Result<()> {
        let [time, run, kind, verdict, what] = columns;
        let fixed = 14 + 1 + self.run + 1 + 7 + 1 + 7 + 1;
        let rest = self.width.saturating_sub(fixed);
        let (what_width, why_width) = if why.is_empty() {
            (rest, 0)
        } else {
            let why = rest / 2;
            (rest - why - 1, why)
        };
        let text = format!(
            "{} {} {} {} {} {}",
            fit(&time, 14),
            fit(&run, self.run),
            fit(&kind, 7),
            fit(&verdict, 7),
            fit(&what, what_width),
            fit(why, why_width),
        );
        writeln!(out, "{}", text.trim_end())
    }
}

/// Text in exactly so many columns; one that is cut ends in `…`. Characters count as one column, so wide ones
/// may push a row out of line but never past a line's end by more than their number.
fn fit(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return format!("{text}{}", " ".repeat(columns - length));
    }
    let mut cut: String = text.chars().take(columns.saturating_sub(1)).collect();
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// What it was: request, question, destination or event.
fn what(entry: &Entry) -> String {
    let text = |path: &str| entry.text(path).map(|text| redact_text(text, 4096));
    let number = |path: &str| {
        path.split('.')
            .try_fold(&entry.value, |value, key| value.get(key))
            .and_then(serde_json::Value::as_u64)
    };
    if let Some(name) = text("event") {
        let facts = entry.value.get("facts").and_then(serde_json::Value::as_object);
        let facts = facts.into_iter().flatten().map(|(key, value)| {
            format!(" {}={}", redact_text(key, 64), redact_text(value.as_str().unwrap_or_default(), 128))
        });
        return name + &facts.collect::<String>();
    }
    if let (Some(tool), Some(target)) = (text("tool"), text("target")) {
        let status = number("status").map_or_else(String::new, |status| format!(" → {status}"));
        return format!("{tool}: {target}{status}");
    }
    if let (Some(method), Some(url)) = (text("request.method"), text("request.url")) {
        let status = number("request.status").map_or_else(String::new, |status| format!(" → {status}"));
        return format!("{method} {url}{status}");
    }
    if let (Some(name), Some(kind)) = (text("dns.name"), text("dns.type")) {
        let answer = text("dns.answer").map_or_else(String::new, |answer| format!(" → {answer}"));
        return format!("{kind} {name}{answer}");
    }
    let host = text("dst.name").or_else(|| text("dst.addr")).unwrap_or_default();
    let port = number("dst.port").map_or_else(String::new, |port| format!(":{port}"));
    let count = number("count").map_or_else(String::new, |count| format!(" ×{count}"));
    let process = text("process.comm").map_or_else(String::new, |comm| format!(" by {comm}"));
    format!("{} {host}{port}{count}{process}", text("proto").unwrap_or_default()).trim().to_owned()
}

/// Why it was refused, or by which rule it passed.
fn why(entry: &Entry) -> String {
    let rules = entry.value.get("rules").and_then(serde_json::Value::as_array);
    let rules: Vec<&str> = rules.into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    let parts = [
        entry.text("code").map(str::to_owned),
        (!rules.is_empty()).then(|| format!("[{}]", rules.join(", "))),
        entry.text("reason").or_else(|| entry.text("error")).map(str::to_owned),
    ];
    redact_text(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "), 1024)
}
