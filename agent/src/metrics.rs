//! Counts as Prometheus text (exposition format 0.0.4): `GET /metrics` on `control.sock`, `strait metrics` (A30).

use std::fmt::Write as _;

use crate::{
    budget::view::{AgentView, AmountView, LimitView},
    log::{Kernel, Tally},
};

/// Most agents that are shown by name.
const MOST_AGENTS: usize = 256;

/// Media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What is measured now, beside what is counted.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Live runs.
    pub runs: usize,
    /// Whether a gateway is connected.
    pub gateway: bool,
}

/// All of them as text.
pub fn text(tally: &Tally, models: &[AgentView], now: Now) -> String {
    let mut out = Text(String::with_capacity(4096));
    out.family(
        "strait_calls_total",
        "counter",
        "Calls that are over, by kind and decision: done lines of activity",
    );
    for ((kind, decision), count) in &tally.calls {
        out.sample("strait_calls_total", &[("kind", kind), ("decision", decision)], *count);
    }
    out.family(
        "strait_steps_total",
        "counter",
        "Calls of tools that are over, by tool or MCP server: done lines of the trace",
    );
    for ((tool, decision), count) in &tally.steps {
        out.sample("strait_steps_total", &[("tool", tool), ("decision", decision)], *count);
    }
    out.labelled(
        "strait_refusals_total",
        "code",
        "What was refused, by code; repeats that the kernel folded count each",
        &tally.refusals,
    );
    out.labelled(
        "strait_approvals_total",
        "outcome",
        "Prompts, by what became of them; asked is each new one",
        &tally.approvals,
    );
    let events: Vec<_> = tally.events.iter().map(|(name, count)| (name.as_str(), count)).collect();
    out.labelled("strait_events_total", "event", "Events of runs and of the host", events);
    out.labelled("strait_records_total", "stream", "Lines on record, by stream", &tally.records);
    let Kernel { delivered, folded, lost } = &tally.kernel;
    let kernel = [("delivered", delivered), ("folded", folded), ("lost", lost)];
    out.labelled(
        "strait_kernel_events_total",
        "state",
        "Kernel events with a line of their own, counted in the line of a like one, and lost",
        kernel,
    );
    out.models(models);
    out.family("strait_runs", "gauge", "Live runs");
    out.sample("strait_runs", &[], u64::try_from(now.runs).unwrap_or(u64::MAX));
    out.family(
        "strait_gateway_up",
        "gauge",
        "Whether a gateway is connected; without one every call is refused",
    );
    out.sample("strait_gateway_up", &[], u64::from(now.gateway));
    out.0
}

struct Text(String);

impl Text {
    /// Counters begin with the agent, as Prometheus has it: what matters are differences.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let since = if kind == "counter" { ", since the agent's start" } else { "" };
        // Writing into a string can't fail.
        let _ = writeln!(self.0, "# HELP {name} {help}{since}.\n# TYPE {name} {kind}");
    }

    /// What agents have used of models: counted over all starts of the agent, whatever was set back.
    fn models(&mut self, agents: &[AgentView]) {
        let agents = agents.get(..MOST_AGENTS).unwrap_or(agents);
        type Of = fn(&AmountView) -> f64;
        type Limit = fn(&LimitView) -> Option<f64>;
        #[expect(clippy::cast_precision_loss, reason = "a sample of Prometheus is a double anyway")]
        let units: [(&str, &str, Of, Limit); 3] = [
            (
                "calls",
                "Calls of models",
                |used| used.calls as f64,
                |limit| limit.calls.map(|calls| calls as f64),
            ),
            (
                "tokens",
                "Tokens read and written",
                |used| used.tokens as f64,
                |limit| limit.tokens.map(|tokens| tokens as f64),
            ),
            (
                "usd",
                "Money, US dollars; models without a price add nothing",
                |used| used.usd,
                |limit| limit.usd,
            ),
        ];
        for (unit, help, of, _) in units {
            let name = format!("strait_model_{unit}_total");
            let _ = writeln!(self.0, "# HELP {name} {help}, by agent.\n# TYPE {name} counter");
            for agent in agents {
                self.sample(&name, &[("agent", &agent.agent)], of(&agent.ever));
            }
        }
        self.family(
            "strait_budget_used",
            "gauge",
            "Used of a budget, by calls that are over and calls under way",
        );
        self.family("strait_budget_limit", "gauge", "What a budget allows");
        for agent in agents {
            for (scope, view) in [("day", &agent.today), ("total", &agent.total)] {
                for (unit, _, of, limit) in units {
                    let Some(limit) = limit(&view.limit) else { continue };
                    let labels = [("agent", agent.agent.as_str()), ("scope", scope), ("unit", unit)];
                    self.sample("strait_budget_used", &labels, of(&view.spent) + of(&view.held));
                    self.sample("strait_budget_limit", &labels, limit);
                }
            }
        }
    }

    fn labelled<'a, L: AsRef<str>>(
        &mut self,
        name: &str,
        label: &str,
        help: &str,
        counts: impl IntoIterator<Item = (L, &'a u64)>,
    ) {
        self.family(name, "counter", help);
        for (value, count) in counts {
            self.sample(name, &[(label, value.as_ref())], *count);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let mark = if at == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{mark}{label}=\"{value}\"");
        }
        self.0.push_str(if labels.is_empty() { "" } else { "}" });
        let _ = writeln!(self.0, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_help_and_labels_are_escaped_a30() {
        let mut tally = Tally::default();
        tally.calls.insert(("request", "allow"), 3);
        tally.steps.insert(("odd\"\\\n".to_owned(), "deny"), 1);
        tally.kernel.lost = 7;
        let text = text(&tally, &[], Now { runs: 2, gateway: true });
        for line in [
            "strait_calls_total{kind=\"request\",decision=\"allow\"} 3",
            "strait_steps_total{tool=\"odd\\\"\\\\\\n\",decision=\"deny\"} 1",
            "strait_kernel_events_total{state=\"lost\"} 7",
            "strait_runs 2",
            "strait_gateway_up 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let helps = text.lines().filter(|line| line.starts_with("# HELP")).count();
        assert_eq!((helps, text.lines().filter(|line| line.starts_with("# TYPE")).count()), (14, 14));
    }
}
