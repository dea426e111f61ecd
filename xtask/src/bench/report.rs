//! The figures as a table for people and as JSON for machines.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    measure::Reading,
    rows::{Goal, Row},
    site::Subject,
};

/// A row's medians; `None` where the subject is missing.
pub(super) type Cells = BTreeMap<Subject, Option<Reading>>;

#[derive(Debug, Default)]
pub(super) struct Report {
    rows: Vec<(&'static Row, Cells)>,
}

impl Report {
    pub(super) fn add(&mut self, row: &'static Row, cells: Cells) {
        self.rows.push((row, cells));
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Rows whose goal is met; a goal that has no peer to compare with isn't.
    pub(super) fn met(&self) -> usize {
        self.rows.iter().filter(|(row, cells)| row.goal.judge(cells).met).count()
    }

    /// Markdown, as the README has it.
    pub(super) fn table(&self) -> String {
        let mut text = "| | what | Strait | others | goal | |\n|---|---|---|---|---|---|\n".to_owned();
        for (row, cells) in &self.rows {
            let others: Vec<_> = cells
                .iter()
                .filter(|(subject, _)| **subject != Subject::Strait)
                .map(|(subject, cell)| format!("{} {}", word(*subject), figure(*subject, *cell, row)))
                .collect();
            let strait = figure(Subject::Strait, cells.get(&Subject::Strait).copied().flatten(), row);
            let judged = row.goal.judge(cells);
            let met = if judged.met { "met" } else { "not met" };
            text.push_str(&format!(
                "| {} | {} ({}) | {strait} | {} | {} | {}, {met} |\n",
                row.id,
                row.what,
                row.unit,
                others.join(", "),
                row.goal.text(),
                judged.found,
            ));
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let rows: Vec<_> = self.rows.iter().map(|(row, cells)| row_json(row, cells)).collect();
        json!({ "rows": rows }).to_string()
    }
}

fn row_json(row: &Row, cells: &Cells) -> serde_json::Value {
    let subject = |(subject, cell): (&Subject, &Option<Reading>)| {
        let reading = cell.map(|Reading { value, cpu_us, count, p99 }| {
            json!({ "value": value, "cpuUs": cpu_us, "count": count, "p99": p99 })
        });
        (word(*subject), reading.unwrap_or_else(|| json!(absent(*subject))))
    };
    let judged = row.goal.judge(cells);
    json!({
        "id": row.id, "what": row.what, "unit": row.unit, "goal": row.goal.text(),
        "subjects": cells.iter().map(subject).collect::<BTreeMap<_, _>>(),
        "found": judged.found, "met": judged.met,
    })
}

/// What a goal says of figures.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) met: bool,
    pub(super) found: String,
}

impl Goal {
    pub(super) fn text(&self) -> String {
        match self {
            Self::AtLeast(share, of) => format!("≥ {share} × {}", word(*of)),
            Self::Added(most, over) => format!("≤ {} + {most}", word(*over)),
            Self::AtMost(most) => format!("≤ {most}"),
            Self::Times(most, of) => format!("≤ {most} × {}", word(*of)),
        }
    }

    pub(super) fn judge(&self, cells: &Cells) -> Judged {
        let value = |subject: Subject| cells.get(&subject).copied().flatten().map(|reading| reading.value);
        let without = |subject| Judged { met: false, found: absent(subject).to_owned() };
        let Some(strait) = value(Subject::Strait) else { return without(Subject::Strait) };
        match self {
            Self::AtLeast(share, of) => value(*of).map_or_else(
                || without(*of),
                |other| {
                    let ratio = strait / other;
                    Judged { met: ratio >= *share, found: format!("{ratio:.2} ×") }
                },
            ),
            Self::Times(most, of) => value(*of).map_or_else(
                || without(*of),
                |other| {
                    let ratio = strait / other;
                    Judged { met: ratio <= *most, found: format!("{ratio:.2} ×") }
                },
            ),
            Self::Added(most, over) => value(*over).map_or_else(
                || without(*over),
                |other| Judged { met: strait - other <= *most, found: format!("{:+.1}", strait - other) },
            ),
            Self::AtMost(most) => Judged { met: strait <= *most, found: format!("{strait:.1}") },
        }
    }
}

/// Why there is no figure.
fn absent(subject: Subject) -> &'static str {
    match subject {
        Subject::LiteLlm | Subject::Portkey => "not run",
        _ => "missing",
    }
}

fn figure(subject: Subject, cell: Option<Reading>, row: &Row) -> String {
    let Some(reading) = cell else { return absent(subject).to_owned() };
    let value = if reading.value >= 1000.0 {
        format!("{:.0}", reading.value)
    } else {
        format!("{:.2}", reading.value)
    };
    let p99 = reading.p99.map(|p99| format!("p99 {p99:.0}"));
    let cpu = reading.cpu_us.filter(|_| row.shows_cpu).map(|cpu| format!("{cpu:.0} µs CPU"));
    match [p99, cpu].into_iter().flatten().collect::<Vec<_>>().join(", ") {
        more if more.is_empty() => value,
        more => format!("{value} ({more})"),
    }
}

fn word(subject: Subject) -> &'static str {
    match subject {
        Subject::Direct => "direct",
        Subject::Squid => "squid",
        Subject::Tinyproxy => "tinyproxy",
        Subject::Unbound => "unbound",
        Subject::Dnsmasq => "dnsmasq",
        Subject::Runc => "runc",
        Subject::Nginx => "nginx",
        Subject::LiteLlm => "litellm",
        Subject::Portkey => "portkey",
        Subject::Strait => "strait",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(direct: Option<f64>, strait: f64) -> Cells {
        let cell = |value| Reading { value, ..Reading::default() };
        BTreeMap::from([(Subject::Direct, direct.map(cell)), (Subject::Strait, Some(cell(strait)))])
    }

    #[test]
    fn goals_are_ratios_differences_or_bounds() {
        assert!(Goal::AtLeast(0.2, Subject::Direct).judge(&cells(Some(100.0), 30.0)).met);
        assert!(!Goal::AtLeast(0.4, Subject::Direct).judge(&cells(Some(100.0), 30.0)).met);
        assert!(Goal::Added(120.0, Subject::Direct).judge(&cells(Some(50.0), 160.0)).met);
        assert!(!Goal::Added(100.0, Subject::Direct).judge(&cells(Some(50.0), 160.0)).met);
        assert!(Goal::Times(1.15, Subject::Direct).judge(&cells(Some(100.0), 114.0)).met);
        assert!(!Goal::Times(1.15, Subject::Direct).judge(&cells(Some(100.0), 116.0)).met);
        assert!(!Goal::AtMost(29.0).judge(&cells(None, 30.0)).met);
    }

    #[test]
    fn a_missing_peer_is_not_beaten() {
        let judged = Goal::AtLeast(0.1, Subject::Direct).judge(&cells(None, 30.0));
        assert_eq!((judged.met, judged.found.as_str()), (false, "missing"));
        let judged = Goal::AtLeast(10.0, Subject::Portkey).judge(&cells(None, 30.0));
        assert_eq!((judged.met, judged.found.as_str()), (false, "not run"));
    }
}
