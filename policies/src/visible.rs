//! Which tools a run is shown: those that some call could get.
//!
//! Architecture invariant: a tool is hidden only if every call of it is refused, whatever its arguments, the time and the
//! calling process. What can't be told shows it: calling it is decided anyway.

use cedar_policy::Decision;
use strait_contract::run::RunInfo;

use crate::{
    arguments::Arguments,
    model::{Act, Model},
    question::{Ask, Question, ToolAsk},
    reads::Reads,
    request::{BadQuestion, Subject, canonical},
    snapshot::Snapshot,
};

impl Snapshot {
    /// Whether a call of `tool` by `run` could be permitted, or held for approval. Follows from the set, the run and the
    /// tool alone, so it may be kept for as long as they live; takes about as long as a decision.
    pub fn visible(&self, run: &RunInfo, server: &str, tool: &str) -> bool {
        let arguments = Arguments::none();
        let ask = Ask::Tool(ToolAsk { server, tool, arguments: &arguments });
        let question = Question { run, now_ms: 0, ask, process: None };
        canonical(&question.ask).is_ok() && self.possible(&question).unwrap_or(true)
    }

    /// Whether the outlines of the rules leave anything open.
    fn possible(&self, question: &Question<'_>) -> Result<bool, BadQuestion> {
        let lineage = self.names.lineage(&question.ask);
        let act = Act::of(self.pins(), &question.ask);
        let buckets = self.index.buckets(act, question.run.agent.as_str(), &lineage);
        if buckets.is_empty() {
            return Ok(false);
        }
        let model = Model::get().map_err(BadQuestion::from)?;
        let subject = Subject { act, lineage, arguments: None };
        let asked = self.builder.build(model, &self.names, question, &subject, Reads::RESOURCE)?;
        let mut open = false;
        for bucket in buckets {
            let answer = self.authorizer.is_authorized(&asked.request, &bucket.outlines, &asked.entities);
            let forbidden =
                answer.decision() == Decision::Deny && answer.diagnostics().reason().next().is_some();
            if forbidden {
                return Ok(false);
            }
            open |= answer.decision() == Decision::Allow || answer.diagnostics().errors().next().is_some();
        }
        Ok(open)
    }
}

#[cfg(test)]
mod tests;
