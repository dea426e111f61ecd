//! Which tools a run is shown: those that some call could get.
//!
//! Architecture invariant: a tool is hidden only if every call of it is refused, whatever its arguments, the time and the
//! calling process. What can't be told shows it: calling it is decided anyway.

use cedar_policy::{Decision, Effect};
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

    /// Whether any permit could concern `run` at an MCP server, for one of its tools or another method. It doesn't say
    /// that a call would be permitted.
    pub fn addressable(&self, run: &RunInfo, server: &str) -> bool {
        let arguments = Arguments::none();
        let tool = |tool| Ask::Tool(ToolAsk { server, tool, arguments: &arguments });
        let pinned = self.pins().server(server).into_iter().flat_map(|pin| &pin.tools);
        let named = self.names.of_type("Tool").filter_map(|id| id.split_once('/'));
        let named = named.filter(|(of, _)| *of == server).map(|(_, name)| name);
        let asks = pinned
            .map(|pinned| tool(&pinned.name))
            .chain(named.map(tool))
            .chain([tool(""), Ask::McpMethod { server, method: "", arguments: &arguments }]);
        asks.into_iter().any(|ask| canonical(&ask).is_ok() && self.could_permit(run, &ask))
    }

    fn could_permit(&self, run: &RunInfo, ask: &Ask<'_>) -> bool {
        let lineage = self.names.lineage(ask);
        let buckets = self.index.buckets(Act::of(self.pins(), ask), run.agent.as_str(), &lineage);
        buckets.iter().any(|bucket| bucket.rules.policies().any(|rule| rule.effect() == Effect::Permit))
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
        let asked =
            self.builder.build(model, &self.names, question, &subject, Reads::RESOURCE, &|_| false)?;
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
