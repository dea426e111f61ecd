//! Bodies of model requests: read or refused, and what is left without the provider's tools offers none.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use strait_model::{
    api::{Dialect, Operation},
    document::Document,
    server_tools::{StripError, offered, strip},
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = Document::read(bytes.to_vec()) else { return };
    for (dialect, operation) in [
        (Dialect::OpenAi, Operation::Chat),
        (Dialect::OpenAi, Operation::Responses),
        (Dialect::Anthropic, Operation::Messages),
        (Dialect::Gemini, Operation::Generate),
    ] {
        let _ = document.max_output(operation);
        let Ok(found) = offered(dialect, operation, &document) else { continue };
        let all: BTreeSet<usize> = (0..found.len()).collect();
        match strip(dialect, document.clone(), &found, &all) {
            Ok(left) => {
                // What is sent is a document like any other.
                let left = Document::read(left.into_bytes()).expect("a document");
                assert_eq!(offered(dialect, operation, &left), Ok(Vec::new()));
            }
            Err(StripError::Fixed { .. } | StripError::Document(_)) => {}
        }
    }
});
