//! What is wrong with a policy set, in a form that people and editors can use.
//!
//! A [`Problem`] names file, line and column, says what is wrong and what to do. [`Refused`] is all of them.

use std::fmt;

use serde::Serialize;

/// More than this many problems are counted, not listed.
const LISTED: usize = 50;

/// One thing wrong in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// File as the caller named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Length of the marked text in characters, within the line; at least 1.
    pub length: usize,
    /// `@id` of the rule, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The line itself, for the picture below the message.
    #[serde(skip)]
    source: String,
}

impl Problem {
    /// A problem at byte range `start..end` of `text`; a range outside of the text is moved into it.
    pub(crate) fn at(
        file: &str,
        text: &str,
        range: std::ops::Range<usize>,
        message: impl Into<String>,
    ) -> Self {
        let start = floor_boundary(text, range.start);
        let before = text.get(..start).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline.saturating_add(1));
        let source = text.get(line_start..).unwrap_or_default().lines().next().unwrap_or_default();
        let column = text.get(line_start..start).unwrap_or_default().chars().count();
        let marked = text.get(start..floor_boundary(text, range.end)).unwrap_or_default();
        let length = marked.lines().next().unwrap_or_default().chars().count();
        Self {
            file: file.to_owned(),
            line: before.matches('\n').count().saturating_add(1),
            column: column.saturating_add(1),
            length: length.max(1),
            rule: None,
            message: message.into(),
            help: None,
            source: source.chars().take(200).collect(),
        }
    }

    /// A problem of a whole file.
    pub(crate) fn file(file: &str, message: impl Into<String>) -> Self {
        Self::at(file, "", 0..0, message)
    }

    /// The same, with what to do.
    #[must_use]
    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// The same, with the rule it is about.
    #[must_use]
    pub(crate) fn rule(self, rule: impl Into<String>) -> Self {
        Self { rule: Some(rule.into()), ..self }
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.message)?;
        let gutter = self.line.to_string();
        let pad = " ".repeat(gutter.len());
        write!(f, "{pad}--> {}:{}:{}", self.file, self.line, self.column)?;
        if !self.source.is_empty() {
            let indent: String = self
                .source
                .chars()
                .take(self.column.saturating_sub(1))
                .map(|char| if char == '\t' { '\t' } else { ' ' })
                .collect();
            write!(f, "\n{pad} |\n{gutter} | {}\n{pad} | {indent}{}", self.source, "^".repeat(self.length))?;
        }
        if let Some(rule) = &self.rule {
            write!(f, "\n{pad} = rule: {rule}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n{pad} = help: {help}")?;
        }
        Ok(())
    }
}

/// A policy set that is not used: every problem found, in the order of files and lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refused {
    /// At least one.
    pub problems: Vec<Problem>,
    /// Problems found beyond those listed.
    pub unlisted: usize,
}

impl Refused {
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
        problems.dedup();
        let unlisted = problems.len().saturating_sub(LISTED);
        problems.truncate(LISTED);
        Self { problems, unlisted }
    }

    /// The problems as one JSON object: `{"problems":[{"file","line","column","length","rule"?,"message","help"?}],
    /// "unlisted":0}`.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}\n")?;
        }
        let count = self.problems.len().saturating_add(self.unlisted);
        let plural = if count == 1 { "problem" } else { "problems" };
        write!(f, "{count} {plural}: the whole set is refused")
    }
}

impl std::error::Error for Refused {}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self::new(vec![problem])
    }
}
