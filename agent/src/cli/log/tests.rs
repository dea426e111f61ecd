use super::*;

fn rows(lines: &[&str], width: usize) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("runs/r")).unwrap();
    std::fs::write(dir.path().join("runs/r/log.jsonl"), lines.join("\n") + "\n").unwrap();
    let entries = read::newest(dir.path(), &Filter::default(), 100).unwrap();
    assert_eq!(entries.len(), lines.len());
    let mut table = table::Table::new(Some(width));
    let mut out = Vec::new();
    for entry in &entries {
        table.row(entry, &mut out).unwrap();
    }
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

const REQUEST: &str = r#"{"seq":1,"ts":"2026-11-30T16:00:00.000Z","run":"coder-7f3a2c","phase":"decided","kind":"request","decision":"deny","code":"TOOL_CALL_DENIED","rules":["no-push"],"reason":"no pushing","dst":{"name":"h.test","port":443},"request":{"method":"POST","url":"https://h.test/a\u202eb/very/long/path/that/goes/on/and/on/and/on/and/on"}}"#;
const KERNEL: &str = r#"{"seq":2,"ts":"2026-11-30T16:00:01.000Z","run":"coder-7f3a2c","kind":"connect","decision":"deny","code":"KERNEL_DESTINATION","dst":{"addr":"203.0.113.7","port":443},"proto":"tcp","count":3,"process":{"pid":1,"uid":1,"comm":"nc"}}"#;
const EVENT: &str =
    r#"{"seq":3,"ts":"2026-11-30T16:00:02.000Z","event":"policy.changed","facts":{"epoch":"2"}}"#;

#[test]
fn a_row_fits_the_terminal_and_nothing_unprintable_reaches_it() {
    for width in [60, 80, 120, 200] {
        let rows = rows(&[REQUEST, KERNEL, EVENT], width);
        assert_eq!(rows.len(), 4);
        for row in &rows {
            assert!(row.chars().count() <= width, "{width}: {row}");
            assert!(!row.contains(strait_contract::redact::is_unprintable), "{row}");
        }
    }
    let rows = rows(&[REQUEST, KERNEL, EVENT], 200);
    for (row, parts) in [
        (
            1,
            &[
                "coder-7f3a2c",
                "request",
                "deny",
                "POST https://h.test/a\\u{202e}b",
                "TOOL_CALL_DENIED [no-push] no pushing",
            ][..],
        ),
        (2, &["connect", "tcp 203.0.113.7:443 ×3 by nc", "KERNEL_DESTINATION"][..]),
        (3, &["(host)", "event", "policy.changed epoch=2"][..]),
    ] {
        for part in parts {
            assert!(rows[row].contains(part), "{part} in {}", rows[row]);
        }
    }
}

#[test]
fn since_takes_durations_and_times() {
    let now = i64::try_from(now_ms()).unwrap();
    for (text, ago) in [("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("1d", 86_400_000)] {
        assert!((now - ago - parse_since(text).unwrap()).abs() < 1000, "{text}");
    }
    assert_eq!(parse_since("2026-11-30T16:00:00Z"), Ok(1_796_054_400_000));
    for bad in ["", "m", "10", "-", "10x", "yesterday", "99999999999999999d"] {
        assert!(parse_since(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_arguments_hold_together() {
    use clap::{CommandFactory as _, Parser};
    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }
    Cli::command().debug_assert();
    assert!(Cli::try_parse_from(["log", "-f", "--run", "r", "--decision", "deny", "-n", "all"]).is_ok());
    assert!(Cli::try_parse_from(["log", "verify", "--all"]).is_ok());
    assert!(Cli::try_parse_from(["log", "verify"]).is_err());
    assert!(Cli::try_parse_from(["log", "--json", "--table"]).is_err());
    assert!(Cli::try_parse_from(["log", "--run", "../x"]).is_err());
}

#[test]
fn a_run_that_never_was_is_told_of_as_such() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("runs/coder-7f3a2c")).unwrap();
    let folders = |run: &str| read::folders(dir.path(), Some(&run.parse().unwrap()));
    assert_eq!(folders("coder-7f3a2c").unwrap().len(), 1);
    let error = folders("coder-aaaaaa").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with("there are no records of a run `coder-aaaaaa`"), "{error}");
}
