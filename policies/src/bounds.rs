//! Limits that hold before the Cedar parser sees a text.
//!
//! The parser descends once per bracket and overflows the stack (no error, no unwinding: the process dies), and
//! chains of operators become trees as deep as they are long. So a text is scanned first, without recursion.

use strait_contract::message::PolicyFile;

use crate::problem::{Problem, Refused};

/// Bytes in one file.
pub(crate) const FILE_BYTES: usize = 4 << 20;
/// Brackets open at a time: fits a stack of 2 MiB with room.
pub(crate) const BRACKETS: usize = 64;
/// Operators (`&&`, `.`, `==`, `if` …) in one rule.
pub(crate) const OPERATORS: usize = 2_000;
/// Stack of the thread that parses, bytes. Only what is touched is used.
pub(crate) const STACK: usize = 64 << 20;

/// Whether `file` may be given to the parser.
pub(crate) fn check(file: &PolicyFile) -> Result<(), Refused> {
    let text = &file.text;
    if text.len() > FILE_BYTES {
        let message = format!("file of {} bytes is larger than {FILE_BYTES}", text.len());
        return Err(Problem::file(&file.name, message).help("split it into several files").into());
    }
    let mut scan = Scan::default();
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => skip_string(&mut chars),
            '/' if chars.peek().is_some_and(|(_, next)| *next == '/') => {
                while chars.next_if(|(_, char)| *char != '\n' && *char != '\r').is_some() {}
            }
            _ => scan.step(char),
        }
        if let Some((message, help)) = scan.excess() {
            let here = at..at.saturating_add(1);
            return Err(Problem::at(&file.name, text, here, message).help(help).into());
        }
    }
    Ok(())
}

#[derive(Default)]
struct Scan {
    open: usize,
    operators: usize,
    word: String,
}

impl Scan {
    /// What there is too much of, and what to do.
    fn excess(&self) -> Option<(String, &'static str)> {
        if self.open > BRACKETS {
            let message = format!("more than {BRACKETS} brackets are open here");
            return Some((message, "write the condition flatter, or as several rules"));
        }
        let set = "use a set, such as `[\"GET\", \"HEAD\"].contains(context.method)`, or several rules";
        (self.operators > OPERATORS).then(|| (format!("this rule has more than {OPERATORS} operators"), set))
    }

    fn step(&mut self, char: char) {
        if char.is_alphanumeric() || char == '_' {
            self.word.push(char);
            return;
        }
        let keyword = matches!(self.word.as_str(), "if" | "in" | "is" | "has" | "like");
        self.word.clear();
        let operator = matches!(char, '.' | '&' | '|' | '+' | '-' | '*' | '<' | '>' | '=' | '!');
        self.operators =
            self.operators.saturating_add(usize::from(keyword)).saturating_add(usize::from(operator));
        match char {
            '(' | '[' | '{' => self.open = self.open.saturating_add(1),
            ')' | ']' | '}' => self.open = self.open.saturating_sub(1),
            ';' => self.operators = 0,
            _ => {}
        }
    }
}

fn skip_string(chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>) {
    while let Some((_, char)) = chars.next() {
        match char {
            '\\' => {
                chars.next();
            }
            '"' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
