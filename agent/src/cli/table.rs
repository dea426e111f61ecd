//! Tables that fit the terminal: every column as wide as its widest cell, the last one cut to what is left.

use std::io::Write;

use crate::launch::terminal;

/// Prints rows under a header. A reader that has gone away (`| head`) is no fault.
pub fn print(header: &[&str], rows: &[Vec<String>]) {
    let width =
        terminal::size(std::io::stdout()).map(|(_, columns)| usize::from(columns)).filter(|width| *width > 0);
    let _ = std::io::stdout().write_all(render(header, rows, width).as_bytes());
}

fn render(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    let all = || std::iter::once(&header).chain(rows);
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in all() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            if column + 1 == row.len() {
                line.push_str(cell);
            } else {
                let wide = widths.get(column).copied().unwrap_or(0);
                line.push_str(&format!("{cell:wide$}  "));
            }
        }
        match width {
            Some(width) if line.chars().count() > width => {
                text.extend(line.chars().take(width.saturating_sub(1)));
                text.push('…');
            }
            _ => text.push_str(line.trim_end()),
        }
        text.push('\n');
    }
    text
}

/// How long ago, in the largest unit that says enough.
pub fn ago(then_ms: u64, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(then_ms) / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_and_its_last_column_gives_way() {
        let rows = vec![vec!["a-1".into(), "claude --continue".into()], vec!["longer-2".into(), "x".into()]];
        assert_eq!(
            render(&["RUN", "COMMAND"], &rows, None),
            "RUN       COMMAND\na-1       claude --continue\nlonger-2  x\n"
        );
        let narrow = render(&["RUN", "COMMAND"], &rows, Some(15));
        assert_eq!(narrow.lines().nth(1), Some("a-1       clau…"));
        assert!(narrow.lines().all(|line| line.chars().count() <= 15));
    }

    #[test]
    fn ages_are_short() {
        let ages = [0, 59, 60, 3_700, 200_000].map(|seconds| ago(0, seconds * 1000));
        assert_eq!(ages, ["0s", "59s", "1m", "1h01m", "2d7h"]);
    }
}
