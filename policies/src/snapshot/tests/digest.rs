use crate::fixture::{compile, compile_files, file, guardrail};

const A: &str = r#"@id("a") permit (principal in Agent::"coder", action == Action::"http", resource in Domain::"ok.test")
    when { ["GET", "HEAD"].contains(context.method) };"#;
const B: &str = r#"@id("b") @reason("no") forbid (principal, action, resource in Domain::"evil.test");"#;

#[test]
fn layout_order_comments_and_files_leave_it_and_meaning_changes_it() {
    let digest = compile(&format!("{A}{B}")).digest().to_owned();
    let spread = format!("// why\n{B}\n\n{}", A.replace(' ', "\n  "));
    assert_eq!(compile(&spread).digest(), digest);
    assert_eq!(compile_files(&[file(B), file(A)]).unwrap().digest(), digest);
    let changed = [
        format!("{A}{}", B.replace("evil.test", "evil2.test")),
        format!("{A}{}", B.replace("\"no\"", "\"never\"")),
        format!("{A}{}", B.replace("\"b\"", "\"c\"")),
        format!("{}{B}", A.replace("HEAD", "POST")),
        format!("{}{B}", A.replace("when", "unless")),
        format!("{}{B}", A.replace("permit", "@approval(\"x\") permit")),
        A.to_owned(),
    ];
    let mut seen = vec![digest];
    for text in changed {
        let other = compile(&text).digest().to_owned();
        assert_eq!(other.len(), 64);
        assert!(!seen.contains(&other), "{text}");
        seen.push(other);
    }
    let raised = compile_files(&[file(A), guardrail(B)]).unwrap().digest().to_owned();
    assert!(!seen.contains(&raised));
}
