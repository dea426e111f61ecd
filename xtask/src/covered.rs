//! That every requirement's row in `gateway/REQUIREMENTS.md` names tests that are there and that name the requirement.
//!
//! A row is `| id | what | tests |`; tests are code spans: a path that ends in `.rs`, then the functions in it. A test names
//! its requirement in its name (`…_a5_case_57`) or in the comment above it (`A5`, `case 57`, `cases 57, 58`).

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::workspace;

const TABLE: &str = "gateway/REQUIREMENTS.md";

pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let table = fs::read_to_string(root.join(TABLE)).with_context(|| format!("can't read `{TABLE}`"))?;
    let problems = problems(&table, &|file| fs::read_to_string(root.join(file)).ok());
    for problem in &problems {
        eprintln!("{TABLE}: {problem}");
    }
    if !problems.is_empty() {
        bail!("{} problems in `{TABLE}`", problems.len());
    }
    Ok(())
}

/// What is wrong with the table, whose files `read` gives.
fn problems(table: &str, read: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, ids, _, tests, ""] = cells.as_slice() else { continue };
        let ids: Vec<&str> = ids.split(',').map(str::trim).filter(|id| is_id(id)).collect();
        if ids.is_empty() {
            continue;
        }
        problems.extend(ids.iter().filter(|id| !seen.insert(**id)).map(|id| format!("{id}: two rows")));
        let spans: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if !spans.iter().any(|span| !is_file(span)) {
            problems.push(format!("{}: no test is named", ids.join(", ")));
        }
        let mut file = ("", None);
        for span in spans {
            if is_file(span) {
                file = (span, read(span));
                continue;
            }
            match file.1.as_deref().and_then(|text| words(text, span)) {
                None => problems.push(format!("{}: `{}` has no test `{span}`", ids.join(", "), file.0)),
                Some(said) if !ids.iter().any(|id| names(&said, id)) => {
                    problems.push(format!("{}: `{span}` of `{}` names none of them", ids.join(", "), file.0));
                }
                Some(_) => {}
            }
        }
    }
    if seen.is_empty() {
        problems.push("no row".to_owned());
    }
    problems
}

fn is_file(span: &str) -> bool {
    Path::new(span).extension().is_some_and(|extension| extension == "rs")
}

/// `A5`, or the number of a case.
fn is_id(text: &str) -> bool {
    let digits = text.strip_prefix('A').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// What the test of this name says of itself: its name and the comment above. `None` if it isn't a test.
fn words(text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    // Tests that have a `main` of their own are rows of a table: `("name", function)`.
    let row = format!("(\"{name}\",");
    if let Some(at) = lines.iter().position(|line| line.starts_with(&row)) {
        let above = lines.get(..at)?.iter().rev().take_while(|line| line.starts_with("//"));
        return Some(format!("{name} {}", above.copied().collect::<Vec<_>>().join(" ")));
    }
    let heads = [format!("fn {name}("), format!("async fn {name}(")];
    let at = lines.iter().position(|line| heads.iter().any(|head| line.starts_with(head)))?;
    let above = lines.get(..at)?.iter().rev();
    let above: Vec<&str> =
        above.copied().take_while(|line| line.starts_with("#[") || line.starts_with("///")).collect();
    let test = above.iter().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"));
    let comment: Vec<&str> = above.iter().rev().filter_map(|line| line.strip_prefix("///")).collect();
    test.then(|| format!("{name} {}", comment.join(" ")))
}

/// Whether this is in those words: `a5` or `A5`; of a case its number, after `case`.
fn names(said: &str, id: &str) -> bool {
    let said = said.to_lowercase();
    let words: Vec<&str> = said.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let id = id.to_lowercase();
    let case = id.bytes().all(|byte| byte.is_ascii_digit());
    let told = !case || words.iter().any(|word| matches!(*word, "case" | "cases"));
    told && words.contains(&id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        /// A5, and cases 57, 58.
        #[test]
        fn one() {}
        #[tokio::test(flavor = \"multi_thread\")]
        async fn two_a7_case_61() {}
        fn helper_a5() {}
        #[test]
        fn three() {}
        const TESTS: &[Test] = &[
            // A29, case 25.
            (\"flood\", flood),
        ];
    ";

    fn check(row: &str, expect: &[&str]) {
        let read = |file: &str| (file == "a.rs").then(|| FILE.to_owned());
        let problems = problems(&format!("# Title\n\n| id | what | tests |\n|---|---|---|\n{row}\n"), &read);
        assert_eq!(problems.len(), expect.len(), "{row}: {problems:?}");
        for (problem, expect) in problems.iter().zip(expect) {
            assert!(problem.contains(expect), "{problem}");
        }
    }

    #[test]
    fn each_row_names_tests_that_are_there_and_say_what_they_prove() {
        check("| A5 | x | `a.rs`: `one` |", &[]);
        check("| A7 | x | `a.rs`: `two_a7_case_61` |\n| 57 | x | `a.rs`: `one` |", &[]);
        check("| 25, A29 | x | `a.rs`: `flood` |", &[]);
        check("| A5 | x | `a.rs`: `gone`, `one` |", &["has no test `gone`"]);
        check("| A5 | x | `a.rs`: `helper_a5` |", &["has no test `helper_a5`"]);
        check("| A5 | x | `b.rs`: `one` |", &["has no test `one`"]);
        check("| A6 | x | `a.rs`: `one` |", &["names none"]);
        check("| 5 | x | `a.rs`: `one` |", &["names none"]);
        check("| A5 | x | `a.rs`: `three` |", &["names none"]);
        check("| A5 | x | nothing |", &["no test is named"]);
        check("| A5 | x | `a.rs`: `one` |\n| A5 | y | `a.rs`: `one` |", &["two rows"]);
        check("", &["no row"]);
    }
}
