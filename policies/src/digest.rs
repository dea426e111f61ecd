//! The digest of a policy set: equal for equal meaning.

use sha2::{Digest, Sha256};

use crate::{
    load::Rule,
    model::schema_text,
    pins::{PinnedTool, Pins},
};

/// SHA-256 over the language version, the schema, the rules in their normal form, sorted by id, and the pinned tools.
/// Lower-case hex.
pub(crate) fn of(rules: &[Rule], pins: &Pins) -> String {
    let mut texts: Vec<(&str, String)> =
        rules.iter().map(|rule| (rule.id.as_str(), rule.tree.to_string())).collect();
    texts.sort();
    let mut hash = Sha256::new();
    for part in [&cedar_policy::get_lang_version().to_string(), schema_text()] {
        hash.update(part);
        hash.update([0]);
    }
    for (id, text) in texts {
        hash.update(id);
        hash.update([0]);
        hash.update(text);
        hash.update([0]);
    }
    for pin in pins.sorted() {
        let mut tools: Vec<String> = pin.tools.iter().map(PinnedTool::digest_input).collect();
        tools.sort();
        hash.update("pin");
        for part in [&pin.server, &tools.len().to_string()].into_iter().chain(&tools) {
            hash.update(part);
            hash.update([0]);
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
