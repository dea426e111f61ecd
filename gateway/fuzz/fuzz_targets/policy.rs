//! A policy file: loading it does no harm, and laying it out changes nothing of what it means.
#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_policies::{PolicyFile, Snapshot};

fuzz_target!(|text: &str| {
    let file =
        |text: &str| PolicyFile { name: "fuzz.cedar".to_owned(), guardrail: false, text: text.to_owned() };
    let Ok(set) = Snapshot::compile(&[file(text)], 0) else { return };
    let tidy = strait_policies::format(&file(text)).expect("what loads can be laid out");
    let again = Snapshot::compile(&[file(&tidy)], 0).expect("what was laid out loads");
    assert_eq!(set.digest(), again.digest(), "{tidy}");
});
