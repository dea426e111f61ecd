//! What holds for any text, for property tests and fuzzers.

use super::{Name, Scheme, Target, host_and_port};

/// What comes out goes in again unchanged, and parses alike whichever way it's taken apart.
pub fn canonical_is_a_fixed_point(text: &str) {
    let _ = (host_and_port(text, None), Name::parse(text), Target::from_parts(Scheme::Http, "ok.test", text));
    let Ok(it) = Target::from_absolute(text) else { return };
    let same = |way: &str, again: Result<Target, _>| assert_eq!(again.as_ref(), Ok(&it), "{way} `{text}`");
    same("absolute", Target::from_absolute(it.url()));
    same("in parts", Target::from_parts(it.scheme(), it.authority(), it.path_and_query()));
    same("with host", Target::from_host(it.scheme(), it.host().clone(), it.port(), it.path_and_query()));
    assert!(it.url().bytes().all(|byte| byte.is_ascii_graphic()), "`{text}` became `{it}`");
    let path = it.path();
    assert!(
        path.starts_with('/') && !path.contains("//") && !path.contains("/../"),
        "`{text}` became `{it}`"
    );
    let _ = (it.query_pairs(), it.host_text());
}
