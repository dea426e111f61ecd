//! The one way to lay out a policy file.

use cedar_policy_formatter::{Config, policies_str_to_pretty};
use strait_contract::message::PolicyFile;

use crate::{
    bounds,
    problem::{Problem, Refused},
    snapshot::on_large_stack,
};

/// `file` laid out as `strait policy fmt` does: 100 columns, indent of 2, comments kept.
///
/// # Errors
/// The text is not Cedar.
pub fn format(file: &PolicyFile) -> Result<String, Refused> {
    bounds::check(file)?;
    if file.text.trim().is_empty() {
        return Ok(String::new());
    }
    let config = Config { line_width: 100, indent_width: 2 };
    on_large_stack(|| {
        crate::load::syntax(file).map_err(Refused::new)?;
        policies_str_to_pretty(&file.text, &config).map_err(|error| {
            Refused::from(Problem::file(&file.name, format!("this file can't be laid out: {error}")))
        })
    })
}
