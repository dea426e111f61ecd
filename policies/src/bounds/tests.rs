use std::fmt::Write;

use super::*;
use crate::{
    Ask, Verdict,
    fixture::{compile_files, file, get, question, run},
};

fn refused(text: &str) -> String {
    compile_files(&[file(text)]).unwrap_err().problems[0].message.clone()
}

#[test]
fn brackets_are_counted_outside_of_strings_and_comments_only() {
    let nested = |depth: usize| {
        format!(
            "@id(\"a\") permit (principal, action, resource) when {{ {}true{} }};",
            "(".repeat(depth),
            ")".repeat(depth)
        )
    };
    // One is taken by `when {`.
    compile_files(&[file(&nested(BRACKETS - 1))]).unwrap();
    assert!(refused(&nested(BRACKETS)).contains("brackets"));
    for kind in ["[", "{", "||(", "!(", "if (", "-(", "(\"\"[", "[[["] {
        let text =
            format!("@id(\"a\") permit (principal, action, resource) when {{ {}", kind.repeat(100_000));
        assert!(refused(&text).contains("brackets"), "{kind}");
    }
    let quoted = format!(
        "// {0}\n@id(\"a\") @reason(\"\\\"{0}\") permit (principal, action, resource); // {0}",
        "((((".repeat(100)
    );
    compile_files(&[file(&quoted)]).unwrap();
}

#[test]
fn a_file_beyond_the_size_limit_is_refused_before_it_is_read() {
    let text = format!("// {}", "x".repeat(FILE_BYTES));
    assert!(refused(&text).contains("larger"));
}

#[test]
fn chains_without_brackets_are_bounded_too() {
    for link in [".a", " && a", "+ 1", " has a", " in a", " like \"\"", "!", "-"] {
        let text = format!(
            "@id(\"a\") permit (principal, action, resource) when {{ context{} }};",
            link.repeat(100_000)
        );
        let message = refused(&text);
        assert!(message.contains("operators") || message.contains("isn't Cedar"), "{link}: {message}");
    }
    let nested = "if true then 1 else ".repeat(100_000);
    assert!(
        refused(&format!("@id(\"a\") permit (principal, action, resource) when {{ {nested} 1 == 1 }};"))
            .contains("operators")
    );
    // The count starts anew with each rule.
    let many: String = (0..OPERATORS).fold(String::new(), |mut text, number| {
        let _ = write!(text, "@id(\"r{number}\") permit (principal, action == Action::\"http\", resource) when {{ context.port == 1 }};");
        text
    });
    check(&file(&many)).unwrap();
}

/// A rule as long as the limits let it be is loaded, decided with on a small stack, and dropped there.
#[test]
fn the_longest_rule_works_on_a_stack_of_two_mebibytes() {
    let links: Vec<String> =
        (1..).map(|port| format!("context.port == {port}")).take(OPERATORS / 6).collect();
    let long = format!(
        "@id(\"a\") permit (principal, action == Action::\"http\", resource) when {{ {} || context.port == 443 }};",
        links.join(" || ")
    );
    let nested = format!(
        "@id(\"a\") permit (principal, action == Action::\"http\", resource) when {{ {}context.port == 443{} }};",
        "(true && ".repeat(BRACKETS - 1),
        ")".repeat(BRACKETS - 1)
    );
    for text in [long, nested] {
        let snapshot = compile_files(&[file(&text)]).unwrap_or_else(|refused| panic!("{refused}"));
        let decided = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
            let coder = run("coder");
            snapshot.decide(&question(&coder, Ask::Http(get("ok.test", "/"))))
        });
        let verdict = decided.unwrap().join().unwrap();
        assert!(matches!(verdict, Verdict::Permit { .. }), "{verdict}");
    }
}
